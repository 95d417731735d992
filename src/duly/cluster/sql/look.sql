-- What there is, before anything is touched: is the server a standby, is the schema there, is it ours, is
-- anything in it. All from one snapshot: to_regclass() reads a cache, which may lag behind the commit of a node that
-- makes the tables now, and they would look like somebody else's.
SELECT pg_is_in_recovery(),
       spot.oid IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_class AS meta
               JOIN pg_catalog.pg_attribute AS key ON key.attrelid = meta.oid AND key.attname = 'duly_format'
               WHERE meta.relnamespace = spot.oid AND meta.relname = 'meta' AND NOT key.attisdropped),
       EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = spot.oid)
           OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = spot.oid)
FROM (SELECT (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema_name)s) AS oid) AS spot;
