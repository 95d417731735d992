"""Which process is speaking: where the name in `proc` changes, the one before must have died."""

from typing import TYPE_CHECKING

from duly.verify.trace import Crash, Fault, Position

if TYPE_CHECKING:
    from duly.verify.judge import Judge


class Processes:
    """The processes of one trace, one after the other."""

    def __init__(self, judge: "Judge") -> None:
        self._judge = judge
        self._proc: str | None = None
        self._former: set[str] = set()
        self._inferred_line = 0
        """Where the latest crash was inferred; if that was wrong, so is what was objected to since."""

    def notice(self, item: Position, last: Position | None) -> None:
        """Infer a crash after *last*, if *item* is of another process and the one before was not stopped."""
        proc, judge = item.event.proc, self._judge
        if proc is None or proc == self._proc:
            return
        if proc in self._former:
            reason = f"process {proc} speaks again after {self._proc}: two schedulers in one trace?"
            if self._inferred_line:
                judge.objections.take_back(since_line=self._inferred_line)
            judge.objections.fault(Fault(item.line, reason))
        elif last is not None and self._proc is not None and judge.is_something_up:
            now_us = judge.now_us
            judge.infer_crash(Position(last.line, now_us, Crash(t=now_us / 1000)))
            self._inferred_line = item.line
        if self._proc is not None:
            self._former.add(self._proc)
        self._proc = proc
