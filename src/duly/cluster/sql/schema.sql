-- Format 10 (1 to 4 were the shard protocol, which is gone). Times are microseconds since 1970-01-01 UTC. Node ids are drawn by the nodes.
CREATE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Which server this is: another one after every restart. And its line of history: another one after a promotion.
CREATE FUNCTION {schema}.server() RETURNS text LANGUAGE sql STABLE
    AS $$ SELECT extract(epoch FROM pg_postmaster_start_time())::text $$;
CREATE FUNCTION {schema}.timeline() RETURNS text LANGUAGE sql STABLE
    AS $$ SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) $$;

CREATE TABLE {schema}.meta (
    duly_format integer NOT NULL,
    scheduler_id text NOT NULL
);

CREATE TABLE {schema}.namespace (
    name text PRIMARY KEY,
    generation bigint NOT NULL DEFAULT 1,
    timeline text NOT NULL,
    startup_us bigint
) WITH (fillfactor = 50);

CREATE TABLE {schema}.node (
    id bigint PRIMARY KEY,
    namespace text NOT NULL,
    name text NOT NULL,
    beat bigint NOT NULL DEFAULT 0,
    seq bigint NOT NULL DEFAULT 0,
    lease_us bigint NOT NULL,
    server text NOT NULL,
    version text NOT NULL,
    lag_us bigint NOT NULL DEFAULT 0,
    joined_us bigint NOT NULL,
    seen_us bigint NOT NULL,
    fenced_us bigint,
    fenced_by text,
    taken text[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 50);

-- The state is what the node's codec makes of it. A claim leaves it alone: it is the state before the run.
CREATE TABLE {schema}.task (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    name text NOT NULL,
    hash bigint NOT NULL,
    gen bigint NOT NULL,
    definition text NOT NULL,
    target text, -- its runs exclude those of other rows with that target
    state text NOT NULL,
    wake_us bigint NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    removed boolean NOT NULL DEFAULT false,
    token bigint NOT NULL DEFAULT 0,
    run_by bigint,
    started_us bigint,
    cut_us bigint,
    interruptions integer NOT NULL DEFAULT 0,
    request text,
    enabled boolean,
    kind text, -- of an entry: which nodes may claim it. A task of a list has none
    cancelled bigint, -- the token of the run that somebody wants to end
    limited_by text, -- what the run counts in: a named limit, or the target
    record text, -- of the run of a target: what the history says of it if it is cut off
    UNIQUE (namespace, name)
) WITH (fillfactor = 80);

-- gen and kind are keys of it, so that rows of newer lists and of other kinds are passed over without a look at the table.
CREATE INDEX task_wake ON {schema}.task (namespace, wake_us, gen, kind) WHERE run_by IS NULL AND NOT paused AND NOT removed;
CREATE INDEX task_suspect ON {schema}.task (namespace, wake_us) WHERE run_by IS NULL AND interruptions >= 2;
CREATE INDEX task_removed ON {schema}.task (namespace) WHERE removed;
CREATE INDEX task_cancelled ON {schema}.task (run_by) WHERE run_by IS NOT NULL AND cancelled = token;
CREATE INDEX task_limited ON {schema}.task (namespace, limited_by) WHERE run_by IS NOT NULL AND limited_by IS NOT NULL;
CREATE INDEX task_run_by ON {schema}.task (run_by) WHERE run_by IS NOT NULL;

CREATE TABLE {schema}.run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace text NOT NULL,
    name text NOT NULL,
    node text NOT NULL,
    token bigint NOT NULL,
    started_us bigint NOT NULL,
    ended_us bigint NOT NULL,
    record text NOT NULL,
    output text
);
CREATE INDEX run_started ON {schema}.run (namespace, started_us, id);
CREATE INDEX run_name ON {schema}.run (namespace, name, started_us, id);
-- By the run id, which a record begins with. Callbacks of the library have no output, and nobody looks for one run.
CREATE INDEX run_node ON {schema}.run (namespace, node, split_part(record, '"', 2)) WHERE output IS NOT NULL;
