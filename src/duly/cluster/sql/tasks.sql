SELECT task.name, definition, state, wake_us, paused, node.name, started_us, token, interruptions, target, enabled,
       kind, request, cut_us
FROM {schema}.task AS task LEFT JOIN {schema}.node AS node ON node.id = run_by
WHERE task.namespace = %(namespace)s AND NOT removed
    AND (%(after)s = '' OR task.name > %(after)s)
    AND (%(name)s::text IS NULL OR task.name = %(name)s)
ORDER BY task.name LIMIT %(limit)s;
