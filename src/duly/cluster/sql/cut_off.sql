-- What is cut off is history. Only its node knew why it ran, and its id; of a target's run it has said so.
INSERT INTO {schema}.run (namespace, name, node, token, started_us, ended_us, record, output)
SELECT task.namespace, task.name, node.name, task.token, task.started_us, {schema}.now_us(),
       coalesce(jsonb_set(task.record::jsonb, '{3}', to_jsonb({schema}.now_us())),
                jsonb_build_array('', '', task.started_us, {schema}.now_us(), 'interrupted'))::text,
       CASE WHEN task.target IS NOT NULL THEN '' END
FROM {schema}.task AS task JOIN {schema}.node AS node ON node.id = task.run_by
WHERE {is_cut} AND (task.target IS NULL OR task.record IS NOT NULL);
