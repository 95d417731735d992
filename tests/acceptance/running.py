"""A real daemon for acceptance tests: `duly run` as the user has it, what it says, and what one can ask it.

Nothing here sleeps. What a test waits for is a line that the daemon, or one of its services, writes; each
wait has a deadline, and a wait in vain shows everything that was said.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tests.worlds.postgres_guard import children_of

DULY = str(Path(sys.executable).with_name("duly"))
PATIENCE_S = 60.0

_TOLD = {"DULY_CONFIG", "DULY_SOCKET", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "NO_COLOR"}


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: ours, without what would lead it elsewhere."""
    return {**{name: value for name, value in os.environ.items() if name not in _TOLD}, **more}


class StreamLines:
    """The lines of a stream, as they come."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self._more = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._thread.start()

    def _listen(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._more:
                    self.lines.append(line.rstrip("\n"))
                    self._more.notify_all()
        with self._more:
            self._is_over = True
            self._more.notify_all()

    def until(self, pattern: str, *, count: int = 1, after: int = 0) -> list[str]:
        """The first *count* lines that match, of those from number *after* on, once they are there."""

        def found() -> list[str]:
            return [line for line in self.lines[after:] if re.search(pattern, line)]

        with self._more:
            self._more.wait_for(lambda: len(found()) >= count or self._is_over, PATIENCE_S)
            if len(found()) < count:
                said = "\n".join(self.lines)
                raise AssertionError(f"{len(found())} of {count} lines match {pattern!r} in:\n{said}")
            return found()[:count]

    def matching(self, pattern: str) -> list[str]:
        """The lines so far that match."""
        return [line for line in list(self.lines) if re.search(pattern, line)]

    def all(self) -> list[str]:
        """Every line, once the stream has ended."""
        self.join()
        return self.lines

    def join(self) -> None:
        """Return once the stream has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "somebody still holds the other end"


class Home:
    """A directory with a configuration, and the daemon of it, one life after the other."""

    def __init__(self, path: Path, text: str, name: str = "duly.toml") -> None:
        self.path = path
        self.config = path / name
        self.write(text)

    def write(self, text: str) -> None:
        """Change the configuration, all at once; without a dashboard, or all daemons want one port."""
        new = self.path / "new"
        new.write_text(f"{text}\n{_NO_DASHBOARD[self.config.suffix]}\n")
        new.replace(self.config)

    @contextmanager
    def running(
        self,
        *options: str,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        is_awaited: bool = True,
        **popen: Any,
    ) -> "Iterator[Running]":
        """A daemon that runs; it does not outlive the block, and by default is up when that begins."""
        running = Running(self, [*prefix, DULY, "run", str(self.config), *options], env or {}, popen)
        try:
            if is_awaited:
                running.log.until(UP)
            yield running
        finally:
            running.end()

    def duly(self, *arguments: str, config: bool = True, **run: Any) -> "subprocess.CompletedProcess[str]":
        """What another `duly` command says."""
        more = ["-c", str(self.config)] if config else []
        return subprocess.run(
            [DULY, *arguments, *more],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=environment(),
            cwd=self.path,
            **run,
        )

    def asked(self, *arguments: str, code: int = 0) -> Any:
        """What a command answers machines; it ends with *code*."""
        answer = self.duly(*arguments, "--json")
        assert answer.returncode == code, answer
        assert "Traceback" not in answer.stderr
        return json.loads(answer.stdout or answer.stderr)


UP = r"SupervisorStarted"
_NO_DASHBOARD = {".toml": "[dashboard]\nenabled = false", ".py": 'DASHBOARD = {"enabled": False}'}


class Running:
    """One life of a daemon."""

    def __init__(
        self, home: Home, command: list[str], env: Mapping[str, str], popen: Mapping[str, Any]
    ) -> None:
        self.home = home
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            cwd=home.path,
            env=environment(**env),
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen},
        )
        self.pid = self.process.pid
        self._is_kept = False
        self._out = None if self.process.stdout is None else StreamLines(self.process.stdout)
        self._log = None if self.process.stderr is None else StreamLines(self.process.stderr)

    @property
    def out(self) -> StreamLines:
        """What its services write."""
        assert self._out is not None
        return self._out

    @property
    def log(self) -> StreamLines:
        """What it says itself."""
        assert self._log is not None
        return self._log

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def code(self) -> int:
        """Its exit code, once it has ended; no daemon ever ends with a traceback."""
        code = self.process.wait(PATIENCE_S)
        said = "\n".join(self.log.all())
        assert "Traceback" not in said, said
        assert "never retrieved" not in said, said
        return code

    def ended(self) -> list[str]:
        """End it in order; all that it said."""
        self.send(signal.SIGTERM)
        assert self.code() == 0
        return self.log.lines

    def keep(self) -> None:
        """Let what it leaves running live on."""
        self._is_kept = True

    def end(self) -> None:
        """End it without a word, if it has not ended, and what it left running."""
        if self.process.poll() is None:
            # Its watchdog, too: that may look for 10 s for a process that was just about to be made.
            children = [] if self._is_kept else children_of(self.pid)
            self.process.kill()
            self.process.wait(PATIENCE_S)
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for lines in (self._out, self._log):
            if lines is not None:
                lines.join()
        for pid in [] if self._is_kept else living(self.home.path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def living(directory: Path) -> list[int]:
    """The processes that run in *directory* or below it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                where = (entry / "cwd").readlink()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z" and (where == directory or directory in where.parents):
                found.append(int(entry.name))
    return sorted(found)


def one_sentence(answer: "subprocess.CompletedProcess[str]") -> str:
    """The one sentence that a command refuses with."""
    assert "Traceback" not in answer.stderr
    said = [line for line in answer.stderr.splitlines() if line.startswith("error:")]
    assert len(said) == 1, answer
    return said[0].removeprefix("error: ")


def service(name: str, shell: str, **options: Any) -> str:
    """A service that is a shell script, as TOML."""
    return table("service", {"id": name, "command": ["/bin/sh", "-c", shell], **options})


def oneshot(name: str, shell: str, **options: Any) -> str:
    """A oneshot that is a shell script, as TOML."""
    return service(name, shell, type="oneshot", **options)


def timer(name: str, target: str, **options: Any) -> str:
    """A timer, as TOML."""
    return table("timer", {"id": name, "target": target, **options})


def settings(**options: Any) -> str:
    """The settings, as TOML."""
    body = "".join(f"{key} = {_text(value)}\n" for key, value in options.items())
    return f"[supervisor]\n{body}"


def table(kind: str, fields: Mapping[str, Any]) -> str:
    body = "".join(f"{key} = {_text(value)}\n" for key, value in fields.items())
    return f"\n[[{kind}]]\n{body}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_text(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)
