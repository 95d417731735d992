WITH hold AS MATERIALIZED (
    SELECT * FROM unnest(%(shards)s::integer[], %(terms)s::bigint[], %(numbers)s::bigint[]) AS hold (shard, term, number)
),
refused AS MATERIALIZED (
    SELECT hold.shard
    FROM hold
    LEFT JOIN {schema}.shard
           ON shard.shard = hold.shard
          AND shard.holder = %(member)s
          AND shard.term = hold.term
          AND shard.number < hold.number
    WHERE shard.shard IS NULL OR NOT (SELECT {schema}.is_open())
),
present AS MATERIALIZED (
    SELECT count(*) AS number
    FROM unnest(%(id)s::bigint[], %(digest)s::uuid[]) AS wanted (id, digest)
    WHERE NOT EXISTS (SELECT FROM {schema}.task WHERE task.id = wanted.id AND shard <> ALL (%(shards)s::integer[]))
      AND NOT EXISTS (SELECT FROM {schema}.removed_task AS task WHERE task.id = wanted.id)
      AND NOT EXISTS (SELECT FROM {schema}.removed_task AS task WHERE task.digest = wanted.digest)
),
gate AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM refused) AND number = cardinality(%(id)s::bigint[]) AS is_open FROM present
),
counted AS (
    UPDATE {schema}.shard
    SET number = hold.number
    FROM hold, gate
    WHERE is_open AND shard.shard = hold.shard
),
written AS (
    {put}
)
SELECT (SELECT coalesce(json_agg(shard ORDER BY shard), '[]')::text FROM refused), number FROM present;
