-- What is both removed and put is put: one statement cannot do both to a row.
WITH standing AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM {schema}.shard
                   WHERE shard = %(shard)s
                     AND holder = %(member)s
                     AND term = %(term)s
                     AND number < %(number)s) AS is_held,
           (SELECT coalesce(max(number), 0) FROM {schema}.edition) AS newest
),
gate AS MATERIALIZED (
    SELECT is_held AND newest <= coalesce(%(edition)s::bigint, newest) AS is_open FROM standing
),
counted AS (
    UPDATE {schema}.shard SET number = %(number)s FROM gate WHERE is_open AND shard = %(shard)s
),
gone AS (
    DELETE FROM {schema}.timer
    USING gate
    WHERE is_open
      AND shard = %(shard)s
      AND id IN (SELECT unnest(%(removed)s::bigint[]))
      AND id NOT IN (SELECT unnest(%(id)s::bigint[]))
),
written AS (
    INSERT INTO {schema}.timer (shard, id, name, record, run_by)
    SELECT %(shard)s, new.*
    FROM unnest(%(id)s::bigint[], %(name)s::text[], %(record)s::text[], %(run_by)s::bigint[]) AS new, gate
    WHERE is_open
    ON CONFLICT (shard, id) DO UPDATE
    SET name = excluded.name, record = excluded.record, run_by = excluded.run_by
)
SELECT is_held, newest FROM standing;
