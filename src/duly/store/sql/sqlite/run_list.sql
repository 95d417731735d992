-- Newest first. The parameters say of which service or timer (null: of all), before which id, and how many.
SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, result, exit_code, signal, message, pid,
       pid_started, boot, output, output_lost
FROM run
WHERE (:service IS NULL OR service = :service)
  AND (:timer IS NULL OR timer = :timer)
  AND id < :before
ORDER BY id DESC
LIMIT :limit;
