UPDATE {schema}.shard SET holder = NULL, term = term + 1, number = 0 WHERE %(displaces)s;
DELETE FROM {schema}.removed_task
WHERE NOT EXISTS (SELECT FROM {schema}.member
                  WHERE member = run_by AND (lease_us > {schema}.now_us() OR NOT (SELECT {schema}.is_open())));
INSERT INTO {schema}.edition (number, fingerprint, since_us)
VALUES (%(edition)s, %(fingerprint)s, {schema}.now_us());
