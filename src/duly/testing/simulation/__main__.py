"""`python -m duly.testing.simulation`: many seeds with closing numbers, or one seed with its story."""

import sys
from datetime import timedelta

import click

from duly.instant import SECOND_US
from duly.marks import MARKS
from duly.testing.simulation.campaign import campaign, cores
from duly.testing.simulation.director import lived
from duly.testing.simulation.drawing import Faults, drawn
from duly.testing.simulation.enumeration import (
    WORDS,
    all_orders,
    dying,
    every_crash_point,
    orders,
    spelled,
    tiny_world,
)
from duly.testing.simulation.life import Life
from duly.testing.simulation.numbers import Numbers, numbers_of
from duly.testing.simulation.plan import Plan
from duly.testing.simulation.scenarios import SCENARIOS
from duly.testing.simulation.shrinking import shrunk, story

_WIDTH = 30


def _families(_context: object, _parameter: object, value: str | None) -> Faults:
    if value is None:
        return Faults()
    try:
        return Faults.only(*(name for name in value.split(",") if name))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def seconds(text: str) -> float:
    """A length of time such as 60s, 5m or 1h, in seconds."""
    factors = {"s": 1, "m": 60, "h": 3600}
    try:
        return float(text.rstrip("smh")) * factors.get(text[-1:], 1)
    except ValueError as error:
        raise click.BadParameter("a length of time is written like 60s, 5m or 1h") from error


def _seconds(_context: object, _parameter: object, value: str | None) -> float | None:
    return None if value is None else seconds(value)


@click.command()
@click.option("--seed", type=int, help="Live this one seed, tell its story, and shorten it if it fails.")
@click.option(
    "--seeds", type=click.IntRange(1), help="How many seeds to live; 1000 if there is no budget either."
)
@click.option("--from", "first", default=1, show_default=True, help="The first of them.")
@click.option("--budget", callback=_seconds, metavar="TIME", help="Stop after this time, such as 60s or 5m.")
@click.option("--jobs", type=click.IntRange(1), help="Processes to use; one per core by default.")
@click.option(
    "--only", "faults", callback=_families, metavar="FAMILIES", help="Only these faults: crash,disk,..."
)
@click.option("--points", type=click.Choice([*SCENARIOS, "all"]), help="Crash at every point of a scenario.")
@click.option("--pairs", default=200, show_default=True, help="With --points: pairs of crashes to try.")
@click.option("--at", "spelling", metavar="POINTS", help="With --points: die only there, and tell the story.")
@click.option("--orders", "depth", type=click.IntRange(1, 6), help="Live every order of so many actions.")
@click.option(
    "--order", metavar="WORDS", help="Live this one order, such as due,crash,ok, and tell the story."
)
def main(
    *,
    seed: int | None,
    seeds: int | None,
    first: int,
    budget: float | None,
    jobs: int | None,
    faults: Faults,
    points: str | None,
    pairs: int,
    spelling: str | None,
    depth: int | None,
    order: str | None,
) -> None:
    """Simulate schedulers, with everything going wrong that can, and judge what happened."""
    if seed is not None:
        sys.exit(0 if _tell_life(drawn(seed, faults), command(seed, faults)) else 1)
    if order is not None:
        sys.exit(0 if _tell_life(_ordered(order), f"{_COMMAND} --order {order}") else 1)
    if spelling is not None:
        sys.exit(0 if _tell_life(_dying(points, spelling), _command_at(str(points), spelling)) else 1)
    if points is not None:
        numbers = _visit_points(list(SCENARIOS) if points == "all" else [points], pairs)
    elif depth is not None:
        numbers = _live_orders(depth)
    else:
        if seeds is None and budget is None:
            seeds = 1000
        progress = Progress(seeds, budget)
        numbers = campaign(
            first=first,
            seeds=seeds,
            budget_s=budget,
            jobs=jobs or cores(),
            faults=faults,
            on_progress=progress,
        )
        progress.clear()
    _tell(numbers, faults)
    sys.exit(1 if numbers.failed else 0)


class Progress:
    """One line on the terminal that says how far we are; nothing when nobody looks."""

    def __init__(self, most: int | None, budget_s: float | None) -> None:
        self._most = most
        self._budget_s = budget_s
        self._is_seen = sys.stderr.isatty()

    def __call__(self, numbers: Numbers, elapsed_s: float) -> None:
        """Say how far we are."""
        shares = [
            numbers.lives / self._most if self._most else 0,
            elapsed_s / self._budget_s if self._budget_s else 0,
        ]
        filled = round(min(max(shares), 1) * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._show(f"[{bar}] {numbers.lives} lives, {numbers.years:.1f} years, {numbers.failed} failed")

    def clear(self) -> None:
        """Leave the line empty."""
        self._show("")

    def _show(self, line: str) -> None:
        if self._is_seen:
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()


def _visit_points(names: list[str], pairs: int) -> Numbers:
    total = Numbers()
    for name in names:
        plan = SCENARIOS[name]
        for visit in every_crash_point(plan, pairs=pairs):
            numbers = numbers_of(visit.life)
            # A second crash may find the life over before its turn comes; the first never does.
            numbers.points_due, numbers.points_visited = 1, min(numbers.crashes, 1)
            total = total.merged(numbers)
            if not visit.life.is_sound:
                click.echo(f"{name}: {visit.life.faults[0]}")
                click.echo(f"  reproduce: {_command_at(name, spelled(visit.crashes))}")
    return total


def _live_orders(depth: int) -> Numbers:
    total, number = Numbers(), sum(1 for _ in orders(depth))
    progress = Progress(number, None)
    for order, life in all_orders(depth):
        total = total.merged(numbers_of(life))
        if total.lives % 50 == 0:
            progress(total, 0)
        if not life.is_sound:
            click.echo(f"{' '.join(order)}: {life.faults[0]}")
            click.echo(f"  reproduce: {_COMMAND} --order {','.join(order)}")
    progress.clear()
    return total


def _tell(numbers: Numbers, faults: Faults) -> None:
    counts = numbers.counts
    click.echo(f"lives                {numbers.lives}")
    click.echo(f"simulated time       {numbers.years:.1f} years")
    click.echo(f"starts checked       {numbers.starts} (in {numbers.events} events)")
    click.echo(f"clock changes        {numbers.clock_changes} (summer and winter time)")
    click.echo(f"crashes              {numbers.crashes} at one of {numbers.points_passed} points")
    if numbers.points_due:
        click.echo(f"crash points         {numbers.points_visited} of {numbers.points_due} visited")
    for name, number in sorted(counts.items()):
        click.echo(f"  {name:<34} {number}")
    click.echo(f"rare paths taken     {len(numbers.marks)} of {len(MARKS)}")
    for name in MARKS:
        click.echo(f"  {name:<34} {numbers.marks[name]}")
    click.echo(f"lives that failed    {numbers.failed}")
    for seed, reason in numbers.failures:
        click.echo(f"  {reason}")
        if seed:
            click.echo(f"  reproduce: {command(seed, faults)}")


_COMMAND = "python -m duly.testing.simulation"


def command(seed: int, faults: Faults) -> str:
    """The one line that shows a seed again."""
    only = "" if faults == Faults() else f" --only {','.join(faults.families)}"
    return f"{_COMMAND} --seed {seed}{only}"


def _command_at(scenario: str, spelling: str) -> str:
    return f"{_COMMAND} --points {scenario} --at {spelling}"


def _ordered(text: str) -> Plan:
    words = tuple(text.split(","))
    for word in words:
        if word not in WORDS:
            raise click.BadParameter(f"{word!r} is none of {', '.join(WORDS)}", param_hint="--order")
    return tiny_world(words)


def _dying(scenario: str | None, spelling: str) -> Plan:
    if scenario not in SCENARIOS:
        raise click.UsageError(f"--at needs --points with one of {', '.join(SCENARIOS)}")
    try:
        return dying(SCENARIOS[scenario], spelling)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from error


def _tell_life(plan: Plan, again: str) -> bool:
    life = lived(plan)
    click.echo(story(plan))
    click.echo(f"hash {life.hash}")
    click.echo(f"{life.starts} starts in {timedelta(seconds=life.steady_us // SECOND_US)}")
    if life.is_sound:
        click.echo("nothing is wrong")
        return True
    _tell_failure(life, again)
    return False


def _tell_failure(life: Life, again: str) -> None:
    for fault in life.faults:
        click.echo(fault)
    kind = _kind(life)
    shortest = shrunk(life.plan, lambda plan: _kind(lived(plan)) == kind)
    click.echo("\nThe shortest story that fails in the same way:\n")
    click.echo(story(shortest))
    short = lived(shortest)
    for line in short.trace_lines:
        click.echo(line.decode().rstrip())
    click.echo(short.faults[0])
    click.echo(f"reproduce: {again}")


def _kind(life: Life) -> str:
    """What is wrong first, without the particulars."""
    return life.faults[0].split(":")[0] if life.faults else ""


if __name__ == "__main__":
    main()
