UPDATE {schema}.meta SET duly_format = %(format)s;
