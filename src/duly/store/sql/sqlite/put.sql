INSERT OR REPLACE INTO task (
    id, name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us,
    last_failure_us, retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us, scheduler_id
)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14,
       value ->> 15
FROM jsonb_each(?);
