-- By id, which grows with time: no index on the time is needed.
WITH gone AS (
    DELETE FROM {schema}.run
    WHERE id IN (SELECT id FROM {schema}.run WHERE namespace = %(namespace)s ORDER BY id LIMIT %(limit)s)
        AND ended_us < %(before_us)s
    RETURNING id
)
SELECT count(*) FROM gone;
