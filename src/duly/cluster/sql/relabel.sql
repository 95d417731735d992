{cut_off}
UPDATE {schema}.task AS task
SET run_by = NULL, started_us = NULL,
    cut_us = CASE WHEN target IS NULL THEN coalesce(cut_us, task.started_us) ELSE task.started_us END,
    token = task.token + 1, wake_us = {schema}.now_us()
WHERE {is_cut};
-- A server that has forgotten may not know whose the targets of my runs are.
UPDATE {schema}.task AS task SET run_by = %(node)s, limited_by = coalesce(task.limited_by, task.target)
FROM unnest(%(kept_names)s::text[], %(kept_tokens)s::bigint[]) AS given(name, token)
WHERE task.namespace = %(namespace)s AND task.name = given.name AND task.token = given.token
    AND task.run_by = ANY(%(before)s::bigint[])
RETURNING task.name, task.id;
UPDATE {schema}.task SET run_by = NULL, started_us = NULL WHERE run_by = ANY(%(before)s::bigint[]);
DELETE FROM {schema}.task WHERE namespace = %(namespace)s AND removed AND run_by IS NULL;
