UPDATE {schema}.task SET paused = %(is_paused)s WHERE namespace = %(namespace)s AND name = %(name)s AND NOT removed
RETURNING id, pg_notify('duly', %(namespace)s);
