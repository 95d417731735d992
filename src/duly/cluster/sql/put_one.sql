-- One row and nothing else: the list stays, so no other node compares anything. With the same hash the state stays,
-- and the node that claims the row looks at it.
WITH before AS (
    SELECT definition FROM {schema}.task WHERE namespace = %(namespace)s AND name = %(name)s AND NOT removed
), put AS (
    INSERT INTO {schema}.task AS task (namespace, name, hash, gen, kind, definition, state, wake_us, token)
    VALUES (%(namespace)s, %(name)s, %(hash)s, 0, %(kind)s, %(definition)s, %(state)s, %(wake_us)s, {schema}.now_us())
    ON CONFLICT (namespace, name) DO UPDATE
    SET hash = excluded.hash, gen = 0, kind = excluded.kind, definition = excluded.definition, target = NULL,
        state = CASE WHEN task.hash = excluded.hash THEN task.state ELSE excluded.state END,
        wake_us = CASE WHEN task.hash = excluded.hash THEN 0
                       WHEN task.cut_us IS NULL AND task.request IS NULL THEN excluded.wake_us
                       ELSE least(task.wake_us, excluded.wake_us) END,
        paused = task.paused AND NOT task.removed, enabled = NULL, removed = false
    WHERE task.kind IS NOT NULL OR task.removed
    RETURNING id
)
SELECT coalesce((SELECT definition FROM before), '') FROM put;
