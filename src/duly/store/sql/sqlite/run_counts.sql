-- How many runs that started since then ended how (null: not yet), less some that are counted elsewhere.
-- Nearly all are successes: those are counted without being grouped.
SELECT result, sum(number)
FROM (SELECT 'success' AS result, count(*) AS number
      FROM run
      WHERE started_us >= :since AND result = 'success'
      UNION ALL
      SELECT result, count(*)
      FROM run
      WHERE started_us >= :since AND result IS NOT 'success'
      GROUP BY result
      UNION ALL
      SELECT result, -count(*)
      FROM run
      WHERE id IN (SELECT value FROM json_each(:besides)) AND started_us >= :since
      GROUP BY result)
GROUP BY result
HAVING sum(number) > 0;
