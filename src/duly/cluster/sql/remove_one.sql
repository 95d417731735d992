-- Lock first. A claim or an end may change `run_by` while the statement below waits for the row: it would find the row
-- neither idle (it looks again after the wait) nor running (it was not when the statement began).
SELECT FROM {schema}.task WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE;
WITH gone AS (
    DELETE FROM {schema}.task WHERE namespace = %(namespace)s AND name = %(name)s AND NOT removed AND run_by IS NULL
        AND (kind IS NOT NULL OR NOT %(is_entry)s)
    RETURNING id, kind
), running AS (
    UPDATE {schema}.task SET removed = true, hash = 0, request = NULL
    WHERE namespace = %(namespace)s AND name = %(name)s AND NOT removed AND run_by IS NOT NULL
        AND (kind IS NOT NULL OR NOT %(is_entry)s)
    RETURNING id, kind
), moved AS (
    UPDATE {schema}.namespace SET generation = generation + 1
    WHERE name = %(namespace)s AND (EXISTS (SELECT FROM gone WHERE kind IS NULL) OR EXISTS (SELECT FROM running WHERE kind IS NULL))
)
SELECT id FROM gone UNION ALL SELECT id FROM running;
