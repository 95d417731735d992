-- Those that a timer fired, newest first.
SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code, signal,
       message, pid, pid_started, boot, CASE WHEN :output THEN output ELSE '' END, output_lost
FROM run
WHERE timer = :timer
  AND id < :before
ORDER BY id DESC
LIMIT :limit;
