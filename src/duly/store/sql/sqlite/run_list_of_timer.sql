-- Those that a timer fired, newest first.
SELECT {listed_columns}
FROM run
WHERE timer = :timer
  AND id < :before
  AND id > :after
  AND (ended_us IS NULL OR ended_us >= :since)
ORDER BY id DESC
LIMIT :limit;
