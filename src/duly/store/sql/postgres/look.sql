-- What there is, before anything is touched: is the server a standby, is the schema there, is it ours, is
-- anything in it, and may we make it.
SELECT pg_is_in_recovery(),
       spot.oid IS NOT NULL,
       EXISTS (SELECT FROM pg_catalog.pg_attribute
               WHERE attrelid = to_regclass(%(meta)s) AND attname = 'duly_format' AND NOT attisdropped),
       EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = spot.oid)
           OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = spot.oid),
       current_user
FROM (SELECT (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = %(schema_name)s) AS oid) AS spot;
