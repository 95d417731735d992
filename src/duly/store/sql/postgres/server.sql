-- If another server has come to answer, it is closed for the longest lease that it knows. A lease that is longer
-- was given by a clock that was ahead of this one.
WITH found AS (
    UPDATE {schema}.server
    SET name = extract(epoch FROM pg_postmaster_start_time())::text,
        since_us = clock.now_us,
        open_us = clock.now_us + greatest(%(ttl_us)s, (SELECT max(ttl_us) FROM {schema}.member))
    FROM (SELECT {schema}.now_us() AS now_us OFFSET 0) AS clock
    WHERE name <> extract(epoch FROM pg_postmaster_start_time())::text
    RETURNING open_us
)
UPDATE {schema}.member SET lease_us = open_us FROM found WHERE lease_us > open_us;
