INSERT INTO outage (notify, job, state)
SELECT value ->> 0, value ->> 1, value ->> 2
FROM json_each(?)
WHERE value ->> 2 IS NOT NULL
ON CONFLICT (notify, job) DO UPDATE SET state = excluded.state;
