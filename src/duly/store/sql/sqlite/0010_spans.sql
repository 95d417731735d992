-- Format 10: what ran in a span of time, and what was missed, is counted from these indexes alone.
CREATE INDEX run_span ON run (service, started_us, result, ended_us, lasted_us, timer);
CREATE INDEX miss_span ON miss (timer, at_us, reason);
