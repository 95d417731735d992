UPDATE {schema}.request
SET taken_by = %(member)s
FROM {schema}.shard, unnest(%(shards)s::integer[], %(terms)s::bigint[]) AS hold (shard, term)
WHERE shard.shard = hold.shard
  AND shard.term = hold.term
  AND shard.holder = %(member)s
  AND request.shard = hold.shard
  AND request.answer IS NULL
  AND request.until_us > {schema}.now_us()
  AND coalesce(request.taken_by, %(member)s) = %(member)s
RETURNING id, request.shard, timer, verb, asker, until_us;
