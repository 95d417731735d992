"""`python -m tests.simulation`: many seeds with closing numbers, or one seed with its story."""

import sys
from datetime import timedelta
from typing import Any

import click

from duly.instant import SECOND_US
from tests.simulation.campaign import ALONE, Subject, campaign, cluster_of, cores
from tests.simulation.cluster import SMALL, every_single
from tests.simulation.enumeration import (
    WORDS,
    all_orders,
    dying,
    every_crash_point,
    orders,
    spelled,
    tiny_world,
)
from tests.simulation.families import Families
from tests.simulation.numbers import Numbers, numbers_of, numbers_of_cluster
from tests.simulation.plan import Plan
from tests.simulation.scenarios import SCENARIOS

_WIDTH = 30


def seconds(text: str) -> float:
    """A length of time such as 60s, 5m or 1h, in seconds."""
    factors = {"s": 1, "m": 60, "h": 3600}
    try:
        return float(text.rstrip("smh")) * factors.get(text[-1:], 1)
    except ValueError as error:
        raise click.BadParameter("a length of time is written like 60s, 5m or 1h") from error


@click.command()
@click.option("--nodes", type=click.IntRange(1, 8), help="So many nodes on a database, not one on a file.")
@click.option("--seed", type=int, help="Live this one seed, tell its story, and shorten it if it fails.")
@click.option(
    "--seeds", type=click.IntRange(1), help="How many seeds to live; 1000 if there is no budget either."
)
@click.option("--from", "first", default=1, show_default=True, help="The first of them.")
@click.option("--budget", metavar="TIME", help="Stop after this time, such as 60s or 5m.")
@click.option("--jobs", type=click.IntRange(1), help="Processes to use; one per core by default.")
@click.option("--only", metavar="FAMILIES", help="Only these faults: crash,clock,...")
@click.option("--small", is_flag=True, help="Every single fault of a small cluster.")
@click.option("--points", type=click.Choice([*SCENARIOS, "all"]), help="Crash at every point of a scenario.")
@click.option("--pairs", default=200, show_default=True, help="With --points: pairs of crashes to try.")
@click.option("--at", "spelling", metavar="POINTS", help="With --points: die only there, and tell the story.")
@click.option("--orders", "depth", type=click.IntRange(1, 6), help="Live every order of so many actions.")
@click.option(
    "--order", metavar="WORDS", help="Live this one order, such as due,crash,ok, and tell the story."
)
def main(
    *,
    nodes: int | None,
    seed: int | None,
    seeds: int | None,
    first: int,
    budget: str | None,
    jobs: int | None,
    only: str | None,
    small: bool,
    points: str | None,
    pairs: int,
    spelling: str | None,
    depth: int | None,
    order: str | None,
) -> None:
    """Simulate schedulers, with everything going wrong that can, and judge what happened."""
    subject = ALONE if nodes is None else cluster_of(nodes)
    faults = subject.faults.parsed(only)
    budget_s = None if budget is None else seconds(budget)
    if seed is not None:
        plan = subject.drawn(seed, faults=faults)
        sys.exit(0 if _print_life(subject, plan, command(seed, faults, subject)) else 1)
    if order is not None:
        sys.exit(0 if _print_life(ALONE, _ordered(order), f"{_COMMAND} --order {order}") else 1)
    if spelling is not None:
        again = _command_at(str(points), spelling)
        sys.exit(0 if _print_life(ALONE, _dying(points, spelling), again) else 1)
    if small:
        numbers = _visit_small()
    elif points is not None:
        numbers = _visit_points(list(SCENARIOS) if points == "all" else [points], pairs)
    elif depth is not None:
        numbers = _live_orders(depth)
    else:
        if seeds is None and budget_s is None:
            seeds = 1000
        progress = Progress(seeds, budget_s)
        numbers = campaign(
            subject,
            first=first,
            seeds=seeds,
            budget_s=budget_s,
            jobs=jobs or cores(),
            faults=faults,
            on_progress=progress,
        )
        progress.clear()
    _print(numbers, faults, subject)
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


def _visit_small() -> Numbers:
    total = Numbers()
    for action, life in every_single(SMALL, every_us=100_000):
        total = total.merged(numbers_of_cluster(life))
        if not life.is_sound:
            click.echo(f"{action}: {life.faults[0]}")
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


def _print(numbers: Numbers, faults: Families, subject: Subject) -> None:
    counts = numbers.counts
    click.echo(f"lives                {numbers.lives}")
    click.echo(f"simulated time       {numbers.years:.2f} years")
    click.echo(f"starts checked       {numbers.starts}")
    if numbers.events:
        click.echo(f"events               {numbers.events}")
        click.echo(f"clock changes        {numbers.clock_changes} (summer and winter time)")
        click.echo(f"crashes              {numbers.crashes} at one of {numbers.points_passed} points")
    if numbers.points_due:
        click.echo(f"crash points         {numbers.points_visited} of {numbers.points_due} visited")
    for name, number in sorted(counts.items()):
        click.echo(f"  {name:<34} {number}")
    click.echo(f"rare paths taken     {len(numbers.marks.keys() & {*subject.marks})} of {len(subject.marks)}")
    for name in subject.marks:
        click.echo(f"  {name:<34} {numbers.marks[name]}")
    click.echo(f"lives that failed    {numbers.failed}")
    for seed, reason in numbers.failures:
        click.echo(f"  {reason}")
        if seed:
            click.echo(f"  reproduce: {command(seed, faults, subject)}")


_COMMAND = "python -m tests.simulation"


def command(seed: int, faults: Families, subject: Subject = ALONE) -> str:
    """The one line that shows a seed again."""
    only = "" if faults == subject.faults() else f" --only {','.join(faults.families)}"
    return f"{_COMMAND}{subject.option} --seed {seed}{only}"


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


def _print_life(subject: Subject, plan: Any, again: str) -> bool:
    life = subject.lived(plan)
    click.echo(subject.story(plan))
    click.echo(f"hash {life.hash}")
    click.echo(f"{life.starts} starts in {timedelta(seconds=life.steady_us // SECOND_US)}")
    if life.is_sound:
        click.echo("nothing is wrong")
        return True
    click.echo("\n".join(life.faults))
    shortest = subject.shrunk(plan, lambda shorter: subject.lived(shorter).kind == life.kind)
    short = subject.lived(shortest)
    click.echo("\nThe shortest story that fails in the same way:\n")
    click.echo("\n".join([subject.story(shortest), *short.log, short.faults[0]]))
    click.echo(f"reproduce: {again}")
    return False


if __name__ == "__main__":
    main()
