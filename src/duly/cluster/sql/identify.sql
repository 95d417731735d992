SELECT duly_format, scheduler_id FROM {schema}.meta;
