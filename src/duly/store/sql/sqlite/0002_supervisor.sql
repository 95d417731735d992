-- Format 2: what a supervisor remembers. Times are microseconds since 1970-01-01 UTC.
CREATE TABLE service (
    name       TEXT PRIMARY KEY,
    definition TEXT NOT NULL -- as declared, JSON; the values of its environment are not kept
) STRICT;

CREATE TABLE timer (
    id               INTEGER PRIMARY KEY,
    name             TEXT    NOT NULL UNIQUE,
    definition       TEXT    NOT NULL, -- as declared, JSON
    registered_us    INTEGER NOT NULL,
    answered_us      INTEGER NOT NULL, -- every slot up to here was fired, missed, or came before the timer
    last_run_us      INTEGER,
    last_success_us  INTEGER,
    last_failure_us  INTEGER,
    last_exit        INTEGER,
    last_result      TEXT,
    last_missed_us   INTEGER,
    last_miss_reason TEXT,
    enabled          INTEGER,          -- 1 or 0 as switched at run time; null: as declared
    interrupted      INTEGER NOT NULL, -- 1: a run was cut off, and nothing has answered for it
    running_run      INTEGER,          -- the id of the run under way
    running_since_us INTEGER
) STRICT;

CREATE TABLE run (
    id           INTEGER PRIMARY KEY,
    service      TEXT    NOT NULL,
    timer        TEXT,
    reason       TEXT    NOT NULL,
    scheduled_us INTEGER,
    started_us   INTEGER NOT NULL,
    ended_us     INTEGER,
    lasted_us    INTEGER,              -- as measured, whatever the wall clock did; null: nobody measured it
    result       TEXT,
    exit_code    INTEGER,
    signal       INTEGER,
    message      TEXT    NOT NULL,
    pid          INTEGER,
    pid_started  INTEGER,              -- in the kernel's ticks since boot: a pid alone may be another's by now
    boot         TEXT,
    output       TEXT    NOT NULL,     -- the tail of it
    output_lost  INTEGER NOT NULL      -- bytes in front of that tail
) STRICT;
CREATE INDEX run_of_service ON run (service, id);
CREATE INDEX run_of_timer ON run (timer, id) WHERE timer IS NOT NULL;
CREATE INDEX run_open ON run (id) WHERE ended_us IS NULL;
CREATE INDEX run_started ON run (started_us, result);

CREATE TABLE miss (
    id     INTEGER PRIMARY KEY,
    timer  TEXT    NOT NULL,
    at_us  INTEGER NOT NULL, -- the slot, or when it was due
    reason TEXT    NOT NULL
) STRICT;
CREATE INDEX miss_of_timer ON miss (timer, id);
