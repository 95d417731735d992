SELECT {schema}.now_us();
SELECT node.id, node.name, beat, lease_us, version, lag_us, joined_us, seen_us, fenced_us, fenced_by,
       CASE WHEN fenced_us IS NULL THEN ARRAY(SELECT task.name FROM {schema}.task AS task WHERE run_by = node.id
                                              ORDER BY task.name) ELSE taken END
FROM {schema}.node AS node WHERE namespace = %(namespace)s ORDER BY node.joined_us, node.id;
