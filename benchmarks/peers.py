"""The peers, in an environment of their own, next to what duly itself needs."""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench"
PEERS = (
    *("cronsim", "croniter", "croniter-rs", "apscheduler<4", "sqlalchemy", "aiocron", "schedule"),
    "supervisor",
)


def prepared(say: Callable[[str], None]) -> Path:
    """The Python of the environment, made or brought up to date first. Missing peers are told, not fatal."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        say(f"making {ENVIRONMENT.name}")
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
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
    say(f"installing peers: {', '.join(PEERS)}")
    if not _is_installed(python, *PEERS):
        for peer in PEERS:
            if not _is_installed(python, peer):
                say(f"missing: {peer} cannot be installed")
    return python


def _is_installed(python: Path, *names: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
