-- Those that started in a span of time, and those that started before it and have not ended; without output.
-- The plus keeps the second part to the index of open runs, which are few.
SELECT * FROM (SELECT {bare_columns}
               FROM run
               WHERE started_us >= :from AND started_us < :to
               ORDER BY started_us DESC, id DESC
               LIMIT :limit)
UNION ALL
SELECT * FROM (SELECT {bare_columns}
               FROM run
               WHERE ended_us IS NULL AND +started_us < min(:from, :to)
               LIMIT :limit)
ORDER BY 6 DESC, 1 DESC
LIMIT :limit;
