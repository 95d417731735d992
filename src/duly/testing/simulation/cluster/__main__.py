"""`python -m duly.testing.simulation.cluster`: many clusters with closing numbers, or one with its story."""

import sys
from dataclasses import replace
from functools import partial

import click

from duly.marks import CLUSTER_MARKS
from duly.testing.simulation.__main__ import seconds
from duly.testing.simulation.campaign import cores, dealt
from duly.testing.simulation.cluster.director import ClusterLife, cluster_lived
from duly.testing.simulation.cluster.drawing import ClusterFaults, cluster_drawn
from duly.testing.simulation.cluster.enumeration import WORLDS, every_wrong, spelled, wrongs_from
from duly.testing.simulation.cluster.numbers import ClusterNumbers, cluster_numbers_of, cluster_seeds
from duly.testing.simulation.cluster.plan import ClusterPlan
from duly.testing.simulation.cluster.telling import cluster_shrunk, cluster_story

_COMMAND = "python -m duly.testing.simulation.cluster"


def _families(_context: object, _parameter: object, value: str | None) -> ClusterFaults:
    if value is None:
        return ClusterFaults()
    try:
        return ClusterFaults.only(*(name for name in value.split(",") if name))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _budget(_context: object, _parameter: object, value: str | None) -> float | None:
    return None if value is None else seconds(value)


@click.command()
@click.option("--members", type=click.IntRange(1, 8), default=3, show_default=True, help="How many hosts.")
@click.option("--seed", type=int, help="Live this one seed, tell its story, and shorten it if it fails.")
@click.option(
    "--seeds", type=click.IntRange(1), help="How many seeds to live; 500 if there is no budget either."
)
@click.option("--from", "first", default=1, show_default=True, help="The first of them.")
@click.option("--budget", callback=_budget, metavar="TIME", help="Stop after this time, such as 60s or 5m.")
@click.option("--jobs", type=click.IntRange(1), help="Processes to use; one per core by default.")
@click.option(
    "--only", "faults", callback=_families, metavar="FAMILIES", help="Only these faults: crash,pause,link,..."
)
@click.option(
    "--world", type=click.Choice([*WORLDS, "all"]), help="Everything that can go wrong in a small world."
)
@click.option("--stride", type=click.IntRange(1), default=1, help="With --world: die at every so many turns.")
@click.option("--pairs", default=200, show_default=True, help="With --world: pairs to try.")
@click.option("--at", "spelling", metavar="WRONGS", help="With --world: only this, and tell the story.")
def main(
    *,
    members: int,
    seed: int | None,
    seeds: int | None,
    first: int,
    budget: float | None,
    jobs: int | None,
    faults: ClusterFaults,
    world: str | None,
    stride: int,
    pairs: int,
    spelling: str | None,
) -> None:
    """Simulate clusters, with everything going wrong that can, and judge what happened."""
    if seed is not None:
        again = command(seed, members, faults)
        sys.exit(0 if _tell_life(cluster_drawn(seed, members, faults), again) else 1)
    if spelling is not None:
        sys.exit(0 if _tell_life(_wrong(world, spelling), _command_at(str(world), spelling)) else 1)
    if world is not None:
        numbers = _visit(list(WORLDS) if world == "all" else [world], stride, pairs)
    else:
        numbers = dealt(
            partial(cluster_seeds, members=members, faults=faults),
            ClusterNumbers(),
            first=first,
            seeds=500 if seeds is None and budget is None else seeds,
            budget_s=budget,
            jobs=jobs or cores(),
            on_progress=lambda _numbers, _elapsed_s: None,
        )
    _tell(numbers, members, faults)
    sys.exit(1 if numbers.failed else 0)


def _visit(names: list[str], stride: int, pairs: int) -> ClusterNumbers:
    total = ClusterNumbers()
    for name in names:
        for visit in every_wrong(WORLDS[name], stride=stride, pairs=pairs):
            numbers = cluster_numbers_of(visit.life)
            numbers.failures.clear()
            total = total.merged(numbers)
            if not visit.life.is_sound:
                click.echo(f"{name}: {visit.life.faults[0]}")
                click.echo(f"  reproduce: {_command_at(name, spelled(visit.wrongs))}")
    return total


def _tell(numbers: ClusterNumbers, members: int, faults: ClusterFaults) -> None:
    click.echo(f"lives                {numbers.lives}")
    click.echo(f"member-hours         {numbers.member_hours:.1f}")
    click.echo(f"starts checked       {numbers.starts}, {numbers.owed} of them owed and in time")
    click.echo(f"events in traces     {numbers.events}, {numbers.unknown} questions left open by them")
    click.echo(f"slowest start        {numbers.slowest_us / 1e6:.2f} leases after the last trouble")
    click.echo(f"slowest failover     {numbers.slowest_failover_us / 1e6:.2f} leases after the last renewal")
    for name, number in sorted(numbers.counts.items()):
        click.echo(f"  {name:<34} {number}")
    click.echo(f"rare paths taken     {len(set(numbers.marks) & set(CLUSTER_MARKS))} of {len(CLUSTER_MARKS)}")
    for name in CLUSTER_MARKS:
        click.echo(f"  {name:<34} {numbers.marks[name]}")
    click.echo(f"lives that failed    {numbers.failed}")
    for seed, reason in numbers.failures:
        click.echo(f"  {reason}")
        click.echo(f"  reproduce: {command(seed, members, faults)}")


def command(seed: int, members: int, faults: ClusterFaults) -> str:
    """The one line that shows a seed again."""
    only = "" if faults == ClusterFaults() else f" --only {','.join(faults.families)}"
    return f"{_COMMAND} --members {members} --seed {seed}{only}"


def _command_at(world: str, spelling: str) -> str:
    return f"{_COMMAND} --world {world} --at {spelling}"


def _wrong(world: str | None, spelling: str) -> ClusterPlan:
    if world not in WORLDS:
        raise click.UsageError(f"--at needs --world with one of {', '.join(WORLDS)}")
    plan = WORLDS[world]
    try:
        return replace(plan, actions=(*plan.actions, *wrongs_from(plan, spelling)))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--at") from error


def _tell_life(plan: ClusterPlan, again: str) -> bool:
    life = cluster_lived(plan)
    click.echo(cluster_story(plan))
    click.echo(f"hash {life.hash}")
    click.echo(f"{life.reckoning.starts} starts, {life.reckoning.owed} of them owed and in time")
    if life.is_sound:
        click.echo("nothing is wrong")
        return True
    for fault in life.faults:
        click.echo(fault)
    kind = _kind(life)
    shortest = cluster_shrunk(plan, lambda shorter: _kind(cluster_lived(shorter)) == kind)
    short = cluster_lived(shortest)
    click.echo("\nThe shortest story that fails in the same way:\n")
    click.echo(cluster_story(shortest))
    click.echo("\n".join(short.log))
    click.echo(short.faults[0])
    click.echo(f"reproduce: {again}")
    return False


def _kind(life: ClusterLife) -> str:
    """What is wrong first, without the particulars."""
    words = [word for word in life.faults[0].split() if word.isalpha()] if life.faults else []
    return " ".join(words[:6])


if __name__ == "__main__":
    main()
