"""Real daemons that share their timers on a real PostgreSQL, for acceptance tests.

Each machine is a `duly run` in a directory of its own. Its jobs note what they do in one file: every note is
a single appending write, so the order of the lines is the order of what happened, whatever any clock says.
A long job notes every moment that it is still there. Hence the judge: once a run of a job has begun, no
earlier run of that job, on whatever machine, ever notes anything again.

Nothing here sleeps. Each wait is for a note, a line, or what the database shows; one in vain tells all.
"""

import json
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from duly.cluster.table import Fence, ReadTasks, SetPaused
from duly.daemon.sharing import SCHEMA
from tests.acceptance.running import Home, Running, settings, table, timer
from tests.worlds.cluster import Processes
from tests.worlds.postgres import SHORT_LEASE_S, until
from tests.worlds.postgres_guard import is_alive

RARELY: dict[str, Any] = {"on_calendar": {"minute": 0, "hour": 0, "day_of_month": 29, "month": 2}}
"""A trigger that does not come while a test runs."""
PACE: dict[str, Any] = {"on_startup_sec": 0.1, "on_unit_active_sec": 0.3}
"""Triggers of a timer that fires again and again."""

_QUICK = """
note() { echo "$1 $MACHINE $$ $2" >>"$NOTES"; }
note "$1" begin
note "$1" beat
sleep 0.1
note "$1" end
"""
# A shell would start a process for every beat.
_LONG = """
import os, signal, sys, time
job, kind = sys.argv[1:]
notes = os.environ["NOTES"]
file = os.open(notes, os.O_WRONLY | os.O_APPEND)
def note(what):
    os.write(file, f"{job} {os.environ['MACHINE']} {os.getpid()} {what}\\n".encode())
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("begin")
while not os.path.exists(f"{notes}.{job}"):
    note("beat")
    time.sleep(0.05)
note("end")
"""


class Note(NamedTuple):
    job: str
    machine: str
    pid: int
    kind: str
    at: int
    """Its place among the lines."""

    @property
    def run(self) -> tuple[str, int]:
        """Which run of the job it is about."""
        return self.machine, self.pid


class Machine:
    """A machine with its file, and its daemon, one life after the other."""

    def __init__(self, fleet: "Fleet", name: str, text: str, url: str) -> None:
        self.name = name
        self.url = url
        self._fleet = fleet
        path = fleet.directory / name
        path.mkdir()
        self.home = Home(path, fleet.configured(text, url))
        self.lives: list[Running] = []

    @property
    def daemon(self) -> Running:
        """Its present life, or the last one."""
        return self.lives[-1]

    def start(self, *options: str, is_awaited: bool = True) -> Self:
        """Begin a life; on return its timers are at work, or it waits."""
        self.lives.append(self._fleet.begin_life(self, options))
        if is_awaited:
            self.daemon.log.until("TimersEnabled")
        return self

    def kill(self) -> None:
        """End it as a power cut would."""
        self.daemon.process.kill()
        self.daemon.process.wait(60)

    def freeze(self) -> None:
        self.daemon.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.daemon.send(signal.SIGCONT)

    def reload(self, text: str) -> None:
        """Give it another file; on return that has taken effect."""
        self.home.write(self._fleet.configured(text, self.url))
        answer = self.home.duly("reload")
        assert answer.returncode == 0, answer

    def mark(self) -> int:
        """Where its log ends now, to look at what comes after."""
        return len(self.daemon.log.lines)

    def until(self, pattern: str, *, count: int = 1, after: int = 0) -> list[str]:
        """The first lines of its log that match, once they are there."""
        return self.daemon.log.until(pattern, count=count, after=after)

    def said(self, pattern: str, *, after: int = 0) -> list[str]:
        """The lines of its log so far that match."""
        return [line for line in list(self.daemon.log.lines)[after:] if re.search(pattern, line)]


class Fleet(Processes):
    """Machines on one database, and what is seen of them."""

    def __init__(self, url: str, directory: Path, *, lease_s: float = SHORT_LEASE_S) -> None:
        super().__init__(url, directory, lease_s, schema=SCHEMA)
        self.machines: list[Machine] = []
        quick, long = directory / "quick.sh", directory / "long.py"
        quick.write_text(_QUICK)
        long.write_text(_LONG)
        self._quick = ["/bin/sh", str(quick)]
        self._long = [sys.executable, "-I", "-S", str(long)]
        self._notes = directory / "notes"
        self._notes.touch()

    # --- making ---

    def job(self, name: str, kind: str = "quick", **options: Any) -> str:
        """A job that notes what it does, as TOML."""
        command = [*self._quick, name] if kind == "quick" else [*self._long, name, kind]
        return table("service", {"id": name, "type": "oneshot", "command": command, **options})

    def jobs(self, names: Iterable[str], kind: str = "quick", **options: Any) -> str:
        """Jobs, each with a timer of its own name that fires again and again, or as *options* say."""
        triggers = options if {"on_startup_sec", "on_calendar"} & options.keys() else {**PACE, **options}
        return "".join(self.job(name, kind) + timer(name, name, **triggers) for name in names)

    def configured(self, text: str, url: str) -> str:
        """The file of a machine, but for the dashboard."""
        shared = {"timers": True, "store": url, "lease_sec": self.lease_s, "timezone": "UTC"}
        # A deaf job goes on as long as a test looks at it.
        return settings(**shared, kill_grace_sec=100, shutdown_timeout_sec=200) + text

    def machine(self, name: str, text: str, *, url: str = "") -> Machine:
        """A machine that does not run yet."""
        self.machines.append(Machine(self, name, text, url or self.url))
        return self.machines[-1]

    def begin_life(self, machine: Machine, options: Sequence[str]) -> Running:
        """A new life of a machine; it does not outlive the fleet."""
        env = {"MACHINE": machine.name, "NOTES": str(self._notes)}
        trace = ("--trace", str(self.directory / f"{machine.name}-{len(machine.lives)}.jsonl"))
        return self.opened.enter_context(
            machine.home.running(*options, *trace, "--no-echo", env=env, is_awaited=False)
        )

    def begin(self, names: Iterable[str], text: str, *, urls: Sequence[str] = ()) -> list[Machine]:
        """Start machines with the same file, all together."""
        begun = [self.machine(name, text, url=urls[n] if urls else "") for n, name in enumerate(names)]
        for machine in begun:
            machine.start(is_awaited=False)
        for machine in begun:
            machine.until("TimersEnabled")
        self.until_alive(*begun)
        return begun

    def let_end(self, job: str) -> None:
        """Have a long job end, now and whenever it runs."""
        (self.directory / f"notes.{job}").touch()

    # --- looking ---

    def notes(self, job: str = "") -> list[Note]:
        found = []
        for at, line in enumerate(self._notes.read_text().splitlines()):
            name, machine, pid, kind = line.split()
            found.append(Note(name, machine, int(pid), kind, at))
        return [note for note in found if not job or note.job == job]

    def mark(self) -> int:
        """Where the notes end now, to look at those after."""
        return len(self._notes.read_text().splitlines())

    def begins(self, job: str = "", *, on: Sequence[Machine] = (), after: int = 0) -> list[Note]:
        """The beginnings of runs, on these machines, after a place in the notes."""
        names = {machine.name for machine in on or self.machines}
        return [
            note
            for note in self.notes(job)
            if note.kind == "begin" and note.at >= after and note.machine in names
        ]

    def until_begun(
        self, job: str, *, on: Sequence[Machine] = (), after: int = 0, count: int = 1
    ) -> list[Note]:
        """The first *count* beginnings of a job, once they are there."""
        what = f"{job} begins {count} times on {[machine.name for machine in on] or 'any machine'}"
        self.until(lambda: len(self.begins(job, on=on, after=after)) >= count, what)
        return self.begins(job, on=on, after=after)[:count]

    def run_long(self, machine: Machine, jobs: Sequence[str]) -> list[str]:
        """Have a machine run jobs that last until they are let end."""
        for job in jobs:
            answer = machine.home.duly("trigger", job)
            assert answer.returncode == 0, answer
            self.until_begun(job, on=[machine])
        return list(jobs)

    def until_busy(self, machine: Machine, *, after: int = 0) -> None:
        """Wait until a machine has begun to run something, after a place in the notes."""
        self.until(lambda: self.begins(on=[machine], after=after), f"{machine.name} runs something")

    def until_going_on(self, jobs: Iterable[str], *, on: Sequence[Machine] = (), count: int = 2) -> None:
        """Wait until each of these jobs has begun *count* more times, on these machines."""
        after = self.mark()
        for job in jobs:
            self.until_begun(job, on=on, after=after, count=count)

    def fence(self, node: int) -> bool:
        (beat,) = [each.beat for each in self.living() if each.node == node]
        return self.table.do(Fence(by="test", node=node, beat=beat)) is not None

    def pause(self, job: str, *, is_on: bool) -> None:
        """Have nobody claim a timer, or let it be claimed again."""
        assert self.table.do(SetPaused(name=job, is_paused=is_on))

    def reasons(self, job: str) -> list[str]:
        """Why a job was started, on all machines in all their lives."""
        pattern = rf"ServiceRunStarted service={job} .*\breason=(\S+)"
        lives = [life for machine in self.machines for life in machine.lives]
        return sorted(
            found[1] for life in lives for line in list(life.log.lines) if (found := re.search(pattern, line))
        )

    def runs_on(self, job: str) -> str:
        """The name of the machine that has claimed the timer of that name; empty if none has."""
        (view,) = self.table.do(ReadTasks(name=job))
        return "" if view.run_by is None else self.name_of(view.run_by)

    @property
    def names(self) -> dict[str, str]:
        """The machine of each daemon, by the pid of that."""
        return {str(life.pid): machine.name for machine in self.machines for life in machine.lives}

    def story(self) -> str:
        """What all daemons said, each for itself, and the last notes."""
        told = [
            f"--- {machine.name}, life {number}\n" + "\n".join(line[:200] for line in list(life.log.lines))
            for machine in self.machines
            for number, life in enumerate(machine.lives, 1)
        ]
        last = [f"{note.at} {note.job} {note.machine} {note.kind}" for note in self.notes()[-80:]]
        return "\n".join([*told, "--- notes", *last])

    # --- judging ---

    def verdict(self, *, code: int = 0) -> Any:
        """What the judge of all traces together says, if there are any."""
        traces = map(str, sorted(self.directory.glob("*.jsonl")))
        judged = self.machines[0].home.duly("verify", "--json", *traces, config=False)
        assert judged.returncode == code, f"{judged.stdout}{judged.stderr}\n{self.story()}"
        return json.loads(judged.stdout)

    def account(self) -> None:
        """No two runs of one job were there at the same time, on whatever machines.

        Nor has any monitor objected to anything, nor does the judge of all traces together.
        """
        if self.machines:
            self.verdict()
        for life in (life for machine in self.machines for life in machine.lives):
            objections = life.log.matching("PropertyViolated")
            assert objections == [], f"{objections}\n{self.story()}"
        latest: dict[str, tuple[str, int]] = {}
        over: dict[str, set[tuple[str, int]]] = {}
        for note in self.notes():
            past = over.setdefault(note.job, set())
            assert note.run not in past, (
                f"{note.job} runs on {note.machine} and {latest[note.job]} (note {note.at})\n{self.story()}"
            )
            if latest.get(note.job, note.run) != note.run:
                past.add(latest[note.job])
            latest[note.job] = note.run


def until_gone(pids: Iterable[int]) -> None:
    """Wait until none of these processes is there."""
    until(lambda: not any(map(is_alive, pids)), "the runs are gone")
