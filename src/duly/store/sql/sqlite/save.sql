-- One step for any number of tasks: the interpreter lock is released once for all of them. Bound row by row, a
-- busy event loop would win it back after each row and make the others wait.
UPDATE task
SET registered_us    = new ->> 1,
    answered_us      = new ->> 2,
    last_attempt_us  = new ->> 3,
    last_success_us  = new ->> 4,
    last_failure_us  = new ->> 5,
    retry_at_us      = new ->> 6,
    retry_count      = new ->> 7,
    interrupted      = new ->> 8,
    due_stands       = new ->> 9,
    running_since_us = new ->> 10
FROM (SELECT value AS new FROM jsonb_each(?))
WHERE id = new ->> 0;
