DELETE FROM {schema}.node
WHERE id = %(node)s AND NOT EXISTS (SELECT FROM {schema}.task WHERE run_by = %(node)s);
