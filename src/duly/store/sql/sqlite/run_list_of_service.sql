-- Those of a service (and, unless that is null, of a timer), newest first.
SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code, signal,
       message, pid, pid_started, boot, CASE WHEN :output THEN output ELSE '' END, output_lost
FROM run
WHERE service = :service
  AND (:timer IS NULL OR timer = :timer)
  AND id < :before
ORDER BY id DESC
LIMIT :limit;
