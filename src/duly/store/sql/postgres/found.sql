INSERT INTO {schema}.meta (duly_format, scheduler_id, shards)
VALUES (0, %(scheduler_id)s, %(shards)s);
INSERT INTO {schema}.shard (shard, term, number, taken_us)
SELECT shard, 0, 0, {schema}.now_us() FROM generate_series(0, %(shards)s - 1) AS shard;
