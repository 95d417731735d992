"""`duly simulate`: what a configuration's timers would do between two times, on a virtual clock.

The real rules decide, with targets that succeed at once; nothing is started and nothing is written. So DST,
overlapping calendars and intervals can be looked at before they come.
"""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple

import click

from duly.background import first_done
from duly.cli.options import (
    config_file,
    config_option,
    loaded_config,
    moment_of,
    refused_time,
    unknown_timer,
)
from duly.cli.output import Column, CommandError, json_option, print_answer, table, terminal_width, wants_json
from duly.clock import HostClock
from duly.config.schema import Config, config_zone
from duly.core.causes import Reason
from duly.events import Announcer
from duly.formatting import counted, printable
from duly.instant import Instant, datetime_at, instant_of, time_of
from duly.store.history import Result
from duly.supervisor.results import RunResult, TargetState
from duly.testing import VirtualClock
from duly.timers.local import LocalTimers
from duly.timers.record import MemoryTimerRepository

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
@json_option
def simulate(
    *,
    config: str | None,
    config_path: str | None,
    from_text: str | None,
    to_text: str | None,
    only: tuple[str, ...],
    limit: int,
) -> None:
    """Show what the timers of CONFIG would start between two times, as if every run succeeded at once.

    The simulated daemon starts at the beginning, so start-up triggers count from there, and nothing is owed
    from before. The timer switch does not matter here: nothing is really run.

    \b
        duly simulate duly.toml --from 2026-03-28 --to 2026-03-30
        duly simulate --timer backup --to 2027-01-01 --json
    """  # noqa: D301 (click's mark for lines to keep)
    loaded = loaded_config(config_file(config or config_path, "simulate"))
    zone = config_zone(loaded)
    begins = _moment(from_text, zone) or HostClock().now().astimezone(zone)
    ends = _moment(to_text, zone) or begins + timedelta(days=1)
    if instant_of(ends) <= instant_of(begins):
        raise CommandError("invalid_range", "--to has to be later than --from")
    _check_known(loaded, only)
    simulation = Simulation(loaded, begins, zone, only=frozenset(only), limit=limit)
    asyncio.run(simulation.pass_until(ends, is_shown=sys.stderr.isatty() and not wants_json()))
    print_answer(_as_dict(simulation, begins, ends, zone), _lines(simulation, zone))


def _check_known(config: Config, only: tuple[str, ...]) -> None:
    known = {timer.id for timer in config.timers}
    for name in only:
        if name not in known:
            invalid = [(bad.id, bad.reason) for bad in config.invalid if bad.is_of("timer")]
            raise unknown_timer(name, known, invalid, f" in {config.path}")


def _moment(text: str | None, zone: tzinfo) -> datetime | None:
    if text is None:
        return None
    moment = moment_of(text, zone)
    if not 1900 <= moment.year <= 9000:
        raise refused_time(text)
    return moment


class _Silence(Announcer):
    """Emits nothing: what is only simulated has no place in a log."""

    def wants(self, name: str) -> bool:  # noqa: ARG002 (whatever it is)
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
        self._timers = LocalTimers(
            MemoryTimerRepository(),
            self,
            self._clock,
            _Silence((), self._clock.now),
            zone=zone,
            on_miss=self._missed,
        )

    async def pass_until(self, ends: datetime, *, is_shown: bool) -> None:
        """Let time pass until *ends*, or until there are more rows than anybody wants."""
        now_us = instant_of(self._clock.now())
        await self._timers.start(self._config.timers, started_up_us=now_us, is_start_up=True)
        passing = asyncio.create_task(self._pass(now_us, instant_of(ends), is_shown=is_shown))
        try:
            if passing in await first_done(passing, asyncio.create_task(self._enough.wait())):
                passing.result()
        finally:
            await self._timers.stop()

    async def _pass(self, begins_us: Instant, ends_us: Instant, *, is_shown: bool) -> None:
        length_us = ends_us - begins_us
        slices = range(1, _SLICES + 1)
        bar = click.progressbar(slices, label="Simulating", file=sys.stderr)
        with bar if is_shown else nullcontext(slices) as bar_or_slices:
            for number in bar_or_slices:
                at_us = begins_us + length_us * number // _SLICES
                await self._clock.advance_to(datetime_at(at_us, self._zone))

    # --- the targets ---

    def target_state(self, service_id: str, /) -> TargetState:
        """Every target is idle: what it runs is over at once."""
        if service_id not in self._enabled:
            return "missing"
        return "idle" if self._enabled[service_id] else "disabled"

    def replace_run(self, service_id: str, /) -> None:
        """Nothing: what it runs is over at once."""

    def new_run_id(self) -> int:
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
    ) -> RunResult:
        now_us = instant_of(self._clock.now())
        self._note(Happened(now_us, timer or "", service_id, reason.value, scheduled_us, is_miss=False))
        self._ends[service_id] = now_us
        self._timers.service_ended(service_id, now_us)
        return RunResult(Result.SUCCESS, exit_code=0)

    def last_end_us(self, service_id: str, /) -> Instant | None:
        return self._ends.get(service_id)

    def outcome(self, run_id: int, _timer: str, /) -> str | None:
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
                "at": time_of(each.at_us, zone),
                "kind": "miss" if each.is_miss else "run",
                "timer": each.timer,
                "target": each.target,
                "reason": each.reason,
                "scheduled_at": time_of(each.scheduled_us, zone),
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
