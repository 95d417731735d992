"""`duly simulate`: what a configuration's timers would do between two times, on a virtual clock.

The real rules decide, with targets that succeed at once; nothing is started and nothing is written. So DST,
overlapping calendars and intervals can be looked at before they come.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import click

from duly.cli.finding import Failure, config_option, default_config
from duly.cli.offline import zone_of
from duly.cli.refusals import printable, refused_time
from duly.cli.tables import Column, table, terminal_width
from duly.cli.words import counted, json_text
from duly.clock import HostClock
from duly.config.errors import ConfigError
from duly.config.loading import load
from duly.config.schema import Config
from duly.events import Announcer
from duly.instant import Instant, datetime_at, instant_of
from duly.supervisor.ended import Ended, Reason, Result
from duly.testing import VirtualClock
from duly.timers.dues import TargetState
from duly.timers.face import Timers
from duly.timers.memory import MemoryShelf

_MOST_ROWS = 100_000
_SLICES = 200
_COLUMNS = (
    Column("at", "at"),
    Column("timer", "timer", least=12),
    Column("target", "target", rank=2, least=10),
    Column("reason", "reason", rank=1),
    Column("late", "slot", rank=3),
)


class Happened(NamedTuple):
    """A run that would begin, or a miss."""

    at_us: Instant
    timer: str
    target: str
    reason: str
    scheduled_us: Instant | None
    is_miss: bool


@click.command("simulate")
@click.argument("config", required=False, metavar="[CONFIG]")
@config_option
@click.option("--from", "from_text", metavar="TIME", help="Where to begin, an ISO time; now if not given.")
@click.option("--to", "to_text", metavar="TIME", help="Where to end; a day after the beginning if not given.")
@click.option("--timer", "only", multiple=True, metavar="ID", help="Show only this timer; may be repeated.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, _MOST_ROWS),
    default=1000,
    show_default=True,
    help="Most rows to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON object.")
def simulate(
    *,
    config: str | None,
    config_path: str | None,
    from_text: str | None,
    to_text: str | None,
    only: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """Show what the timers of CONFIG would start between two times, as if every run succeeded at once.

    The simulated daemon starts at the beginning, so start-up triggers count from there, and nothing is owed
    from before. The gate does not matter here: nothing is really run.

    \b
        duly simulate duly.toml --from 2026-03-28 --to 2026-03-30
        duly simulate --timer backup --to 2027-01-01 --json
    """  # noqa: D301 (click's mark for lines to keep)
    loaded = _loaded(config or config_path, as_json=as_json)
    zone = zone_of(loaded)
    begins = _moment(from_text, zone, as_json=as_json) or HostClock().now().astimezone(zone)
    ends = _moment(to_text, zone, as_json=as_json) or begins + timedelta(days=1)
    if instant_of(ends) <= instant_of(begins):
        raise Failure("invalid_range", "--to has to be later than --from", exit_code=2, as_json=as_json)
    _check_known(loaded, only, as_json=as_json)
    simulation = Simulation(loaded, begins, zone, only=frozenset(only), limit=limit)
    asyncio.run(simulation.pass_until(ends, is_shown=sys.stderr.isatty() and not as_json))
    if as_json:
        click.echo(json_text(_as_dict(simulation, begins, ends, zone)))
        return
    for line in _lines(simulation, zone):
        click.echo(line)


def _loaded(given: str | None, *, as_json: bool) -> Config:
    path = Path(given) if given is not None else default_config()
    if path is None:
        message = "there is neither duly.toml nor duly.py here; give a file: duly simulate FILE"
        raise Failure("no_configuration", message, exit_code=2, as_json=as_json)
    try:
        return load(path)
    except ConfigError as error:
        raise Failure("invalid_configuration", error.message, exit_code=4, as_json=as_json) from error


def _check_known(config: Config, only: tuple[str, ...], *, as_json: bool) -> None:
    known = {timer.id for timer in config.timers}
    for name in only:
        if name not in known:
            message = f"there is no timer {name[:200]} that could be used in {config.path}"
            raise Failure("not_found", message, exit_code=3, as_json=as_json, id=name)


def _moment(text: str | None, zone: tzinfo, *, as_json: bool) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment.replace(tzinfo=zone) if moment.tzinfo is None else moment.astimezone(zone)
        if not 1900 <= moment.year <= 9000:
            raise refused_time(text, as_json=as_json)
        return datetime_at(instant_of(moment), zone)
    except (ValueError, OverflowError) as error:
        raise refused_time(text, as_json=as_json) from error


class _Silence(Announcer):
    """Tells nobody: what is only simulated has no place in a log."""

    def wants(self, name: str) -> bool:  # noqa: ARG002 (whatever it is)
        """Nobody would see it."""
        return False


class Simulation:
    """A configuration's timers on a virtual clock; also the targets that they start."""

    def __init__(
        self, config: Config, begins: datetime, zone: tzinfo, *, only: frozenset[str], limit: int
    ) -> None:
        self.happened: list[Happened] = []
        self.is_cut_short = False
        self.is_stopping = False
        self._config = config
        self._zone = zone
        self._only = only
        self._limit = limit
        self._clock = VirtualClock(begins)
        self._enabled = {service.id: service.enabled for service in config.services}
        self._ends: dict[str, Instant] = {}
        self._last_id = 0
        self._enough = asyncio.Event()
        self._timers = Timers(
            MemoryShelf(),
            self,
            self._clock,
            _Silence((), self._clock.now),
            zone=zone,
            note_miss=self._missed,
        )

    async def pass_until(self, ends: datetime, *, is_shown: bool) -> None:
        """Let time pass until *ends*, or until there are more rows than anybody wants."""
        now_us = instant_of(self._clock.now())
        await self._timers.start(self._config.timers, started_up_us=now_us, is_start_up=True)
        passing = asyncio.create_task(self._pass(now_us, instant_of(ends), is_shown=is_shown))
        enough = asyncio.create_task(self._enough.wait())
        try:
            await asyncio.wait({passing, enough}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (passing, enough):
                task.cancel()
            await asyncio.wait({passing, enough})
            await self._timers.stop()
        if not passing.cancelled():
            passing.result()

    async def _pass(self, begins_us: Instant, ends_us: Instant, *, is_shown: bool) -> None:
        length_us = ends_us - begins_us
        slices = range(1, _SLICES + 1)
        shown = (
            click.progressbar(slices, label="Simulating", file=sys.stderr)
            if is_shown
            else nullcontext(slices)
        )
        with shown as bar:
            for number in bar:
                at_us = begins_us + length_us * number // _SLICES
                await self._clock.advance_to(datetime_at(at_us, self._zone))

    # --- the targets ---

    def target_state(self, service_id: str, /) -> TargetState:
        """Every target is idle: what it runs is over at once."""
        if service_id not in self._enabled:
            return "missing"
        return "idle" if self._enabled[service_id] else "disabled"

    def new_run_id(self) -> int:
        """A number that no run has had."""
        self._last_id += 1
        return self._last_id

    async def run(
        self,
        service_id: str,
        /,
        *,
        reason: Reason,
        timer: str | None = None,
        scheduled_us: Instant | None = None,
        run_id: int | None = None,  # noqa: ARG002 (one run is like another here)
    ) -> Ended:
        """Succeed at once."""
        now_us = instant_of(self._clock.now())
        self._note(Happened(now_us, timer or "", service_id, reason.value, scheduled_us, is_miss=False))
        self._ends[service_id] = now_us
        self._timers.service_ended(service_id, now_us)
        return Ended(Result.SUCCESS, exit_code=0)

    def last_end_us(self, service_id: str, /) -> Instant | None:
        """When the last run of a service ended."""
        return self._ends.get(service_id)

    def outcome(self, run_id: int, _timer: str, /) -> str | None:
        """What became of a run."""
        return Result.SUCCESS.value if run_id <= self._last_id else None

    def _missed(self, timer: str, at_us: Instant, reason: str) -> None:
        target = next((known.target for known in self._config.timers if known.id == timer), "")
        self._note(Happened(at_us, timer, target, reason, at_us, is_miss=True))

    def _note(self, happened: Happened) -> None:
        if self._only and happened.timer not in self._only:
            return
        if len(self.happened) < self._limit:
            self.happened.append(happened)
        else:
            self.is_cut_short = True
            self._enough.set()


def _as_dict(simulation: Simulation, begins: datetime, ends: datetime, zone: tzinfo) -> dict[str, Any]:
    return {
        "from": begins.isoformat(),
        "to": ends.isoformat(),
        "timezone": str(zone),
        "events": [
            {
                "at": datetime_at(each.at_us, zone).isoformat(),
                "kind": "miss" if each.is_miss else "run",
                "timer": each.timer,
                "target": each.target,
                "reason": each.reason,
                "scheduled_at": None
                if each.scheduled_us is None
                else datetime_at(each.scheduled_us, zone).isoformat(),
            }
            for each in simulation.happened
        ],
        "truncated": simulation.is_cut_short,
    }


def _lines(simulation: Simulation, zone: tzinfo) -> Iterator[str]:
    if not simulation.happened:
        yield "Nothing would run."
        return
    rows = [
        {
            "at": _face(each.at_us, zone),
            "timer": each.timer,
            "target": each.target,
            "reason": f"missed: {each.reason}" if each.is_miss else each.reason,
            "late": "-" if each.scheduled_us in {None, each.at_us} else _face(each.scheduled_us or 0, zone),
        }
        for each in simulation.happened
    ]
    columns = _COLUMNS if any(row["late"] != "-" for row in rows) else _COLUMNS[:-1]
    yield from table(columns, rows, terminal_width())
    runs = sum(not each.is_miss for each in simulation.happened)
    misses = len(rows) - runs
    counts = f"{counted(runs, 'run')}, {counted(misses, 'miss', 'misses')}"
    yield click.style(f"{counts}; times are those of {printable(str(zone))}.", dim=True)
    if simulation.is_cut_short:
        yield click.style("There would be more: see --limit, or choose a shorter range.", fg="yellow")


def _face(at_us: Instant, zone: tzinfo) -> str:
    face = datetime_at(at_us, zone)
    return f"{face:%a} {face.isoformat(' ', 'seconds')}"
