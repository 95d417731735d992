"""Timers that another machine holds, by hand, in virtual time: asked for, done once, answered or not."""

import random
from collections.abc import Iterator
from datetime import timedelta

import pytest

from duly.config.schema import Timer
from duly.errors import StoreError
from duly.timers.asking import Answer, Done, answer_from, refused, text_of
from duly.timers.errors import TimerError, TimerRefusal
from tests.shared_world import JOBS, LONG, SHARDS, TTL_US, Member, SharedWorld, each
from tests.timer_world import MINUTE, MINUTELY, SECOND, daily, timer

RARE = each(on_calendar=daily(23))
"""Timers that do not come by themselves."""
BEAT = timedelta(microseconds=TTL_US // 3)
PATIENCE = timedelta(microseconds=2 * TTL_US)
"""How long an answer is waited for."""
SOON = BEAT + SECOND / 2
"""By then a holder has heard what is asked of it, and its answer was found."""


@pytest.fixture
def world() -> Iterator[SharedWorld]:
    """Nobody is there yet."""
    with SharedWorld() as world:
        yield world


@pytest.fixture
def pair(world: SharedWorld) -> tuple[Member, Member]:
    """Two machines; the second holds t2 and t3."""
    return joined(world, RARE)


def joined(world: SharedWorld, definitions: list[Timer]) -> tuple[Member, Member]:
    """Two machines, each with its share."""
    a, b = world.member("a", *definitions), world.member("b", *definitions)
    world.after(10 * SECOND)
    assert (a.held, b.held) == ([0, 1], [2, 3])
    return a, b


def refusal(world: SharedWorld, asking: Member, name: str = "t3", *, within: timedelta = SOON) -> TimerError:
    """Why a timer is not triggered."""
    with pytest.raises(TimerError) as caught:
        world.do(asking.timers.trigger(name), within=within)
    return caught.value


def triggers(*members: Member, job: str = JOBS[3]) -> int:
    """How often a job was started by hand."""
    return sum(reason == "trigger" for member in members for _, reason in member.runs(job))


# --- it is done ---


def test_trigger_elsewhere(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """A timer that another machine holds is fired there, once; who asked is told the run and the machine."""
    a, b = pair
    assert world.do(a.timers.trigger("t3"), within=SOON) == Done(1, "b")
    assert [(began.service, began.run_id) for began in b.targets.began] == [(JOBS[3], 1)]
    assert a.runs() == []
    assert b.told("OperatorAction") == [{"action": "trigger", "id": "t3", "who": "machine a"}]
    assert a.told("OperatorAction") == []
    world.after(MINUTE)
    assert triggers(a, b) == 1


def test_trigger_here(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """A timer that this machine holds is fired at once, and nobody is asked."""
    a, _ = pair
    assert world.do(a.timers.trigger("t0")) == Done(1, None)
    assert world.table.requests == {}
    assert a.told("OperatorAction") == []


def test_switches_elsewhere(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """Enabling and disabling reach the holder, and who asked shows it at once."""
    a, b = pair
    for switch, is_on in ((a.timers.disable, False), (a.timers.enable, True)):
        task = world.loop.create_task(switch("t3"))
        while not task.done():
            world.after(SECOND / 10)
        for member in pair:
            assert {state.name: state.is_enabled for state in member.timers.all()}["t3"] is is_on
        assert world.row("t3")["enabled"] == (None if is_on else 0)
    assert [fact["action"] for fact in b.told("OperatorAction")] == ["disable", "enable"]


def test_idle_machines_ask_nothing(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """While nobody asks, no machine makes a call about requests; a beat tells it all."""
    a, b = pair
    world.after(5 * MINUTE)
    assert a.cable.calls == b.cable.calls == []
    world.do(a.timers.trigger("t3"), within=SOON)
    assert b.cable.calls == ["take_requests", "answer"]
    world.after(5 * MINUTE)
    assert b.cable.calls == ["take_requests", "answer"]
    assert set(a.cable.calls) == {"ask", "reply"}


def test_what_is_asked_while_a_run_begins_slowly(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """Two that ask for the same at once have one run between them, or one is told of the other's."""
    a, b = pair
    b.targets.lasts[JOBS[3]] = LONG
    asked = [world.loop.create_task(a.timers.trigger("t3")) for _ in range(2)]
    world.after(SOON)
    ends = [task.exception() or task.result() for task in asked]
    assert triggers(b) == 1
    assert Done(1, "b") in ends
    assert all(end == Done(1, "b") or isinstance(end, TimerError) for end in ends)


# --- it is refused ---


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("active", TimerRefusal.OVERLAP),
        ("disabled", TimerRefusal.DISABLED_TARGET),
        ("missing", TimerRefusal.TARGET_NOT_FOUND),
    ],
)
def test_refusals_come_back(
    world: SharedWorld, pair: tuple[Member, Member], state: str, kind: TimerRefusal
) -> None:
    """What the holder refuses is refused here with the same words."""
    a, b = pair
    b.targets.states[JOBS[3]] = state  # type: ignore[assignment] # one of them
    with pytest.raises(TimerError) as at_home:
        world.do(b.timers.trigger("t3"))
    error = refusal(world, a)
    assert error.kind is kind
    assert (error.message, error.details) == (at_home.value.message, at_home.value.details)
    assert b.told("OperatorAction") == []


def test_newer_list_without_the_timer(world: SharedWorld) -> None:
    """A holder whose newer list has no such timer is named, and why it cannot be done."""
    a = world.member("a", *RARE)
    b = world.member("b", *RARE[:-1], timer("other", JOBS[3], on_calendar=daily(22)))
    world.after(10 * SECOND)
    assert b.held == list(range(SHARDS))
    error = refusal(world, a)
    assert error.kind is TimerRefusal.FAILED
    assert "held by b, where it did not work: it has another configuration" in error.message
    assert world.do(a.timers.trigger("t2"), within=SOON) == Done(1, "b")


def test_holder_with_an_older_list(world: SharedWorld) -> None:
    """A machine that still runs a job by an older list fires nothing more, and is named."""
    definitions = each(on_calendar=MINUTELY)
    a = world.member("a", *definitions)
    a.targets.lasts[JOBS[3]] = 90 * SECOND
    world.until("12:01:10")
    b = world.member("b", *definitions, timer("other", JOBS[3], on_calendar=daily(22)))
    world.after(10 * SECOND)
    assert a.held == [3]
    error = refusal(world, b)
    assert error.kind is TimerRefusal.BEHIND
    assert "a holds it and has an older configuration; reload that one" in error.message


def test_store_of_the_holder_fails(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What the holder cannot write is told in its words, and with its name."""
    a, b = pair
    b.cable.fails = {"write_timers"}
    with pytest.raises(TimerError) as caught:
        world.do(a.timers.disable("t3"), within=SOON)
    assert caught.value.kind is TimerRefusal.FAILED
    assert caught.value.message == (
        'Timer "t3" is held by b, where it did not work: Store memory board: fails to write_timers'
    )
    assert caught.value.details["reason"] == "Store memory board: fails to write_timers"
    assert world.row("t3")["enabled"] is None


def test_unknown_timer(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """A timer that is in no list of ours is refused at once, and nobody is asked."""
    a, _ = pair
    assert refusal(world, a, "nobody", within=timedelta(0)).kind is TimerRefusal.UNKNOWN
    assert world.table.requests == {}


# --- it moves ---


def test_holder_dies(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What was asked of a machine that is dead is done by who holds the timer next: here, by who asked."""
    a, b = pair
    b.die()
    assert world.do(a.timers.trigger("t3"), within=PATIENCE) == Done(1, None)
    assert a.runs(JOBS[3])[0][1] == "trigger"


def test_shard_between_two_machines(world: SharedWorld) -> None:
    """A timer whose shard was given away a moment ago is fired by the machine that takes it."""
    a, b = world.member("a", *RARE), world.member("b", *RARE)
    while a.held == list(range(SHARDS)):
        world.after(SECOND / 1000)
    assert (a.held, b.held) == ([0, 1], [])
    assert world.do(a.timers.trigger("t3"), within=3 * BEAT) == Done(1, "b")


@pytest.mark.parametrize("how", ["stop", "close"])
def test_holder_stops(world: SharedWorld, pair: tuple[Member, Member], how: str) -> None:
    """What is asked of a machine that is about to go is done by the next holder."""
    a, b = pair
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(SECOND / 10)
    world.loop.create_task(getattr(b.timers, how)())
    world.after(PATIENCE)
    assert asked.result() == Done(1, None)
    assert (triggers(a), triggers(b)) == (1, 0)


def test_asking_machine_stops(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """A machine that is stopped while it waits takes back what it asked, if nobody has taken it."""
    a, b = pair
    b.cable.fails = {"take_requests"}
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(SECOND / 10)
    stopping = world.loop.create_task(a.timers.stop())
    world.after(SECOND)
    assert stopping.done()
    with pytest.raises(TimerError, match="nothing was done"):
        asked.result()
    b.cable.fails = set()
    world.after(MINUTE)
    assert triggers(a, b) == 0


# --- nobody answers ---


def test_holder_does_not_take_it(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What nobody takes in time is taken back: the holder is named, and nothing is done, also not later."""
    a, b = pair
    b.cable.fails = {"take_requests"}
    error = refusal(world, a, within=PATIENCE + SECOND)
    assert error.kind is TimerRefusal.ELSEWHERE
    assert "held by b, which does not answer; nothing was done" in error.message
    assert "may_be_done" not in error.details
    b.cable.fails = set()
    world.after(MINUTE)
    assert triggers(a, b) == 0
    assert world.table.requests == {}


def test_asking_machine_dies(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What a dead machine had asked is not done long after, though nobody took it back."""
    a, b = pair
    b.cable.fails = {"take_requests"}
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(SECOND)
    a.die()
    world.after(PATIENCE)
    assert isinstance(asked.exception(), TimerError)
    b.cable.fails = set()
    world.after(MINUTE)
    assert triggers(a, b) == 0


def test_answer_cannot_be_told(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """Of what was taken and not answered it is said that it may yet be done; it is done once."""
    a, b = pair
    b.cable.fails = {"answer"}
    error = refusal(world, a, within=PATIENCE + SECOND)
    assert error.kind is TimerRefusal.UNANSWERED
    assert "b was asked and has not answered; it may yet do it" in error.message
    assert error.details["may_be_done"] is True
    world.after(MINUTE)
    b.cable.fails = set()
    world.after(MINUTE)
    assert triggers(a, b) == 1


@pytest.mark.parametrize("call", ["take_requests", "answer", "ask", "reply"])
@pytest.mark.parametrize("way", ["fails", "loses"])
def test_one_call_is_lost(world: SharedWorld, pair: tuple[Member, Member], call: str, way: str) -> None:
    """A call that fails once, done or not, is made again; it is done once, and answered."""
    a, b = pair
    for member in pair:
        getattr(member.cable, way).add(call)
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(SOON)
    assert asked.done() is ((call, way) == ("answer", "loses"))  # then it has been heard all the same
    for member in pair:
        getattr(member.cable, way).clear()
    world.after(SOON)
    assert asked.result() == Done(1, "b")
    assert triggers(a, b) == 1


def test_unanswered_request_beside_another(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What was done and is not answered yet is given again with the next request, and not done again."""
    a, b = pair
    b.cable.fails = {"answer"}
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(SOON)
    assert triggers(b) == 1
    switched = world.loop.create_task(a.timers.disable("t3"))
    world.after(SOON)
    assert world.row("t3")["enabled"] == 0
    assert triggers(b) == 1
    b.cable.fails = set()
    world.after(SECOND)
    assert asked.result() == Done(1, "b")
    assert switched.done()
    assert triggers(b) == 1


def test_board_is_out_of_reach(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """Who cannot even ask is told what is wrong with the database."""
    a, b = pair
    a.cable.fails = {"ask"}
    with pytest.raises(StoreError, match="fails to ask"):
        world.do(a.timers.trigger("t3"), within=PATIENCE + SECOND)
    assert triggers(a, b) == 0


def test_board_is_lost_while_waiting(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """Who has asked and hears nothing more of the database says that it may be done."""
    a, b = pair
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(timedelta(0))
    a.cable.is_cut = True
    world.after(PATIENCE + SECOND)
    with pytest.raises(TimerError) as caught:
        asked.result()
    assert caught.value.kind is TimerRefusal.UNANSWERED
    assert triggers(b) == 1


def test_board_forgets_what_was_asked(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """When a promoted standby knows nothing of a request, nobody knows whether it was done."""
    a, _ = pair
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(timedelta(0))
    world.table.requests.clear()
    world.after(PATIENCE + SECOND)
    with pytest.raises(TimerError) as caught:
        asked.result()
    assert caught.value.kind is TimerRefusal.UNANSWERED


# --- answers ---


def test_answers_of_another_version() -> None:
    """A refusal that we do not know is told as it is; what is no answer is told as that."""
    error = refused(answer_from('{"member": "b", "refusal": "too-hot", "more": 1}'), "t")
    assert error is not None
    assert error.message == 'Timer "t" is held by b, where it did not work: too-hot'
    for text in ("", "7", '{"run": "x"}', "[" * 100_000):
        error = refused(answer_from(text), "t")
        assert error is not None
        assert "its answer cannot be read" in error.message
    strange = Answer("\ud800\udc00 \n\0", 3, target="x")
    assert answer_from(text_of(strange)) == strange


def test_verb_of_another_version(world: SharedWorld, pair: tuple[Member, Member]) -> None:
    """What a newer machine asks and this one does not know is refused, in words."""
    a, b = pair
    asked = world.loop.create_task(a.timers.trigger("t3"))
    world.after(timedelta(0))
    (waiting,) = world.table.requests.values()
    waiting.request = waiting.request._replace(verb="tickle")
    world.after(SOON)
    with pytest.raises(TimerError, match="held by b, where it did not work: it does not know how to tickle"):
        asked.result()
    assert b.runs() == []


# --- whatever happens ---


@pytest.mark.parametrize("seed", range(30))
def test_never_twice(seed: int) -> None:
    """Whatever fails meanwhile, it is done once if so answered, not at all if taken back, and never twice."""
    chance = random.Random(seed)
    with SharedWorld() as world:
        machines = [world.member(name, *RARE) for name in "abc"]
        world.after(10 * SECOND)
        for _ in range(12):
            before = triggers(*machines)
            asking = chance.choice(machines)
            asked = world.loop.create_task(asking.timers.trigger("t3"))
            while not asked.done():
                disturb(chance, machines)
                world.after(chance.choice([SECOND / 50, SECOND / 5, SECOND]))
            for machine in machines:
                machine.cable.is_cut = False
                machine.cable.fails, machine.cable.loses = set(), set()
            world.after(3 * PATIENCE)
            done = triggers(*machines) - before
            error = asked.exception()
            if error is None:
                assert done == 1
            elif isinstance(error, TimerError) and error.kind is TimerRefusal.ELSEWHERE:
                assert done == 0
            else:
                assert done <= 1


def disturb(chance: random.Random, machines: list[Member]) -> None:
    """Have something fail, or be well again."""
    cable = chance.choice(machines).cable
    calls = ["ask", "take_requests", "answer", "reply", "write_timers"]
    match chance.randrange(6):
        case 0:
            cable.is_cut = not cable.is_cut
        case 1:
            cable.fails = set(chance.sample(calls, 2))
        case 2:
            cable.loses = set(chance.sample(calls, 2))
        case _:
            cable.is_cut = False
            cable.fails, cable.loses = set(), set()
