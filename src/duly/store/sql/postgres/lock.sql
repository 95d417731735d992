-- A statement of its own: what follows sees whatever was done before the locks were ours.
SELECT FROM {schema}.shard WHERE shard = ANY (%(shards)s::integer[]) ORDER BY shard FOR UPDATE;
