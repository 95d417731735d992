-- First the shards, then those who hold them: from here on no lease among them is renewed.
SELECT FROM {schema}.shard WHERE shard = ANY (%(shards)s::integer[]) ORDER BY shard FOR UPDATE;
SELECT FROM {schema}.member
WHERE member = %(member)s
   OR member IN (SELECT holder FROM {schema}.shard WHERE shard = ANY (%(shards)s::integer[]))
ORDER BY member
FOR SHARE;
WITH clock AS MATERIALIZED (SELECT {schema}.now_us() AS now_us),
living AS MATERIALIZED (SELECT member FROM {schema}.member, clock WHERE lease_us > now_us),
taken AS (
    UPDATE {schema}.shard
    SET holder = %(member)s,
        term = term + 1,
        number = 0,
        taken_us = now_us,
        lost_by = CASE WHEN holder <> %(member)s THEN holder ELSE lost_by END,
        lost_us = CASE WHEN holder <> %(member)s THEN now_us ELSE lost_us END
    FROM clock
    WHERE shard = ANY (%(shards)s::integer[])
      AND (SELECT {schema}.is_open())
      AND %(member)s IN (SELECT member FROM living)
      AND (holder IS NULL OR holder = %(member)s OR holder NOT IN (SELECT member FROM living))
    RETURNING shard, term
)
SELECT now_us,
       %(member)s IN (SELECT member FROM living),
       (SELECT coalesce(json_agg(json_build_array(shard, term) ORDER BY shard), '[]')::text FROM taken)
FROM clock;
-- What was asked for and is ours has just been taken, if anything could be.
WITH clock AS MATERIALIZED (SELECT {schema}.now_us() AS now_us)
SELECT id, task.name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us,
       last_failure_us, retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us,
       scheduler_id, run_by, coalesce(lease_us > now_us, false), ended_us, is_failed
FROM clock, {schema}.task
LEFT JOIN {schema}.member ON member = run_by
WHERE shard IN (SELECT shard FROM {schema}.shard WHERE shard = ANY (%(shards)s::integer[]) AND holder = %(member)s)
  AND (SELECT {schema}.is_open())
ORDER BY id;
