-- Of every service how long the newest runs took that ended well, of so many that ended, as JSON, newest first.
WITH RECURSIVE known (name) AS (
    SELECT min(service) FROM run
    UNION ALL
    SELECT (SELECT min(service) FROM run WHERE service > name) FROM known WHERE name IS NOT NULL
)
SELECT name, (
    SELECT json_group_array(length_us)
    FROM (
        SELECT coalesce(lasted_us, max(ended_us - started_us, 0)) AS length_us, result
        FROM run
        WHERE service = name AND ended_us IS NOT NULL
        ORDER BY id DESC
        LIMIT :most
    )
    WHERE result = 'success'
)
FROM known
WHERE name IS NOT NULL;
