-- All tasks, then those removed whose runs went on. While a server is closed it may not know who is alive.
SELECT {schema}.now_us(), scheduler_id FROM {schema}.meta;
WITH clock AS MATERIALIZED (SELECT {schema}.now_us() AS now_us, NOT {schema}.is_open() AS is_closed)
SELECT id, task.name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us,
       last_failure_us, retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us,
       scheduler_id, run_by, coalesce(lease_us > now_us OR (is_closed AND member IS NOT NULL), false), ended_us, is_failed, is_removed
FROM clock, (SELECT *, false AS is_removed FROM {schema}.task
             UNION ALL
             SELECT *, true FROM {schema}.removed_task) AS task
LEFT JOIN {schema}.member ON member = run_by
ORDER BY is_removed, id;
