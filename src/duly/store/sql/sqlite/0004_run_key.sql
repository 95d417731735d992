-- Format 4: the key that makes run tokens (supervisor/tokens.py). One row, written with the first run.
CREATE TABLE run_key (
    key BLOB NOT NULL
) STRICT;
