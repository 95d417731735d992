-- Of every service the newest run that has ended. From name to name in the index, not through every run.
WITH RECURSIVE known (name) AS (
    SELECT min(service) FROM run
    UNION ALL
    SELECT (SELECT min(service) FROM run WHERE service > name) FROM known WHERE name IS NOT NULL
)
SELECT {columns}
FROM known
CROSS JOIN run ON id = (SELECT id FROM run WHERE service = name AND ended_us IS NOT NULL ORDER BY id DESC LIMIT 1);
