WITH gone AS (DELETE FROM {schema}.task WHERE id IN (SELECT unnest(%(removed)s::bigint[])) RETURNING *)
INSERT INTO {schema}.removed_task
SELECT * FROM gone WHERE running_since_us IS NOT NULL AND run_by IS NOT NULL AND ended_us IS NULL;
