INSERT INTO task
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14
FROM jsonb_each(?)
WHERE true
ON CONFLICT (id) DO UPDATE
SET (name, cron, retry_delay_us, registered_us, answered_us, last_attempt_us, last_success_us, last_failure_us,
     retry_at_us, retry_count, interrupted, due_stands, running_since_us, scheduler_id)
  = (excluded.name, excluded.cron, excluded.retry_delay_us, excluded.registered_us, excluded.answered_us,
     excluded.last_attempt_us, excluded.last_success_us, excluded.last_failure_us, excluded.retry_at_us,
     excluded.retry_count, excluded.interrupted, excluded.due_stands, excluded.running_since_us, excluded.scheduler_id);
