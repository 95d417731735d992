-- The ids of runs that are too old, or more than so many of one service; some come twice. The newest of each
-- that ended is not among them, nor is whatever has not ended. Where the clock was set back during a run, its
-- start counts. The pluses keep each part to the index that has little to go through.
WITH RECURSIVE known (name) AS (
    SELECT min(service) FROM run
    UNION ALL
    SELECT (SELECT min(service) FROM run WHERE service > name) FROM known WHERE name IS NOT NULL
),
kept (name, newest, excess) AS MATERIALIZED (
    SELECT name,
           (SELECT id FROM run WHERE service = name AND ended_us IS NOT NULL ORDER BY id DESC LIMIT 1),
           (SELECT id FROM run WHERE service = name ORDER BY id DESC LIMIT 1 OFFSET :runs)
    FROM known
)
SELECT id
FROM kept
CROSS JOIN run ON service = name AND id <= excess
WHERE +id < newest AND ended_us IS NOT NULL
UNION ALL
SELECT id
FROM run
WHERE started_us < :oldest
  AND ended_us < :oldest
  AND +id NOT IN (SELECT newest FROM kept WHERE newest IS NOT NULL);
