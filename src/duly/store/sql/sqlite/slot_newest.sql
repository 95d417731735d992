-- The newest slots of every timer that has missed one, oldest first: with the reason, or null for a run.
WITH RECURSIVE known (name) AS (
    SELECT min(timer) FROM miss
    UNION ALL
    SELECT (SELECT min(timer) FROM miss WHERE timer > name) FROM known WHERE name IS NOT NULL
)
SELECT name, at_us AS slot_us, miss.reason
FROM known
CROSS JOIN miss ON miss.id IN (SELECT id FROM miss WHERE timer = name ORDER BY id DESC LIMIT :most)
UNION ALL
SELECT name, scheduled_us, NULL
FROM known
CROSS JOIN run ON run.id IN (SELECT id FROM run WHERE timer = name ORDER BY id DESC LIMIT :most)
WHERE scheduled_us IS NOT NULL AND run.reason <> 'retry'
ORDER BY 1, 2;
