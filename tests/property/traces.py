"""Random small traces: nearly right, right but for a few changes, or wild.

A nearly right trace comes from a tiny scheduler that is simulated here while it is written: it starts what it
owes, mostly in time. It need not be perfect, since both checkers judge the same trace; it must only come
often to where they could differ: equal times, minute boundaries, deadlines, overlapping calls, crashes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from duly.verify.dues import Dues
from duly.verify.trace import zone_of

MINUTE_MS = 60_000
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")
CRONS = ("* * * * *", "0,2 * * * *", "5 12 * * *", "0-30 * * * *", "30 2,12 * * *", "0 0 1 1 *")
DELAYS_MS = (0, 30_000, 120_000)
INVALID = (["x", "60 * * * *", 0], ["a", "* * * * *", -1], ["a", "* * *", 0])
# 2026: before the clocks of Berlin go forward, before they go back, before those of Lord Howe do; noon.
BEGINNINGS_MS = (1774745880000, 1792886280000, 1775314680000, 1775304180000, 1781784240000, 1781784240000)
PAUSES_MS = (
    0,
    0,
    0,
    1,
    500,
    999,
    1000,
    1001,
    5000,
    20_000,
    30_000,
    59_999,
    60_000,
    60_006,
    60_007,
    60_012,
    120_000,
)
JUMPS_MS = (-1, -1000, -90_000, -300_000, -300_001, -600_000, -3_600_000, 1, 1000, 90_000, 600_000, 3_600_000)

KINDS = ("right", "changed", "wild")
"""As a scheduler would write it; with one to three changes; by no rule."""

Line = dict[str, Any]


def encoded(lines: Sequence[Line]) -> list[bytes]:
    """The lines of a trace file."""
    return [msgspec.json.encode(line) + b"\n" for line in lines]


def random_trace(seed: int, kind: str | None = None) -> list[Line]:
    """The trace of a kind with this number; of one kind after the other if none is named."""
    kind = kind or KINDS[seed % len(KINDS)]
    random = Random(f"{seed} {kind}")
    author = _Author(random)
    author.write(author.wild_scenes if kind == "wild" else author.scenes)
    lines = author.lines
    if kind == "changed":
        for _ in range(random.randint(1, 3)):
            lines = _changed(random, lines)
    return lines


def shrunk(lines: list[Line], fails: Callable[[list[Line]], bool]) -> list[Line]:
    """A smaller trace that *fails* as well: lines and fields are left out as long as that is so."""
    for smaller in _smaller(lines):
        if fails(smaller):
            return shrunk(smaller, fails)
    return lines


def _smaller(lines: list[Line]) -> Iterator[list[Line]]:
    for size in (8, 4, 2, 1):
        for index in range(1, len(lines), size):
            yield lines[:index] + lines[index + size :]
    for index, line in enumerate(lines):
        for entry in range(len(line.get("regs", ()))):
            regs = [reg for other, reg in enumerate(line["regs"]) if other != entry]
            yield [*lines[:index], {**line, "regs": regs}, *lines[index + 1 :]]
        for key in {"proc", "run", "persist_window_ms", "store", "void"} & line.keys():
            yield [*lines[:index], {k: v for k, v in line.items() if k != key}, *lines[index + 1 :]]
    if any("proc" in line for line in lines):
        yield [{key: value for key, value in line.items() if key != "proc"} for line in lines]


@dataclass
class _Known:
    """What the tiny scheduler knows of a task."""

    config: list[Any]
    next_ms: float
    retry_ms: float | None = None
    interrupted: bool = False
    runs: list[int | None] = field(default_factory=list)
    answered_ms: float = 0

    def onset_ms(self) -> float:
        """Since when a start is owed, or from when on."""
        if self.runs:
            return float("inf")
        causes = [self.next_ms, *([self.retry_ms] if self.retry_ms is not None else [])]
        return 0 if self.interrupted else min(causes)


class _Author:
    """Writes one trace."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.zone = random.choice(ZONES)
        self.now_ms: float = random.choice(BEGINNINGS_MS) + random.choice((0, 1, 30_000, 59_999, 120_000))
        self.lines: list[Line] = [{"ev": "Header", "v": 1, "tz": self.zone, **self._options()}]
        self.known: dict[str, _Known] = {}
        self.is_active = self.is_open = False
        self.inits: dict[int, list[Any]] = {}
        self.stops: list[int] = []
        self.calls = self.runs = self.steps = self.crashes = 0
        self.numbered = random.random() < 0.8
        self.proc: int | None = 1 if random.random() < 0.5 else None
        self.pool = [self._config(name) for name in ("a", "b", "c")[: random.randint(1, 3)]]
        self.flying = [run for _, run in self.lines[0].get("running", ())]
        """Runs in flight where the trace begins."""
        self.dues = {cron: Dues(cron, zone_of(self.zone)) for cron in CRONS}

    def _options(self) -> Line:
        options: Line = {}
        if self.random.random() < 0.4:
            options["persist_window_ms"] = 1000
        if self.random.random() < 0.2:
            options["store"] = "unknown"
            if self.random.random() < 0.3:
                options["running"] = [["a", 900]]
        return options

    def _config(self, name: str) -> list[Any]:
        weights = (6, 3, 3, 2, 2, 1)
        return [name, self.random.choices(CRONS, weights)[0], self.random.choice(DELAYS_MS)]

    def write(self, scenes: Callable[[], tuple[Callable[[], None], ...]]) -> None:
        """Write scenes until the trace is long enough."""
        wanted = self.random.randint(5, 25)
        while len(self.lines) <= wanted:
            self.random.choice(scenes())()
        if self.random.random() < 0.7:
            self.pause()
            self.say("End")

    def say(self, ev: str, **fields: Any) -> None:
        """Write one event."""
        line = {"t": self.now_ms, "ev": ev, **fields}
        if self.proc is not None and ev != "Crash":
            line["proc"] = f"p{self.proc}"
        self.lines.append(line)

    # Time.

    def pause(self) -> None:
        """Let some time pass; what falls due is started, mostly."""
        pick = self.random.random()
        if pick < 0.3:
            target = (
                self.now_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS + self.random.choice((-1, 0, 0, 0, 1, 40))
            )
        elif pick < 0.5 and self.known:
            onset_ms = self.random.choice(list(self.known.values())).onset_ms()
            target = onset_ms + self.random.choice(
                (-1, 0, 1, 60_000 + 6 * len(self.known), 60_007 + 6 * len(self.known))
            )
        else:
            target = self.now_ms + self.random.choice(PAUSES_MS)
        if target - self.now_ms > 7_200_000:
            target = self.now_ms + 600_000
        self.reach(max(target, self.now_ms))

    def reach(self, target_ms: float) -> None:
        """Let time pass until then, and start on the way what is owed."""
        while self.is_active:
            onset_ms, name = min(
                ((task.onset_ms(), name) for name, task in self.known.items()), default=(target_ms + 1, "")
            )
            if onset_ms > target_ms or len(self.lines) > 40 or self.random.random() < 0.03:
                break
            lag_ms = self.random.choice((0, 0, 0, 1, 40, 5000, 60_000))
            self.now_ms = min(max(onset_ms, self.now_ms) + lag_ms, max(target_ms, self.now_ms))
            self.start(name)
            if self.random.random() < 0.7:
                self.now_ms = min(
                    self.now_ms + self.random.choice(PAUSES_MS[:10]), max(target_ms, self.now_ms)
                )
                self.end(name)
        self.now_ms = max(self.now_ms, target_ms)

    # What a scheduler does.

    def start(self, name: str) -> None:
        """A run starts."""
        self.runs += 1
        run = self.runs if self.numbered else None
        self.say("RunStart", id=name, **({"run": run} if run else {}))
        task = self.known.get(name)
        if task is not None:
            task.answered_ms = max(task.answered_ms, self.now_ms)
            task.next_ms = self._due_after(task, task.answered_ms)
            task.retry_ms, task.interrupted = None, False
            task.runs.append(run)

    def end(self, name: str) -> None:
        """A run ends."""
        task = self.known.get(name)
        if task is None or not task.runs:
            return
        run, ok = task.runs.pop(0), self.random.random() < 0.6
        self.say("RunEnd", id=name, ok=ok, **({"run": run} if run else {}))
        if not ok:
            task.retry_ms = self.now_ms + task.config[2]

    def _due_after(self, task: _Known, at_ms: float) -> float:
        return self.dues[task.config[1]].after(round(at_ms * 1000)) / 1000

    def some_list(self) -> list[Any]:
        """The list as it was, or another."""
        if self.random.random() < 0.3:
            index = self.random.randrange(len(self.pool))
            self.pool[index] = self._config(self.pool[index][0])
        if self.random.random() < 0.08:
            return [*self.pool, self.random.choice(INVALID)]
        return [list(each) for each in self.pool if self.random.random() < 0.85]

    def begin_initialize(self) -> None:
        """`initialize` is called."""
        self.calls += 1
        self.inits[self.calls] = self.some_list()
        self.say("InitStart", call=self.calls, regs=self.inits[self.calls])

    def end_initialize(self) -> None:
        """The first outstanding `initialize` returns or raises."""
        call = next(iter(self.inits))
        regs = self.inits.pop(call)
        is_valid = regs[-1:] == [] or (regs[-1] not in INVALID)
        ok = (self.random.random() < 0.92) if is_valid else self.random.random() < 0.1
        is_void = not ok and self.random.random() < 0.2
        self.say("InitEnd", call=call, ok=ok, **({"void": True} if is_void else {}))
        if not is_valid or is_void:
            return
        if not ok:
            self.is_active = self.is_open = False
            return
        is_restart, self.is_open = not self.is_open, True
        self.is_active = not self.stops
        before, self.known = self.known, {}
        for reg in regs:
            old = before.get(reg[0])
            minute_ms = self.now_ms // MINUTE_MS * MINUTE_MS - 1
            if old is None or old.config != reg:
                runs, interrupted = (old.runs, old.interrupted) if old else ([], False)
                self.known[reg[0]] = _Known(reg, 0, interrupted=interrupted, runs=runs)
                self.known[reg[0]].next_ms = self._due_after(self.known[reg[0]], minute_ms)
            else:
                self.known[reg[0]] = old
                if is_restart and old.answered_ms > self.now_ms + 300_000:
                    self._count_afresh(old)

    def initialize(self) -> None:
        """`initialize`, from call to return."""
        self.begin_initialize()
        self.hesitate()
        while self.inits:
            self.end_initialize()

    def hesitate(self) -> None:
        """A short time passes, or a minute boundary."""
        if self.random.random() < 0.2:
            self.now_ms = (
                self.now_ms // MINUTE_MS * MINUTE_MS + MINUTE_MS + self.random.choice((0, 0, 1, 700))
            )
        else:
            self.now_ms += self.random.choice((0, 0, 0, 5, 500))

    def begin_stop(self) -> None:
        """`stop` is called."""
        self.calls += 1
        self.stops.append(self.calls)
        self.is_active = False
        self.say("StopStart", call=self.calls)

    def stop(self) -> None:
        """`stop`, from call to return, mostly after the ends of the runs and of `initialize`."""
        self.begin_stop()
        self.hesitate()
        for name in list(self.known):
            while self.known[name].runs and self.random.random() < 0.95:
                self.end(name)
        while self.inits and self.random.random() < 0.9:
            self.end_initialize()
        self.hesitate()
        while self.stops:
            flags = self.random.choices(({}, {"ok": False}, {"void": True}), (6, 1, 1))[0]
            self.say("StopEnd", call=self.stops.pop(self.random.randrange(len(self.stops))), **flags)
            self.is_open &= "void" in flags

    def crash(self) -> None:
        """The process dies; told, or shown by the next one."""
        self.crashes += 1
        if self.crashes > 3:
            return
        if self.proc is None or self.random.random() < 0.5:
            self.say("Crash")
        if self.proc is not None:
            self.proc += 1
        for task in self.known.values():
            task.interrupted |= bool(task.runs)
            task.runs = []
        self.is_active = self.is_open = False
        self.inits, self.stops, self.flying = {}, [], []

    def restart(self) -> None:
        """The process dies and comes back."""
        self.crash()
        self.hesitate()
        self.initialize()

    def step(self) -> None:
        """The clock is set; not so often that there are too many interpretations to tell apart."""
        self.steps += 1
        if self.steps > 2:
            self.pause()
            return
        before_ms = self.now_ms + self.random.choice((0, 0, 10))
        self.now_ms = before_ms + self.random.choice(JUMPS_MS)
        self.say("ClockStep", **{"from": before_ms})
        for task in self.known.values():
            if before_ms - self.now_ms > 300_000:
                self._count_afresh(task)

    def _count_afresh(self, task: _Known) -> None:
        """The clock is far behind what the scheduler knows of a task."""
        task.answered_ms = min(task.answered_ms, self.now_ms - 1)
        task.next_ms = min(task.next_ms, self._due_after(task, self.now_ms - 1))
        if task.retry_ms is not None:
            task.retry_ms = min(task.retry_ms, self.now_ms + task.config[2])

    def drift(self) -> None:
        """The clock is set back a little several times, and the scheduler comes back."""
        if self.steps:
            self.pause()
            return
        self.steps += 2
        for _ in range(self.random.randint(2, 3)):
            # Apart by more than the persist window: a crash leaves at most the last one open.
            self.reach(self.now_ms + self.random.choice((1000, 1001, 5000, 20_000)))
            before_ms = self.now_ms
            self.now_ms -= self.random.choice((120_000, 170_000, 299_999, 300_000))
            self.say("ClockStep", **{"from": before_ms})
        self.random.choice((self.stop, self.crash, self.pause))()
        self.hesitate()
        self.random.choice((self.initialize, self.initialize, self.begin_initialize))()

    # What a story is made of.

    def scenes(self) -> tuple[Callable[[], None], ...]:
        """What may come next, by the rules."""
        if self.inits or self.stops:
            return (
                self.pause,
                self.end_some,
                self._answer,
                self._answer,
                self.begin_initialize,
                self.begin_stop,
                self.crash,
                self.step,
            )
        if not self.is_active:
            return (
                self.initialize,
                self.initialize,
                self.initialize,
                self.begin_initialize,
                self.pause,
                self.step,
                self.restart,
            )
        common = (self.pause,) * 6 + (self.end_some,) * 6
        return (
            *common,
            self.initialize,
            self.begin_initialize,
            self.stop,
            self.begin_stop,
            self.restart,
            self.restart,
            self.step,
            self.drift,
        )

    def wild_scenes(self) -> tuple[Callable[[], None], ...]:
        """What may come next, by no rule."""
        wild: tuple[Callable[[], None], ...] = (
            self.any_start,
            self.any_start,
            self.any_end,
            self.any_end,
            self.wait,
            self.wait,
        )
        return (*wild, *wild, *self.scenes())

    def end_some(self) -> None:
        """One of the runs ends."""
        if self.flying:
            self.say("RunEnd", id="a", run=self.flying.pop(), ok=self.random.random() < 0.5)
        running = [name for name, task in self.known.items() if task.runs]
        if running:
            self.pause()
            self.end(self.random.choice(running))
        else:
            self.pause()

    def _answer(self) -> None:
        self.hesitate()
        if self.inits:
            self.end_initialize()
        elif self.stops:
            self.stop()

    def any_start(self) -> None:
        """Some task starts, with or without cause."""
        self.start(self.random.choice(("a", "a", "b", "c")))

    def any_end(self) -> None:
        """Some task ends, if it runs, whether that is known or not."""
        self.end(self.random.choice(("a", "a", "b", "c")))

    def wait(self) -> None:
        """Time passes, and nothing is done about it."""
        self.now_ms += self.random.choice(PAUSES_MS)


def _changed(random: Random, lines: list[Line]) -> list[Line]:
    """The trace with one thing changed."""
    index = random.randrange(1, len(lines))
    line = lines[index]
    before, after = lines[:index], lines[index + 1 :]
    change = random.choice(("drop", "drop", "double", "delay", "delay", "insert", "ok", "swap", "unknown"))
    if change == "drop":
        return before + after
    if change == "double":
        return [*before, line, dict(line), *after]
    if change == "delay":
        return _delayed(line["t"] + random.choice((1, 1000, 60_000, 60_007, 120_000)), line, before, after)
    if change == "insert":
        run = {"t": line["t"], "ev": "RunStart", "id": random.choice("abc"), "run": 1000 + len(lines)}
        return [
            *before,
            line,
            random.choice((run, {"t": line["t"], "ev": "Crash"}, {"t": line["t"], "ev": "Tick"})),
            *after,
        ]
    if change == "ok" and "ok" in line:
        return [*before, {**line, "ok": not line["ok"]}, *after]
    if change == "swap" and after and "t" in after[0]:
        return [*before, {**after[0], "t": line["t"]}, {**line, "t": after[0]["t"]}, *after[1:]]
    if change == "unknown" and random.random() < 0.3:
        return [*before, line, {"t": line["t"], "ev": "Nap"}, *after]
    return lines


def _delayed(to_ms: float, line: Line, before: list[Line], after: list[Line]) -> list[Line]:
    """The line moved to its new time, among those that come after it."""
    later = 0
    while later < len(after) and after[later]["t"] <= to_ms and after[later]["ev"] != "ClockStep":
        later += 1
    return [*before, *after[:later], {**line, "t": to_ms}, *after[later:]]
