"""Where a step of a contract leads: the move that it makes, and the step that enters its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.core.authoring.patch import StatePatch
from refold.core.authoring.transition import Transition
from refold.core.contracts.contract import plain
from refold.core.contracts.opened import STAYS, Opened
from refold.core.contracts.rules import StateValidator
from refold.core.contracts.view import Guard, view_of
from refold.core.errors import IllegalMoveError, SkillError
from refold.core.steps.spec import StepSpec


class Leads:
    """The ways between the steps of a skill.

    Args:
        validator: Checks against the contract.
        by_state: The step that enters a state.
        resumes: The step that meets the answer to another one, by that one's name.
        target: The step of a name, for the step of another name that goes there.
    """

    def __init__(
        self,
        validator: StateValidator,
        by_state: Mapping[str, StepSpec],
        resumes: Mapping[str, StepSpec],
        target: Callable[[str, str], StepSpec],
    ) -> None:
        self.validator, self.by_state, self.resumes, self.target = validator, by_state, resumes, target

    def of_patch(self, opened: Opened, patch: StatePatch) -> tuple[Transition, str]:
        """Where a step goes on that returned its patch alone."""
        step, terms, lifecycle = opened.step, opened.step.contract, self.validator.lifecycle
        if terms.next is not None:
            to = self._next(opened, patch)
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
            self.validator.movable(step.name, terms, opened.lifecycle, to, StatePatch())
            raise self.illegal(opened, "a step that fails returns `ctx.fail(reason)`", "another state", to)
        return Transition.goto(target.name).patch(patch), to

    def of_transition(self, opened: Opened, transition: Transition) -> str:
        """The state that a step's own transition leads to."""
        step, lifecycle = opened.step, self.validator.lifecycle
        target = None
        if transition.enters is not None:
            target = self.target(transition.enters.step, step.name)
        elif transition.waits:
            target = self.resumes.get(step.name)
        if target is not None:
            to = (target.contract.enters or STAYS) if lifecycle.moves else target.name
        elif not lifecycle.moves:
            return "completed"
        else:
            ends = [one for one in step.contract.exits if one in lifecycle.ends and one != lifecycle.failed]
            if len(ends) != 1:
                found = ", ".join(ends) or "none"
                raise self.illegal(opened, "ends where it declares", "one exit that no move leaves", found)
            (to,) = ends
        if step.contract.next is not None:
            decided = self._next(opened, transition.writes or StatePatch())
            if decided != to:
                raise self.illegal(opened, "next and the way on agree", decided, to)
        return to

    def illegal(self, opened: Opened, rule: str, expected: str, actual: str) -> IllegalMoveError:
        field = self.validator.contract.lifecycle
        return IllegalMoveError(opened.step.name, opened.lifecycle, field, rule, expected=expected, actual=actual)

    def _next(self, opened: Opened, patch: StatePatch) -> str:
        step, terms = opened.step, opened.step.contract
        assert terms.next is not None
        self.validator.writable(step.name, terms, opened.lifecycle, patch)
        _, state, _ = self.validator.merged(step.name, opened.lifecycle, opened.data, patch.fields)
        seen = tuple(dict.fromkeys([*terms.reads, *terms.writes]))
        return plain(terms.next(view_of(state, Guard(step.name, opened.lifecycle, seen))))
