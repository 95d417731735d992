WITH given AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(names)s::text[], %(hashes)s::bigint[], %(tokens)s::bigint[],
                         %(starts)s::bigint[], %(states)s::text[], %(wakes)s::bigint[], %(requests)s::text[],
                         %(ended)s::bigint[], %(records)s::text[], %(outputs)s::text[])
        AS given(id, name, hash, token, started_us, state, wake_us, request, ended_us, record, output)
), locked AS MATERIALIZED (
    -- By a list of keys, not by a join with `given`: its size is unknown to the planner, which would read all tasks.
    SELECT task.id FROM {schema}.task AS task
    WHERE {rows} AND EXISTS (SELECT FROM {schema}.node WHERE id = %(node)s AND {owner})
    ORDER BY task.id FOR UPDATE
), done AS (
    UPDATE {schema}.task AS task
    SET state = CASE WHEN task.hash = given.hash THEN coalesce(given.state, task.state) ELSE task.state END,
        wake_us = CASE WHEN task.request <> coalesce(given.request, '') THEN 0
                       WHEN task.hash = given.hash THEN given.wake_us ELSE task.wake_us END,
        request = CASE WHEN given.state IS NULL THEN task.request
                       WHEN starts_with(task.request, given.request || ';') THEN substr(task.request, length(given.request) + 2)
                       WHEN task.request <> coalesce(given.request, '') THEN task.request END,
        cut_us = CASE WHEN given.state IS NULL THEN task.cut_us END,
        interruptions = CASE WHEN given.state IS NULL THEN task.interruptions ELSE 0 END,
        run_by = NULL, started_us = NULL
    FROM given
    WHERE {rows} AND task.id IN (SELECT id FROM locked) AND {match} AND task.token = given.token AND task.started_us = given.started_us
    RETURNING task.id, given.name, given.token, given.started_us, given.ended_us, given.record, given.output, task.limited_by, task.target
), history AS (
    INSERT INTO {schema}.run (namespace, name, node, token, started_us, ended_us, record, output)
    SELECT %(namespace)s, done.name, (SELECT node.name FROM {schema}.node AS node WHERE node.id = %(node)s), token,
           started_us, ended_us, record, output
    FROM done WHERE record IS NOT NULL
)
-- Others may wait for the room of a limit. Who waits for a target looks again by itself.
SELECT id, CASE WHEN limited_by IS NOT NULL AND target IS NULL THEN pg_notify('duly', %(namespace)s)::text END FROM done;
DELETE FROM {schema}.task WHERE namespace = %(namespace)s AND removed AND run_by IS NULL;
