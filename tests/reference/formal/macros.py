"""The macros of spec/model.md 3 that concern a task, evaluated at every position of a trace.

`Story` has what is sure of one task, `FormalWorld` what is so in one course of events (`interpretations.py`).
Each macro is its line in spec/model.md 3, to be read beside it; nothing here saves work, and nothing is
judged.
"""

from functools import cached_property

from duly.verify.dues import minute_start_us
from tests.reference.formal.expansion import TOLERATED_US, FormalConfig, FormalMoment, FormalRun
from tests.reference.formal.interpretations import (
    ADRIFT,
    AFRESH,
    CAUSE,
    FAR,
    NEW,
    NOTICED,
    STORED,
    Commit,
    Interpretation,
    afresh_from,
    interpretations,
    next_loss,
)
from tests.reference.formal.model import S, TraceModel, Truths, Y


class Story:
    """One task: its events, and the macros that are the same in every course."""

    def __init__(self, model: TraceModel, task: str) -> None:
        self.model = model
        self.task = task
        self.configs = model.expansion.configs(task)
        self.runs = [run for run in model.expansion.runs if run.task == task]
        self.start = model.at(run.begun for run in self.runs)
        self.failure = model.at(run.ended for run in self.runs if not run.ok)
        self.running = model.some(map(model.running_run, self.runs))
        """Running(x) := not(RE or Crash) S RS, for any of its runs."""
        self.shown = {config: self._shown(config) for config in self.configs}
        """Where the clock shows the start of a minute that c names, for the first time or not."""
        self.in_minute = {config: self._in_minute(shown) for config, shown in self.shown.items()}

    def _shown(self, config: FormalConfig) -> Truths:
        return self.model.where(lambda moment: moment.name == "Due" and moment.cron == config.cron)

    def _in_minute(self, shown: Truths) -> Truths:
        """InMinute(x,c) := not MS S Due(x,c); nowhere if the first due comes after the registration."""
        if self.model.expansion.header.first_due == "after":
            return self.model.at(())
        return S(~self.model.minute_start, shown)

    @cached_property
    def worlds(self) -> list["FormalWorld"]:
        """One for each course that events may have taken."""
        found = interpretations(self.model.expansion, self.task, self.model.active, self.model.initialized)
        return [world for chosen in found for world in self._worlds(chosen)]

    def _worlds(self, chosen: Interpretation) -> list["FormalWorld"]:
        """Those of one course: if a start was owed before a crash, it was written, or was not."""
        worlds = [FormalWorld(self, chosen)]
        for crash in (index for index, is_crash in enumerate(self.model.crash) if is_crash):
            before = _before_slots(self.model.moments, crash)
            owing = [world for world in worlds if world.startable[before]]
            worlds += [FormalWorld(self, chosen, (*world.unseen, crash)) for world in owing]
        return worlds


class FormalWorld:
    """One task in one course of events: every macro of spec/model.md 3, in its order."""

    def __init__(self, story: Story, chosen: Interpretation, unseen: tuple[int, ...] = ()) -> None:
        self.story = story
        self.chosen = chosen
        self.unseen = unseen
        """Crashes just before which a start was written, and its callback not called."""
        self.steps = dict(chosen.steps)
        self._take_effect()
        self.afresh: dict[int, int] = {}
        """Where a list found the store far ahead: as of which position dues count afresh."""
        for commit in chosen.commits:
            if commit.is_afresh and self._is_ahead(commit):
                self.afresh[commit.place] = afresh_from(story.model.expansion, commit.place, commit.call)
        self._evaluate()

    def _take_effect(self) -> None:
        """What the lists make of the task."""
        model, task, commits = self.story.model, self.story.task, self.chosen.commits
        effect = model.at(commit.place for commit in commits)
        effect_with = {
            config: model.at(commit.place for commit in commits if commit.call.configs.get(task) == config)
            for config in self.story.configs
        }
        # Known(x,c) := not ok S (IEs with R(x)=c)               Reg(x)  := some c: Known(x,c)
        self.known = {config: S(~effect, with_it) for config, with_it in effect_with.items()}
        self.reg = model.some(self.known.values())

        # Fresh(x) := IEs with R(x)=c and not Y Known(x,c)       Removed(x) := ok and x not in R
        self.fresh_with = {
            config: with_it & ~Y(self.known[config]) & ~self._was_known_before()
            for config, with_it in effect_with.items()
        }
        self.fresh = model.some(self.fresh_with.values())
        self.removed = effect & ~model.some(effect_with.values())

    def _evaluate(self) -> None:
        """The macros; a start that was written and never called is one, at its crash."""
        story, model, crash = self.story, self.story.model, self.story.model.crash
        unseen = model.at(self.unseen)
        start = story.start | unseen
        gone = start | self.removed | self.fresh

        # DuePending(x) := not(RS or Removed or Fresh) S
        #                  ((Due(x,c) and Y Known(x,c)) or (Fresh(x) and InMinute(x,c)))
        counted = self._counted()
        self.due = model.some(story.shown[c] & counted & Y(known) for c, known in self.known.items())
        self.due |= model.at(place for place in self.afresh if self._has_come(place))
        late = model.at(commit.place for commit in self.chosen.commits if not commit.is_early)
        in_minute = model.some(fresh & late & story.in_minute[c] for c, fresh in self.fresh_with.items())
        self.due_pending = S(~(gone | self._forgotten()), self.due | in_minute | self._early())

        # Armed(x) := not(RS or Fresh or Removed) S REf     (of a run begun under x's present registration)
        arms = model.at(run.ended for run in story.runs if self._arms(run))
        void = self._void(arms)
        self.armed = S(~(gone | void), arms)

        # RetryPending(x) := not(RS or Fresh or Removed) S (RD and Y Armed(x))
        due_us = self._retry_due_us(arms, gone | void)
        retry_due = Truths(
            moment.name == "RD" and at_us is not None and moment.at_us >= at_us
            for moment, at_us in zip(model.moments, due_us, strict=True)
        )
        taken_back = model.at(
            index for index in self._unnoticed() if (due_us[index] or 0) > model.moments[index].at_us
        )
        self.retry_pending = S(~(gone | void | taken_back), retry_due & Y(self.armed))

        # Interrupted(x) := not(RS or Removed) S (Crash and Y (Running(x) and Reg(x)))
        lost = model.at(next_loss(model.expansion, ended(run)) for run in self.chosen.lost)
        cut_off = (crash & Y(story.running)) | lost | unseen
        self.interrupted = S(~(start | self.removed), cut_off & Y(self.reg))

        # Over an unknown store some cause may stand, nobody knows which.
        self.unknown_cause = S(~(start | self.removed), self._unknown_cause_arises())

        # Cause(x) := DuePending or RetryPending or Interrupted
        self.cause = self.due_pending | self.retry_pending | self.interrupted | self.unknown_cause

        # Obligation(x) := Cause(x) and not Running(x) and Reg(x) and Active
        may_start = ~story.running & self.reg & model.active
        self.obligation = self.cause & may_start
        self.startable = self.cause & ~story.running & self.reg & model.was_active
        """Also while a stop has not returned, which may wait for the write of a start."""
        self.recovery = self.interrupted & may_start
        """The obligation of T6."""

    def _first_list(self) -> Truths:
        model = self.story.model
        return model.at([next((k for k, is_ok in enumerate(model.ok) if is_ok), None)])

    def _was_known_before(self) -> Truths:
        return self._first_list() if self.chosen.store != NEW else self.story.model.at(())

    def _unknown_cause_arises(self) -> Truths:
        return self._first_list() if self.chosen.store == CAUSE else self.story.model.at(())

    def _registrations(self) -> list[tuple[int, int]]:
        """Where the task is registered afresh, and as of which position it has had nothing."""
        found = [(-1, -1)]
        for commit in self.chosen.commits:
            if self.fresh[commit.place]:  # nothing has been had yet under this registration
                found.append((commit.place, commit.instant))
            elif self._was_known_before()[commit.place]:  # every due up to here, and none after it
                found.append((commit.place, commit.place))
        return found

    def _counted(self) -> Truths:
        """Where a minute that is shown counts: a small step back brings none a second time."""
        counted = self.story.model.always
        for place, begun in self._registrations():
            counted = Truths((*counted[: place + 1], *self._above_floor(begun, place)[place + 1 :]))
        return counted

    def _above_floor(self, since_index: int, place: int) -> Truths:
        """The minutes that count under a registration that took effect as of a position, at a *place*."""
        floor_us, mooring = -(2**62), None
        truths = []
        for index, moment in enumerate(self.story.model.moments):
            if index in self.afresh and index > place:
                floor_us = self.story.model.moments[self.afresh[index]].at_us - 1
            elif index in self.steps and index > since_index:
                if self.steps[index] == ADRIFT:
                    floor_us, mooring = 2**62, self._next_list(index)
                elif floor_us < 2**62 or self._is_afresh(index):
                    floor_us = self._floor_us(index, floor_us)
            elif floor_us == 2**62 and index == mooring:
                floor_us = moment.at_us - 1
            elif floor_us == 2**62 and (self.story.start[index] or index in self.unseen):
                floor_us = moment.at_us
            truths.append(moment.due_us > floor_us)
        return Truths(truths)

    def _floor_us(self, index: int, floor_us: int) -> int:
        """After which minute the minutes count, after a step back, and before it."""
        moment = self.story.model.moments[index]
        if self.steps[index] == STORED:
            return max(floor_us, self._answered_us(index))
        return moment.at_us - 1 if self._is_afresh(index) else max(floor_us, moment.before_us)

    def _is_afresh(self, index: int) -> bool:
        """Whether after a step back dues count afresh."""
        return self.steps[index] == AFRESH or self._is_far_back(index)

    def _is_ahead(self, commit: Commit) -> bool:
        """Whether to a list that opens the store anew it looks written under a clock far ahead.

        It does so where steps back that were small one by one, and brought no minute a second time, add up.
        """
        config = commit.call.configs.get(self.story.task)
        if config is None or not self.known[config][commit.place - 1]:
            return False
        model = self.story.model
        place, begun = [each for each in self._registrations() if each[0] < commit.place][-1]
        had_us = -(2**62)
        for index in range(begun + 1, commit.place):
            moment = model.moments[index]
            is_start = self.story.start[index] or index in self.unseen
            if index in self.steps:
                if self._is_afresh(index) or self.steps[index] == ADRIFT:
                    had_us = -(2**62)
                else:
                    had_us = max(had_us, moment.before_us)
            elif (index in self.afresh and index > place) or (is_start and moment.at_us > had_us):
                had_us = -(2**62)
        instant = afresh_from(model.expansion, commit.place, commit.call)
        return had_us > model.moments[instant].at_us + TOLERATED_US

    def _has_come(self, place: int) -> bool:
        """Whether at once a due has come where dues count afresh, and no start since has answered it."""
        story, moments = self.story, self.story.model.moments
        instant = self.afresh[place]
        starts = (moments[k].at_us for k in range(instant, place) if story.start[k])
        answered_us = max(starts, default=moments[instant].at_us - 1)
        return any(
            shown[k] and self.known[config][place] and answered_us < moments[k].due_us <= moments[place].at_us
            for config, shown in story.shown.items()
            for k in range(place)
        )

    def _answered_us(self, index: int) -> int:
        """Up to when every due is answered before a position: the latest start, or registration."""
        return self._answered(index)[1]

    def _answered(self, index: int) -> tuple[int, int]:
        """The latest start, or registration, before a position, and up to when dues are answered by it."""
        story, moments = self.story, self.story.model.moments
        registered = {commit.instant for commit in self.chosen.commits if self.fresh[commit.place]}
        for earlier in range(index - 1, -1, -1):
            if story.start[earlier]:
                return earlier, moments[earlier].at_us
            if earlier in self.afresh:
                return earlier, moments[self.afresh[earlier]].at_us - 1
            if earlier in self.steps and self._is_afresh(earlier):
                return earlier, moments[earlier].at_us - 1
            if earlier in registered and story.model.expansion.header.first_due == "after":
                return earlier, moments[earlier].at_us
            if earlier in registered:
                return earlier, minute_start_us(moments[earlier].at_us, story.model.expansion.zone) - 1
        return -1, -(2**62)

    def _stands_still(self, index: int) -> bool:
        """Whether a due that had come before a step back stands after it.

        It lies behind it in the new time, too; or it had come before an earlier step that was noticed, and so
        it was written that it stands.
        """
        moments = self.story.model.moments
        since, answered_us = self._answered(index)
        early = {
            commit.call.configs.get(self.story.task)
            for commit in self.chosen.commits
            if commit.instant < index < commit.place
        }
        noticed = [k for k, way in self.chosen.steps if since < k < index and way in {NOTICED, FAR}]
        until = [(index, moments[index].at_us), *((k, moments[k].before_us) for k in noticed)]
        # What came between the beginning of the minute as of which it was registered, and the registration.
        new = next(
            (each for each in self.chosen.commits if self.fresh[each.place] and each.instant == since), None
        )
        return any(
            shown[k]
            and (
                self.known[config][k]
                or config in early
                or (new is not None and k < new.place and self.known[config][new.place])
            )
            and answered_us < moments[k].due_us <= until_us
            for config, shown in self.story.shown.items()
            for place, until_us in until
            for k in range(place)
        )

    def _next_list(self, index: int) -> int | None:
        """Where the instant begins at which a list next takes effect, or a call returns whose list has."""
        moments = self.story.model.moments
        instants = (
            commit.place if commit.instant < index and commit.call.answered is not None else commit.instant
            for commit in self.chosen.commits
        )
        found = next((instant for instant in instants if instant > index), None)
        while (
            found is not None
            and found - 1 > index
            and moments[found - 1].at_us == moments[found].at_us
            and moments[found - 1].name != "Step"
        ):
            found -= 1
        return found

    def _early(self) -> Truths:
        """Where a list takes effect as if it had when it was called, and a due has come since."""
        model, story = self.story.model, self.story
        found = []
        for index, call, is_early, _ in self.chosen.commits:
            if is_early and self.fresh[index] and story.task in call.configs:
                config, begun = call.configs[story.task], model.at([call.begun])
                later = S(model.always, begun)
                came = (begun & story.in_minute[config]) | (
                    later & story.shown[config] & self._above_floor(call.begun, index)
                )
                if S(~(story.start | self._forgotten()), came)[index]:
                    found.append(index)
        return model.at(found)

    def _unnoticed(self) -> list[int]:
        """Steps back that nobody noticed: what had come counts for nothing where it lies ahead again."""
        return [index for index, way in self.chosen.steps if way not in {NOTICED, FAR}]

    def _forgotten(self) -> Truths:
        """Where a due that stood stands no more: a step back that nobody noticed."""
        return self.story.model.at(
            index
            for index, way in self.chosen.steps
            if way in {AFRESH, ADRIFT} or (way == STORED and not self._stands_still(index))
        )

    def _arms(self, run: FormalRun) -> bool:
        """Whether *run* failed, and was begun under the registration that was in force when it did."""
        if run.ended is None or run.ok or not self.reg[run.ended]:
            return False
        meanwhile = range(run.begun + 1, run.ended + 1)
        return not any(self.fresh[k] or self.removed[k] for k in meanwhile)

    def _void(self, arms: Truths) -> Truths:
        """Crashes at which what a lost end armed is void."""
        expansion = self.story.model.expansion
        crashes = []
        for run in self.chosen.lost:
            crash = next_loss(expansion, ended(run))
            later = arms[ended(run) + 1 : crash]
            if arms[ended(run)] and not any(later):
                crashes.append(crash)
        return self.story.model.at(crashes)

    def _retry_due_us(self, arms: Truths, gone: Truths) -> list[int | None]:
        """When RetryDue(x) is: the end of x's latest failed run plus its delay; None once x has started."""
        due_us: int | None = None
        delay_us = 0
        found = []
        for index, moment in enumerate(self.story.model.moments):
            if gone[index]:
                due_us = None
            elif arms[index]:
                delay_us = next(config.delay_us for config, known in self.known.items() if known[index])
                due_us = moment.at_us + delay_us
            elif due_us is not None and self._is_far_back(index):
                due_us = min(due_us, moment.at_us + delay_us)
            elif due_us is not None and index in self.afresh:
                due_us = min(due_us, self.story.model.moments[self.afresh[index]].at_us + delay_us)
            found.append(due_us)
        return found

    def _is_far_back(self, index: int) -> bool:
        moment = self.story.model.moments[index]
        is_large = moment.before_us - moment.at_us > TOLERATED_US
        return self.steps.get(index) == FAR or (self.steps.get(index) == NOTICED and is_large)


def _before_slots(moments: list[FormalMoment], crash: int) -> int:
    """The last position before a crash and the lists that may have taken effect just before it."""
    return max((index for index in range(crash) if moments[index].name != "Slot"), default=crash)


def ended(run: FormalRun) -> int:
    """Where a run ended that did."""
    assert run.ended is not None
    return run.ended
