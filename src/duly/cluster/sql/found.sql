INSERT INTO {schema}.meta VALUES (%(format)s, %(scheduler_id)s);
