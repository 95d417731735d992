CREATE TEMPORARY TABLE duly_incoming (name text, hash bigint, definition text, state text, wake_us bigint,
    target text, paused boolean) ON COMMIT DROP;
