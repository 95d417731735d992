-- Each target that no row has goes to the given row that wants it. Locked in one order for all nodes.
WITH wanted AS MATERIALIZED (
    SELECT target.name, task.id AS task, given.record FROM {schema}.task AS task
    JOIN unnest(%(ids)s::bigint[], %(records)s::text[]) AS given(id, record) ON given.id = task.id
    JOIN {schema}.target AS target ON target.namespace = task.namespace AND target.name = task.target
    WHERE task.id = ANY(%(ids)s::bigint[]) AND task.run_by = %(node)s AND target.task IS NULL
        AND EXISTS (SELECT FROM {schema}.node WHERE id = %(node)s AND {owner})
), locked AS MATERIALIZED (
    SELECT target.name FROM {schema}.target AS target JOIN wanted USING (name)
    WHERE target.namespace = %(namespace)s ORDER BY target.name FOR UPDATE OF target
)
UPDATE {schema}.target AS target SET task = wanted.task, run = wanted.record FROM wanted, locked
WHERE target.namespace = %(namespace)s AND target.name = wanted.name AND locked.name = target.name
    AND target.task IS NULL
RETURNING target.task;
