-- The look that follows has its own snapshot: whoever took shards while this waited is seen.
UPDATE {schema}.member
SET beaten_us = clock.now_us,
    lease_us = clock.now_us + %(ttl_us)s,
    ttl_us = %(ttl_us)s,
    lag_ms = %(lag_ms)s,
    is_leaving = %(is_leaving)s
FROM (SELECT {schema}.now_us() AS now_us OFFSET 0) AS clock
WHERE member = %(member)s
RETURNING member;
