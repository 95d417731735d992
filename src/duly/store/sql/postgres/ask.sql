-- Those that nobody waits for any more are forgotten.
DELETE FROM {schema}.request
WHERE id IN (SELECT id FROM {schema}.request
             WHERE until_us <= {schema}.now_us() - %(forgotten_us)s
             ORDER BY id
             FOR UPDATE SKIP LOCKED);
INSERT INTO {schema}.request (id, shard, timer, verb, asker, until_us)
VALUES (%(id)s, %(shard)s, %(timer)s, %(verb)s, %(asker)s, %(until_us)s)
ON CONFLICT (id) DO NOTHING;
