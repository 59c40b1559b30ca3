"""Everything the core raises, as one tree, split by who has to act.

RefoldError
├── DefinitionError           a skill or a tool is written wrongly; raised before any run
├── InputRejected             a person or a peer sent what does not fit; the task is unchanged
│   └── InvalidTransitionError    the lifecycle has no such move
├── SkillError                the skill broke a rule while it ran; that one task fails
│   ├── ReplayMismatch        new code asks for another command than the journal holds
│   └── ContractError         a step broke the skill's contract; nothing of what it wrote is merged
│       ├── UnauthorizedReadError     it read a field that it does not declare
│       ├── UnauthorizedWriteError    it wrote a field that it may not write
│       ├── PatchError        what it wrote does not fit the state's type
│       ├── RequirementError  what it requires does not hold, so it was not executed
│       ├── InvariantError    the state would break a rule that always holds
│       ├── IllegalMoveError  there is no such move, or nobody to make it
│       └── AdapterError      the output of an adapted stage is not complete
├── CommandError              a command failed for good; raised where the step awaits it
│   └── DecodeError           a value does not fit the type asked for
└── EngineError               what runs the tasks cannot do as asked; see `refold.engine`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from refold.core.retry_policy import Failure
from refold.core.values import has_set, text

AWAIT = "write `await ctx...`"
"""What to do about a forgotten `await`; a part of an error's text."""

# `<object at 0x7f…>` is another one in each process; a journal is the same in all.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class RefoldError(Exception):
    """The root of everything refold raises on purpose."""


class DefinitionError(RefoldError):
    """A skill or a tool is written wrongly. Raised when it is defined, before any run.

    Attributes:
        skill: The skill's id or its class's name; the tool's name where it is a tool.
        problems: One sentence each; all that were found, not only the first.
    """

    def __init__(self, skill: str, problems: Sequence[str], *, what: str = "skill") -> None:
        self.skill = skill
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"{what} {skill!r} cannot be defined:{listed}")


class InputRejected(RefoldError):
    """What was sent does not fit what the task awaits; the task is as it was before.

    Attributes:
        reason: What came, what was awaited, and the way out.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class InvalidTransitionError(InputRejected):
    """The lifecycle has no move for this event in this state.

    Attributes:
        state: The state the task is in.
        event: The event that does not fit it.
    """

    def __init__(self, state: str, event: str) -> None:
        self.state = state
        self.event = event
        super().__init__(f"Invalid transition: {state} + {event}")


class SkillError(RefoldError):
    """The skill broke a rule of its style while it ran. Fails that one task, with this message as the reason."""


class ReplayMismatch(SkillError):
    """A step, driven again from its receipts, asked for something else than before. Nothing was started.

    Attributes:
        step: The step that was driven.
        recorded: What the journal holds, as `kind:name:hash`.
        asked: What today's code asks for, in the same form.
    """

    def __init__(self, step: str, recorded: str, asked: str) -> None:
        self.step = step
        self.recorded = recorded
        self.asked = asked
        super().__init__(
            f"step {step!r} asked for {asked} where the journal holds {recorded}; the code changed under a running "
            "task: put the new path behind `if ctx.patched(...)`, or let running tasks finish on the old code"
        )


class ContractError(SkillError):
    """A step broke the skill's contract. Nothing of what it wrote is merged, and the task stops.

    Attributes:
        step: The step.
        lifecycle: The state of the skill's own lifecycle that it ran in; empty where the contract has none.
        field: The field that it is about; empty where it is about none.
        rule: What must hold.
        expected: What would have been right.
        actual: What came.
    """

    def __init__(
        self, step: str, lifecycle: str, field: str, rule: str, *, expected: str = "", actual: str = ""
    ) -> None:
        self.step = step
        self.lifecycle = lifecycle
        self.field = field
        self.rule = rule
        self.expected = expected
        self.actual = actual
        where = f" in {lifecycle!r}" if lifecycle else ""
        about = f", field {field!r}" if field else ""
        compared = "; ".join(f"{word} {said}" for word, said in (("expected", expected), ("got", actual)) if said)
        super().__init__(f"step {step!r}{where}{about}: {rule}{f' ({compared})' if compared else ''}")


class UnauthorizedReadError(ContractError):
    """A step read a field that it does not declare. Raised where it reads; whoever catches it stops the task too."""


class UnauthorizedWriteError(ContractError):
    """A step wrote a field that it does not declare, that nobody but the orchestrator writes, or in place."""


class PatchError(ContractError):
    """What a step wrote does not fit the type of the state."""


class RequirementError(ContractError):
    """What a step requires does not hold; the step was not executed."""


class InvariantError(ContractError):
    """The state breaks a rule that always holds, or would break it with what a step wrote."""


class IllegalMoveError(ContractError):
    """The contract has no such move, the step does not declare it, or no step takes over there."""


class AdapterError(ContractError):
    """The output of an adapted stage is not what the field it stands for needs."""


class CommandError(RefoldError):
    """A command failed for good. Raised at the `await` that asked for it; a step may catch it and go on.

    Attributes:
        id: The author's id of the command.
        invocation_id: The command's own id.
        failure: What went wrong, classified.
        beside: The ids of other commands whose failures came at the same `await`, which raises only the first.
    """

    def __init__(self, id: str, invocation_id: str, failure: Failure) -> None:
        self.id = id
        self.invocation_id = invocation_id
        self.failure = failure
        self.beside: tuple[str, ...] = ()
        super().__init__(f"{id}: {failure.message}")

    @property
    def failed_ids(self) -> tuple[str, ...]:
        """The ids of all commands that failed at that `await`, this one first."""
        return (self.invocation_id, *self.beside)


def first_of(results: Iterable[object]) -> CommandError | None:
    """The first failure among the results of one `await`, which names the others as `beside`; None without any."""
    failed = [one for one in results if isinstance(one, CommandError)]
    for first in failed[:1]:
        first.beside = tuple(dict.fromkeys([*first.beside, *(id for one in failed[1:] for id in one.failed_ids)]))
    return failed[0] if failed else None


class DecodeError(CommandError):
    """A value does not fit the type that was asked for."""


def describe(error: BaseException) -> str:
    """An exception's type and text, the same in each process, as a journal can keep them. Never raises."""
    return f"{type(error).__name__}: {text_of(error)}"


TEXTS: dict[type[BaseException], Callable[[Any], str]] = {}
"""The texts, by type, of exceptions whose own text misleads the author of a skill. An engine adds its own."""


def text_of(error: BaseException) -> str:
    """An exception's text, as a journal can keep it. Never raises."""
    try:
        return plain(TEXTS.get(type(error), str)(error))
    except BaseException as worse:  # noqa: BLE001 - whatever an author's `__str__` does, the first error is to be told
        return f"its text cannot be read, for __str__ raised {type(worse).__name__}"


def shown(value: object) -> str:
    """A value and its type, for an error that says what came. Never raises."""
    return f"{brief(value, 100)} ({type(value).__name__})"


def brief(value: object, longest: int = 200) -> str:
    """The beginning of a value's `repr`, as a journal can keep it: the same in each process. Never raises."""
    try:
        return f"a {type(value).__name__} that holds a set" if has_set(value) else plain(repr(value)[:longest])
    except BaseException as worse:  # noqa: BLE001 - as in `describe`
        return f"what cannot be shown, for __repr__ raised {type(worse).__name__}"


def plain(said: str) -> str:
    """A text as a journal can keep it: without addresses in memory, which differ from process to process."""
    return text(_ADDRESS.sub("", said))
