WITH new (
    id, registered_us, answered_us, last_attempt_us, last_success_us, last_failure_us,
    retry_at_us, retry_count, interrupted, due_stands, running_since_us, origin_us
) AS (
    {rows}
)
UPDATE task
SET registered_us    = new.registered_us,
    answered_us      = new.answered_us,
    last_attempt_us  = new.last_attempt_us,
    last_success_us  = new.last_success_us,
    last_failure_us  = new.last_failure_us,
    retry_at_us      = new.retry_at_us,
    retry_count      = new.retry_count,
    interrupted      = new.interrupted,
    due_stands       = new.due_stands,
    origin_us        = new.origin_us,
    running_since_us = new.running_since_us
FROM new
WHERE task.id = new.id;
