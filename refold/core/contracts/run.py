"""The orchestrator of a skill with a contract: it opens each step, checks what comes out, merges it, and notes it.

Rule 1: a step sees a view of what it reads, and changes nothing but by the patch that it returns.
Rule 2: everything is checked before anything is merged. What fails a check leaves the state as the step found it.
Rule 3: every execution of a step is in the audit, a failed one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from pydantic import JsonValue, ValidationError

from refold.core.authoring.context import Ctx
from refold.core.authoring.moment import Moment
from refold.core.authoring.patch import StatePatch
from refold.core.authoring.skill import Live, Options
from refold.core.authoring.transition import Transition
from refold.core.codec import NoData
from refold.core.contracts.audit import ORCHESTRATOR, ErrorRecord
from refold.core.contracts.audit_log import AuditLog
from refold.core.contracts.contract import Contract
from refold.core.contracts.leads import Leads
from refold.core.contracts.opened import STAYS, Opened, SaidFailed
from refold.core.contracts.rules import StateValidator
from refold.core.contracts.view import Guard, view_of
from refold.core.errors import (
    AdapterError,
    CommandError,
    DecodeError,
    InvariantError,
    RequirementError,
    SkillError,
)
from refold.core.events import Event, UserMessage
from refold.core.lifecycle import Ending
from refold.core.schema import problems
from refold.core.steps.drive import Answer, Drive, Going
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import Param, Source
from refold.core.steps.spec import Record, StepSpec


class ContractedMachine(StepMachine):
    """A skill made of steps that keep a contract."""

    def __init__(self, options: Options, steps: Mapping[str, StepSpec], contract: Contract) -> None:
        super().__init__(options, steps)
        self.contract = contract
        self.validator = StateValidator(contract)
        self.by_state = {step.contract.enters: step for step in steps.values() if step.contract.enters}
        self.handler = next((step for step in steps.values() if step.contract.on_error), None)

    def edges(self) -> list[tuple[str, str]]:
        """What the code says literally, and where the legal moves lead."""
        moves = [
            (step.name, self.by_state[target].name)
            for step in self.steps.values()
            for target in step.contract.exits
            if target in self.by_state
        ]
        return list(dict.fromkeys([*super().edges(), *moves]))

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        drive = _ContractedDrive(self, moment, live, state)
        try:
            if state is None:
                assert isinstance(event, UserMessage)
                drive.begin(event)
            transition = self._take(drive, state, event, moment)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever fails is audited, then raised by the fold
            transition = drive.failed(error)
        return replace(transition, audit=tuple(drive.audit.events)) if drive.audit.events else transition


class _Rejected(Exception):
    """The first message cannot be begun with."""


class _ContractedDrive(Drive):
    """One call of the machine, with a contract.

    Attributes:
        audit: What became of the steps that ended.
    """

    def __init__(self, machine: ContractedMachine, moment: Moment, live: Live | None, state: JsonValue) -> None:
        super().__init__(machine.steps, machine.resumes, moment, live)
        self.machine, self.validator = machine, machine.validator
        self.first = state is None
        self.data: dict[str, JsonValue] = {} if state is None else dict(cast("Record", state)["state"])
        self.state: Any = None
        self.opened: Opened | None = None
        self.error: ErrorRecord | None = None
        self.met: tuple[str, ...] = ()
        self.audit = AuditLog(moment)
        self.leads = Leads(self.validator, machine.by_state, self.resumes, self._target)

    # --- the first state

    def begin(self, event: UserMessage) -> None:
        """Make the first state."""
        contract = self.machine.contract
        try:
            state = contract.begins(event.content, Ctx(self.moment))
        except ValidationError as error:
            raise _Rejected(problems(error)) from error
        except DecodeError as error:
            raise _Rejected(error.failure.message) from error
        except ValueError as error:
            raise _Rejected(str(error)) from error
        if not isinstance(state, contract.state):
            raise SkillError(f"begins returned {repr(state)[:200]}; it returns a {contract.state.__name__}")
        try:
            self.data = self.validator.data_of(state)
            self.state = self.validator.state_of(self.data)
        except (NoData, ValidationError) as error:
            raise SkillError(f"the first state cannot be saved: {error}") from error
        lifecycle = self.validator.lifecycle_of(self.data)
        try:
            self.validator.standing(ORCHESTRATOR, lifecycle, self.state)
        except InvariantError as error:
            raise _Rejected(str(error)) from error
        self.audit.first(lifecycle, self.data)

    # --- entering a step

    def resume(self, record: Record, message: Answer) -> Transition:
        """Enter the step that meets an answer."""
        self.met = (record["gate"],)
        return super().resume(record, message)

    def enter_fed(self, record: Record) -> Transition:
        """Enter a step that waited for results."""
        self.met = tuple(record["enters"].values())
        return super().enter_fed(record)

    def _enter_once(self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None) -> Transition:
        opened, terms = self._open(step), step.contract
        if not terms.on_error:  # a rule that is broken may be why it is called
            self.validator.standing(step.name, opened.lifecycle, opened.state)
        if terms.enters and terms.enters != opened.lifecycle:
            raise self.leads.illegal(opened, "runs in one state", terms.enters, opened.lifecycle)
        self.validator.required(step.name, terms, opened.lifecycle, opened.view)
        opened.guard.check()
        return super()._enter_once(step, payload, message)

    def _open(self, step: StepSpec) -> Opened:
        if self.state is None:
            try:
                self.state = self.validator.state_of(self.data)
            except ValidationError as error:
                raise SkillError(
                    f"the saved state does not fit {self.machine.contract.state.__name__}: {problems(error)}; give the "
                    "skill a new version and an upgrade, or let running tasks finish on the old code"
                ) from error
        lifecycle = self.validator.lifecycle_of(self.data)
        guard = Guard(step.name, lifecycle, step.contract.reads)
        view = view_of(self.state, guard)
        self.opened = Opened(step, lifecycle, self.data, self.state, guard, view, self.met)
        self.met = ()
        return self.opened

    def _beside(self, param: Param, ctx: Ctx) -> Any:
        match param.source:
            case Source.STATE:
                assert self.opened is not None
                return self.opened.view
            case Source.ERROR:
                return self.error
            case _:
                return ctx

    def _complete(self, record: Record) -> Record:
        record["state"] = self.data
        return record

    # --- driving a step

    def _drive_again(self, step: StepSpec, record: Record) -> Going:
        opened = self._open(step)
        opened.met = tuple(record.get("met", ()))
        going = super()._drive_again(step, record)
        going.opened = opened
        return going

    def _send(self, step: StepSpec, record: Record, going: Going, results: Any) -> Transition:
        opened = going.opened or self.opened
        assert opened is not None
        if going.opened is None and opened.met:
            record["met"] = list(opened.met)
        going.opened, self.opened = opened, opened
        opened.record = record
        self.data, self.state = opened.data, opened.state
        transition = super()._send(step, record, going, results)
        if not opened.merged and opened.guard.breach is not None:
            going.run.close()  # it tried something before it asked; what it asks for is not started
            raise opened.guard.breach
        return transition

    def _uncaught(self, error: CommandError, ctx: Ctx) -> Transition:
        raise error

    # --- leaving a step

    def _ended(self, step: StepSpec, ctx: Ctx, outcome: Any) -> Transition:
        opened = self.opened
        assert opened is not None
        opened.guard.check()
        if changed := self.validator.untouched(opened.view, opened.state, opened.data, step.contract.reads):
            raise opened.guard.writes(changed)
        if step.contract.on_error:
            return self._handled(opened, outcome)
        if isinstance(outcome, Transition) and outcome.ending is Ending.FAILED:
            raise SaidFailed(outcome.after(ctx._said))
        if isinstance(outcome, Transition) and outcome.ending is Ending.REJECTED:
            self.audit.note(opened, opened.lifecycle or step.name)
            return super()._ended(step, ctx, outcome)
        if isinstance(outcome, StatePatch):
            transition, to = self.leads.of_patch(opened, outcome)
        elif isinstance(outcome, Transition):
            transition, to = outcome, self.leads.of_transition(opened, outcome)
        else:
            raise SkillError(
                f"step {step.name!r} returned {repr(outcome)[:200]}; a step of a contract returns a `StatePatch(...)` "
                "or a transition, for example `ctx.goto(...).patch(...)`"
            )
        if (transition.enters is not None and transition.enters.payload) or transition.resume:
            raise SkillError(
                f"step {step.name!r} hands arguments on; steps of a contract share its state: put them there with "
                "`.patch(...)`"
            )
        self._merge(opened, transition.writes or StatePatch(), to)
        ended = super()._ended(step, ctx, transition)
        if ended.ending is not None:
            return replace(ended, state=self._complete(Record(step=step.name, args={})))
        return ended

    def _merge(self, opened: Opened, patch: StatePatch, to: str) -> None:
        """Check what a step wrote and where it leads, then take both."""
        step, terms, source = opened.step, opened.step.contract, opened.lifecycle
        check = self.validator
        check.writable(step.name, terms, source, patch)
        fields, owned = dict(patch.fields), dict[str, JsonValue]()
        move = None
        if to != STAYS and check.lifecycle.moves:
            move = check.movable(step.name, terms, source, to, patch)
            fields[self.machine.contract.lifecycle] = to
        data, state, written = check.merged(step.name, source, opened.data, fields)
        if move is not None and move.then is not None:
            changes = move.then(state)
            data, state, owned = check.merged(ORCHESTRATOR, source, data, changes.fields)
        if not terms.on_error:
            check.moved(step.name, source, check.lifecycle_of(data), opened.state, state)
        self.data, self.state, opened.merged = data, state, True
        self.audit.note(opened, source if to == STAYS else to, written, owned)

    # --- when a step fails

    def failed(self, error: BaseException) -> Transition:
        """What becomes of the task when a step fails, whatever the reason."""
        opened = self.opened
        if isinstance(error, _Rejected):
            return Transition.reject(str(error))
        if opened is None:
            return Transition(uncaught=error)
        if isinstance(error, AdapterError):
            error = AdapterError(
                opened.step.name, opened.lifecycle, error.field, error.rule, expected=error.expected,
                actual=error.actual,
            )  # fmt: skip
        if not opened.merged:
            self.data, self.state = opened.data, opened.state
        self.error = self.audit.error(opened, error)
        self.audit.note(opened, opened.lifecycle or opened.step.name, err=self.error)
        if isinstance(error, AdapterError) and (way := self._fallback(opened)) is not None:
            return self._fall_back(way)
        if self.first and opened.step.start and isinstance(error, InvariantError | RequirementError):
            return Transition.reject(str(error))
        self._handle(opened)
        record = self._complete(Record(step=opened.step.name, args={}))
        if isinstance(error, SaidFailed):
            return replace(error.transition.after(self.said), writes=None, state=record, forgets=True)
        return replace(Transition(uncaught=error).after(self.said), state=record, forgets=True)

    def _handle(self, opened: Opened) -> None:
        """Let the skill's own step say what the state keeps of the error, where there is a move to failed."""
        handler, lifecycle = self.machine.handler, self.validator.lifecycle
        legal = not lifecycle.moves or (opened.lifecycle, lifecycle.failed) in lifecycle.moves
        if handler is None or not legal:
            return
        try:
            asked = self._enter_once(handler, {}, None).commands
            if asked:
                raise SkillError(f"step {handler.name!r} asks for {asked[0].id!r}; the task is over: it may not wait")
        except Exception as error:  # noqa: BLE001 - it must not hide the error that it was called for
            if self.opened is not None and self.opened.step is handler:
                self.data = self.opened.data
                self.audit.note(self.opened, self.opened.lifecycle, err=self.audit.error(self.opened, error))

    def _handled(self, opened: Opened, outcome: Any) -> Transition:
        if not isinstance(outcome, StatePatch):
            raise SkillError(f"step {opened.step.name!r} returned {repr(outcome)[:200]}; it returns a StatePatch")
        self._merge(opened, outcome, self.validator.lifecycle.failed if self.validator.lifecycle.moves else "failed")
        return Transition()

    def _fallback(self, opened: Opened) -> StepSpec | None:
        way = self.machine.contract.fallback
        if way is None or opened.step.name == way.step or not way.when(opened.state):
            return None
        return self.steps[way.step]

    def _fall_back(self, step: StepSpec) -> Transition:
        try:
            return self.enter(step, {}, None)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as in `ContractedMachine.on`
            return self.failed(error)
