DELETE FROM outage
WHERE (notify, job) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?) WHERE value ->> 2 IS NULL);
