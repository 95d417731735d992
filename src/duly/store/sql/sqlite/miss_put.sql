INSERT INTO miss (timer, at_us, reason)
SELECT value ->> 0, value ->> 1, value ->> 2
FROM jsonb_each(?);
