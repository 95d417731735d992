-- Format 1. Times are microseconds since 1970-01-01 UTC, as now_us() tells them. Texts that people choose are
-- kept escaped (\n, \xe4, \u20ac ...), all ASCII: PostgreSQL has no NUL and no lone surrogates, and a database may
-- have any encoding.
CREATE FUNCTION {schema}.now_us() RETURNS bigint
    LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

CREATE TABLE {schema}.meta (
    duly_format  integer NOT NULL,
    scheduler_id text    NOT NULL,
    shards        integer NOT NULL
);
CREATE UNIQUE INDEX meta_is_one ON {schema}.meta ((true));

CREATE TABLE {schema}.edition (
    number      bigint PRIMARY KEY,
    fingerprint text   NOT NULL,
    since_us    bigint NOT NULL
);

CREATE TABLE {schema}.member (
    member     bigint  PRIMARY KEY,
    name       text    NOT NULL,
    edition    bigint  NOT NULL,
    joined_us  bigint  NOT NULL,
    beaten_us  bigint  NOT NULL,
    lease_us   bigint  NOT NULL, -- the lease is good before this instant
    lag_ms     bigint  NOT NULL,
    is_leaving boolean NOT NULL
) WITH (fillfactor = 20);

CREATE TABLE {schema}.shard (
    shard     integer PRIMARY KEY,
    holder   bigint,            -- null: nobody's
    term     bigint  NOT NULL,
    number   bigint  NOT NULL,  -- of the last write within the term
    taken_us bigint  NOT NULL,
    lost_by  bigint,
    lost_us  bigint
) WITH (fillfactor = 20);

-- Whoever touches a task holds the lock on the row of its shard.
CREATE TABLE {schema}.task (
    id               bigint   PRIMARY KEY,
    name             text     NOT NULL,
    cron             text     NOT NULL,
    retry_delay_us   bigint   NOT NULL,
    registered_us    bigint   NOT NULL,
    answered_us      bigint   NOT NULL,
    last_attempt_us  bigint,
    last_success_us  bigint,
    last_failure_us  bigint,
    retry_at_us      bigint,
    retry_count      bigint   NOT NULL,
    interrupted      smallint NOT NULL,
    due_stands       smallint NOT NULL,
    running_since_us bigint,
    origin_us        bigint,
    scheduler_id     text     NOT NULL,
    shard             integer  NOT NULL,
    digest           uuid     NOT NULL, -- of the name, which may be too long for an index
    run_by           bigint,
    ended_us         bigint,            -- as its runner reported it; the record does not know it yet
    is_failed        boolean  NOT NULL,
    CONSTRAINT task_name UNIQUE (digest) DEFERRABLE
) WITH (fillfactor = 60);
-- Tasks that a list has removed while their runs went on. Nobody but who publishes looks at them.
CREATE TABLE {schema}.removed_task (LIKE {schema}.task);
ALTER TABLE {schema}.removed_task ADD PRIMARY KEY (id);
CREATE INDEX task_of_shard ON {schema}.task (shard);
CREATE INDEX task_reported ON {schema}.task (shard) WHERE ended_us IS NOT NULL;
