-- Those that started in a span of time, and those that started before it and have not ended; without output.
-- The plus keeps the second part to the index of open runs, which are few.
SELECT * FROM (SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code,
                      signal, message, pid, pid_started, boot, '', output_lost
               FROM run
               WHERE started_us >= :from AND started_us < :to
               ORDER BY started_us DESC, id DESC
               LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT id, service, timer, reason, scheduled_us, started_us, ended_us, lasted_us, result, exit_code,
                      signal, message, pid, pid_started, boot, '', output_lost
               FROM run
               WHERE ended_us IS NULL AND +started_us < min(:from, :to)
               LIMIT :limit)
ORDER BY 6 DESC, 1 DESC
LIMIT :limit;
