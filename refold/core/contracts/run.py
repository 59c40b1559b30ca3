"""The orchestrator of a skill with a contract: checks each step against it, merges patches, writes the audit.

Rule 1: a step sees a view of the fields it reads, and changes the state only by the patch that it returns.
Rule 2: all checks come before the merge. A step that fails a check, or after the merge, does not change the state.
Rule 3: the audit lists every execution of a step, failed ones included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from refold.core.authoring.context import Ctx, Moment
from refold.core.authoring.skill import Live, Options
from refold.core.authoring.transition import NOTHING, StatePatch, Transition, altered
from refold.core.contracts.audit import ORCHESTRATOR, ErrorRecord, StateTransitionEvent, error_record
from refold.core.contracts.contract import VALIDATED, Contract, plain
from refold.core.contracts.routes import NO_MOVE, Execution, Routes
from refold.core.contracts.rules import HookFailed, StateValidator, called
from refold.core.contracts.view import Guard, view_of
from refold.core.errors import (
    AdapterError,
    CommandError,
    ContractError,
    DecodeError,
    InvariantError,
    RequirementError,
    SkillError,
    brief,
    text_of,
)
from refold.core.events import Event, UserMessage
from refold.core.lifecycle import Ending
from refold.core.schema import problems
from refold.core.steps.hooks import Hooks
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import Source
from refold.core.steps.position import Position, known_then
from refold.core.steps.run import Drive
from refold.core.steps.spec import StepSpec

MOVES_BY_PATCH = "refold.moves_by_patch"
"""The patch with which a patch that sets the lifecycle's field makes a move; earlier releases did not check it."""

REFUSED = "refold.refused_in_step"
"""The patch with which a step fails whose transition the fold would refuse: `on_error` runs, and there is an audit."""

WAY_OUT_UNDONE = "refold.way_out_undone"
"""The patch with which a step that fails after its merge loses its patch; in earlier releases the state kept it."""

FED_FAILURE_HANDLED = "refold.fed_failure_handled"
"""The patch with which `on_error` handles a failed command that a goto waits for; earlier releases did not call it."""

VALIDATION_ADAPTED = "refold.validation_adapted"
"""The patch with which any error of a validator in `adapt` is an `AdapterError`; in earlier releases it was a bug."""


class ContractedMachine(StepMachine):
    """A skill made of steps with a contract."""

    def __init__(self, options: Options, steps: Mapping[str, StepSpec], contract: Contract) -> None:
        super().__init__(options, steps)
        self.contract = contract
        self.validator = StateValidator(contract)
        self.routes = Routes(self.validator, steps, self.resumes)
        self.handler = next((step for step in steps.values() if step.contract.on_error), None)

    def edges(self) -> list[tuple[str, str]]:
        """The pairs of steps joined by a literal `goto`, by `resume_from`, or by a legal move."""
        moves = [
            (step.name, self.routes.by_state[target].name)
            for step in self.steps.values()
            for target in step.contract.exits
            if target in self.routes.by_state
        ]
        return list(dict.fromkeys([*super().edges(), *moves]))

    def own_state(self, state: JsonValue) -> JsonValue:
        """The fields of the contract's state."""
        return None if state is None else Position(state).state

    def with_own_state(self, state: JsonValue, own: JsonValue) -> JsonValue:
        """See `Skill.with_own_state`."""
        if not isinstance(own, dict):
            raise SkillError(f"returned {brief(own)}; it returns the fields of {self.contract.state.__name__}")
        return {**Position(state).data, "state": own}

    def unentered(self, step: StepSpec, state: JsonValue, moment: Moment) -> Iterator[str]:
        """Why the contract does not let a step begin with this saved state."""
        try:
            _Orchestrator(self, state, moment, None).before(step, ())
        except ContractError as error:
            yield str(error)

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        return _Orchestrator(self, state, moment, live).on(event)


class _Rejected(Exception):
    """The first state cannot be made from the first message; the task is rejected."""


class _Failed(Exception):
    """A step returned `ctx.fail(...)`.

    Attributes:
        transition: The returned transition, with the step's messages.
    """

    def __init__(self, transition: Transition) -> None:
        self.transition = transition
        super().__init__(transition.reason)


class _Orchestrator(Hooks):
    """One call of the step machine with a contract. `Drive` runs the steps and calls these hooks."""

    def __init__(self, machine: ContractedMachine, state: JsonValue, moment: Moment, live: Live | None) -> None:
        self.machine, self.saved, self.moment = machine, state, moment
        self.validator = machine.validator.asking(lambda patch: moment.patched(patch, False))
        self.routes = machine.routes.checked_by(self.validator)
        self.drive = Drive(machine.steps, machine.resumes, moment, live, self)
        self.shared = self.validator.saved({} if state is None else Position(state).state)
        self.execution: Execution | None = None
        self.position: Position | None = None  # the position that the execution was resumed from
        self.error: ErrorRecord | None = None
        self.unsaid = NOTHING  # what the step said that did not catch a command's failure
        self.audit: list[StateTransitionEvent] = []

    def on(self, event: Event) -> Transition:
        """Handle one event; see `Skill.on`."""
        try:
            if self.saved is None:
                assert isinstance(event, UserMessage)
                self._begin(event)
            transition = self._checked(self.machine.take(self.drive, self.saved, event))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever fails is audited, then raised by the fold
            transition = self._failed(error)
        return altered(transition, audit=tuple(self.audit)) if self.audit else transition

    def _checked(self, transition: Transition) -> Transition:
        """The transition, or the error with which the fold would refuse it later, when no step can handle it."""
        try:
            self.moment.check(altered(transition, withdraws=tuple(self.moment.withdrawn)))
        except SkillError:
            if self.moment.patched(REFUSED, False):
                raise
        return transition

    def _begin(self, event: UserMessage) -> None:
        """Make the first state."""
        ctx = Ctx(self.moment)
        try:
            state = called(self.machine.contract.begins, event.content.own(), ctx)
        except HookFailed as error:
            match error.__cause__:
                case ValidationError() as misfit:
                    raise _Rejected(problems(misfit)) from error
                case DecodeError(failure=failure):
                    raise _Rejected(failure.message) from error
                case ValueError() as refused:
                    raise _Rejected(text_of(refused)) from error
                case _:
                    way_out = "to reject a first message, raise a ValueError"
                    raise SkillError(f"begins {error}; {way_out}") from error
        if ctx._made or ctx._said != NOTHING:
            raise SkillError("begins asks for something, or says it; it makes the first state: let a step do the rest")
        self.shared = self.validator.first(state)
        data = self.shared.data
        lifecycle = self.validator.lifecycle_of(self.shared)
        try:
            self.validator.check_invariants(ORCHESTRATOR, lifecycle, self.shared.state)
        except InvariantError as error:
            raise _Rejected(str(error)) from error
        written = {name: value for name, value in data.items() if value is not None}
        self._note(data, stage=ORCHESTRATOR, from_state="", to_state=lifecycle, owned=written)

    # --- the hooks

    def before(self, step: StepSpec, entered_by: Sequence[str]) -> Execution:
        """Make the step's view of the state, and check all that must hold before the step runs."""
        execution, check, terms = self._open(step, entered_by), self.validator, step.contract
        source, state = execution.lifecycle, execution.before.state
        if not terms.on_error:  # an error handler may be called because of a broken invariant
            check.check_invariants(step.name, source, state)
        if terms.enters and terms.enters != source:
            raise self.routes.illegal(execution, "runs in one state", terms.enters, source)
        check.check_requirements(step.name, terms, source, execution.view)
        execution.guard.check()
        if terms.requires or self.machine.contract.invariants:
            check.check_unchanged("a check of the contract", step.name, source, state, execution.before.data)
        return execution

    def again(self, step: StepSpec, position: Position, stored: Execution | None) -> Execution:
        """Continue the execution in `stored`, or begin a new one from the saved state."""
        self.execution = execution = self._open(step, position.entered_by) if stored is None else stored
        self.shared, self.position = execution.before, position
        return execution

    def _open(self, step: StepSpec, entered_by: Sequence[str]) -> Execution:
        before = self.shared
        lifecycle = self.validator.lifecycle_of(before)
        guard = Guard(step.name, lifecycle, step.contract.reads)
        view = view_of(before.state, guard)
        self.execution = Execution(
            step=step, lifecycle=lifecycle, before=before, guard=guard, view=view, entered_by=entered_by
        )
        self.position = None
        return self.execution

    def beside(self, source: Source, ctx: Ctx) -> Any:
        """The view of the state, the error that an `on_error` step handles, or the context."""
        match source:
            case Source.STATE:
                return self._current.view
            case Source.ERROR:
                return self.error
            case _:
                return ctx

    def keeps(self, entered_by: Sequence[str] = ()) -> dict[str, JsonValue]:
        """The shared state, and the ids of the answer or results that entered the step."""
        return {"state": self.shared.data, **({"met": [*entered_by]} if entered_by else {})}

    def asked(self) -> None:
        """Stop a step that caught the error of a forbidden read or write."""
        self._current.guard.check()

    def uncaught(self, error: CommandError, said: Transition) -> Transition:
        """Raise the error, so that `_failed` handles it as any other failure of a step."""
        self.unsaid = said
        raise error

    def after(self, step: StepSpec, outcome: Any, said: Transition) -> Transition:
        """Check what the step returned, and merge its patch."""
        execution = self._current
        execution.guard.check()
        before = execution.before
        if changed := self.validator.changed_in_place(execution.view, before.state, before.data, step.contract.reads):
            raise execution.guard.writes(changed)
        if step.contract.on_error:
            return self._handled(step, outcome)
        if isinstance(outcome, Transition):
            self._checked(outcome)
        if isinstance(outcome, Transition) and outcome.ending is Ending.FAILED:
            raise _Failed(outcome.after(said))
        if isinstance(outcome, Transition) and outcome.ending is Ending.REJECTED:
            self._note_execution(execution.lifecycle)
            return outcome
        if isinstance(outcome, StatePatch):
            transition, to = self.routes.of_patch(execution, outcome)
        elif isinstance(outcome, Transition):
            transition, to = outcome, self.routes.of_transition(execution, outcome)
        else:
            raise SkillError(
                f"step {step.name!r} returned {brief(outcome)}; a step of a contract returns a `StatePatch(...)` "
                "or a transition, for example `ctx.goto(...).patch(...)`"
            )
        if (transition.enters is not None and transition.enters.payload) or transition.resume:
            raise SkillError(
                f"step {step.name!r} hands arguments on; steps of a contract share its state: put them there with "
                "`.patch(...)`"
            )
        self._merge(transition.writes or StatePatch(), to)
        return transition if transition.ending is None else altered(transition, state=self._end_of(step))

    def _merge(self, patch: StatePatch, to: str) -> None:
        """Check the step's patch and its move, then replace the state."""
        execution, check = self._current, self.validator
        step, terms, source, before = execution.step.name, execution.terms, execution.lifecycle, execution.before
        check.check_writes(step, terms, source, patch)
        if to == NO_MOVE:
            to = self._written_move(patch)
        fields, move = dict(patch.fields), None
        if to != NO_MOVE and check.lifecycle.moves:
            move = check.check_move(step, terms, source, to, patch)
            fields[check.contract.lifecycle] = to
        after, written = check.merged(step, source, before.data, fields)
        owned: dict[str, JsonValue] = {}
        if move is not None:
            after, owned = check.with_then(step, source, move, after)
        if not terms.on_error:
            check.check_invariants_after(step, source, before.state, after)
        self.shared = after
        self._note_execution(source if to == NO_MOVE else to, patch=written, owned=owned)

    def _written_move(self, patch: StatePatch) -> str:
        """The state that the patch alone moves to; `NO_MOVE` if it moves to none."""
        source = self._current.lifecycle
        to = plain(patch.fields.get(self.machine.contract.lifecycle, source))
        return NO_MOVE if to == source or not self.moment.patched(MOVES_BY_PATCH, False) else to

    # --- when a step fails

    def _failed(self, error: BaseException) -> Transition:
        """The transition after a step failed: fallback, rejection or failure of the task."""
        if isinstance(error, _Rejected):
            return Transition.reject(str(error))
        if self.execution is None and not self._opened_for(error):
            return altered(NOTHING, uncaught=error)
        assert self.execution is not None
        step, source = self.execution.step, self.execution.lifecycle
        if isinstance(error, AdapterError) and error.rule == VALIDATED and error.__cause__ is not None:
            error = error if self.moment.patched(VALIDATION_ADAPTED, False) else error.__cause__
        if isinstance(error, AdapterError):
            error = AdapterError(
                step.name, source, error.field, error.rule, expected=error.expected, actual=error.actual
            )
        if self.shared is not self.execution.before and self.moment.patched(WAY_OUT_UNDONE, False):
            # The step's patch was merged and noted before its way out failed: no step receives the answer, for example.
            self.shared = self.execution.before
            self.audit.pop()
        self.shared = self.shared.decoded_again()
        self.error = self._note_error(error)
        if isinstance(error, AdapterError) and (way := self._fallback(step)) is not None:
            try:
                return self._checked(self.drive.enter(way, {}))
            except (Exception, SystemExit) as second:  # noqa: BLE001 - as in `on`
                return self._failed(second)
        if self.saved is None and step.start and isinstance(error, InvariantError | RequirementError):
            return Transition.reject(str(error))
        if isinstance(error, _Failed):
            ended = altered(error.transition, writes=None)
        else:
            ended = altered(self.unsaid, uncaught=error)
        ended = ended.after(self.drive.said)
        said = self._handle(source).after(ended)
        return altered(
            ended,
            messages=said.messages,
            artifacts=said.artifacts,
            progress=said.progress,
            state=self._end_of(step),
            forgets=True,
        )

    def _opened_for(self, error: BaseException) -> bool:
        """Open the step of a goto that waits for commands, if `error` is a failure of these. Returns whether it did."""
        if self.saved is None or not isinstance(error, CommandError):
            return False
        position = Position(self.saved)
        step = self.machine.steps.get(position.step)
        if step is None or not position.fed_by or not self.moment.patched(FED_FAILURE_HANDLED, False):
            return False
        self._open(step, list(position.fed_by.values()))
        return True

    def _handle(self, source: str) -> Transition:
        """Run the skill's `on_error` step, which records the error in the state, if a move to `failed` is legal.

        Returns what the step says.
        """
        handler, lifecycle = self.machine.handler, self.validator.lifecycle
        legal = not lifecycle.moves or (source, lifecycle.failed) in lifecycle.moves
        if handler is None or not legal:
            return NOTHING
        try:
            handled = self.drive.enter_once(handler, {})
            if asked := handled.commands:
                raise SkillError(f"step {handler.name!r} asks for {asked[0].id!r}; the task is over: it may not wait")
            return handled
        except (Exception, SystemExit) as error:  # noqa: BLE001 - an error in the handler must not hide the first error
            if self._current.step is handler:
                self._note_error(error)
            return NOTHING

    def _handled(self, step: StepSpec, outcome: Any) -> Transition:
        if not isinstance(outcome, StatePatch):
            raise SkillError(f"step {step.name!r} returned {brief(outcome)}; it returns a StatePatch")
        self._merge(outcome, self.validator.lifecycle.failed if self.validator.lifecycle.moves else "failed")
        return altered(NOTHING, ending=Ending.FAILED)

    def _fallback(self, failed: StepSpec) -> StepSpec | None:
        """The step to enter after the adapted stage `failed`; None if the task may not fall back."""
        way = self.machine.contract.fallback
        if way is None or failed.name == way.step:
            return None
        try:
            may = called(bool, called(way.when, self.shared.decoded_again().state))
        except (HookFailed, ContractError) as error:
            rule = "`when` of the fallback says whether the task may fall back"
            self._note_error(ContractError(failed.name, self._current.lifecycle, "", rule, actual=f"it {error}"))
            return None
        return self.machine.steps[way.step] if may else None

    # --- the audit

    @property
    def _current(self) -> Execution:
        assert self.execution is not None
        return self.execution

    def _end_of(self, step: StepSpec) -> dict[str, Any]:
        return {"step": step.name, "args": {}, **self.keeps()}

    def _note_error(self, error: BaseException) -> ErrorRecord:
        execution = self._current
        kind = "failed" if isinstance(error, _Failed) else type(error).__name__
        record = error_record(error, kind, stage=execution.step.name, lifecycle=execution.lifecycle, at=self.moment.at)
        self._note_execution(execution.lifecycle, err=record)
        return record

    def _note_execution(self, to: str, **came: Any) -> None:
        """Add the current execution to the audit: the state that it leads to, and its patches or its error."""
        execution, terms, position = self._current, self._current.terms, self.position
        name = execution.step.name
        started_at = self.moment.at if position is None else known_then(position)["now"]
        awaited = [id for one in (position.awaits if position else ()) for id in one.ids]
        self._note(
            execution.before.data, stage=name, from_state=execution.lifecycle or name, to_state=to or name,
            read_set=terms.reads, write_set=terms.writes, started_at=started_at,
            awaited=(*execution.entered_by, *awaited), free=terms.free, **came,
        )  # fmt: skip

    def _note(self, data: Mapping[str, JsonValue], **event: Any) -> None:
        session, at = data.get("session_id"), self.moment.at
        session_id = session if isinstance(session, str) else self.moment.task_id
        self.audit.append(
            StateTransitionEvent.trusted(**{"session_id": session_id, "started_at": at, "finished_at": at, **event})
        )
