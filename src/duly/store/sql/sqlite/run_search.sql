-- Runs for which all conditions hold.
SELECT {bare_columns}
FROM run
WHERE {{conditions}}
ORDER BY {{order}}
LIMIT :limit OFFSET :skip;
