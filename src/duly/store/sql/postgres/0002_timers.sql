-- Format 2: timers of daemons. The record is JSON, escaped like every text; who edits it leaves id and name alone.
-- Whoever touches a timer holds the lock on the row of its shard.
CREATE TABLE {schema}.timer (
    shard  integer NOT NULL,
    id     bigint  NOT NULL,
    name   text    NOT NULL,
    record text    NOT NULL,
    run_by bigint,
    PRIMARY KEY (shard, id)
) WITH (fillfactor = 60);
