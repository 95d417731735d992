SELECT id, name, hash, gen FROM {schema}.task
WHERE namespace = %(namespace)s AND NOT removed AND gen > %(after)s;
