"""Contracts: what each step of a skill may read and write of a shared, typed state, and which moves it may make.

A contract is an addition to named steps and step tables. Steps share one frozen state; each sees the fields that it
declares, and returns a `StatePatch` of those that it writes. What the contract does not allow stops the task before
anything is merged. Source: S1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypedDict

from pydantic import BaseModel

from refold.core.authoring.context import Ctx
from refold.core.authoring.patch import StatePatch
from refold.core.content import Content

ALL: Literal["*"] = "*"
"""`reads=ALL`: every field of the state."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A rule that holds before and after every step.

    Attributes:
        field: The field that it is mainly about; errors name it.
        rule: What must hold, in words: "acting needs a thought with an intent".
        holds: Whether it does, of a state.
        keeps: Whether it does, of the state before a move and the one after it; instead of `holds`.
        at: The state of the lifecycle that it is about; None is all.
        after: Checked on a move from this state only; None is on all, and whenever the task stands in `at`.
    """

    field: str
    rule: str
    holds: Callable[[Any], bool] | None = None
    keeps: Callable[[Any, Any], bool] | None = None
    at: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """What must hold before one step is executed; otherwise it is not.

    Attributes:
        field: One that the step reads; errors name it.
        rule: What must hold, in words.
        holds: Whether it does, of what the step sees.
    """

    field: str
    rule: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Move:
    """A legal move of the skill's own lifecycle.

    Attributes:
        source: The state it leaves.
        target: The state it leads to.
        then: What the orchestrator changes with it: takes the state as the step leaves it. It may write any field but
            the lifecycle's.
    """

    source: str
    target: str
    then: Callable[[Any], StatePatch] | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    """The way as it was before the contract, for as long as stages are moved over to it.

    Attributes:
        step: Entered where an adapted stage fails; declares `enforce_moves=False`.
        when: Whether the task may fall back, of its state: a flag that came in with the task, and stays with it.
    """

    step: str
    when: Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What holds between the steps of a skill.

    Attributes:
        state: A frozen pydantic model: all that steps share.
        begins: Makes the first state from the first message. What it raises of `DecodeError` or `ValueError` rejects
            the task.
        owned: Fields that no step writes; the orchestrator alone does.
        invariants: What always holds.
        moves: The legal moves of the skill's own lifecycle; without any, it has none.
        lifecycle: The field that holds the lifecycle's state, where there are moves.
        failed: The state that a task which fails moves to, where there is a move. From others that no move leaves,
            the task completes.
        fallback: Where to go when an adapted stage fails; None fails the task.
    """

    state: type[BaseModel]
    begins: Callable[[Content, Ctx], BaseModel]
    owned: Collection[str] = ()
    invariants: Sequence[Invariant] = ()
    moves: Sequence[Move] = ()
    lifecycle: str = "lifecycle"
    failed: str = "failed"
    fallback: Fallback | None = None

    def __post_init__(self) -> None:
        # Tuples: what cannot change is shared between the tasks of a worker.
        for name in ("owned", "invariants", "moves"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} is one text; write {name}=[{getattr(self, name)!r}]")
            object.__setattr__(self, name, tuple(getattr(self, name)))


class Terms(TypedDict, total=False):
    """What a step declares.

    Attributes:
        reads: The fields that it sees, or `ALL`.
        writes: The fields that it may write.
        requires: Fields that must not be None, or a `Requirement`; checked before it is executed.
        enters: The state of the lifecycle that it runs in.
        exits: The states that it may lead to; left out, every one that the contract's moves allow.
        next: Which state follows, of what the step reads and writes, as it leaves it; without moves, which step. Left
            out, the step says so with `ctx.goto(...)`, or has one way on only.
        on_error: It runs when another step has failed, and says what the state keeps of it.
        enforce_moves: False lets it make any move, and the journal says so each time.
    """

    reads: Iterable[str]
    writes: Iterable[str]
    requires: Iterable[str | Requirement]
    enters: str
    exits: Iterable[str]
    next: Callable[[Any], str]
    on_error: bool
    enforce_moves: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContract:
    """A step's terms, compiled: names as plain text, `ALL` spelt out."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    requires: tuple[Requirement, ...] = ()
    enters: str = ""
    exits: tuple[str, ...] = ()
    next: Callable[[Any], str] | None = None
    on_error: bool = False
    free: bool = False


NO_CONTRACT = StepContract()
"""It reads and writes nothing."""


class Lifecycle:
    """A contract's moves, by name; none where it has no lifecycle.

    Attributes:
        moves: By where they come from and lead to.
        failed: The state of tasks that have failed.
        states: Every state, in the order the moves name them.
        ends: The states that no move leaves.
    """

    __slots__ = ("ends", "failed", "moves", "states")

    def __init__(self, contract: Contract) -> None:
        self.moves = {(plain(move.source), plain(move.target)): move for move in contract.moves}
        self.failed = plain(contract.failed)
        self.states = tuple(dict.fromkeys(state for pair in self.moves for state in pair))
        self.ends = tuple(state for state in self.states if not self.targets(state))

    def targets(self, source: str) -> tuple[str, ...]:
        """Where the moves from a state lead to."""
        return tuple(target for start, target in self.moves if start == source)


def plain(name: Any) -> str:
    """A state's name as text, whatever enum it comes from."""
    return str(name.value) if isinstance(name, Enum) else str(name)


def require(name: str) -> Requirement:
    """The requirement that a plain field name stands for."""
    return Requirement(name, f"{name} must be there", lambda seen: getattr(seen, name) is not None)
