-- The ids of misses that are too old, or more than so many of one timer. From timer to timer in the index.
-- In order: the highest id is deleted last, because SQLite gives it to the next miss.
WITH RECURSIVE known (name) AS (
    SELECT min(timer) FROM miss
    UNION ALL
    SELECT (SELECT min(timer) FROM miss WHERE timer > name) FROM known WHERE name IS NOT NULL
),
kept (name, excess) AS MATERIALIZED (
    SELECT name, (SELECT id FROM miss WHERE timer = name ORDER BY id DESC LIMIT 1 OFFSET :runs)
    FROM known
)
SELECT id
FROM kept
CROSS JOIN miss ON timer = name AND id <= excess
UNION
SELECT id
FROM miss
WHERE at_us < :oldest
ORDER BY id;
