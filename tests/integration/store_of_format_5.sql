-- A store of format 5, as a program left it that was killed during a run of `slow`: written by duly before entries
-- were there, and dumped by SQLite.
CREATE TABLE miss (
    id     INTEGER PRIMARY KEY,
    timer  TEXT    NOT NULL,
    at_us  INTEGER NOT NULL, -- the slot, or when it was due
    reason TEXT    NOT NULL
) STRICT;
CREATE INDEX miss_of_timer ON miss (timer, id);

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

CREATE TABLE run_key (
    key BLOB NOT NULL
) STRICT;

CREATE TABLE scheduler (
    id TEXT NOT NULL
) STRICT;
INSERT INTO scheduler VALUES('a5a70f6b2e644249af1d103039d3ca48');

CREATE TABLE service (
    name       TEXT PRIMARY KEY,
    definition TEXT NOT NULL -- as declared, JSON; the values of its environment are not kept
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
, origin_us INTEGER, paused INTEGER NOT NULL DEFAULT 0, requested_us INTEGER) STRICT;
INSERT INTO task VALUES(1,'beat','@every 40s',60000000,1767268830000000,1767268910000000,1767268910000000,1767268910000000,NULL,NULL,0,0,0,NULL,'a5a70f6b2e644249af1d103039d3ca48',1767268910000000,0,NULL);
INSERT INTO task VALUES(2,'paused','TZ=Europe/Berlin 30 3 * * *',60000000,1767268830000000,1767268799999999,NULL,NULL,NULL,NULL,0,0,0,NULL,'a5a70f6b2e644249af1d103039d3ca48',NULL,1,NULL);
INSERT INTO task VALUES(3,'slow','@every 60s',60000000,1767268830000000,1767268890000000,1767268890000000,NULL,NULL,NULL,0,0,0,1767268890000000,'a5a70f6b2e644249af1d103039d3ca48',1767268890000000,0,NULL);
INSERT INTO task VALUES(4,'fails','@every 50s',300000000,1767268830000000,1767268880000000,1767268880000000,NULL,1767268880000000,1767269180000000,0,0,0,NULL,'a5a70f6b2e644249af1d103039d3ca48',1767268880000000,0,NULL);

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

PRAGMA user_version = 5;
PRAGMA application_id = 1685417081;
