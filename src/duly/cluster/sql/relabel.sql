-- What is cut off is history, as in a fence.
INSERT INTO {schema}.run (namespace, name, node, token, started_us, ended_us, record, output)
SELECT task.namespace, task.name, node.name, task.token, task.started_us, {schema}.now_us(),
       coalesce(jsonb_set(target.run::jsonb, '{3}', to_jsonb({schema}.now_us())),
                jsonb_build_array('', '', task.started_us, {schema}.now_us(), 'interrupted'))::text,
       CASE WHEN task.target IS NOT NULL THEN '' END
FROM unnest(%(cut_names)s::text[], %(cut_tokens)s::bigint[]) AS given(name, token)
JOIN {schema}.task AS task ON task.namespace = %(namespace)s AND task.name = given.name AND task.token = given.token
JOIN {schema}.node AS node ON node.id = task.run_by
LEFT JOIN {schema}.target AS target ON target.namespace = task.namespace AND target.task = task.id
WHERE task.run_by = ANY(%(before)s::bigint[]) AND (task.target IS NULL OR target.run IS NOT NULL);
UPDATE {schema}.task AS task
SET run_by = NULL, started_us = NULL,
    cut_us = CASE WHEN target IS NULL THEN coalesce(cut_us, task.started_us) ELSE task.started_us END,
    token = task.token + 1, wake_us = coalesce(%(now_us)s, {schema}.now_us())
FROM unnest(%(cut_names)s::text[], %(cut_tokens)s::bigint[]) AS given(name, token)
WHERE task.namespace = %(namespace)s AND task.name = given.name AND task.token = given.token
    AND task.run_by = ANY(%(before)s::bigint[]);
UPDATE {schema}.task AS task SET run_by = %(node)s
FROM unnest(%(kept_names)s::text[], %(kept_tokens)s::bigint[]) AS given(name, token)
WHERE task.namespace = %(namespace)s AND task.name = given.name AND task.token = given.token
    AND task.run_by = ANY(%(before)s::bigint[])
RETURNING task.name, task.id;
UPDATE {schema}.task SET run_by = NULL, started_us = NULL WHERE run_by = ANY(%(before)s::bigint[]);
UPDATE {schema}.target AS target SET task = NULL
WHERE namespace = %(namespace)s AND task IS NOT NULL
    AND NOT EXISTS (SELECT FROM {schema}.task WHERE id = target.task AND run_by IS NOT NULL);
-- A server that has forgotten may not know whose the targets of my runs are.
UPDATE {schema}.target AS target SET task = task.id, run = NULL FROM {schema}.task AS task
WHERE task.run_by = %(node)s AND target.namespace = task.namespace AND target.name = task.target AND target.task IS NULL;
DELETE FROM {schema}.task WHERE namespace = %(namespace)s AND removed AND run_by IS NULL;
