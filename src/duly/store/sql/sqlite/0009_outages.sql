-- Format 9: outages that notifications tell of (daemon/notifications.py), and what they are yet to tell.
CREATE TABLE outage (
    notify TEXT NOT NULL,
    job    TEXT NOT NULL,
    state  TEXT NOT NULL, -- JSON
    PRIMARY KEY (notify, job)
) STRICT;
