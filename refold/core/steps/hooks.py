"""What a skill can add to the driving of its steps; see `Drive`, which calls each hook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.context import Ctx
from refold.core.authoring.transition import Transition, altered
from refold.core.errors import CommandError
from refold.core.steps.params import Source
from refold.core.steps.position import Position
from refold.core.steps.spec import StepSpec


class Hooks:
    """The hooks of a skill without a contract, which add nothing. What a hook raises stops the step."""

    def before(self, step: StepSpec, entered_by: Sequence[str]) -> Any:
        """A step is about to be entered by an answer or results of these ids; no ids for the start and gotos.

        Returns:
            What these hooks keep with the step's coroutine, for `again`.
        """
        return None

    def again(self, step: StepSpec, position: Position, kept: Any) -> Any:
        """A step is about to go on.

        Args:
            step: The step.
            position: Where it stands.
            kept: What `before` or `again` returned; None where the step is driven again from its position.

        Returns:
            What these hooks keep with the step's coroutine.
        """
        return kept

    def beside(self, source: Source, ctx: Ctx) -> Any:
        """The value of a parameter that stands beside the step's arguments."""
        return ctx

    def keeps(self, entered_by: Sequence[str] = ()) -> dict[str, JsonValue]:
        """What the task's position holds beside its own fields."""
        return {}

    def asked(self) -> None:
        """The step has awaited something, which is not yet asked for."""

    def after(self, step: StepSpec, outcome: Any, said: Transition) -> Any:
        """A step has returned `outcome`, and said this since it last went on: the transition to go on with."""
        return outcome

    def uncaught(self, error: CommandError, said: Transition) -> Transition:
        """A step did not catch the failure of a command: the transition to go on with."""
        return altered(said, uncaught=error)
