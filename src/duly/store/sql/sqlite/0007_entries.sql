-- Format 7: a task that was added at run time has its kind and its arguments here, JSON. Null: it was declared.
ALTER TABLE task ADD COLUMN entry TEXT;
