"""The proof: record what a scheduler does at its boundary, and check it against the model.

    recorder = Recorder("trace.jsonl")
    scheduler = recorder.wrap(Scheduler("state.db"))

and then `duly verify trace.jsonl`. Nothing in here shares code with what a scheduler decides by.
"""

from duly.verify.judge import judged
from duly.verify.monitor import Monitor
from duly.verify.properties import PROPERTIES, Outcome, Tally, Verdict, Violation
from duly.verify.recorder import Recorder
from duly.verify.trace import Fault, Header, TraceError

__all__ = [
    "PROPERTIES",
    "Fault",
    "Header",
    "Monitor",
    "Outcome",
    "Recorder",
    "Tally",
    "TraceError",
    "Verdict",
    "Violation",
    "judged",
]
