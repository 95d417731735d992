-- Several statements: the later ones see the rows of a claim that the first has waited for.
UPDATE {schema}.node SET fenced_us = {schema}.now_us(), fenced_by = %(by)s
WHERE id = %(node)s AND beat = %(beat)s AND fenced_us IS NULL;
-- A row with a target starts only when it has got that. Without it, it was claimed and not called.
UPDATE {schema}.task AS task SET run_by = NULL, started_us = NULL, token = token + 1, wake_us = {schema}.now_us()
FROM {schema}.node AS node
WHERE task.run_by = %(node)s AND node.id = %(node)s AND node.fenced_us IS NOT NULL AND task.target IS NOT NULL
    AND task.limited_by IS NULL;
{cut_off}
WITH taken AS (
    UPDATE {schema}.task AS task
    SET run_by = NULL, started_us = NULL, token = token + 1, interruptions = interruptions + 1,
        -- A row with a target keeps the latest start, which has answered all before it; else the first counts.
        cut_us = CASE WHEN target IS NULL THEN coalesce(cut_us, started_us) ELSE started_us END,
        wake_us = {schema}.now_us() + CASE
            WHEN interruptions + 1 < %(back_off_from)s THEN 0
            ELSE least(node.lease_us * power(2, least(interruptions + 1 - %(back_off_from)s, 20)),
                       %(longest_us)s)::bigint END
    FROM {schema}.node AS node
    WHERE task.run_by = %(node)s AND node.id = %(node)s AND node.fenced_us IS NOT NULL
    RETURNING task.id, task.name, task.interruptions, task.wake_us
), noted AS (
    UPDATE {schema}.node SET taken = coalesce((SELECT array_agg(name ORDER BY name) FROM taken), taken)
    WHERE id = %(node)s AND beat = %(beat)s AND fenced_by = %(by)s
    RETURNING id
)
SELECT name, interruptions, wake_us FROM noted LEFT JOIN taken ON true ORDER BY name;
DELETE FROM {schema}.task WHERE namespace = %(namespace)s AND removed AND run_by IS NULL;
