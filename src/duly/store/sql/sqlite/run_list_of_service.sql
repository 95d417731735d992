-- Those of a service (and, unless that is null, of a timer), newest first.
SELECT {listed_columns}
FROM run
WHERE service = :service
  AND (:timer IS NULL OR timer = :timer)
  AND id < :before
  AND id > :after
  AND (ended_us IS NULL OR ended_us >= :since)
ORDER BY id DESC
LIMIT :limit;
