-- Format 3: when the first run began of which the latest one is the continuation.
ALTER TABLE task ADD COLUMN origin_us INTEGER;
UPDATE task SET origin_us = last_attempt_us;
