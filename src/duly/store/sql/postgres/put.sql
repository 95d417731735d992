INSERT INTO {schema}.task AS task (
    id, name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us, last_failure_us,
    retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us, scheduler_id, shard, digest,
    run_by, is_failed
)
SELECT new.*, false
FROM unnest(
    %(id)s::bigint[], %(name)s::text[], %(cron)s::text[], %(retry_delay_us)s::bigint[], %(registered_us)s::bigint[],
    %(answered_us)s::bigint[], %(last_attempt_us)s::bigint[], %(last_success_us)s::bigint[],
    %(last_failure_us)s::bigint[], %(retry_at_us)s::bigint[], %(retry_count)s::bigint[], %(interrupted)s::smallint[],
    %(due_stands)s::smallint[], %(running_since_us)s::bigint[], %(origin_us)s::bigint[], %(scheduler_id)s::text[],
    %(shard)s::integer[], %(digest)s::uuid[], %(run_by)s::bigint[]
) AS new{gate}
ON CONFLICT (id) DO UPDATE
SET name = excluded.name,
    cron = excluded.cron,
    retry_delay_us = excluded.retry_delay_us,
    registered_us = excluded.registered_us,
    answered_us = excluded.answered_us,
    last_attempt_us = excluded.last_attempt_us,
    last_success_us = excluded.last_success_us,
    last_failure_us = excluded.last_failure_us,
    retry_at_us = excluded.retry_at_us,
    retry_count = excluded.retry_count,
    interrupted = excluded.interrupted,
    due_stands = excluded.due_stands,
    running_since_us = excluded.running_since_us,
    origin_us = excluded.origin_us,
    scheduler_id = excluded.scheduler_id,
    shard = excluded.shard,
    digest = excluded.digest,
    run_by = excluded.run_by,
    ended_us = CASE WHEN (task.run_by, task.running_since_us) = (excluded.run_by, excluded.running_since_us)
                    THEN task.ended_us END,
    is_failed = coalesce((task.run_by, task.running_since_us) = (excluded.run_by, excluded.running_since_us), false)
                AND task.is_failed
