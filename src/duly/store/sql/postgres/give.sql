UPDATE {schema}.shard
SET holder = NULL
FROM unnest(%(shards)s::integer[], %(terms)s::bigint[]) AS hold (shard, term)
WHERE shard.shard = hold.shard AND shard.term = hold.term AND holder = %(member)s;
