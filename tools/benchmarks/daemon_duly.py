"""duly's daemon in the benchmark of daemons: the installed command, asked over its socket."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers

from duly.daemon.client import Client
from duly.daemon.protocol import OperationError, UnreachableError

_DULY = str(Path(sys.executable).with_name("duly"))
_PROBED_EVERY_S = 0.02
_LISTED = 7
_RUNS_PER_S = 100
_MOST_PROBED = 1_000


class Daemon:
    """A daemon at work in *folder*, on a file with these tables below its `[supervisor]`."""

    def __init__(self, folder: Path, tables: str) -> None:
        self.folder = folder
        self.write(tables)
        self.began_s = host.uptime_s()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [_DULY, "run", "--quiet", "duly.toml"], cwd=folder, stdout=log, stderr=log
            )
        self.pid = self._process.pid
        self.client = Client(str(folder / "duly.sock"))

    def write(self, tables: str) -> None:
        """Have the file say something else."""
        (self.folder / "duly.toml").write_text(f'[supervisor]\ntimers = true\ntimezone = "UTC"\n{tables}')

    def wait(self) -> None:
        """Return once it has started up."""
        give_up_s = time.monotonic() + 120
        while time.monotonic() < give_up_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"the daemon ended: {(self.folder / 'log').read_text()}")
            try:
                if self.client.ask("status")["state"] == "running":
                    return
            except UnreachableError:
                pass
            time.sleep(0.05)
        raise RuntimeError("the daemon does not start up")

    def command(self, *words: str) -> tuple[float, bytes]:
        """Run a command of `duly`; how long that took, in seconds, and what it printed."""
        began_s = time.perf_counter()
        done = subprocess.run([_DULY, *words], cwd=self.folder, check=True, capture_output=True)
        return time.perf_counter() - began_s, done.stdout

    def end(self) -> None:
        """End it, in order."""
        self._process.terminate()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()


@contextmanager
def _running(folder: Path, tables: str) -> Iterator[Daemon]:
    daemon = Daemon(folder, tables)
    try:
        daemon.wait()
        yield daemon
    finally:
        daemon.end()


class _Probe:
    """A client that asks again and again for nothing at all: how long the loop lets it wait."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_over = threading.Event()
        self._longest_s = 0.0
        self._thread = threading.Thread(target=self._ask_on)
        self._thread.start()

    def end(self) -> float:
        """The longest wait, in milliseconds."""
        self._is_over.set()
        self._thread.join()
        return self._longest_s * 1000

    def _ask_on(self) -> None:
        while not self._is_over.wait(_PROBED_EVERY_S):
            began_s = time.perf_counter()
            with suppress(OperationError):
                self._client.ask("nothing at all")
            self._longest_s = max(self._longest_s, time.perf_counter() - began_s)


# --- files ---


def _service(name: str, *command: str, kind: str = "oneshot") -> str:
    return (
        f"[[service]]\nid = {json.dumps(name)}\ntype = {json.dumps(kind)}\ncommand = {json.dumps(command)}\n"
    )


def _timer(name: str, target: str, when: str) -> str:
    return f"[[timer]]\nid = {json.dumps(name)}\ntarget = {json.dumps(target)}\n{when}\n"


def _timed(i: int, when: str, *command: str) -> str:
    name = f"job-{i:05}"
    return _service(name, *command) + _timer(name, name, when)


def _far_away(n: int) -> str:
    """Half calendars, half intervals, each with a job of its own; none is due for two hours."""
    return "".join(
        _timed(
            i, f"on_startup_sec = {7200 + i}\non_unit_active_sec = 7200" if i % 2 else _calendar(i), "true"
        )
        for i in range(n)
    )


def _far_away_for_one(n: int) -> str:
    """Timers of one job, so that ten thousand fit into the megabyte that a file may have."""
    return _service("job", "true") + "".join(_timer(f"job-{i:05}", "job", _calendar(i)) for i in range(n))


def _calendar(i: int) -> str:
    """A minute of the day, three hours away or more."""
    return f"on_calendar = [{{hour = {(time.gmtime().tm_hour + 3 + i % 18) % 24}, minute = {i % 60}}}]"


def _note(file: Path, name: str) -> tuple[str, ...]:
    return "sh", "-c", host.NOTE, str(file), name


# --- cases ---


def _timers_idle(case: Case, folder: Path) -> Numbers:
    with _running(folder, _far_away(case.n)) as daemon:
        return _idle(daemon, case)


def _services_idle(case: Case, folder: Path) -> Numbers:
    services = (_service(f"service-{i:05}", "sleep", "infinity", kind="simple") for i in range(case.n))
    with _running(folder, "".join(services)) as daemon:
        return _idle(daemon, case)


def _idle(daemon: Daemon, case: Case) -> Numbers:
    time.sleep(3)  # the last thread comes to rest
    return host.idle(daemon.pid, float(case.variant.split()[-2]))


def _burst(case: Case, folder: Path) -> Numbers:
    started, (minute, due_s) = folder / "started", host.next_minute(10)
    when = f"on_calendar = [{{hour = {minute.tm_hour}, minute = {minute.tm_min}}}]"
    jobs = (_timed(i, when, *_note(started, f"job-{i:05}")) for i in range(case.n))
    with _running(folder, "".join(jobs)) as daemon:
        while host.uptime_s() < due_s - 1:
            time.sleep(0.05)
        before_s = host.cpu_s(daemon.pid)
        # The larger one without a client, whose requests would count as the daemon's time.
        probe = _Probe(daemon.client) if case.n < _MOST_PROBED else None
        try:
            numbers = host.lags(host.starts(started, case.n), due_s)
        finally:
            delay_ms = 0.0 if probe is None else probe.end()
        cpu_s = host.cpu_s(daemon.pid) - before_s
        spawn_s, spawn_cpu_s = host.bare_spawns(folder / "bare", case.n)
        seen = daemon.client.ask("history", limit=1000)["runs"]
        if len(seen) != case.n or {run["result"] for run in seen} != {"success"}:
            raise RuntimeError(f"the history tells of {len(seen)} runs instead of {case.n} successes")
    return numbers | {
        "cpu_ms": cpu_s * 1000 / case.n,
        "delay_ms": delay_ms,
        "times_spawn": case.n / numbers["per_s"] / spawn_s,
        "spawn_cpu_ms": spawn_cpu_s * 1000 / case.n,
    }


def _boot(case: Case, folder: Path) -> Numbers:
    started = folder / "started"
    stay = f"{host.NOTE}; exec sleep infinity"
    services = (
        _service(f"service-{i:05}", "sh", "-c", stay, str(started), f"service-{i:05}", kind="simple")
        for i in range(case.n)
    )
    with _running(folder, "".join(services)) as daemon:
        return host.lags(host.starts(started, case.n), daemon.began_s)


def _list(case: Case, folder: Path) -> Numbers:
    with _running(folder, (_far_away if case.n <= 1_000 else _far_away_for_one)(case.n)) as daemon:
        daemon.command("timers")
        before_s = host.children_cpu_s()
        times_s = [daemon.command("timers")[0] for _ in range(_LISTED)]
        cpu_ms = (host.children_cpu_s() - before_s) * 1000 / _LISTED
        probe = _Probe(daemon.client)
        try:
            daemon.command("timers")
        finally:
            delay_ms = probe.end()
    return host.took_ms(times_s) | {"cpu_ms": cpu_ms, "delay_ms": delay_ms}


def _reload(case: Case, folder: Path) -> Numbers:
    services = [_service(f"service-{i:05}", "true") + "at_startup = false\n" for i in range(case.n)]
    with _running(folder, "".join(services)) as daemon:
        services[0] = services[0].replace('"true"', '"false"')
        daemon.write("".join(services))
        probe = _Probe(daemon.client)
        try:
            took_s, seen = daemon.command("reload", "--json")
        finally:
            delay_ms = probe.end()
    if b"service-00000" not in seen or b"service-00001" in seen:
        raise RuntimeError(f"another change was told: {seen!r}")
    return {"took_ms": took_s * 1000, "delay_ms": delay_ms, "load": host.load()}


def _runs(case: Case, folder: Path) -> Numbers:
    """Timers that fire again a second after each end, until that many runs have ended."""
    when = "on_startup_sec = 1\non_unit_active_sec = 1"
    with _running(folder, "".join(_timed(i, when, "true") for i in range(_RUNS_PER_S))) as daemon:
        _wait_for_run(daemon, case.n // 2)
        half_mb, before_s = host.resident_mb(daemon.pid), host.cpu_s(daemon.pid)
        _wait_for_run(daemon, case.n)
        cpu_s, whole_mb = host.cpu_s(daemon.pid) - before_s, host.resident_mb(daemon.pid)
    return {
        "grown_mb": whole_mb - half_mb,
        "resident_mb": whole_mb,
        "cpu_ms": cpu_s * 1000 / (case.n - case.n // 2),
        "load": host.load(),
    }


def _wait_for_run(daemon: Daemon, number: int) -> None:
    give_up_s = time.monotonic() + 1_800
    while (newest := daemon.client.ask("history", limit=1)["runs"]) == [] or newest[0]["id"] < number:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"there are not {number} runs after half an hour")
        time.sleep(1)


MEASURES = {
    "timers": _timers_idle,
    "services": _services_idle,
    "burst": _burst,
    "boot": _boot,
    "list": _list,
    "reload": _reload,
    "runs": _runs,
}
