-- Runs that have ended, by when they started; newest first.
SELECT {listed_columns}
FROM run
WHERE started_us >= :since AND started_us < :until
  AND ended_us IS NOT NULL
  AND (:result IS NULL OR result = :result)
ORDER BY started_us DESC, id DESC
LIMIT :limit;
