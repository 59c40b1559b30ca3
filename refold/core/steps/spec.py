"""A compiled step."""

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
        run: The function, bound where it is a method.
        params: Its parameters by name, in order.
        start: The first message enters here.
        resume_from: Name of the step that asked; this step receives the answer.
        seeds: What a start step's payload begins as, by parameter.
        goes_to: The steps that its code names in a literal `goto`.
        contract: What it may read, write and lead to, where the skill has a contract.
    """

    name: str
    run: Callable[..., Any]
    params: Mapping[str, Param]
    start: bool
    resume_from: str | None
    seeds: Mapping[str, Any]
    goes_to: tuple[str, ...] = ()
    contract: StepContract = NO_CONTRACT

    @property
    def takes(self) -> str:
        """The parameters that a goto can fill, for people."""
        return ", ".join(name for name, param in self.params.items() if not param.source.beside) or "nothing"

    def needs(self, *, message: bool) -> list[str]:
        """The parameters that nothing but a payload fills.

        Args:
            message: Whether a message enters the step.
        """
        return [
            name for name, param in self.params.items() if param.needed and not (message and param.source.from_message)
        ]


class MadeWith(NamedTuple):
    """What a skill was made to call, beside what the code of its steps names.

    Attributes:
        step: The step that calls it.
        kind: What it is.
        name: Its name.
        gate: Who decides before it is called; None where nobody does.
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
