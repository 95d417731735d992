"""A checker of another kind: targets with windows, and runs to match them; every one must be explained.

It knows nothing of causes, worlds, terms or holds, and shares no code with what does. From the lists it works
out, minute by minute, when each task should start: the targets. From the starts and ends it takes the runs.
Then every target is matched by a run in its window or excused for a reason, and every run is accounted for:
by a due, by a failure before it, or by an interruption. What is left over on either side is wrong.
"""

from collections.abc import Iterable

import msgspec

from duly.verify.targets.history import History
from duly.verify.targets.matching import Account, Matching

__all__ = ["Account", "accounted"]


def accounted(lines: Iterable[bytes]) -> Account:
    """Match the targets and the runs of one trace, or of those of all members one after the other.

    The lines are those of traces without faults.
    """
    history = History()
    for line in lines:
        try:
            told = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except msgspec.DecodeError:
            continue  # torn by a crash, or empty; anything else the judge has refused before
        history.take(told)
    history.close()
    return Matching(history).account
