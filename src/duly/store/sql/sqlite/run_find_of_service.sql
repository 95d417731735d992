-- Those of a service. Its runs do not overlap, so the order of their numbers is that of their starts.
SELECT {listed_columns}
FROM run
WHERE service = :service
  AND started_us >= :since AND started_us < :until
  AND ended_us IS NOT NULL
  AND (:result IS NULL OR result = :result)
ORDER BY id DESC
LIMIT :limit;
