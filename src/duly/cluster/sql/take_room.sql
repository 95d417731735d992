-- One node after the other: two must not both see the last place. What runs is counted after the wait.
SELECT pg_advisory_xact_lock(hashtextextended(%(namespace)s, (SELECT tableoid::bigint FROM {schema}.meta LIMIT 1) + 1));
WITH locked AS MATERIALIZED (
    SELECT id FROM {schema}.task WHERE id = ANY(%(ids)s::bigint[]) AND run_by = %(node)s
        AND EXISTS (SELECT FROM {schema}.node WHERE id = %(node)s AND {owner})
    ORDER BY id FOR UPDATE
), given AS (
    SELECT id, name, size, record, row_number() OVER (PARTITION BY name ORDER BY number) AS place
    FROM unnest(%(ids)s::bigint[], %(limits)s::text[], %(sizes)s::bigint[], %(records)s::text[])
        WITH ORDINALITY AS given(id, name, size, record, number)
    JOIN locked USING (id)
), busy AS (
    SELECT limited_by AS name, count(*) AS runs FROM {schema}.task
    WHERE namespace = %(namespace)s AND run_by IS NOT NULL AND limited_by IS NOT NULL GROUP BY limited_by
)
UPDATE {schema}.task AS task SET limited_by = given.name, record = given.record
FROM given LEFT JOIN busy USING (name)
WHERE task.id = given.id AND given.place + coalesce(busy.runs, 0) <= given.size
RETURNING task.id;
