-- As run_counts, without what some timers fired and has ended.
SELECT result, count(*)
FROM run
WHERE started_us >= :since
  AND id NOT IN (SELECT value FROM json_each(:besides))
  AND (ended_us IS NULL OR timer IS NULL OR timer NOT IN (SELECT value FROM json_each(:but)))
GROUP BY result;
