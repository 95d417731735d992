-- Of every service the newest run that has ended.
SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, result, exit_code, signal, message, pid,
       pid_started, boot, output, output_lost
FROM run
WHERE id IN (SELECT max(id) FROM run WHERE ended_us IS NOT NULL GROUP BY service);
