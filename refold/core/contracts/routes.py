"""Which step follows under a contract: the move that a step makes, and the step that runs in the state moved to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from refold.core.authoring.transition import StatePatch, Transition
from refold.core.contracts.contract import StepContract, plain
from refold.core.contracts.rules import HookFailed, SharedState, StateValidator, called
from refold.core.contracts.view import Guard, view_of
from refold.core.errors import IllegalMoveError, SkillError, brief
from refold.core.steps.spec import StepSpec, target_of

NO_MOVE = ""
"""The target step declares no `enters`, so the lifecycle's state does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """One execution of a step, from its entry to its end, its awaits included.

    Attributes:
        step: The step.
        lifecycle: The lifecycle state in which the step runs.
        before: The shared state before the step.
        guard: The guard of `view`.
        view: The step's view of the shared state.
        entered_by: Invocation ids of the answer or results that entered the step.
    """

    step: StepSpec
    lifecycle: str
    before: SharedState
    guard: Guard
    view: Any
    entered_by: Sequence[str]

    @property
    def terms(self) -> StepContract:
        """The step's terms."""
        return self.step.contract


class Routes:
    """Finds the next step under a contract. Used by the orchestrator.

    Args:
        validator: Checks against the contract.
        steps: The skill's steps, by name.
        resumes: The step that receives the answer, by the name of the step that asked.

    Attributes:
        by_state: The step that runs in each lifecycle state, by state.
    """

    def __init__(
        self, validator: StateValidator, steps: Mapping[str, StepSpec], resumes: Mapping[str, StepSpec]
    ) -> None:
        self.validator, self.steps, self.resumes = validator, steps, resumes
        self.by_state = {step.contract.enters: step for step in steps.values() if step.contract.enters}

    def checked_by(self, validator: StateValidator) -> Routes:
        """The same routes, with the checks of one task; see `StateValidator.asking`."""
        made = copy(self)
        made.validator = validator
        return made

    def of_patch(self, execution: Execution, patch: StatePatch) -> tuple[Transition, str]:
        """For a step that returned a patch only: its transition, and the state or step that follows."""
        step, terms, lifecycle = execution.step, execution.terms, self.validator.lifecycle
        if terms.next is not None:
            to = self._next(execution, patch)
        else:
            ways = [one for one in terms.exits if one != lifecycle.failed]
            if len(ways) != 1:
                raise SkillError(
                    f"step {step.name!r} returned a patch, and does not say where to go: give it `next=...`, one exit, "
                    "or return `ctx.goto(...).patch(...)`"
                )
            (to,) = ways
        if not lifecycle.moves:
            return Transition.goto(to).patch(patch), to
        if to in lifecycle.ends and to != lifecycle.failed:
            return Transition.complete().patch(patch), to
        target = self.by_state.get(to)
        if target is None:
            self.validator.check_move(step.name, terms, execution.lifecycle, to, StatePatch())
            raise self.illegal(execution, "a step that fails returns `ctx.fail(reason)`", "another state", to)
        return Transition.goto(target.name).patch(patch), to

    def of_transition(self, execution: Execution, transition: Transition) -> str:
        """The state that a step's transition leads to; without a lifecycle, the step."""
        step, lifecycle = execution.step, self.validator.lifecycle
        target = None
        if transition.enters is not None:
            target = target_of(self.steps, transition.enters.step, step.name)
        elif transition.waits:
            target = self.resumes.get(step.name)
        if target is not None:
            to = (target.contract.enters or NO_MOVE) if lifecycle.moves else target.name
        elif not lifecycle.moves:
            return "completed"
        else:
            ends = [one for one in execution.terms.exits if one in lifecycle.ends and one != lifecycle.failed]
            if len(ends) != 1:
                found = ", ".join(ends) or "none"
                raise self.illegal(execution, "ends where it declares", "one exit that no move leaves", found)
            (to,) = ends
        if execution.terms.next is not None:
            decided = self._next(execution, transition.writes or StatePatch())
            if decided != to:
                raise self.illegal(execution, "next and the way on agree", decided, to)
        return to

    def illegal(self, execution: Execution, rule: str, expected: str, actual: str) -> IllegalMoveError:
        """The error for a step that leads where it may not."""
        field = self.validator.contract.lifecycle if self.validator.lifecycle.moves else ""
        return IllegalMoveError(execution.step.name, execution.lifecycle, field, rule, expected=expected, actual=actual)

    def _next(self, execution: Execution, patch: StatePatch) -> str:
        """The state or step that the step's `next` returns."""
        step, terms, source, check = execution.step, execution.terms, execution.lifecycle, self.validator
        assert terms.next is not None
        check.check_writes(step.name, terms, source, patch)
        after, _ = check.merged(step.name, source, execution.before.data, patch.fields)
        seen = tuple(dict.fromkeys([*terms.reads, *terms.writes]))
        try:
            to = called(terms.next, view_of(after.state, Guard(step.name, source, seen)))
        except HookFailed as error:
            raise self._unnamed(execution, f"it {error}") from error
        if not isinstance(to, str | Enum):
            raise self._unnamed(execution, brief(to))
        return plain(to)

    def _unnamed(self, execution: Execution, came: str) -> IllegalMoveError:
        moves = self.validator.lifecycle.moves
        known = self.validator.lifecycle.targets(execution.lifecycle) if moves else self.steps
        rule = f"`next` names the {'state' if moves else 'step'} that follows"
        return self.illegal(execution, rule, f"one of: {', '.join(known)}", came)
