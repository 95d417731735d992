-- Format 1. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE scheduler (
    id TEXT NOT NULL
) STRICT;

CREATE TABLE task (
    id               INTEGER PRIMARY KEY,
    name             TEXT    NOT NULL UNIQUE,
    cron             TEXT    NOT NULL,
    retry_delay_us   INTEGER NOT NULL,
    registered_us    INTEGER NOT NULL,
    answered_us      INTEGER NOT NULL, -- every due up to here has been answered by a start
    last_attempt_us  INTEGER,
    last_success_us  INTEGER,
    last_failure_us  INTEGER,
    retry_at_us      INTEGER,          -- pendingRetryUntil
    retry_count      INTEGER NOT NULL,
    interrupted      INTEGER NOT NULL, -- 1: a crash cut a run off, and no start has answered for it
    due_stands       INTEGER NOT NULL, -- 1: a due stands though its minute lies ahead: the clock was set back
    running_since_us INTEGER,
    scheduler_id     TEXT    NOT NULL
) STRICT;
