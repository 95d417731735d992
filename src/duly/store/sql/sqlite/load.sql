SELECT id, name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us,
       last_failure_us, retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us,
       scheduler_id
FROM task
ORDER BY id;
