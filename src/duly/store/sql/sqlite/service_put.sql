INSERT INTO service
SELECT value ->> 0, value ->> 1
FROM jsonb_each(?);
