"""Other schedulers: what they did, recorded or read from a table, as a trace that can be verified."""

from duly.verify.foreign.apscheduler import APSchedulerRecorder
from duly.verify.foreign.table import CsvError, lines_from_csv

__all__ = ["APSchedulerRecorder", "CsvError", "lines_from_csv"]
