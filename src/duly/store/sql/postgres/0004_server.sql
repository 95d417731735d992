-- Format 4: which server answers, and since when. Another one may have forgotten: it is closed before open_us.
ALTER TABLE {schema}.member ADD COLUMN ttl_us bigint NOT NULL DEFAULT 0;

CREATE TABLE {schema}.server (
    name     text   NOT NULL,
    since_us bigint NOT NULL,
    open_us  bigint NOT NULL
);
CREATE UNIQUE INDEX server_is_one ON {schema}.server ((true));
INSERT INTO {schema}.server (name, since_us, open_us)
VALUES (extract(epoch FROM pg_postmaster_start_time())::text, 0, 0);

-- Of a clock that was set back nothing is expected: then it is open.
CREATE FUNCTION {schema}.is_open() RETURNS boolean
    LANGUAGE sql VOLATILE
    AS $$ SELECT {schema}.now_us() NOT BETWEEN since_us AND open_us - 1 FROM {schema}.server $$;
