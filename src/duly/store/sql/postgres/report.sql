-- The shards first, as whoever writes these rows does.
SELECT FROM {schema}.shard
WHERE shard IN (SELECT shard FROM {schema}.task WHERE id = ANY (%(id)s::bigint[])
               UNION ALL
               SELECT shard FROM {schema}.removed_task WHERE id = ANY (%(id)s::bigint[]))
ORDER BY shard
FOR UPDATE;
UPDATE {schema}.task
SET ended_us = ended.at_us, is_failed = ended.is_failed
FROM unnest(%(id)s::bigint[], %(started_us)s::bigint[], %(at_us)s::bigint[], %(failed)s::boolean[])
     AS ended (id, started_us, at_us, is_failed)
WHERE task.id = ended.id
  AND run_by = %(member)s
  AND running_since_us = ended.started_us
  AND ended_us IS NULL;
DELETE FROM {schema}.removed_task AS task
USING unnest(%(id)s::bigint[], %(started_us)s::bigint[]) AS ended (id, started_us)
WHERE task.id = ended.id AND run_by = %(member)s AND running_since_us = ended.started_us;
