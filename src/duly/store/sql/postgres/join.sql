SELECT FROM {schema}.shard WHERE holder = %(member)s ORDER BY shard FOR UPDATE;
UPDATE {schema}.shard SET holder = NULL WHERE holder = %(member)s;
-- Those long dead that hold nothing are forgotten.
DELETE FROM {schema}.member
WHERE member IN (SELECT member FROM {schema}.member
                 WHERE lease_us <= {schema}.now_us() - %(forgotten_us)s
                   AND member <> %(member)s
                   AND NOT EXISTS (SELECT FROM {schema}.shard WHERE holder = member.member)
                 ORDER BY member
                 FOR UPDATE SKIP LOCKED);
-- One joins at a time: who joined earlier is seen by who joins later, so only one can take itself for the eldest.
-- No row is locked, as it would be for long while somebody publishes. The key begins with the letters of duly.
SELECT pg_advisory_xact_lock(1685417081::bigint << 32 | tableoid::bigint) FROM {schema}.meta;
INSERT INTO {schema}.member (member, name, edition, joined_us, beaten_us, lease_us, ttl_us, lag_ms, is_leaving)
SELECT %(member)s, %(name)s, 0, now_us, now_us, now_us + %(ttl_us)s, %(ttl_us)s, 0, false
FROM (SELECT {schema}.now_us() AS now_us OFFSET 0) AS clock
ON CONFLICT (member) DO UPDATE
SET name = excluded.name, edition = 0, joined_us = excluded.joined_us, beaten_us = excluded.beaten_us,
    lease_us = excluded.lease_us, ttl_us = excluded.ttl_us, lag_ms = 0, is_leaving = false;
