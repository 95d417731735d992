"""What becomes of a service when its process starts or ends, and what a reload means for it."""

import msgspec
import pytest

from duly.config import Service
from duly.instant import SECOND_US
from duly.store.history import Result, RunRow
from duly.supervisor import services
from duly.supervisor.results import RunResult, run_result_of
from duly.supervisor.services import (
    Phase,
    ReloadAction,
    RunsKnown,
    ServiceState,
    in_english,
    reload_action,
    view_of,
)

S = SECOND_US
SUCCESS, EXIT, KILLED = run_result_of(0), run_result_of(3), run_result_of(-9)
NO_SPAWN = RunResult(Result.SPAWN_ERROR, message="no such command")


def simple(**options: object) -> Service:
    return Service("web", ("web",), **options)  # type: ignore[arg-type]


def oneshot(**options: object) -> Service:
    return Service("job", ("job",), type="oneshot", **options)  # type: ignore[arg-type]


def up(at_us: int = 0, state: ServiceState | None = None, *, is_restart: bool = False) -> ServiceState:
    begun = services.starting(state or services.idle(0), 7, at_us, is_restart=is_restart)
    return services.running(begun, at_us)


def test_a_start_is_seen() -> None:
    """A service is starting while its process is made, then running; both know their run."""
    state = services.starting(services.idle(0), 7, 1, is_restart=False)
    assert (state.phase, state.run_id, state.is_active) == (Phase.STARTING, 7, True)
    state = services.running(state, 2)
    assert (state.phase, state.run_id, state.since_us, state.up_since_us) == (Phase.RUNNING, 7, 2, 2)


@pytest.mark.parametrize(
    ("service", "end", "is_wanted", "phase"),
    [
        (oneshot(), SUCCESS, True, Phase.DONE),
        (oneshot(), SUCCESS, False, Phase.DONE),
        (oneshot(), EXIT, True, Phase.FAILED),
        (oneshot(), KILLED, True, Phase.FAILED),
        (oneshot(), KILLED, False, Phase.STOPPED),
        (oneshot(), NO_SPAWN, True, Phase.FAILED),
        (oneshot(), run_result_of(-15, was_timed_out=True), True, Phase.FAILED),
        (oneshot(), run_result_of(-15, was_interrupted=True), False, Phase.STOPPED),
        (simple(), SUCCESS, True, Phase.BACKING_OFF),
        (simple(), EXIT, True, Phase.BACKING_OFF),
        (simple(), NO_SPAWN, True, Phase.BACKING_OFF),
        (simple(), EXIT, False, Phase.STOPPED),
        (simple(), SUCCESS, False, Phase.STOPPED),
        (simple(restart="on-failure"), SUCCESS, True, Phase.DONE),
        (simple(restart="on-failure"), EXIT, True, Phase.BACKING_OFF),
        (simple(restart="on-failure"), KILLED, True, Phase.BACKING_OFF),
        (simple(restart="on-failure"), NO_SPAWN, True, Phase.BACKING_OFF),
        (simple(restart="no"), SUCCESS, True, Phase.DONE),
        (simple(restart="no"), EXIT, True, Phase.FAILED),
        (simple(restart="no"), NO_SPAWN, True, Phase.FAILED),
    ],
)
def test_ends(service: Service, end: RunResult, is_wanted: bool, phase: Phase) -> None:
    """What an end makes of a service depends on its type, its policy, and whether somebody asked for it."""
    state = services.after_end(up(), service, end, 5, is_wanted=is_wanted)
    assert state.phase is phase
    assert (state.run_id, state.last_result, state.is_active) == (None, end.result, False)
    assert (state.restart_at_us is not None) == (phase is Phase.BACKING_OFF)


def test_pauses_double_up_to_a_minute() -> None:
    """A service that keeps ending comes back after 1, 2, 4 ... 60 s, and no later than that."""
    pauses, now_us = [], 0
    state = up()
    for _ in range(9):
        state = services.after_end(state, simple(), EXIT, now_us, is_wanted=True)
        assert state.restart_at_us is not None
        pauses.append((state.restart_at_us - now_us) // S)
        now_us = state.restart_at_us
        state = up(now_us, state, is_restart=True)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert state.restarts == 9


@pytest.mark.parametrize(("ran_s", "pause_s"), [(59, 4), (60, 1)])
def test_pause_is_short_again_after_a_minute_up(ran_s: int, pause_s: int) -> None:
    """Having stayed up for 60 s, and not for 59, a service is taken for a sound one again."""
    state = msgspec.structs.replace(up(), pause_s=4)
    state = services.after_end(state, simple(), EXIT, ran_s * S, is_wanted=True)
    assert state.restart_at_us == (ran_s + pause_s) * S
    assert state.pause_s == 2 * pause_s


def test_start_by_hand_gives_the_short_pause_back() -> None:
    """A start that is no restart begins the counting again."""
    state = services.after_end(
        msgspec.structs.replace(up(), pause_s=32, restarts=5), simple(), EXIT, 0, is_wanted=True
    )
    state = services.starting(state, 8, 1, is_restart=False)
    assert (state.pause_s, state.restarts, state.restart_at_us) == (1, 0, None)


def test_clock_steps_move_lengths_of_time_along() -> None:
    """After a step of the clock a service has been up for as long as before, and comes back as soon."""
    state = services.shifted(up(10 * S), -3600 * S)
    assert state.up_since_us == -3590 * S
    state = services.after_end(state, simple(), EXIT, -3580 * S, is_wanted=True)
    assert services.shifted(state, 100 * S).restart_at_us == -3479 * S
    assert services.shifted(services.idle(5), S) == services.idle(5)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (SUCCESS, "success"),
        (EXIT, "exited with code 3"),
        (KILLED, "ended by SIGKILL"),
        (NO_SPAWN, "could not be started: no such command"),
    ],
)
def test_ends_in_words(end: RunResult, words: str) -> None:
    """An end can be said to people."""
    assert in_english(end) == words


BEFORE = simple(env={"A": "1"})
AS_JOB = Service("web", ("web",), type="oneshot")
UNTOUCHED = ReloadAction(is_stopped=False, is_started=False)
STOPPED = ReloadAction(is_stopped=True, is_started=False)
RESTARTED = ReloadAction(is_stopped=True, is_started=True)
STARTED = ReloadAction(is_stopped=False, is_started=True)


@pytest.mark.parametrize(
    ("before", "after", "flags", "turn"),
    [
        (None, simple(), "boot", STARTED),
        (None, simple(), "", UNTOUCHED),
        (None, simple(enabled=False), "boot", UNTOUCHED),
        (None, oneshot(), "boot", STARTED),
        (None, oneshot(), "", UNTOUCHED),
        (BEFORE, None, "up", STOPPED),
        (oneshot(), None, "up", STOPPED),
        (BEFORE, BEFORE, "boot up", UNTOUCHED),
        (BEFORE, BEFORE, "boot", UNTOUCHED),
        (BEFORE, BEFORE, "boot held", UNTOUCHED),
        (BEFORE, simple(env={"A": "2"}), "boot up", RESTARTED),
        (BEFORE, simple(env={"A": "2"}), "up", RESTARTED),
        (BEFORE, simple(env={"A": "2"}), "boot", RESTARTED),
        (BEFORE, simple(env={"A": "2"}), "", STOPPED),
        (BEFORE, simple(env={"A": "2"}), "boot held", STOPPED),
        (BEFORE, simple(env={"A": "1"}, cwd="/tmp"), "boot up", RESTARTED),
        (BEFORE, Service("web", ("other",), env={"A": "1"}), "boot up", RESTARTED),
        (BEFORE, simple(env={"A": "1"}, description="better"), "boot up", UNTOUCHED),
        (BEFORE, simple(env={"A": "1"}, restart="no", after=("x",), stage=4), "boot up", UNTOUCHED),
        (BEFORE, simple(env={"A": "1"}, description="better"), "boot", RESTARTED),
        (BEFORE, simple(env={"A": "1"}, enabled=False), "boot up", STOPPED),
        (simple(enabled=False), simple(), "boot", RESTARTED),
        (simple(enabled=False), simple(), "boot held", STOPPED),
        (oneshot(), oneshot(timeout_sec=5), "boot up", UNTOUCHED),
        (oneshot(), oneshot(timeout_sec=5), "boot", UNTOUCHED),
        (oneshot(enabled=False), oneshot(), "boot", UNTOUCHED),
        (AS_JOB, simple(), "boot up", RESTARTED),
        (simple(), AS_JOB, "boot up", STOPPED),
    ],
)
def test_reload_matrix(before: Service | None, after: Service | None, flags: str, turn: ReloadAction) -> None:
    """Unchanged: untouched; added: started; removed: stopped; changed: restarted if its process differs."""
    is_boot, is_up, is_held_down = ("boot" in flags, "up" in flags, "held" in flags)
    assert reload_action(before, after, is_boot=is_boot, is_up=is_up, is_held_down=is_held_down) == turn


ROW = RunRow(id=7, service="web", reason="boot", started_us=1, pid=42)


def test_views_show_waiting_with_its_reason() -> None:
    """Who waits for others says for whom; who waits to come back says after what."""
    waiting = view_of(simple(), services.in_phase(up(), Phase.WAITING, 5), RunsKnown(), held_up_by=("a", "b"))
    assert (waiting.state, waiting.reason) == ("waiting", "waiting for a, b")
    many = view_of(
        simple(), services.in_phase(up(), Phase.WAITING, 5), RunsKnown(), held_up_by=tuple("abcdefg")
    )
    assert many.reason == "waiting for a, b, c, d, e and 2 more"
    backing = services.after_end(up(), simple(), EXIT, 5, is_wanted=True)
    view = view_of(simple(), backing, RunsKnown(last=ROW), held_up_by=())
    assert (view.state, view.reason) == ("waiting", "ended (exited with code 3); restarts after 1 s")
    assert view.restart_at_us == 5 + S


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_state_to_show(phase: Phase) -> None:
    """Each phase is shown as one of the states of the contract; a run in flight gives its pid."""
    state = msgspec.structs.replace(up(), phase=phase)
    view = view_of(simple(), state, RunsKnown(live=ROW), held_up_by=())
    assert view.state in {"starting", "running", "stopped", "failed", "done", "waiting", "skipped"}
    assert (view.pid, view.run_id, view.last_run) == (42, 7, ROW)
