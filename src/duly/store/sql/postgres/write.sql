WITH hold AS MATERIALIZED (
    SELECT * FROM unnest(%(shards)s::integer[], %(terms)s::bigint[], %(numbers)s::bigint[]) AS hold (shard, term, number)
),
refused AS MATERIALIZED (
    SELECT hold.shard
    FROM hold
    LEFT JOIN {schema}.shard
           ON shard.shard = hold.shard
          AND shard.holder = %(member)s
          AND shard.term = hold.term
          AND shard.number < hold.number
    WHERE shard.shard IS NULL OR NOT (SELECT {schema}.is_open())
),
new AS MATERIALIZED (
    SELECT *
    FROM unnest(
        %(id)s::bigint[], %(registered_us)s::bigint[], %(answered_us)s::bigint[], %(last_attempt_us)s::bigint[],
        %(last_success_us)s::bigint[], %(last_failure_us)s::bigint[], %(retry_at_us)s::bigint[],
        %(retry_count)s::bigint[], %(interrupted)s::smallint[], %(due_stands)s::smallint[],
        %(running_since_us)s::bigint[], %(origin_us)s::bigint[], %(run_by)s::bigint[]
    ) AS new (
        id, registered_us, answered_us, last_attempt_us, last_success_us, last_failure_us, retry_at_us, retry_count,
        interrupted, due_stands, running_since_us, origin_us, run_by
    )
),
present AS MATERIALIZED (
    SELECT count(*) AS number FROM new JOIN {schema}.task USING (id) WHERE shard = ANY (%(shards)s::integer[])
),
gate AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM refused) AND number = (SELECT count(*) FROM new) AS is_open FROM present
),
counted AS (
    UPDATE {schema}.shard
    SET number = hold.number
    FROM hold, gate
    WHERE is_open AND shard.shard = hold.shard
),
written AS (
    UPDATE {schema}.task
    SET registered_us    = new.registered_us,
        answered_us      = new.answered_us,
        last_attempt_us  = new.last_attempt_us,
        last_success_us  = new.last_success_us,
        last_failure_us  = new.last_failure_us,
        retry_at_us      = new.retry_at_us,
        retry_count      = new.retry_count,
        interrupted      = new.interrupted,
        due_stands       = new.due_stands,
        running_since_us = new.running_since_us,
        origin_us        = new.origin_us,
        run_by           = new.run_by,
        ended_us  = CASE WHEN (task.run_by, task.running_since_us) = (new.run_by, new.running_since_us)
                         THEN task.ended_us END,
        is_failed = coalesce((task.run_by, task.running_since_us) = (new.run_by, new.running_since_us), false)
                    AND task.is_failed
    FROM new, gate
    WHERE is_open AND task.id = new.id
)
SELECT (SELECT coalesce(json_agg(shard ORDER BY shard), '[]')::text FROM refused), number FROM present;
