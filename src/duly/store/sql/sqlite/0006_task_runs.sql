-- Format 6: the runs of tasks have a history, too.
ALTER TABLE run ADD COLUMN attempt INTEGER;
ALTER TABLE run ADD COLUMN run_id TEXT; -- as its body saw it
ALTER TABLE run ADD COLUMN node TEXT;   -- the host and the process that ran it
