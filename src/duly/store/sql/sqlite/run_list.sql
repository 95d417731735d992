-- Newest first, before an id, at most so many.
SELECT {listed_columns}
FROM run
WHERE id < :before
  AND id > :after
  AND (ended_us IS NULL OR ended_us >= :since)
ORDER BY id DESC
LIMIT :limit;
