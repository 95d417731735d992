SELECT {columns}
FROM run
WHERE id = ?;
