-- Of some services how many runs of a span began in each part of it, and ended how. A run that began before
-- the span and reaches into it is in the part -1. Runs of some timers count only until they end: another
-- store has those that did. A run is as long as it was measured. From the index run_span alone.
SELECT service, (started_us - :from) / :width AS part, result, count(*), max(id), min(started_us),
       max(started_us + coalesce(lasted_us, ended_us - started_us))
FROM run
WHERE service IN (SELECT value FROM json_each(:services)) AND started_us >= :from AND started_us < :to
  AND (ended_us IS NULL OR timer IS NULL OR timer NOT IN (SELECT value FROM json_each(:but)))
GROUP BY service, part, result
UNION ALL
SELECT service, -1, result, 1, run.id, started_us, started_us + coalesce(lasted_us, ended_us - started_us)
FROM json_each(:services) AS wanted
CROSS JOIN run ON run.id = (SELECT before.id
                            FROM run AS before
                            WHERE before.service = wanted.value AND before.started_us < :from
                            ORDER BY before.started_us DESC
                            LIMIT 1)
WHERE (ended_us IS NULL OR started_us + coalesce(lasted_us, ended_us - started_us) > :from);
