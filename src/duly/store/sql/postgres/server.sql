-- If another server has come to answer: it may have forgotten that leases were renewed, and what runs. All are
-- renewed, and for as long no shard changes hands.
WITH found AS (
    UPDATE {schema}.server
    SET name = extract(epoch FROM pg_postmaster_start_time())::text,
        open_us = {schema}.now_us() + greatest(%(ttl_us)s, (SELECT max(ttl_us) FROM {schema}.member))
    WHERE name <> extract(epoch FROM pg_postmaster_start_time())::text
    RETURNING open_us
)
UPDATE {schema}.member SET lease_us = greatest(lease_us, open_us) FROM found;
