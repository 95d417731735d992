SELECT {columns}
FROM run
WHERE ended_us IS NULL
ORDER BY id;
