-- The newest runs of a service that have ended; without output.
SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code, signal,
       message, pid, pid_started, boot, '', output_lost
FROM run
WHERE service = :service
  AND ended_us IS NOT NULL
ORDER BY id DESC
LIMIT :limit;
