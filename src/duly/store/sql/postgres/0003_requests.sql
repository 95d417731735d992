-- Format 3: when the first of the daemons started up, and what they ask of each other.
ALTER TABLE {schema}.meta
    ADD COLUMN started_up_us bigint,
    ADD COLUMN opened_us     bigint;  -- what was to come up to here so long after that is not to come any more

-- Whoever takes a request holds the lock on the row of its shard.
CREATE TABLE {schema}.request (
    id       bigint  PRIMARY KEY,
    shard    integer NOT NULL,
    timer    text    NOT NULL,
    verb     text    NOT NULL,
    asker    text    NOT NULL,
    until_us bigint  NOT NULL,  -- nobody takes it from this instant on
    taken_by bigint,
    answer   text
);
CREATE INDEX request_open ON {schema}.request (shard) WHERE answer IS NULL;
