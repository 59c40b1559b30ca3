"""The steps that a loop is written with, and what is wrong with a loop.

A slot of `Agent(loop=[...])` holds one of:

| | |
| --- | --- |
| `Think(...)` | calls the model |
| an orchestrator | makes the calls that the model has requested |
| an `async def` function of a `LoopTurn` | a step of your own; its kind is its name |
| a `Step` | the same as a class, with a kind of its own |
| `Together(...)` | several slots at once, each with a conversation of its own |
| `Repeat(...)` | a loop within the loop |
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from refold.agent.loop import AROUND
from refold.agent.looping.turn import LoopTurn
from refold.agent.orchestrators import Orchestrator
from refold.agent.state import StepStatus
from refold.agent.steps import Emit, Step, short
from refold.core.authoring.bytecode import mentions
from refold.core.authoring.signatures import signature
from refold.core.values import is_count

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
_TAKEN = (*AROUND, "main")
"""Names of the steps around a loop, and of the main conversation."""

RESERVED = ("model", "tool", "tools")
"""Kinds of the agent's own steps."""

Written: TypeAlias = Callable[[LoopTurn], Awaitable[StepStatus | None]]


@dataclass(frozen=True, kw_only=True)
class Think:
    """Calls the model, with the agent's tools. A reply without tool calls is the loop's answer.

    In the last pass through its loop the model must answer without tools.

    Attributes:
        name: The step's name.
        model: `provider:name`; None is the agent's.
        instructions: The system prompt; None is the agent's.
        tools: False offers the model no tools.
        answers: Whether a reply without tool calls ends the loop; with False the next step comes.
    """

    name: str = "model"
    model: str | None = None
    instructions: str | None = None
    tools: bool = True
    answers: bool = True


@dataclass(frozen=True, init=False)
class Together:
    """Several slots at once. Each has a conversation of its own, which gets the user's messages.

    A later step reads what they came to in `turn.replies`, by `name.slot`.

    Attributes:
        name: The step's name.
        slots: What runs at once.
        limit: How many calls may be open at once, 1 or more; None is no limit.
    """

    slots: tuple[Any, ...]
    name: str
    limit: int | None

    def __init__(self, *slots: Any, name: str = "together", limit: int | None = None) -> None:
        for attribute, value in (("slots", slots), ("name", name), ("limit", limit)):
            object.__setattr__(self, attribute, value)


@dataclass(frozen=True, init=False)
class Repeat:
    """A loop within the loop: its slots in turn, again and again, until one of them answers.

    The answer is `turn.reply` for the slots after it.

    Attributes:
        slots: The steps.
        name: The loop's name.
        max_cycles: The most passes, 1 or more; then the slot after it comes.
    """

    slots: tuple[Any, ...]
    name: str
    max_cycles: int

    def __init__(self, *slots: Any, name: str = "repeat", max_cycles: int = 20) -> None:
        for attribute, value in (("slots", slots), ("name", name), ("max_cycles", max_cycles)):
            object.__setattr__(self, attribute, value)


class Own(Step[LoopTurn, StepStatus | None]):
    """A step that is written as a function."""

    def __init__(self, function: Written) -> None:
        self.kind = function.__name__  # type: ignore[misc]  # each is of a kind of its own
        self._function = function

    async def stream(self, turn: LoopTurn, emit: Emit) -> StepStatus | None:
        """See `Step.stream`."""
        return await self._function(turn)


def name_of(slot: Any) -> str:
    """The name of a slot: its own, else `tools` for an orchestrator, else that of its function or its kind."""
    if isinstance(slot, Orchestrator):
        return "tools"
    named = getattr(slot, "name", None) or getattr(slot, "__name__", None) or getattr(slot, "kind", None)
    return str(named)


def unfit_loop(loop: Any, *, tools: bool, orchestrator: Any) -> list[str]:
    """What is wrong with a loop.

    Args:
        loop: As it was given; None is no loop of the user's own.
        tools: Whether the agent has tools.
        orchestrator: The agent's other setting of who makes the calls.
    """
    if loop is None:
        return []
    if isinstance(loop, str) or not isinstance(loop, Sequence):
        return [f"loop={short(loop)}: it is a list of steps, for example loop=[Think(), Concurrent(3)]"]
    found = [*_unfit(loop, "loop", within=None)]
    if orchestrator is not None:
        found.append("loop: orchestrator= has no effect beside loop=; put the orchestrator in a slot of the loop")
    nodes = list(every(nodes_of(loop)))
    names = [node.name for node in nodes]
    found += [
        f"loop: two steps are named {node.name!r}; give one another name: {_renamed(node.slot)}"
        for place, node in enumerate(nodes)
        if node.name in names[:place]
    ]
    found += [f"loop: the name {name!r} is taken; give the step another one" for name in names if name in _TAKEN]
    slots = [node.slot for node in nodes]
    if loop and not found and all(isinstance(slot, Orchestrator) for slot in slots):
        found.append("loop: no step of it can answer; add Think(), or a step of yours that returns turn.answer(...)")
    calls = any(isinstance(slot, Think) and slot.tools for slot in slots)
    if tools and calls and not found and not any(isinstance(slot, Orchestrator) for slot in slots):
        found.append(
            "loop: the model is offered tools, and no step makes its calls; add an orchestrator, such as Sequential(), "
            "after Think(), or write Think(tools=False)"
        )
    return found


def _unfit(slots: Sequence[Any], where: str, *, within: Any) -> Iterator[str]:
    if not slots:
        yield f"{where} is empty; give it one step at least, for example Think()"
    for slot in slots:
        if isinstance(slot, Together | Repeat):
            yield from _unfit(slot.slots, f"{where}: {type(slot).__name__} {slot.name!r}", within=slot)
            bound = slot.limit if isinstance(slot, Together) else slot.max_cycles
            if bound is not None and not is_count(bound):
                what = "limit" if isinstance(slot, Together) else "max_cycles"
                yield f"{where}: {slot.name!r} has {what}={bound!r}; give a whole number, 1 or more"
        elif isinstance(slot, Orchestrator):
            if isinstance(within, Together):
                yield (
                    f"{where}: an orchestrator makes the calls of the step before it, and nothing stands before it; "
                    "write Repeat(Think(), Sequential())"
                )
        elif not isinstance(slot, Think | Step) and not _is_written(slot):
            yield f"{where}: {short(slot)} is no step; {_hint(slot)}"
        elif not isinstance(slot, Think) and (kind := _kind_of(slot)) in RESERVED:
            yield f"{where}: {short(slot)} is of kind {kind!r}, which is the agent's own; {_other_kind(slot)}"
        name = name_of(slot)
        if not isinstance(slot, Orchestrator) and not _NAME.fullmatch(name):
            yield f"{where}: a step's name has letters, digits, `_` and `-`, begins with a letter, at most 40: {name!r}"


def _hint(slot: Any) -> str:
    if inspect.isclass(slot):
        return f"it is a class: write {slot.__name__}(...)"
    if inspect.isfunction(slot) or isinstance(slot, partial):
        return "a step is an `async def` function with one parameter, its turn"
    return "give Think(), an orchestrator, an `async def` function of its turn, a Step, Together(...) or Repeat(...)"


def _is_written(slot: Any) -> bool:
    named = inspect.isfunction(slot) or inspect.ismethod(slot)  # a `functools.partial` has no name, and no code to read
    return named and inspect.iscoroutinefunction(slot) and len(signature(slot).parameters) == 1


def _kind_of(slot: Any) -> str:
    """The kind of a step of the user's own."""
    kind: str = slot.kind if isinstance(slot, Step) else slot.__name__
    return kind


def _other_kind(slot: Any) -> str:
    return "give it another one" if isinstance(slot, Step) else "rename the function"


@dataclass(frozen=True, slots=True)
class Node:
    """A slot with its name.

    Attributes:
        name: Unique in the loop; of a slot within `Together`, after its name and a dot.
        slot: As it was written.
        inner: The slots within it.
    """

    name: str
    slot: Any
    inner: tuple[Node, ...] = ()


def nodes_of(slots: Sequence[Any], path: str = "", numbers: dict[str, int] | None = None) -> tuple[Node, ...]:
    """The slots of a loop, with their names: a second orchestrator is `tools2`, and so on."""
    numbers = {} if numbers is None else numbers
    nodes = []
    for slot in slots:
        name = path + name_of(slot)
        if isinstance(slot, Orchestrator):
            numbers[name] = numbers.get(name, 0) + 1
            name = name if numbers[name] == 1 else f"{name}{numbers[name]}"
        within = f"{name}." if isinstance(slot, Together) else path
        inner = nodes_of(slot.slots, within, numbers) if isinstance(slot, Together | Repeat) else ()
        nodes.append(Node(name, slot, inner))
    return tuple(nodes)


def every(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, each followed by the nodes nested in it."""
    for node in nodes:
        yield node
        yield from every(node.inner)


def kinds_of(slots: Sequence[Any]) -> set[str]:
    """The kinds of the user's own steps in a loop."""
    own = [node.slot for node in every(nodes_of(slots)) if isinstance(node.slot, Step) or _is_written(node.slot)]
    return {_kind_of(slot) for slot in own}


def outcomes_of(slot: Any) -> tuple[StepStatus, ...]:
    """How a slot may end; of a function, as its code says."""
    done, again, answered = StepStatus.DONE, StepStatus.AGAIN, StepStatus.ANSWERED
    if isinstance(slot, Together | Orchestrator):
        return (done,)
    if isinstance(slot, Think):
        return tuple(how for how, may in ((done, slot.tools or not slot.answers), (answered, slot.answers)) if may)
    if isinstance(slot, Step):
        return (done, again, answered)
    ends = {"again": again, "answer": answered}
    return (done, *(how for method, how in ends.items() if mentions(slot, method)))


def streams(slots: Sequence[Any]) -> bool:
    """Whether what the model writes may be shown: no step may still refuse it, unless it says that it does not."""
    return all(
        isinstance(slot, Think | Orchestrator) or (isinstance(slot, Step) and getattr(slot, "streams", False) is True)
        for slot in slots
    )


def _renamed(slot: Any) -> str:
    if isinstance(slot, Think | Together | Repeat):
        return f'{type(slot).__name__}(..., name="other")'
    return "an attribute `name` of its class" if isinstance(slot, Step) else "another function"
