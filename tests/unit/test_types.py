"""mypy and pyright accept right programs and reject wrong schedules, options and bodies, line by line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SAMPLES = """
import asyncio
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from duly import App, Event, Retry, Run, Scheduler, crontab, current_run, daily, every, monthly, once, weekly

app = App("state.db", timezone="Europe/Berlin", listeners=[print], standby=True, limits={"db": 3})
App("state.db", limits={"db": "three"})  # wrong
App("state.db", timezone=ZoneInfo("Europe/Berlin"), max_concurrent_runs=10)
App(42)  # wrong
App("state.db", timezone=2)  # wrong
App("state.db", max_concurrent_runs="10")  # wrong
App("state.db", stand_by=True)  # wrong

# --- schedules

app.task(every("30s"))
app.task(every(minutes=5, seconds=30, after_end=True))
app.task(every(timedelta(minutes=5)))
app.task(once(datetime(2030, 1, 1)))
app.task(once("2030-01-01 12:00"))
app.task(crontab("@daily"))
app.task("0 9 * * 1-5")
app.task(weekly("mon 09:00"))
app.task(monthly(day="last", at="08:00"))
app.task(30)  # wrong
app.task(timedelta(minutes=5))  # wrong
app.task(every)  # wrong
every(30)  # wrong
every(minute=5)  # wrong
every("30s", minutes=5)  # wrong
crontab(5)  # wrong
once(30)  # wrong
daily(at=330)  # wrong
monthly(day="first", at="08:00")  # wrong

# --- options

app.task(daily("03:30"), timeout="10m", retry="5m", catch_up="skip", enabled=False, tags=["slow"])
app.task(daily("03:30"), timeout=timedelta(minutes=10), retry=Retry("1m", factor=2, attempts=5))
app.task(daily("03:30"), timezone="Europe/Berlin", spread="10m", catch_up="6h")
app.task(daily("03:30"), timeout=600)  # wrong
app.task(daily("03:30"), retry=60)  # wrong
app.task(daily("03:30"), catch_up=False)  # wrong
app.task(daily("03:30"), enabled="no")  # wrong
app.task(daily("03:30"), tags=5)  # wrong
app.task(daily("03:30"), retries=3)  # wrong
Retry(60)  # wrong
Retry("1m", attempts="five")  # wrong


# --- bodies


@app.task(every("30s"))
async def sync() -> int:
    return 1


@app.task(every("30s"))
def ping(run: Run) -> None:
    print(run.task, run.attempt)


def fetch(city: str) -> None:
    print(city)


app.declare(fetch, every("1h"), name="Berlin", args=("Berlin",))
app.declare(lambda: sync(), every("1h"), name="later")
app.declare("fetch", every("1h"))  # wrong
app.declare(None, every("1h"))  # wrong
app.declare(fetch, every("1h"), name=5)  # wrong
app.declare(fetch, every("1h"), args=5)  # wrong
app.declare(fetch, every("1h"))  # wrong
app.task(every("1h"))(fetch)  # wrong


@app.kind(timeout="5m", retry=Retry("1m", attempts=3), limit="db")
def send_invoice(id: int) -> None:
    print(id)


app.kind(schedule=every("1d"))  # wrong


async def main() -> None:
    async with app:
        for task in await app.tasks():
            print(task.name, task.next_due)
        await (await app.run_now("ping"))
        await app.run_now(ping)  # wrong
        await app.pause()  # wrong
        await app.add("a", kind=send_invoice, schedule=every("1d"), args={"id": 42}, timezone="Europe/Berlin")
        await app.add("a", kind="send_invoice", schedule="0 9 * * 1-5", enabled=False)
        await app.add("a", kind=42, schedule=every("1d"))  # wrong
        await app.add("a", kind=send_invoice, schedule=30)  # wrong
        await app.add("a", kind=send_invoice, schedule=every("1d"), args=[42])  # wrong
        await app.add("a", kind=send_invoice)  # wrong
        await app.history("a", result="failure")
        await app.history("a", result="failed")  # wrong
        reveal_type(await sync())  # int: the function stays what it is


with app.background() as controls:
    controls.run_now("ping")
    controls.run_now(5)  # wrong


# --- tuples


async def work() -> None: ...


async def strict() -> None:
    scheduler = Scheduler("state.db")
    await scheduler.initialize([("a", "* * * * *", work, timedelta(minutes=5))])
    await scheduler.initialize([("a", 5, work, "5m", 3)])  # wrong
    await scheduler.initialize([("a", "* * * * *", work, "5m")])  # wrong
    await scheduler.initialize([("a", "* * * * *", print, timedelta(minutes=5))])  # wrong
    await scheduler.initialize([("a", "* * * * *", work())])  # wrong
    await scheduler.initialize("a")  # wrong
    await scheduler.stop()
""".lstrip()
WRONG = {number for number, line in enumerate(SAMPLES.splitlines(), 1) if line.endswith("# wrong")}


def mypy_lines(sample: Path) -> set[int]:
    """The lines in which mypy finds an error."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(sample)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    # By its name: for a sample that has not changed, mypy shows the folder of the run before, from its cache.
    errors = re.findall(rf"^.*{re.escape(sample.name)}:(\d+): error", done.stdout, re.MULTILINE)
    assert 'Revealed type is "int"' in done.stdout, done.stdout
    assert done.returncode == (1 if errors else 0), done.stdout + done.stderr
    return {int(number) for number in errors}


def pyright_lines(sample: Path) -> set[int]:
    """The lines in which pyright finds an error."""
    settings = {"include": [sample.name], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    quiet = ("UnusedCoroutine", "UnusedExpression", "UnknownMemberType", "UnusedFunction", "UnusedImport")
    settings |= {f"report{name}": "none" for name in quiet}
    sample.with_name("pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", "."]
    done = subprocess.run(
        command, cwd=sample.parent, capture_output=True, text=True, timeout=300, check=False
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    return {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}


@pytest.mark.heavy
@pytest.mark.parametrize("lines_with_errors", [mypy_lines, pyright_lines], ids=["mypy", "pyright"])
def test_type_checkers_find_what_is_wrong(lines_with_errors: object, tmp_path: Path) -> None:
    """A type checker objects to every line that is wrong, and to no other."""
    sample = tmp_path / "sample.py"
    sample.write_text(SAMPLES)
    assert callable(lines_with_errors)
    found = lines_with_errors(sample)
    shown = SAMPLES.splitlines()
    assert [shown[number - 1] for number in sorted(WRONG - found)] == []
    assert [shown[number - 1] for number in sorted(found - WRONG)] == []
