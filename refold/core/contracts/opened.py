"""A step of a contract while it is executed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.transition import Transition
from refold.core.contracts.view import Guard
from refold.core.steps.spec import Record, StepSpec


@dataclass(slots=True)
class Opened:
    """A step that is executed.

    Attributes:
        step: The step.
        lifecycle: The state that it runs in.
        data: The state as it found it.
        state: The same, decoded.
        guard: Watches over the view.
        view: What it sees.
        met: The ids of what entered it: an answer, or results.
        record: Where it stands; None where it has not asked for anything.
        merged: It has ended, and what it wrote is merged.
    """

    step: StepSpec
    lifecycle: str
    data: dict[str, JsonValue]
    state: Any
    guard: Guard
    view: Any
    met: tuple[str, ...] = ()
    record: Record | None = None
    merged: bool = False


STAYS = ""
"""No move: a step that enters no state of its own takes over in the one there is."""


class SaidFailed(Exception):
    """A step says that the task fails.

    Attributes:
        transition: How it said so.
    """

    def __init__(self, transition: Transition) -> None:
        self.transition = transition
        super().__init__(transition.reason)
