"""The proof: record what a scheduler does at its boundary, and check it against the model.

    recorder = Recorder("trace.jsonl")
    scheduler = recorder.wrap(Scheduler("state.db"))

and then `duly verify trace.jsonl`. Nothing in here shares code with what a scheduler decides by.

    recorder, emitter -> writer -> file -> trace -> judge (worlds, calls, theorems) -> properties -> reporting

- `Recorder` stands around `initialize`, `stop` and callbacks and writes what a user could see (`trace`). It
  never harms what it watches: what it cannot write is a gap, and the gap is recorded.
- `Judge` follows a trace event by event. What a task may be owed is a set of worlds, because a crash leaves
  open what was written. It objects only to what is wrong in every world: it may miss a fault, but it never
  blames a scheduler that is right. Once the trace itself is at fault, nothing is held against anybody.
- `Monitor` (tasks) and `TimerMonitor` (timers) do the same while things happen.
- `cluster` judges the traces of all nodes together. `targets` matches dues and runs in another way, as a
  second opinion. `reasons` answers why a task ran or did not. `foreign` records or reads other schedulers.
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
