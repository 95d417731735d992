SELECT shard, id, name, record, run_by
FROM {schema}.timer
WHERE %(shards)s::integer[] IS NULL OR shard = ANY (%(shards)s::integer[])
ORDER BY shard, id;
