"""The commands that read, when no daemon answers: what its configuration and its store say."""

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from duly.cli import main
from duly.clock import HostClock
from duly.config.loading import load
from duly.config.schema import config_zone
from duly.daemon import views
from duly.instant import MINUTE_US, SECOND_US, instant_of
from duly.store.history import MissRow, RunRow
from duly.store.sqlite import SQLiteStore, SQLiteTimerRepository
from tests.worlds.histories import LooseHistory

HOUR_US = 60 * MINUTE_US
NOW = datetime(2026, 1, 10, 12, 34, tzinfo=UTC)
NOW_US = instant_of(NOW)
SLOT_US = NOW_US - NOW_US % HOUR_US

TEXT = """
[supervisor]
timers = true
timezone = "UTC"

[[service]]
id = "web"
command = "serve"

[[service]]
id = "backup"
type = "oneshot"
command = "save"
env = { TOKEN = "secret" }

[[timer]]
id = "hourly"
target = "backup"
on_calendar = { minute = 0 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a configuration, and no daemon."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(HostClock, "read_us", lambda _: instant_of(NOW))
    for name in ("DULY_CONFIG", "DULY_SOCKET", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "duly.toml").write_text(TEXT)
    return tmp_path


def remember(path: Path, runs: Sequence[RunRow], misses: Sequence[MissRow], timers: Sequence[Any]) -> None:
    """Make the store that a daemon left."""
    config = load(path / "duly.toml")

    async def written() -> None:
        store = SQLiteStore(path / "duly.db")
        contents = await store.open("me")
        rows = LooseHistory(store)
        await rows.put(runs, misses)
        await rows.declare({service.id: views.definition_text(service) for service in config.services})
        repository: SQLiteTimerRepository[Any] = SQLiteTimerRepository(
            store, contents.scheduler_id, lambda record: record
        )
        await repository.replace(put=timers, removed=[])
        await store.close()

    asyncio.run(written())


def definition() -> str:
    """The definition of the timer as the timers keep it."""
    from duly.timers.record import text_of  # noqa: PLC0415 - not while the timers are off

    config = load(Path("duly.toml"))
    return text_of(config.timers[0], config_zone(config))


def timer_row(**changed: Any) -> tuple[Any, ...]:
    row = {
        "id": 1,
        "name": "hourly",
        "definition": definition(),
        "registered_us": SLOT_US - 100 * HOUR_US,
        "answered_us": SLOT_US - HOUR_US,
        "last_run_us": SLOT_US - HOUR_US,
        "last_success_us": SLOT_US - HOUR_US + SECOND_US,
        "last_failure_us": None,
        "last_exit": 0,
        "last_result": "success",
        "last_missed_us": SLOT_US - 2 * HOUR_US,
        "last_miss_reason": "overlap",
        "enabled": 0,
        "interrupted": 0,
        "running_run": None,
        "running_since_us": None,
    }
    return tuple({**row, **changed}.values())


RUNS = (
    RunRow(
        id=7,
        service="backup",
        timer="hourly",
        reason="schedule",
        scheduled_us=SLOT_US - HOUR_US,
        started_us=SLOT_US - HOUR_US,
        ended_us=SLOT_US - HOUR_US + SECOND_US,
        result="success",
        exit_code=0,
        output="saved\n",
    ),
    RunRow(id=8, service="web", reason="boot", started_us=SLOT_US - 5 * HOUR_US),
)
MISSES = (MissRow("hourly", SLOT_US - 2 * HOUR_US, "overlap"),)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def answer(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def test_timers(here: Path) -> None:
    """Timers are shown as the store has them, with the slot that would come next, and that is said."""
    remember(here, RUNS, MISSES, [timer_row()])
    result = run("timers")
    assert "this is what its store remembers" in result.stderr
    seen = answer("timers")
    assert seen["source"] == "store"
    [timer] = seen["timers"]
    assert (timer["enabled"], timer["last_result"], timer["last_exit"]) == (False, "success", 0)
    assert timer["last_miss_reason"] == "overlap"
    assert timer["next_run_at"] is None  # it is switched off


def test_next_run(here: Path) -> None:
    """What would come next is the next slot of a timer that is on."""
    remember(here, RUNS, MISSES, [timer_row(enabled=None)])
    [timer] = answer("timers")["timers"]
    assert timer["next_run_at"] == "2026-01-10T13:00:00+00:00"


def test_services(here: Path) -> None:
    """Services are stopped, and what was never heard to end is not known to have."""
    remember(here, RUNS, MISSES, [])
    web, backup = answer("services")["services"]
    assert (web["state"], web["reason"]) == ("unknown", "was running when the daemon was last heard of")
    assert (backup["state"], backup["last_run"]["id"]) == ("stopped", 7)


def test_status(here: Path) -> None:
    """The status says that the daemon is down, and a health check hears it."""
    remember(here, RUNS, MISSES, [timer_row()])
    seen = answer("status")
    assert (seen["source"], seen["state"], seen["pid"]) == ("store", "down", None)
    assert "the daemon is not running" in seen["health"]["reasons"]
    assert seen["store"] == str(here / "duly.db")
    assert run("status", "--check").exit_code == 69
    assert "not running" in run("status").stdout


def test_history_and_logs(here: Path) -> None:
    """Runs, misses and output are read from the store."""
    remember(here, RUNS, MISSES, [])
    seen = answer("history")
    assert [row["id"] for row in seen["runs"]] == [8, 7]
    assert [row["reason"] for row in seen["misses"]] == ["overlap"]
    assert [row["id"] for row in answer("history", "hourly")["runs"]] == [7]
    assert run("logs", "backup").stdout == "saved\n"
    assert run("logs", "backup", "-f", "--no-timestamps").stdout == "saved\n"
    assert re.fullmatch(r"....-..-.. ..:..:.. saved\n", run("logs", "backup", "-f").stdout)
    assert run("logs", "--grep", "^sa", "--no-timestamps").stdout == "backup | saved\n"
    assert run("logs", "--run", "7").stdout == "saved\n"
    assert run("logs", "--run", "99").exit_code == 3
    assert run("logs", "nobody").exit_code == 3
    assert run("history", "nobody").exit_code == 3


def test_before_the_first_start(here: Path) -> None:
    """Without a store there is nothing to remember, and no store is made."""
    assert answer("history")["runs"] == []
    assert [timer["last_run_at"] for timer in answer("timers")["timers"]] == [None]
    assert not (here / "duly.db").exists()


def test_closed_switch(here: Path) -> None:
    """While the switch is closed nothing of timers is shown, whatever the store has."""
    remember(here, RUNS, MISSES, [timer_row()])
    (here / "duly.toml").write_text(TEXT.replace("timers = true", "timers = false"))
    assert answer("timers")["status"] == "disabled"
    assert answer("history")["misses"] == []
    assert answer("status")["timers"] == "disabled"
    assert answer("why", "hourly")["status"] == "disabled"


def test_broken_file(here: Path) -> None:
    """With a file that cannot be read, history is still found beside it, and the rest is not guessed."""
    remember(here, RUNS, MISSES, [])
    (here / "duly.toml").write_text("this is [not TOML")
    assert [row["id"] for row in answer("history")["runs"]] == [8, 7]
    assert "duly.toml" in answer("status")["health"]["reasons"][0]
    for command in ("timers", "services"):
        result = run(command)
        assert result.exit_code == 4
        assert "duly.toml:1" in result.stderr


def test_store_that_is_none(here: Path) -> None:
    """A store that cannot be read is an error of one sentence."""
    (here / "duly.db").write_text("not a database, and long enough to be seen as none " * 20)
    result = run("history")
    assert result.exit_code == 1
    assert "is not a SQLite database" in result.stderr


def test_store_of_a_scheduler(here: Path) -> None:
    """A store of the older format has no runs, and that is not an error."""

    async def made() -> None:
        store = SQLiteStore(here / "duly.db")
        await store.open("me")
        await store.close()

    asyncio.run(made())
    connection = apsw.Connection(str(here / "duly.db"))
    for table in ("service", "timer", "run", "miss"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    assert answer("history")["runs"] == []
    assert answer("timers")["timers"][0]["last_run_at"] is None


# --- plan ---


def test_plan_of_the_same_file(here: Path) -> None:
    """The file that the daemon was started with changes nothing."""
    remember(here, RUNS, MISSES, [timer_row()])
    seen = answer("plan")
    assert (seen["added"], seen["changed"], seen["removed"]) == ([], [], [])
    assert len(seen["unchanged"]) == 3
    assert seen["source"] == "store"
    assert "Nothing would change (3 entries)." in run("plan").stdout


def test_plan(here: Path) -> None:
    """Added, changed with old and new value, removed; and of an environment only the names."""
    remember(here, RUNS, MISSES, [timer_row()])
    changed = TEXT.replace("minute = 0", "minute = 30").replace('id = "web"', 'id = "site"')
    (here / "new.toml").write_text(changed.replace("TOKEN", "KEY"))
    result = run("plan", "new.toml", "-c", "duly.toml")
    assert result.exit_code == 0
    shown = result.stdout.splitlines()
    assert shown[:2] == ["+ service site", "~ service backup"]
    assert shown[2] == "    env: KEY, TOKEN changed"
    assert shown[3] == "~ timer hourly"
    assert shown[4] == "    on_calendar: Every hour -> At 30 minutes past every hour"
    assert "- service web" in shown
    assert "1 to add, 2 to change, 1 to remove; 0 stay as they are." in shown
    assert "secret" not in result.stdout


def test_plan_with_an_invalid_entry(here: Path) -> None:
    """An entry that is invalid removes nothing: what it stood for is kept, and the exit code is 4."""
    remember(here, RUNS, MISSES, [timer_row()])
    (here / "duly.toml").write_text(TEXT.replace("minute = 0", "minute = 99"))
    result = run("plan")
    assert result.exit_code == 4
    assert "= timer hourly is kept: its new definition is invalid" in result.stdout
    assert "- timer" not in result.stdout


def test_plan_of_a_broken_file(here: Path) -> None:
    """There is no plan for a file that cannot be read."""
    remember(here, RUNS, MISSES, [timer_row()])
    (here / "duly.toml").write_text("[")
    result = run("plan")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "There is no plan" in result.stderr


# --- why and next ---


def test_why(here: Path) -> None:
    """The slots of a timer are answered from its runs and misses in the store."""
    remember(here, RUNS, MISSES, [timer_row()])
    seen = answer("why", "hourly", "-n", "3")
    assert [slot["kind"] for slot in seen["answers"]] == ["missed", "fired", "pending"]
    assert seen["answers"][1]["run"]["id"] == 7
    assert seen["source"] == "store"
    shown = run("why", "hourly", "-c", "duly.toml", "-n", "3").stdout.splitlines()
    assert "missed" in shown[0]
    assert run("why", "hourly").stdout.startswith('"hourly" has not answered its slot at')
    assert run("why", "nobody", "-c", "duly.toml").exit_code == 3


def test_why_of_a_task_still_works(here: Path) -> None:
    """A name that is no timer of the file, valid or not, is a task, if anything here knows of tasks."""
    result = run("why", "something")
    assert (result.exit_code, "there is no timer something" in result.stderr) == (3, True)
    (here / "state.db").write_text("")
    result = run("why", "something")
    assert (result.exit_code, '"something"' in result.stderr) == (2, True)
    (here / "duly.toml").write_text('[supervisor]\ntimers = true\n[[timer]]\nid = "bad"\ntarget = "nobody"\n')
    result = run("why", "bad")
    assert (result.exit_code, "timer bad is invalid" in result.stderr) == (4, True)
    assert run("why", "hourly", "--store", "none.db").exit_code == 2


def test_next(here: Path) -> None:
    """The firings of a timer come from its calendar; a cron text is one as before."""
    seen = answer("next", "hourly", "-n", "2", "--from", "2026-01-01T10:30")
    assert (seen["timer"], seen["words"]) == ("hourly", "Every hour")
    assert [firing["local"] for firing in seen["firings"]] == [
        "2026-01-01T11:00:00+00:00",
        "2026-01-01T12:00:00+00:00",
    ]
    assert answer("next", "0 9 * * *", "--tz", "UTC")["expression"] == "0 9 * * *"
    assert run("next", "hourli").exit_code == 3
    assert "did you mean hourly?" in run("next", "hourli").stderr


def test_next_of_several_calendars(here: Path) -> None:
    """Several calendars are one list, each instant once; a date that never comes adds nothing."""
    calendars = "[{ minute = 0 }, { minute = [0, 30] }, { month = 2, day_of_month = 30 }]"
    (here / "duly.toml").write_text(TEXT.replace("{ minute = 0 }", calendars))
    seen = answer("next", "hourly", "-n", "3", "--from", "2026-01-01T10:10")
    assert [firing["local"][11:16] for firing in seen["firings"]] == ["10:30", "11:00", "11:30"]


def test_next_without_a_calendar(here: Path) -> None:
    """Of a timer without a calendar nothing can be known ahead."""
    (here / "duly.toml").write_text(TEXT.replace("on_calendar = { minute = 0 }", "on_startup_sec = 5"))
    assert answer("next", "hourly")["firings"] == []
    assert "no calendar" in run("next", "hourly").stdout


def test_next_of_a_fixed_rate(here: Path) -> None:
    """A fixed rate counts from when a daemon first ran with it; if none ever did, that is said."""
    (here / "duly.toml").write_text(TEXT.replace("on_calendar = { minute = 0 }", 'every = "45m"'))
    said = run("next", "hourly").stdout
    assert "every counts from when the daemon first runs with it, which it never did" in said
    assert answer("next", "hourly")["firings"] == []
    remember(here, RUNS, MISSES, [timer_row()])  # registered 100 hours before 12:00
    seen = answer("next", "hourly", "-n", "3", "--from", "2026-01-10T12:34")
    assert [firing["local"][11:19] for firing in seen["firings"]] == ["13:15:00", "14:00:00", "14:45:00"]
