-- What is alike in all rows is bound once; the rest, with the id, is a JSON array for each row.
-- One step for any number of tasks: the interpreter lock is released once for all of them. Bound row by row, a
-- busy event loop would win it back after each row and make the others wait.
UPDATE task
SET {assignments}
FROM jsonb_each(?1)
WHERE task.id = value ->> 0;
