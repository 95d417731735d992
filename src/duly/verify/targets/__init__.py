"""A checker of another kind: targets with windows, and runs to match them; every one must be explained.

It knows nothing of causes, worlds, terms or holds, and shares no code with what does. From the lists it works
out when each task should start: the targets. From the starts and ends it takes the runs. Then every target is
matched by a run in its window or excused for a reason, and every run is accounted for: by a due, by a failure
before it, or by an interruption. What is left over on either side is wrong.

Targets are counted and not listed: a silence of a year has half a million of them and is told in one line of
a trace. What a target comes to changes only where a run or a trouble begins or ends, so that whole stretches
of targets have one answer (`matching`). Work is bounded by the size of the input (decision 0023).
"""

from collections.abc import Iterable

import msgspec

from duly.verify.targets.history import History
from duly.verify.targets.matching import Account, Matching
from duly.verify.trace import Event, Header, TraceError, header_of

__all__ = ["Account", "accounted"]


def accounted(lines: Iterable[bytes]) -> Account:
    """Match the targets and the runs of one trace, or of those of all members one after the other.

    The lines are those of traces without faults.
    """
    history = History()
    decode = msgspec.json.Decoder(Event).decode
    for line in lines:
        try:
            history.take(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            header = _header_in(line)
            if header is not None:
                history.begin(header)
    history.close()
    return Matching(history).account


def _header_in(line: bytes) -> Header | None:
    """The header in *line*; None if a crash has torn it, or it is empty. All else the judge has refused."""
    try:
        return header_of(1, line.removeprefix(b"\xef\xbb\xbf"))
    except TraceError:
        return None
