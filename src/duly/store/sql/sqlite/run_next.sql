-- The next run of a service after one.
SELECT id FROM run
WHERE service = :service
  AND id > :after
ORDER BY id
LIMIT 1;
