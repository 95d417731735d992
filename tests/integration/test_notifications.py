"""Notifications over hours of virtual time: what is told, and when. The receiver is a real command."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

from tests.integration.test_daemon_virtual import HOURLY, JOB, WEB, DaemonWorld, timer, world_of


def notify(**options: str) -> str:
    lines = [f"{key} = {value}" for key, value in options.items()]
    return "\n".join(["[[notify]]", 'id = "ops"', 'command = ["true"]', *lines, ""])


def sent(world: DaemonWorld) -> list[tuple[str, str]]:
    """What was told, and at which minute."""
    events = [event for event in world.events if event.name == "NotificationSent"]
    return [(event.fields["about"], event.time.strftime("%H:%M")) for event in events]


async def test_a_job_that_hangs(tmp_path: Path) -> None:
    """A job that hangs is told of within a minute after its period; and that it is well, with its end."""
    world = world_of(tmp_path, JOB + HOURLY + notify())
    async with world.life():
        await world.after(hours=2, minutes=30)
        world.processes.script("job")
        await world.until("2026-01-01 06:30")
        assert sent(world) == [("hung", "04:01")]
        world.processes.script("job", lasts=timedelta(seconds=5))
        world.processes.started[-1].end(0)
        await world.after(minutes=1)
        assert sent(world) == [("hung", "04:01"), ("recovery", "06:30")]


async def test_silence(tmp_path: Path) -> None:
    """A job that has not succeeded for so long is told of once, until it succeeds."""
    world = world_of(tmp_path, JOB + HOURLY + notify(on='["recovery"]', silence='"150m"'))
    async with world.life():
        await world.after(hours=1, minutes=30)
        world.processes.script("job", code=3, lasts=timedelta(seconds=5))
        await world.until("2026-01-01 06:30")
        assert sent(world) == [("silence", "03:31")]
        world.processes.script("job", lasts=timedelta(seconds=5))
        await world.after(hours=1)
        assert sent(world) == [("silence", "03:31"), ("recovery", "07:00")]


async def test_a_service_that_comes_back(tmp_path: Path) -> None:
    """A service that falls over again and again is one outage; it ends when it has stayed up for a minute."""
    world = world_of(tmp_path, WEB + notify())
    world.processes.script("web", code=3, lasts=timedelta(seconds=2))
    async with world.life():
        await world.after(minutes=5)
        assert sent(world) == [("failure", "00:00")]
        world.processes.script("web")
        await world.after(minutes=5)
        assert [about for about, _ in sent(world)] == ["failure", "recovery"]
        await world.do("stop", id="web")
        await world.after(minutes=5)
        assert len(sent(world)) == 2


async def test_what_is_removed_is_not_told_of(tmp_path: Path) -> None:
    """An outage is forgotten with its job; one that is added later, and fails, is told of again."""
    world = world_of(tmp_path, JOB + HOURLY + notify(on='["failure"]'))
    world.processes.script("job", code=3, lasts=timedelta(seconds=5))
    async with world.life():
        await world.after(hours=1, minutes=30)
        await world.reload('[supervisor]\ntimers = true\ntimezone = "UTC"\n' + WEB + notify())
        await world.after(minutes=5)
        await world.reload('[supervisor]\ntimers = true\ntimezone = "UTC"\n' + JOB + HOURLY + notify())
        await world.after(hours=1)
    assert [about for about, _ in sent(world)] == ["failure", "failure"]


async def test_an_outage_that_spreads(tmp_path: Path) -> None:
    """Jobs that fail one after the other are at most six messages a minute, and each is told of."""
    jobs = "".join(
        f'[[service]]\nid = "j{number}"\ntype = "oneshot"\ncommand = ["bad"]\n'
        + timer(f"t{number}", f"j{number}", on_startup_sec=2 * number + 1, retry_intervals_sec="[]")
        for number in range(40)
    )
    world = world_of(tmp_path, jobs + notify())
    world.processes.script("bad", code=3, lasts=timedelta(seconds=0.1))
    async with world.life():
        await world.after(minutes=5)
    assert [about for about, _ in sent(world)][:6] == ["failure"] * 5 + ["digest"]
    assert max(Counter(minute for _, minute in sent(world)).values()) <= 6
    seen = [job for event in world.events if event.name == "NotificationSent" for job in event.fields["jobs"]]
    assert sorted(seen) == sorted(f"j{number}" for number in range(40))
