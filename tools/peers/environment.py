"""The environment of the peers: a virtual environment of their own, next to what duly itself needs."""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
REQUIREMENTS = ROOT / "tools" / "peers" / "requirements.txt"


def prepared(say: Callable[[str], None]) -> Path:
    """The Python of the environment, made first if need be. Missing peers are reported, not fatal."""
    python, ready = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".ready"
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    peers = REQUIREMENTS.read_text().split()
    wanted = "\n".join([sys.version, *needs, *peers])
    if ready.exists() and ready.read_text() == wanted:
        return python
    say(f"making {ENVIRONMENT.name}")
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    say("installing what duly needs")
    if not _is_installed(python, *needs):
        sys.exit(f"could not install {', '.join(needs)} into {ENVIRONMENT}")
    # All at once when possible, one by one when some cannot be had.
    say(f"installing peers: {', '.join(peers)}")
    if _is_installed(python, *peers):
        ready.write_text(wanted)
        return python
    for peer in peers:
        if not _is_installed(python, peer):
            say(f"missing: {peer} cannot be installed")
    return python


def _is_installed(python: Path, *names: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *names]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
