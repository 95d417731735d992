"""A cluster of real processes on a real database: to start, kill, freeze and cut off, and to look at.

`World(url, directory)` starts nodes (`tests.worlds.cluster_program`), each behind a cable of its own if
wanted. What it knows of a run are the lines that its process wrote. `World.account()` looks at all of them
together: no task runs twice at once, and what was cut off started once more, once, under the same run id and
with a greater token. Then it has their traces judged by `duly verify`.

Nothing here sleeps. Each wait is for a line or for what the database shows. A wait in vain tells everything.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from duly.cluster import PostgresStore
from duly.cluster.table import NodeView, ReadNodes
from tests.acceptance.running import DULY, PATIENCE_S, StreamLines
from tests.worlds.postgres import SHORT_LEASE_S, until
from tests.worlds.proxy import Proxy, through

ROOT = Path(__file__).parents[2]
EVERY_MINUTE = "* * * * *"

Tasks = Sequence[Sequence[Any]]


def now_us() -> int:
    """The clock that stands before every line of a node."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def tasks(*names: str, cron: str = EVERY_MINUTE, delay_s: float = 0.2) -> list[list[Any]]:
    """Registrations for a node."""
    return [[name, cron, delay_s] for name in names]


class Said(NamedTuple):
    at_us: int
    kind: str
    rest: str


@dataclass(slots=True)
class Seen:
    """A run as it was seen from the outside."""

    node: "NodeProcess"
    name: str
    number: int
    run_id: str
    token: int
    start_us: int
    end_us: int | None = None
    """When it was over, or its process died or froze for good."""
    how: str = "open"
    cause: str = ""


class NodeProcess:
    def __init__(self, world: "World", name: str, url: str, listed: Tasks, *options: str) -> None:
        self.name = name
        self.trace = world.directory / f"{name}.jsonl"
        program = [sys.executable, "-m", "tests.worlds.cluster_program", url, json.dumps(listed)]
        more = ["--lease-ms", str(round(world.lease_s * 1_000)), "--trace", str(self.trace), "--name", name]
        self.process = subprocess.Popen(
            [*program, *more, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="surrogateescape",
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out, self.err = StreamLines(self.process.stdout), StreamLines(self.process.stderr)
        self.cut_us: int | None = None
        """When it was killed, or frozen for so long that it counts as dead."""

    # --- what is done to it ---

    def kill(self) -> None:
        """End it as a power cut would."""
        self.cut_us = now_us()
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def freeze(self) -> None:
        self.cut_us = now_us()
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()

    def bring(self, listed: Tasks) -> None:
        """Have it bring another list; on return that has taken effect."""
        before = self.mark()
        self.tell("list", json.dumps(listed))
        self.until("ready", after=before)

    def stop(self) -> None:
        """End it in order, and its runs first."""
        for name in self.running:
            self.tell("end", name)
        self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        """Wait until it has ended in order."""
        self.until("stopped")
        assert self.process.wait(PATIENCE_S) == 0
        assert self.err.all() == [], "\n".join(self.err.lines)

    def end(self) -> None:
        """End it without a word, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for heard in (self.out, self.err):
            heard.join()
        with suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()

    # --- what it says ---

    def mark(self) -> int:
        """Where its lines end now, to look at those after it."""
        return len(self.out.lines)

    def until(self, pattern: str, *, count: int = 1, after: int = 0) -> list[str]:
        """Its first *count* lines from *after* on whose words match, once they are there."""
        try:
            return self.out.until(rf"^\d+ {pattern}", count=count, after=after)
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}\n" + "\n".join(self.err.lines)) from None

    def said(self, kind: str = "") -> list[Said]:
        """Its lines so far, or those of one *kind*."""
        lines = [line.split(" ", 2) for line in list(self.out.lines)]
        said = [Said(int(words[0]), words[1], words[2] if len(words) > 2 else "") for words in lines]
        return [line for line in said if not kind or line.kind == kind]

    def events(self, *kinds: str) -> list[tuple[int, str, dict[str, Any]]]:
        """What its scheduler announced so far: when, what, and the facts."""
        found = []
        for line in self.said("event"):
            kind, _, facts = line.rest.partition(" ")
            if not kinds or kind in kinds:
                found.append((line.at_us, kind, json.loads(facts)))
        return found

    @property
    def running(self) -> list[str]:
        """The long tasks that it runs."""
        return [run.name for run in self.runs() if run.how == "open" and run.name.startswith("long")]

    def runs(self) -> list[Seen]:
        """Its runs, as it told of them until it was cut off."""
        runs: dict[int, Seen] = {}
        causes: dict[str, str] = {}
        for line in self.said():
            words = line.rest.split(" ")
            if line.kind == "event" and words[0] == "TaskRunStarted":
                facts = json.loads(line.rest.partition(" ")[2])
                causes[facts["taskName"]] = str(facts.get("cause", "due"))
            if line.kind == "start":
                cause = causes.get(words[0], "")
                runs[int(words[1])] = Seen(
                    self, words[0], int(words[1]), words[2], int(words[3]), line.at_us, cause=cause
                )
            elif line.kind == "end":
                run = runs[int(words[1])]
                run.end_us, run.how = line.at_us, words[2]
        for run in runs.values():
            if self.cut_us is not None and run.start_us <= self.cut_us <= (run.end_us or self.cut_us):
                run.end_us = self.cut_us
                run.how = "cut off"
        return list(runs.values())


class Processes:
    """Processes on one database: how they reach it, and what it shows of them."""

    def __init__(self, url: str, directory: Path, lease_s: float, **store: str) -> None:
        self.url = url
        self.directory = directory
        self.lease_s = lease_s
        self.opened = ExitStack()
        self.table = PostgresStore(url, **store).table(patience_s=60)
        self.opened.callback(self.table.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.opened.close()

    def cable(self, port: int) -> tuple[Proxy, str]:
        """A cable to the database behind *port*, and the address at this end of it."""
        proxy = self.opened.enter_context(Proxy(port))
        return proxy, through(self.url, proxy.port)

    @property
    def names(self) -> dict[str, str]:
        """The name of each process by its pid."""
        raise NotImplementedError

    def story(self) -> str:
        """What all have said."""
        raise NotImplementedError

    def name_of(self, node: str) -> str:
        """The name of the process that is a node of the database."""
        return self.names.get(node.rpartition(":")[2], "?")

    def living(self) -> list[NodeView]:
        """The nodes that are neither fenced nor gone, as an outsider sees them."""
        return [view for view in self.table.do(ReadNodes())[1] if view.fenced_us is None]

    def until_alive(self, *among: Any) -> None:
        """Wait until these are the living nodes, and no others."""
        names = sorted(each.name for each in among)
        self.until(
            lambda: sorted(self.name_of(view.name) for view in self.living()) == names, f"{names} live"
        )

    def until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until something holds that nobody tells us; or tell everything."""
        try:
            until(is_so, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None


class World(Processes):
    """Nodes, and what is seen of them."""

    def __init__(self, url: str, directory: Path, *, lease_s: float = SHORT_LEASE_S) -> None:
        super().__init__(url, directory, lease_s)
        self.nodes: list[NodeProcess] = []

    # --- making ---

    def begin(
        self, name: str, listed: Tasks, *options: str, url: str = "", is_awaited: bool = True
    ) -> NodeProcess:
        """Start a node; on return its list has taken effect."""
        node = NodeProcess(self, name, url or self.url, listed, *options)
        self.opened.callback(node.end)
        self.nodes.append(node)
        if is_awaited:
            node.until("ready")
        return node

    def begin_all(
        self, names: Iterable[str], listed: Tasks, *options: str, urls: Sequence[str] = ()
    ) -> list[NodeProcess]:
        begun = [
            self.begin(name, listed, *options, url=urls[n] if urls else "", is_awaited=False)
            for n, name in enumerate(names)
        ]
        for node in begun:
            node.until("ready")
        return begun

    # --- looking ---

    @property
    def names(self) -> dict[str, str]:
        """The name of each node by its pid."""
        return {str(node.process.pid): node.name for node in self.nodes}

    def beat(self, node: NodeProcess) -> int:
        """How many heartbeats of a node have arrived."""
        return next(view.beat for view in self.living() if self.name_of(view.name) == node.name)

    def until_started(
        self, name: str, *, among: Sequence[NodeProcess] = (), after_us: int | None = 0
    ) -> Seen:
        """The first run of a task that began after a time, on one of these nodes, once it is there."""
        found: list[Seen] = []

        def is_so() -> bool:
            found[:] = [
                run
                for run in self.runs(name)
                if run.start_us > (after_us or 0) and (not among or run.node in among)
            ]
            return bool(found)

        self.until(is_so, f"{name} starts")
        return found[0]

    def runner(self, name: str) -> NodeProcess:
        """The node on which a long task runs, once it does."""
        found: list[NodeProcess] = []

        def is_so() -> bool:
            found[:] = [run.node for run in self.runs(name) if run.how == "open"]
            return bool(found)

        self.until(is_so, f"{name} runs")
        (node,) = found
        return node

    def others(self, *gone: NodeProcess) -> list[NodeProcess]:
        return [node for node in self.nodes if node not in gone]

    def until_all_started(
        self, *names: str, among: Sequence[NodeProcess] = (), after_us: int | None = 0
    ) -> None:
        """Wait until each of these tasks has begun after a time, on one of these nodes."""
        for name in names:
            self.until_started(name, among=among, after_us=after_us)

    def runs(self, name: str = "") -> list[Seen]:
        """All runs of a task, or of all, on whatever node, by their starts."""
        found = [run for node in self.nodes for run in node.runs() if not name or run.name == name]
        return sorted(found, key=lambda run: run.start_us)

    def events(self, *kinds: str) -> list[tuple[int, str, dict[str, Any]]]:
        return [event for node in self.nodes for event in node.events(*kinds)]

    def story(self) -> str:
        lines = sorted(
            (line.at_us, node.name, line.kind, line.rest) for node in self.nodes for line in node.said()
        )
        return "\n".join(
            f"{at_us / 1e6:.3f} {name}: {kind} {rest}"[:200] for at_us, name, kind, rest in lines[-400:]
        )

    # --- judging ---

    def check_steady(self, *hows: str) -> None:
        """No lease was lost, and every long run goes on, or has ended in one of these ways."""
        assert {run.how for run in self.runs() if run.name.startswith("long")} <= {"open", *hows}
        assert self.events("TrustLost", "NodeFenced") == []

    def account(self) -> None:
        """No task ran twice at once; a run that was cut off was followed by a restart, and no other was."""
        by_task: dict[str, list[Seen]] = defaultdict(list)
        for run in self.runs():
            by_task[run.name].append(run)
        cuts_us = [node.cut_us for node in self.nodes if node.cut_us is not None]
        cuts_us += [at_us for at_us, *_ in self.events("TrustLost", "NodeReturned")]
        for runs in by_task.values():
            _account_for(runs, cuts_us, self.story)

    def verify(self) -> None:
        """Account for all runs, and let `duly verify` judge the traces of all nodes together."""
        self.account()
        command = [DULY, "verify", *(str(node.trace) for node in self.nodes)]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert answer.returncode == 0, f"{answer.stdout}\n{answer.stderr}\n{self.story()}"


def _account_for(runs: Sequence[Seen], cuts_us: Sequence[int], story: Callable[[], str]) -> None:
    for latest, run in pairwise(runs):
        where = f"{run.name} on {latest.node.name} and {run.node.name}"
        assert latest.end_us is not None and latest.end_us <= run.start_us, f"{where} at once\n{story()}"
        assert latest.token < run.token, f"{where}: token {latest.token}, then {run.token}\n{story()}"
        is_cut = latest.how in {"cut off", "cancelled"}
        # A node that is cut off may have claimed a run that it never called: that counts as one.
        is_perhaps_cut = is_cut or any(latest.end_us <= cut_us <= run.start_us for cut_us in cuts_us)
        is_restart = run.cause == "interrupted"
        assert is_cut <= is_restart <= is_perhaps_cut, (
            f"{run.name} after a run {latest.how}: {run.cause}\n{story()}"
        )
        if is_cut:
            assert latest.run_id == run.run_id, f"{where}: another run id\n{story()}"
