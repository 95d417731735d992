-- One step for any number of tasks: the interpreter lock is released once for all of them. Bound row by row, a
-- busy event loop would win it back after each row and make the others wait.
SELECT {state_values} FROM jsonb_each(?)
