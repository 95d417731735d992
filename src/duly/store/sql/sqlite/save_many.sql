-- One step for any number of tasks: the interpreter lock is released once for all of them. Bound row by row, a
-- busy event loop would win it back after each row and make the others wait.
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
       value ->> 7, value ->> 8, value ->> 9, value ->> 10, value ->> 11
FROM jsonb_each(?)
