"""Simulates for a while, counts, and prints what it counted; with --write in docs/guarantees.md.

It writes the end of that page, from `HEADING` on. Nothing there is typed by hand except what was found and how
it was repaired (`findings.toml`); the number of mutants comes from docs/mutants.md, which
`mutants/run.py --write` has written before.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from tests.simulation import Numbers, all_orders, every_crash_point, numbers_of
from tests.simulation.__main__ import Progress, command, seconds
from tests.simulation.campaign import ALONE, campaign, cores
from tests.simulation.drawing import Faults
from tests.simulation.scenarios import SCENARIOS
from tools.markdown import wrapped

from duly.marks import MARKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
MUTANTS_PAGE = ROOT / "docs" / "mutants.md"
_DEPTH = 3
_PAIRS = 200

_WORDS = {
    "break": "disk full, or failing to write, sync or read",
    "crash": "crash planned",
    "crash at await": "crash between two steps of the event loop",
    "crash at before-write": "crash before a call of the store",
    "crash at disk": "crash at an operation of the disk",
    "crash at unacknowledged": "crash after a commit, before its acknowledgement",
    "crash in doubt": "crash because nobody could say whether a list was written",
    "damaged row": "row damaged between two processes",
    "finish": "run asked to end",
    "initialize": "initialize called again",
    "lag": "slow store",
    "lock": "database locked by another program",
    "lose": "acknowledgements of the store lost",
    "mistake": "list that is not valid",
    "refuse": "store that refuses",
    "repaired": "damaged row repaired",
    "stall": "process stalled",
    "step": "clock set, or host suspended",
    "stop": "stop called",
}
"""What the simulation counts, in words."""

HEADING = "## What they rest on"
_HEAD = f"""{HEADING}

Written by `make guarantees` (`make simulate` prints the same); every number was counted by that command. The properties are those of `duly verify`; each life, each crash point
and each order below, as the scheduler is after the fixes at the end of this page, is judged by the same checker that users run, and afterwards everything is healed and every obligation must be met.

"""


@click.command()
@click.option(
    "--budget", default="60s", show_default=True, help="How long to simulate random lives, such as 60s, 10m."
)
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--write", is_flag=True, help="Write it to docs/guarantees.md instead of printing it.")
def main(budget: str, first: int, *, write: bool) -> None:
    """Simulate and count."""
    _say("random lives ...")
    progress = Progress(None, seconds(budget))
    lives = campaign(
        ALONE,
        first=first,
        seeds=None,
        budget_s=seconds(budget),
        jobs=cores(),
        faults=Faults(),
        on_progress=progress,
    )
    progress.clear()
    _say("every crash point ...")
    points = {name: _points(name) for name in SCENARIOS}
    _say("every order ...")
    orders = _sum(numbers_of(life) for _, life in all_orders(_DEPTH))
    page = "\n".join(_page(lives, points, orders, first)) + "\n"
    if write:
        PAGE.write_text(PAGE.read_text().partition(HEADING)[0] + wrapped(page))
    else:
        click.echo(page)
    failed = lives.failed + orders.failed + sum(numbers.failed for numbers in points.values())
    for seed, reason in lives.failures:
        _say(f"{reason}\n  reproduce: {command(seed, Faults())}")
    sys.exit(1 if failed else 0)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _sum(numbers: Iterable[Numbers]) -> Numbers:
    total = Numbers()
    for each in numbers:
        total = total.merged(each)
    return total


def _points(name: str) -> Numbers:
    total = Numbers()
    for visit in every_crash_point(SCENARIOS[name], pairs=_PAIRS):
        numbers = numbers_of(visit.life)
        numbers.points_due, numbers.points_visited = 1, min(numbers.crashes, 1)
        total = total.merged(numbers)
    return total


def _page(lives: Numbers, points: dict[str, Numbers], orders: Numbers, first: int) -> Iterator[str]:
    yield _HEAD
    yield "| what | how much |\n|---|---|"
    everything = _sum((lives, orders, *points.values()))
    for what, number in (
        ("seeds lived", f"{lives.lives:,} (from {first} on)"),
        ("simulated time", f"{everything.years:,.1f} years"),
        ("starts checked", f"{everything.starts:,} (in {everything.events:,} events)"),
        ("crashes", f"{everything.crashes:,}"),
        ("changes to summer or winter time crossed", f"{everything.clock_changes:,}"),
        ("orders of actions, every order of three there is, with one task", f"{orders.lives:,}"),
        ("rare paths of the scheduler taken", f"{sum(m in everything.marks for m in MARKS)} of {len(MARKS)}"),
        ("mutants killed", _mutants()),
        ("violations", f"{everything.failed:,}"),
    ):
        yield f"| {what} | {number} |"
    yield "\n### Crash points\n"
    yield "Every point of a small scenario at which the process can die: between any two steps of the event loop, before and after each call of the store, at each"
    yield f"operation of the disk; and pairs of them, the second in the recovery from the first (up to {_PAIRS} a scenario).\n"
    yield "| scenario | crashed at, of those that exist | starts checked | violations |\n|---|---|---|---|"
    for name, numbers in points.items():
        visited = f"{numbers.points_visited:,} of {numbers.points_due:,}"
        yield f"| {name} | {visited} | {numbers.starts:,} | {numbers.failed:,} |"
    yield "\n### Faults, by family\n\n| what happened | how often |\n|---|---|"
    for name, times in sorted((_WORDS.get(name, name), times) for name, times in everything.counts.items()):
        yield f"| {name} | {times:,} |"
    yield "\n### Rare paths\n\n| path | what it is | taken |\n|---|---|---|"
    for name, words in MARKS.items():
        yield f"| {name} | {words} | {everything.marks[name]:,} |"
    yield from _findings()


def _mutants() -> str:
    found = re.search(r"^(\d+ of \d+) are killed", MUTANTS_PAGE.read_text(), re.MULTILINE)
    return f"{found[1]} ([which](mutants.md))" if found else "not hunted"


def _findings() -> Iterator[str]:
    yield "\n### Violations found so far\n\n| property | what the scheduler did | what it does now | kept so by |\n|---|---|---|---|"
    for each in tomllib.loads((ROOT / "tools" / "proof" / "findings.toml").read_text())["finding"]:
        yield f"| {each['property']} | {each['what']} | {each['fix']} | `{each['test']}` |"


if __name__ == "__main__":
    main()
