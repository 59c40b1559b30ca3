"""What is known of a step once its skill is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from refold.core.contracts.contract import NO_CONTRACT, StepContract
from refold.core.errors import SkillError
from refold.core.gates import GatePolicy
from refold.core.steps.params import Param


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step, compiled.

    Attributes:
        name: Unique within the skill.
        run: The step's function, bound if it is a method.
        params: The function's parameters by name, in order.
        start: Whether the first message enters this step.
        resume_from: Name of the step that asked; this step receives the answer.
        on_interrupt: Name of the step that receives a message which interrupts this one; None if none may.
        seeds: For a start step: first values of parameters that the message does not fill, by name.
        goes_to: The steps that the code names in a literal `goto`.
        contract: What the step may read, write and lead to, if the skill has a contract.
    """

    name: str
    run: Callable[..., Any]
    params: Mapping[str, Param]
    start: bool
    resume_from: str | None
    seeds: Mapping[str, Any]
    goes_to: tuple[str, ...] = ()
    on_interrupt: str | None = None
    contract: StepContract = NO_CONTRACT

    @property
    def takes(self) -> str:
        """The parameters that a goto can fill, for people."""
        return ", ".join(name for name, param in self.params.items() if not param.source.beside) or "nothing"

    def needs(self, *, message: bool) -> list[str]:
        """The parameters that only a payload fills.

        Args:
            message: Whether a message enters the step.
        """
        return [
            name for name, param in self.params.items() if param.needed and not (message and param.source.from_message)
        ]


class MadeWith(NamedTuple):
    """A tool, skill or MCP server that a skill was constructed with, and that no step's code names.

    Attributes:
        step: The step that calls it.
        kind: Tool, skill or MCP server.
        name: The name it is called by.
        gate: Who must approve each call; None if nobody.
    """

    step: str
    kind: Literal["tool", "skill", "MCP server"]
    name: str
    gate: GatePolicy | None = None


def target_of(steps: Mapping[str, StepSpec], name: str, source: str) -> StepSpec:
    """The step that the step `source` goes to.

    Raises:
        SkillError: There is no step of this name.
    """
    if not isinstance(name, str) or name not in steps:
        raise SkillError(f"step {source!r} goes to {name!r}, which does not exist; the steps are: {', '.join(steps)}")
    return steps[name]
