WITH new (id, {state}) AS (
    {rows}
)
UPDATE task
SET {assignments}
FROM new
WHERE task.id = new.id;
