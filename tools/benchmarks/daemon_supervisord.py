"""supervisord in the benchmark of daemons: the same services, asked with its own `supervisorctl`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers

_BIN = Path(sys.executable).parent
_LISTED = 7
_HEAD = """\
[supervisord]
nodaemon=true
user=root
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
[unix_http_server]
file={folder}/s.sock
[supervisorctl]
serverurl=unix://{folder}/s.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""


def _programs(n: int, command: str) -> str:
    return "".join(
        f"[program:service-{i:05}]\ncommand={command.format(name=f'service-{i:05}')}\n" for i in range(n)
    )


@contextmanager
def _running(folder: Path, programs: str) -> Iterator["subprocess.Popen[bytes]"]:
    if find_spec("supervisor") is None:
        raise ModuleNotFoundError("supervisor")
    (folder / "supervisord.conf").write_text(_HEAD.format(folder=folder) + programs)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [_BIN / "supervisord", "-c", "supervisord.conf"], cwd=folder, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def _status(folder: Path) -> str:
    command = [str(_BIN / "supervisorctl"), "-c", "supervisord.conf", "status"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout


def _wait(folder: Path, n: int) -> None:
    give_up_s = time.monotonic() + 120
    while _status(folder).count("RUNNING") < n:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"supervisord does not start up: {(folder / 'log').read_text()}")
        time.sleep(0.5)


def _services_idle(case: Case, folder: Path) -> Numbers:
    with _running(folder, _programs(case.n, "sleep infinity")) as process:
        _wait(folder, case.n)
        time.sleep(3)
        return host.idle(process.pid, float(case.variant.split()[-2]))


def _boot(case: Case, folder: Path) -> Numbers:
    started = folder / "started"
    # Its own quoting rules are those of a shell, and % has to be doubled; there is none here.
    stay = f"sh -c '{host.NOTE}; exec sleep infinity' {started} {{name}}"
    began_s = host.uptime_s()
    with _running(folder, _programs(case.n, stay)):
        return host.lags(host.starts(started, case.n), began_s)


def _list(case: Case, folder: Path) -> Numbers:
    with _running(folder, _programs(case.n, "sleep infinity")):
        _wait(folder, case.n)
        times_s: list[float] = []
        before_s = host.children_cpu_s()
        for _ in range(_LISTED):
            began_s = time.perf_counter()
            _status(folder)
            times_s.append(time.perf_counter() - began_s)
        cpu_ms = (host.children_cpu_s() - before_s) * 1000 / _LISTED
    return host.took_ms(times_s) | {"cpu_ms": cpu_ms}


MEASURES = {"services": _services_idle, "boot": _boot, "list": _list}
