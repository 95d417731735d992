"""Configuration files with a secret in them that everybody on the host can read."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from duly.cli import main
from tests.acceptance.running import Home, oneshot, service, settings

SECRET = "hunter2"


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that everybody can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        if not all(each.stat().st_mode & stat.S_IXOTH for each in folder.parents):
            pytest.skip(f"{folder} cannot be entered by everybody")
        yield folder


STORE = settings(store=f"postgresql://app:{SECRET}@127.0.0.1:1/app", timers=False)
EXPOSED = {
    "store": STORE + service("web", "sleep 1000"),
    "env": settings() + service("web", "sleep 1000", env={"DB_PASSWORD": SECRET}),
    "url": settings() + service("web", "sleep 1000", env={"BROKER": f"amqp://app:{SECRET}@h/"}),
    "ping": settings() + oneshot("job", "true", ping_url=f"https://ping.example/{SECRET}"),
}


@pytest.mark.parametrize("text", EXPOSED.values(), ids=EXPOSED)
def test_a_secret_that_everybody_can_read_is_warned_of(text: str, public: Path) -> None:
    """`duly check` and `duly run` warn of a secret in a file that everybody can read, until it is private."""
    home = Home(public, text)
    home.config.chmod(0o644)
    assert "every user of this host can read it; chmod o-r" in home.duly("check").stdout
    with home.running() as daemon:
        [line] = daemon.log.until("ConfigurationExposed")
        assert "WARNING" in line
        assert SECRET not in line
        daemon.ended()
    home.config.chmod(0o640)
    assert "every user" not in home.duly("check").stdout
    home.config.chmod(0o644)
    public.chmod(0o750)
    assert "every user" not in home.duly("check").stdout


def test_a_python_file_that_reads_its_secret_elsewhere_is_fine(public: Path) -> None:
    """A Python file is warned of only if the secret is in its text."""
    begin = "from duly.config import Service\nimport os\n"
    for value, is_exposed in (('os.environ["PATH"]', False), (f'"{SECRET}"', True)):
        config = public / "duly.py"
        config.write_text(f'{begin}SERVICES = [Service("a", ["true"], env={{"A_TOKEN": {value}}})]\n')
        config.chmod(0o644)
        done = CliRunner().invoke(main, ["check", str(config)])
        assert ("every user" in done.output) is is_exposed, done.output
