SELECT count(*), coalesce(sum(hash), 0)::text,
       coalesce((SELECT generation FROM {schema}.namespace WHERE name = %(namespace)s), 1),
       (SELECT startup_us FROM {schema}.namespace WHERE name = %(namespace)s)
FROM {schema}.task WHERE namespace = %(namespace)s AND NOT removed AND kind IS NULL;
