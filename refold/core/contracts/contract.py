"""How an author declares a contract: what each step may read and write of a shared, typed state, and which moves exist.

A contract is optional, for skills made of steps. Steps share one frozen state; each step sees the fields it declares,
and returns a `StatePatch`. A breach of the contract fails the task before anything is merged. Source: S1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypedDict

from pydantic import BaseModel, ValidationError

from refold.core.authoring.context import Ctx
from refold.core.authoring.transition import StatePatch
from refold.core.codec import codec
from refold.core.content import Content
from refold.core.errors import AdapterError, describe
from refold.core.schema import problems

ALL: Literal["*"] = "*"
"""`reads=ALL`: every field of the state."""

VALIDATED = "the stage's output is validated without an error"
"""The rule of an `AdapterError` for an error other than a `ValidationError`, which is the cause."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """A rule that holds before and after every step.

    Attributes:
        field: The field that errors name.
        rule: The rule in words: "acting needs a thought with an intent".
        holds: Takes the state, and returns whether the rule holds.
        keeps: Instead of `holds`: takes the states before and after a move, and returns whether the rule holds.
        at: The lifecycle state in which the rule is checked; None is all.
        after: The rule is checked only on moves from this state; None is on all moves, and before each step in `at`.
    """

    field: str
    rule: str
    holds: Callable[[Any], bool] | None = None
    keeps: Callable[[Any, Any], bool] | None = None
    at: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Requirement:
    """A rule that must hold before a step is executed; otherwise the step fails with `RequirementError`.

    Attributes:
        field: A field that the step reads; errors name it.
        rule: The rule in words.
        holds: Takes the step's view of the state, and returns whether the rule holds.
    """

    field: str
    rule: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Move:
    """A legal move of the skill's own lifecycle.

    Attributes:
        source: The state that the move leaves.
        target: The state that the move leads to.
        then: Called by the orchestrator on this move, with the state after the step. Returns further changes, to any
            field except the lifecycle's.
    """

    source: str
    target: str
    then: Callable[[Any], StatePatch] | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    """The code from before the contract, used when a stage that was adapted to the contract fails (`AdapterError`).

    Attributes:
        step: The step to enter; it declares `enforce_moves=False`.
        when: Takes the state, and returns whether this task may fall back.
    """

    step: str
    when: Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """The contract between the steps of a skill.

    Attributes:
        state: A frozen pydantic model, the state that the steps share.
        begins: Makes the first state from the first message. A `DecodeError` or `ValueError` in it rejects the task.
        owned: Fields that only the orchestrator writes, never a step.
        invariants: Rules checked before and after every step.
        moves: The legal moves of the skill's own lifecycle; empty if it has none.
        lifecycle: With moves: the field that holds the lifecycle's state.
        failed: The state of failed tasks, if a move leads there. In any other state without moves, the task completes.
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
        # Tuples, since the sandbox shares a skill between tasks only if nothing in it is mutable.
        for name in ("owned", "invariants", "moves"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}={getattr(self, name)!r} is one text; write {name}=[{getattr(self, name)!r}]")
            object.__setattr__(self, name, tuple(getattr(self, name)))


class Terms(TypedDict, total=False):
    """What a step declares under a contract.

    Attributes:
        reads: The fields that the step sees, or `ALL`.
        writes: The fields that the step may write.
        requires: Fields that must not be None, or `Requirement`s; checked before the step is executed.
        enters: The lifecycle state in which the step runs.
        exits: The states that the step may lead to; left out, all that the contract's moves allow.
        next: Takes the fields that the step reads and writes, after the step, and returns the next state; without
            moves, the next step. Left out, the step returns `ctx.goto(...)`, or has one exit only.
        on_error: True for the step that runs after another step has failed, and records the error in the state.
        enforce_moves: False lets the step make any move, which the audit notes.
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
    """A step's compiled terms: names as plain text, and `ALL` as the list of fields."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    requires: tuple[Requirement, ...] = ()
    enters: str = ""
    exits: tuple[str, ...] = ()
    next: Callable[[Any], str] | None = None
    on_error: bool = False
    free: bool = False


NO_CONTRACT = StepContract()
"""The terms of a step without a contract."""


class Lifecycle:
    """The lifecycle that a contract's moves define; empty if there are no moves.

    Attributes:
        moves: The moves, by source and target.
        failed: The state of failed tasks.
        states: All states, in the order in which the moves name them.
        ends: The states that no move leaves.
    """

    __slots__ = ("ends", "failed", "moves", "states")

    def __init__(self, contract: Contract) -> None:
        self.moves = {(plain(move.source), plain(move.target)): move for move in contract.moves}
        self.failed = plain(contract.failed)
        self.states = tuple(dict.fromkeys(state for pair in self.moves for state in pair))
        self.ends = tuple(state for state in self.states if not self.targets(state))

    def targets(self, source: str) -> tuple[str, ...]:
        """The states that moves from `source` lead to."""
        return tuple(target for start, target in self.moves if start == source)


def plain(name: Any) -> str:
    """A state's name as text; the value of an enum member."""
    return str(name.value) if isinstance(name, Enum) else str(name)


def require(name: str) -> Requirement:
    """The requirement that a field is not None, for `requires=["name"]`."""
    return Requirement(name, f"{name} must be there", lambda seen: getattr(seen, name) is not None)


def adapt(output: Any, **fields: Any) -> StatePatch:
    """Make a patch from the output of an older stage: `adapt(await plan(ctx, text), thought=ThoughtState)`.

    Args:
        output: The stage's output, as data or as a value.
        fields: For each field of the state to write, the type as which the whole output is decoded.

    Raises:
        AdapterError: The output is not complete, or does not fit.
    """
    patch = {}
    for name, kind in fields.items():
        read, expected = codec(kind), f"a {getattr(kind, '__name__', kind)}"
        try:
            patch[name] = read.fresh(output, outside=True)
        except ValidationError as error:
            rule = "the stage's output is complete"
            raise AdapterError("", "", name, rule, expected=expected, actual=problems(error)) from None
        except Exception as error:  # the author's validators may raise any exception
            raise AdapterError("", "", name, VALIDATED, expected=expected, actual=describe(error)) from error
    return StatePatch(**patch)
