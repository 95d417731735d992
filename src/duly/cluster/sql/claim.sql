WITH ready AS MATERIALIZED (
    SELECT now_us, greatest(now_us, %(due_us)s) AS due_us
    FROM (SELECT coalesce(%(now_us)s, {schema}.now_us()) AS now_us OFFSET 0) AS clock
    WHERE EXISTS (SELECT FROM {schema}.node WHERE id = %(node)s AND {owner}) AND {is_open}
), usual AS MATERIALIZED (
    SELECT id FROM {schema}.task
    WHERE namespace = %(namespace)s AND run_by IS NULL AND NOT paused AND NOT removed
        AND wake_us <= (SELECT due_us FROM ready) AND {is_mine} AND interruptions < %(suspect_from)s
    ORDER BY wake_us LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), suspect AS MATERIALIZED (
    SELECT id FROM {schema}.task
    WHERE namespace = %(namespace)s AND run_by IS NULL AND NOT paused AND NOT removed
        AND wake_us <= (SELECT due_us FROM ready) AND {is_mine} AND interruptions >= %(suspect_from)s
    ORDER BY wake_us LIMIT %(suspects)s FOR UPDATE SKIP LOCKED
){wanted}
UPDATE {schema}.task AS task
SET run_by = %(node)s, started_us = ready.now_us, token = greatest(token + 1, ready.now_us), limited_by = NULL,
    record = NULL
FROM ready
WHERE task.id = ANY(ARRAY(SELECT id FROM usual UNION ALL SELECT id FROM suspect {or_wanted}))
RETURNING task.id, task.name, task.hash, task.token, task.state, task.started_us, task.cut_us, task.interruptions,
    task.request, task.wake_us, task.enabled, CASE WHEN task.kind IS NOT NULL THEN task.definition END;
