SELECT FROM {schema}.shard ORDER BY shard FOR UPDATE;
