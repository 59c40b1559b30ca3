"""The hooks that `Drive` calls around each step; a skill with a contract overrides them."""

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
    """The hooks of a skill without a contract, which do nothing. An exception raised in a hook stops the step."""

    def before(self, step: StepSpec, entered_by: Sequence[str]) -> Any:
        """Called before a step is entered. Returns a value to store with the step's coroutine, for `again`.

        `entered_by` has the invocation ids of the answer or results that enter the step; none for the start and gotos.
        """
        return None

    def again(self, step: StepSpec, position: Position, stored: Any) -> Any:
        """Called before a step is resumed. Returns the value to store for the next `again`.

        `stored` is what `before` or `again` returned; None if the step is driven again from its position.
        """
        return stored

    def beside(self, source: Source, ctx: Ctx) -> Any:
        """The value of a parameter that is not one of the step's arguments: `ctx`, the state, the error."""
        return ctx

    def keeps(self, entered_by: Sequence[str] = ()) -> dict[str, JsonValue]:
        """Additional fields to save in the task's position."""
        return {}

    def asked(self) -> None:
        """Called when a step awaits commands, before they are sent."""

    def after(self, step: StepSpec, outcome: Any, said: Transition) -> Any:
        """The transition of a step that returned `outcome`; `said` holds its messages since it was last resumed."""
        return outcome

    def uncaught(self, error: CommandError, said: Transition) -> Transition:
        """The transition of a step that did not catch a command's failure."""
        return altered(said, uncaught=error)
