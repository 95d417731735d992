-- Format 5: a task can be paused, and a run of it can be asked for.
ALTER TABLE task ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;
ALTER TABLE task ADD COLUMN requested_us INTEGER;
