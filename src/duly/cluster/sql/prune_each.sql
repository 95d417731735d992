-- The names come one by one from the index on them: to group all runs by name would read them all.
WITH RECURSIVE names(name, number) AS (
    (SELECT name, 1 FROM {schema}.run WHERE namespace = %(namespace)s AND name > %(after)s ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT name FROM {schema}.run
            WHERE namespace = %(namespace)s AND run.name > names.name ORDER BY name LIMIT 1), number + 1
    FROM names WHERE names.name IS NOT NULL AND number < %(names)s
), gone AS (
    DELETE FROM {schema}.run WHERE id IN (
        SELECT old.id FROM names CROSS JOIN LATERAL (
            SELECT id FROM {schema}.run WHERE namespace = %(namespace)s AND run.name = names.name
            ORDER BY started_us DESC, id DESC OFFSET %(keep)s LIMIT %(limit)s) AS old)
)
SELECT name FROM names ORDER BY number DESC LIMIT 1;
