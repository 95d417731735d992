SELECT duly_format, scheduler_id, shards FROM {schema}.meta;
