SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code, signal,
       message, pid, pid_started, boot, output, output_lost
FROM run
WHERE ended_us IS NULL
ORDER BY id;
