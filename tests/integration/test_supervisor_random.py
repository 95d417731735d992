"""Random lives of a supervisor in virtual time: whatever happens, some things always hold.

Each seed makes services with random relations and programs that fail in every way, and then starts, stops,
runs and reloads at random while the clock is set now and then. To see one again: `pytest -k "life[SEED]"`.
"""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from duly import Event
from duly.config import Service, Settings
from duly.processes.output import Tail
from duly.processes.spawn import ProcessCommand
from duly.supervisor.execution import CutReason
from duly.supervisor.results import ServiceError, SupervisorStoppingError
from tests.worlds.fake_processes import FakeProcess
from tests.worlds.supervisor import World

IDS = [f"s{number}" for number in range(8)]
RESERVE_S = 1.0


class Life:
    """One random life. What must hold at each moment is asserted at that moment."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        timeout_s, grace_s = self.rng.choice([5, 12, 30]), self.rng.choice([1, 3, 10])
        self.world = World(Settings(shutdown_timeout_sec=timeout_s, kill_grace_sec=grace_s))
        self.wrongs: list[str] = []
        self.first: dict[str, Service] = {}
        """What start-up brings up."""
        self.is_starting_up = True
        self.settled: set[str] = set()
        self.by_hand: set[str] = set()
        self.running: set[str] = set()
        self.results: dict[str, str] = {}
        self.ended_at: dict[str, Any] = {}
        self.kill_at: Any = None
        """When a shutdown may no longer keep the order."""
        self.begun: set[int] = set()
        """The runs that had begun when the stop was asked for."""
        self._start = self.world.processes.start
        self.world.processes.start = self._start_one  # type: ignore[method-assign]
        self.world.listeners.append(self._hear)

    # --- chance ---

    def services(self, before: list[Service]) -> list[Service]:
        """A new list: some services as before, some changed, some gone, some new; in any order."""
        kept = {service.id: service for service in before if self.rng.random() < 0.5}
        chosen = set(kept) | set(self.rng.sample(IDS, self.rng.randint(0, len(IDS))))
        made = [kept.get(name) or self.service(name) for name in sorted(chosen)]
        self.rng.shuffle(made)
        return made

    def service(self, name: str) -> Service:
        """A random service, related to such as come before it by name only, so that there is no circle."""
        rng, earlier = self.rng, IDS[: IDS.index(name)]
        is_oneshot = rng.random() < 0.4
        return Service(
            name,
            (name,),
            type="oneshot" if is_oneshot else "simple",
            enabled=rng.random() < 0.9,
            stage=rng.choice([1, 2, 3, 3, 3, 4]),
            after=tuple(rng.sample(earlier, min(len(earlier), rng.choice([0, 0, 1, 2])))),
            requires=tuple(rng.sample(earlier, min(len(earlier), rng.choice([0, 0, 0, 1])))),
            env={"A": rng.choice("12")},
            timeout_sec=rng.choice([None, 2, 20]) if is_oneshot else None,
            restart="no" if is_oneshot else rng.choice(["always", "always", "on-failure", "no"]),
        )

    def script(self, name: str) -> None:
        """Have a program behave in some way from now on."""
        rng = self.rng
        lasts = rng.choice([None, None, 0, 1, 5, 40])
        self.world.processes.script(
            name,
            lasts=None if lasts is None else timedelta(seconds=lasts),
            code=rng.choice([0, 0, 0, 1, -11]),
            ignores_term=rng.random() < 0.2,
            spawn_error="no such thing" if rng.random() < 0.1 else None,
            leaves_behind=rng.random() < 0.1,
        )

    def boot_of(self, services: list[Service]) -> set[str]:
        """Which of them start-up starts."""
        return {service.id for service in services if self.rng.random() < 0.85}

    # --- the life ---

    async def perform(self) -> None:
        """Live, and stop."""
        supervisor, rng = self.world.supervisor, self.rng
        for name in IDS:
            self.script(name)
        services = self.services([])
        boot = self.boot_of(services)
        self.first = {service.id: service for service in services if service.id in boot and service.enabled}
        await self.call(supervisor.start(services, boot))
        for _ in range(rng.randint(0, 40)):
            name = rng.choice(IDS)
            match rng.choice(["time", "time", "time", "script", "start", "stop", "run", "reload", "step"]):
                case "time":
                    await self.world.after(rng.choice([0, 0.5, 1, 3, 10, 70]))
                case "script":
                    self.script(name)
                case "start":
                    self.by_hand.add(name)
                    await self.call(supervisor.start_service(name))
                case "stop":
                    self.by_hand.add(name)
                    await self.call(supervisor.stop_service(name))
                case "run":
                    self.by_hand.add(name)
                    await self.call(supervisor.run(name, reason="schedule", timer="t"))
                case "reload":
                    services = self.services(services)
                    await self.call(supervisor.reload(services, self.boot_of(services)))
                case "step":
                    self.world.clock.step(timedelta(seconds=rng.choice([-7200, -30, 30, 7200])))
        await self.end()

    async def call(self, call: Coroutine[Any, Any, Any]) -> None:
        """Make a call, mostly without letting it come to rest: the next may come at the same instant."""
        if self.rng.random() < 0.5:
            await self.world.do(call)
        else:
            self.world.calls.append(asyncio.get_running_loop().create_task(call))

    async def end(self) -> None:
        """Stop, and look whether everything is in order."""
        world = self.world
        timeout_s = world.supervisor.settings.shutdown_timeout_sec
        took_s = await world.stop()
        await world.rest()
        assert took_s <= timeout_s + 0.1
        assert self.wrongs == []
        assert world.living() == []
        assert {view.state for view in world.supervisor.views()} <= {"stopped", "failed", "done", "skipped"}
        for task in world.calls:
            assert task.done()
            assert isinstance(task.exception(), ServiceError | SupervisorStoppingError | None)
        await self.look_at_history()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def look_at_history(self) -> None:
        """Every run was told to start once and to end once, as its row says."""
        rows = {row.id: row for row in await self.world.runs()}
        assert all(row.ended_us is not None for row in rows.values())
        started = Counter(fields["runId"] for _, fields in self.world.told("ServiceRunStarted"))
        ended = Counter(fields["runId"] for _, fields in self.world.told("ServiceRunEnded"))
        assert started == ended == Counter(rows.keys())
        for _, fields in self.world.told("ServiceRunEnded"):
            row = rows[fields["runId"]]
            assert (row.service, row.result) == (fields["service"], fields["result"])

    # --- what is watched ---

    def _hear(self, event: Event) -> None:
        name = event.fields.get("service", "")
        if event.name == "SupervisorStopping":
            timeout_s = self.world.supervisor.settings.shutdown_timeout_sec
            self.kill_at = event.time + timedelta(seconds=timeout_s - min(timeout_s / 10, RESERVE_S))
            self.begun = set(self.world.supervisor._registry._live)
        elif event.name == "SupervisorStarted":
            self.is_starting_up = False
        elif event.name == "ServiceStartSkipped":
            self.settled.add(name)
        elif event.name == "ServiceRunStarted":
            self.running.add(name)
            if name in self.first and self.first[name].type == "simple":
                self.settled.add(name)
        elif event.name == "ServiceRunEnded":
            self.running.discard(name)
            self.settled.add(name)
            self.results[name] = event.fields["result"]
            self.ended_at[name] = event.time

    async def _start_one(self, command: ProcessCommand, *, token: str, output: Tail) -> FakeProcess:
        name, world = command.argv[0], self.world
        run_id = int(token.split(":")[1])
        self.note(self.kill_at is None or run_id in self.begun, f"{name} started while stopping")
        self.look_at_order(name, run_id)
        if self.rng.random() < 0.3:
            await world.supervisor._pauses.wait(0.5)
        process = await self._start(command, token=token, output=output)
        self.note(world.living().count(name) == 1, f"two of {name} at once")
        process.signal = self._watched_signal(name, process)  # type: ignore[method-assign, assignment]
        return process

    def look_at_order(self, name: str, run_id: int) -> None:
        """A service that start-up starts comes after those it waits for, and with what it requires."""
        row = self.world.supervisor._registry.row_of(run_id)
        if not self.is_starting_up or row is None or row.reason != "boot":
            return
        me = self.first[name]
        for other in self.first.values():
            is_before = other.stage < me.stage
            is_related = other.stage == me.stage and other.id in (*me.after, *me.requires)
            if (is_before or is_related) and other.id not in self.by_hand:
                self.note(other.id in self.settled, f"{name} did not wait for {other.id}")
        for required in me.requires:
            is_there = required in self.running or self.ended_at.get(required) == self.world.clock.now()
            has_succeeded = self.results.get(required) == "success"
            self.note(is_there or has_succeeded, f"{name} started without {required}")

    def _watched_signal(self, name: str, process: FakeProcess) -> Callable[[int], None]:
        send = process.signal

        def signalled(number: int) -> None:
            if number == signal.SIGTERM and process.is_alive:
                self.look_at_stop(name)
            send(number)

        return signalled

    def look_at_stop(self, name: str) -> None:
        """In a shutdown a service is asked to end after those that wait for it, until the deadline comes."""
        controllers = self.world.supervisor._controllers
        me, execution = controllers[name].service, controllers[name].execution
        if (
            execution is None
            or execution.cut is not CutReason.SHUTDOWN
            or self.world.clock.now() >= self.kill_at
        ):
            return
        for other in [controllers[program].service for program in self.world.living()]:
            is_related = other.stage == me.stage and name in (*other.after, *other.requires)
            self.note(other.stage <= me.stage and not is_related, f"{name} stopped before {other.id}")

    def note(self, is_right: bool, wrong: str) -> None:
        """Keep what is wrong: raised in the middle of the supervisor it would be taken for a fault there."""
        if not is_right:
            self.wrongs.append(f"{self.world.clock.now():%H:%M:%S.%f} {wrong}")


@pytest.mark.parametrize("seed", range(300))
async def test_random_life(seed: int) -> None:
    """One process of a service at most, order kept, nothing alive after a stop, each run ended once."""
    await Life(seed).perform()
