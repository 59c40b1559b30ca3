"""A compiled step, and the record of where a task stands among its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from pydantic import JsonValue

from refold.core.contracts.contract import NO_CONTRACT, StepContract
from refold.core.steps.params import Param


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step, compiled.

    Attributes:
        name: Unique within the skill.
        run: The function, bound where it is a method.
        params: Its parameters by name, in order.
        start: The first message enters here.
        resume_from: The step whose question this one meets the answer of.
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
        """What a goto can give it, for people."""
        return ", ".join(name for name, param in self.params.items() if not param.source.beside) or "nothing"

    def needs(self, *, heard: bool) -> list[str]:
        """The parameters that nothing but a payload fills.

        Args:
            heard: Whether a message enters the step.
        """
        return [
            name for name, param in self.params.items() if param.needed and not (heard and param.source.from_message)
        ]


class Awaited(TypedDict):
    """One await of a step.

    Attributes:
        asked: What was asked for, as fingerprints.
        ids: The commands' ids.
        at: When the step went on; missing while it waits.
        heard: How many messages there were then.
        open: Where the step goes on with the first of several that comes back: all that had not, when it asked.
        came: Those of them that had, when it went on.
        failed: Where coroutines run side by side: ids of commands whose failure ended one, and is raised when all have
            ended; missing where there is none.
        threads: How many turns each conversation had then; missing where there was none.
    """

    asked: list[str]
    ids: list[str]
    open: NotRequired[list[str]]
    came: NotRequired[list[str]]
    failed: NotRequired[list[str]]
    at: NotRequired[str]
    heard: NotRequired[int]
    threads: NotRequired[dict[str, int]]


class Record(TypedDict):
    """Where a task stands: in a step, before one, or at a question.

    Attributes:
        step: The step; the one that asked, at a question.
        args: The arguments of the step, or of the one that meets the answer, as far as they are known.
        at: When the step was entered.
        heard: How many messages there were then.
        threads: How many turns each conversation had then; missing where there was none.
        awaits: What it has awaited, oldest first.
        enters: Before a step that commands feed: their ids, by parameter.
        resume: At a question: the step that meets the answer.
        slot: The question's name.
        gate: The question's id.
        state: The state of the skill's contract, where it has one.
        met: The ids of what entered the step: an answer, or results.
    """

    step: str
    args: dict[str, JsonValue]
    at: NotRequired[str]
    heard: NotRequired[int]
    threads: NotRequired[dict[str, int]]
    awaits: NotRequired[list[Awaited]]
    enters: NotRequired[dict[str, str]]
    resume: NotRequired[str]
    slot: NotRequired[str]
    gate: NotRequired[str]
    state: NotRequired[dict[str, JsonValue]]
    met: NotRequired[list[str]]
