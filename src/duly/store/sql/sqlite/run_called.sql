SELECT {bare_columns}
FROM run
WHERE id IN (SELECT value FROM json_each(:numbers));
