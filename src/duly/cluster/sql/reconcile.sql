-- What keeps the list from taking effect is noted first, and every later statement asks for it.
SELECT pg_advisory_xact_lock(hashtextextended(%(namespace)s, (SELECT tableoid::bigint FROM {schema}.meta LIMIT 1)));
INSERT INTO {schema}.namespace (name, timeline) -- as join.sql does
SELECT %(namespace)s, CASE {schema}.timeline() WHEN '00000001' THEN '00000001' ELSE '' END ON CONFLICT DO NOTHING;
SELECT set_config('duly.refused', CASE
    WHEN generation <> %(base)s THEN 'other'
    WHEN NOT %(replace)s
        AND EXISTS (SELECT FROM {schema}.task WHERE namespace = %(namespace)s AND NOT removed AND kind IS NULL)
        AND NOT EXISTS (SELECT FROM {schema}.task WHERE namespace = %(namespace)s AND NOT removed AND kind IS NULL
                        AND name <> ALL(%(removed)s::text[]))
        AND EXISTS (SELECT FROM {schema}.node
                    WHERE namespace = %(namespace)s AND fenced_us IS NULL AND id <> %(node)s) THEN 'all'
    ELSE '' END, true)
FROM {schema}.namespace WHERE name = %(namespace)s;
SELECT name FROM {schema}.node
WHERE namespace = %(namespace)s AND fenced_us IS NULL AND id <> %(node)s AND current_setting('duly.refused') = 'all'
ORDER BY name;
UPDATE {schema}.namespace SET generation = generation + 1
WHERE name = %(namespace)s AND current_setting('duly.refused') = ''
RETURNING generation;
SELECT FROM {schema}.task
WHERE namespace = %(namespace)s AND current_setting('duly.refused') = ''
    AND name IN (SELECT unnest(%(removed)s::text[]) UNION ALL SELECT name FROM {source})
ORDER BY id FOR UPDATE;
WITH gone AS (
    DELETE FROM {schema}.task
    WHERE namespace = %(namespace)s AND name = ANY(%(removed)s::text[]) AND NOT removed AND run_by IS NULL
        AND current_setting('duly.refused') = ''
    RETURNING name, state
), running AS (
    UPDATE {schema}.task SET removed = true, hash = 0, request = NULL
    WHERE namespace = %(namespace)s AND name = ANY(%(removed)s::text[]) AND NOT removed AND run_by IS NOT NULL
        AND current_setting('duly.refused') = ''
    RETURNING name, state
)
SELECT name, state FROM gone UNION ALL SELECT name, state FROM running;
WITH space AS MATERIALIZED (
    SELECT generation FROM {schema}.namespace WHERE name = %(namespace)s AND current_setting('duly.refused') = ''
), changed AS (
    UPDATE {schema}.task AS task
    SET hash = given.hash, gen = space.generation, definition = given.definition, target = given.target,
        state = given.state, kind = NULL,
        wake_us = CASE WHEN task.cut_us IS NULL AND task.request IS NULL THEN given.wake_us
                       ELSE least(task.wake_us, given.wake_us) END,
        paused = task.paused AND NOT before.removed, removed = false,
        enabled = CASE WHEN NOT before.removed THEN task.enabled END
    FROM {source}, space, {schema}.task AS before
    WHERE task.namespace = %(namespace)s AND task.name = given.name AND before.id = task.id
        AND (task.hash <> given.hash OR task.removed OR task.kind IS NOT NULL)
    RETURNING task.name, before.definition, before.removed
), added AS (
    INSERT INTO {schema}.task (namespace, name, hash, gen, definition, target, state, wake_us, paused, token)
    SELECT %(namespace)s, given.name, given.hash, space.generation, given.definition, given.target, given.state,
           given.wake_us, given.paused, {schema}.now_us()
    FROM {source}, space
    ON CONFLICT DO NOTHING
    RETURNING name
)
SELECT name, NULL AS definition FROM added
UNION ALL SELECT name, CASE WHEN removed THEN NULL ELSE definition END FROM changed;
