SELECT {schema}.now_us(), {schema}.server(), {schema}.timeline(), coalesce(space.timeline, ''),
       CASE WHEN me.fenced_us IS NULL AND me.seq >= %(acked)s THEN me.seq END,
       coalesce(me.seq < %(acked)s, true),
       coalesce((SELECT json_agg(json_build_array(id, name, beat, lease_us)) FROM {schema}.node
                 WHERE namespace = %(namespace)s AND fenced_us IS NULL AND id <> %(node)s), '[]'),
       coalesce(space.generation, 0),
       (SELECT wake_us FROM {schema}.task
        WHERE namespace = %(namespace)s AND run_by IS NULL AND NOT paused AND NOT removed AND gen <= %(gen)s
            AND (kind IS NULL OR kind = ANY(%(kinds)s::text[]))
        ORDER BY wake_us LIMIT 1),
       coalesce((SELECT json_agg(json_build_array(name, token)) FROM {schema}.task
                 WHERE run_by = %(node)s AND cancelled = token), '[]'),
       coalesce((SELECT json_object_agg(limited_by, runs)
                 FROM (SELECT limited_by, count(*) AS runs FROM {schema}.task
                       WHERE namespace = %(namespace)s AND run_by IS NOT NULL AND limited_by IS NOT NULL
                           AND target IS NULL AND run_by <> %(node)s
                       GROUP BY limited_by) AS busy), '{}')
FROM (SELECT) AS one
LEFT JOIN {schema}.namespace AS space ON space.name = %(namespace)s
LEFT JOIN {schema}.node AS me ON me.id = %(node)s;
