-- Format 4: which server answers. Another one may have forgotten: nobody takes a shard of it before open_us.
ALTER TABLE {schema}.member ADD COLUMN ttl_us bigint NOT NULL DEFAULT 0;

CREATE TABLE {schema}.server (
    name    text   NOT NULL,
    open_us bigint NOT NULL
);
CREATE UNIQUE INDEX server_is_one ON {schema}.server ((true));
INSERT INTO {schema}.server (name, open_us) VALUES (extract(epoch FROM pg_postmaster_start_time())::text, 0);
