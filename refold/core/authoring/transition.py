"""What a skill returns for an event: the next state, commands, messages and artifacts.

A transition is a value. Each chained method returns a new transition:

    Transition.to(Drafting(order=order)).cmd(Cmd.llm("draft", prompt)).message("One moment.")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold.core.authoring.cmd import Cmd
from refold.core.authoring.cmd import admitted as asked
from refold.core.commands import AskApproval, AskUser, Command, EmitArtifact, EmitMessage
from refold.core.content import Artifact, Content, admitted, as_content
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.errors import SkillError, describe, shown
from refold.core.gates import GatePolicy
from refold.core.lifecycle import Ending
from refold.core.values import text

UNCHANGED: Any = object()
"""The `state` of a transition that does not change the state."""

PATCH_REFUSED = "refold.patch_refused"
"""The patch with which `.patch(...)` without a contract fails the task; earlier releases ignored the changes."""


class StatePatch:
    """Fields of the state and their new values, checked against the contract before any of them is merged.

    A step returns a patch, alone or with `Transition.patch`. The value None clears a field.

    Attributes:
        fields: The new values, by field.
    """

    __slots__ = ("fields",)

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StatePatch) and self.fields == other.fields

    __hash__ = None  # type: ignore[assignment]  # the values may be mutable

    def __repr__(self) -> str:
        return f"StatePatch({', '.join(f'{name}={value!r}' for name, value in self.fields.items())})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goto:
    """The step to enter next, and its arguments."""

    step: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What a skill answers to one event. Begin with a static method such as `Transition.to`, then chain.

    Each method copies its arguments, so that later changes to a content or an artifact change no message. Half a
    surrogate pair in a text is replaced by U+FFFD.

    Attributes:
        state: The next state; `UNCHANGED` leaves the state as it is.
        ending: How the task ends with this transition; None if it continues.
        reason: Why the task failed or was rejected.
        commands: New commands, in order, questions and gates among them.
        messages: New messages, in order.
        artifacts: New artifacts, in order.
        progress: The progress in one line, for people; None leaves the line as it is.
        ignored: The skill ignores this event.
        enters: The step to enter next (set by `goto`).
        resume: The payload for the step that receives the awaited reply (set by `Ctx.await_input`).
        withdraws: Ids of questions and commands that lost a race, or whose await is over (set by the step styles).
        forgets: The skill reads no receipt recorded so far again (set by the styles).
        uncaught: The error that ends the task, such as a command's failure (set by the step styles).
        writes: Changes to the state of the skill's contract (set by `patch`).
        audit: The audit of each step that ended (set by skills with a contract).

    Raises:
        SkillError: An argument of a method does not fit; the message says what was given and what to write.
    """

    state: Any = UNCHANGED
    ending: Ending | None = None
    reason: str = ""
    commands: tuple[Command, ...] = ()
    messages: tuple[Content, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    progress: str | None = None
    ignored: bool = False
    enters: Goto | None = field(default=None, init=False)
    resume: dict[str, Any] | None = field(default=None, init=False)
    withdraws: tuple[str, ...] = field(default=(), init=False)
    forgets: bool = field(default=False, init=False)
    uncaught: BaseException | None = field(default=None, init=False)
    writes: StatePatch | None = field(default=None, init=False)
    audit: tuple[StateTransitionEvent, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        """Check fields that an author sets without the methods, as the methods do."""
        if self.ending is not None and not isinstance(self.ending, Ending):
            raise SkillError(f"ending must be an Ending, not {shown(self.ending)}; write `Transition.complete(...)`")
        if self.reason:
            object.__setattr__(self, "reason", _reason("fail", self.reason))
        if self.progress is not None:
            object.__setattr__(self, "progress", _line(self.progress))
        if self.commands or self.messages or self.artifacts:
            vars(self).update(
                commands=tuple(map(asked, several("commands", self.commands))),
                messages=tuple(map(as_content, several("messages", self.messages))),
                artifacts=tuple(map(_handed_over, several("artifacts", self.artifacts))),
            )

    # --- the next state, or the end

    @staticmethod
    def to(state: Any) -> Transition:
        """Make `state` the next state."""
        return altered(NOTHING, state=state)

    @staticmethod
    def ignore(state: Any = UNCHANGED) -> Transition:
        """Ignore the event. Ignoring a command's failure fails the task."""
        return altered(NOTHING, state=state, ignored=True)

    @staticmethod
    def complete(state: Any = UNCHANGED) -> Transition:
        """Complete the task."""
        return altered(NOTHING, state=state, ending=Ending.COMPLETED)

    @staticmethod
    def fail(reason: str | BaseException, state: Any = UNCHANGED) -> Transition:
        """Fail the task. The reason is a text that is not empty, or an exception, recorded as its type and text."""
        return altered(NOTHING, state=state, ending=Ending.FAILED, reason=_reason("fail", reason))

    @staticmethod
    def reject(reason: str | BaseException, state: Any = UNCHANGED) -> Transition:
        """Reject the task, in answer to its first message only. The reason is as in `fail`."""
        return altered(NOTHING, state=state, ending=Ending.REJECTED, reason=_reason("reject", reason))

    @staticmethod
    def await_input(
        slot: str, message: str | Content, state: Any = UNCHANGED, *, expect: Any = None, timeout_s: float | None = None
    ) -> Transition:
        """Ask the user, and wait in `state` for the reply. See `AskUser`.

        If the question times out, `CommandFailed` is delivered instead, with the slot as its id.
        """
        return altered(NOTHING, state=state).cmd(Cmd.ask_user(slot, message, expect=expect, timeout_s=timeout_s))

    @staticmethod
    def await_approval(
        slot: str,
        message: str | Content,
        state: Any = UNCHANGED,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
    ) -> Transition:
        """Wait in `state` for a person's decision, which comes as `DecisionMade`. See `AskApproval`."""
        gate = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return altered(NOTHING, state=state).cmd(gate)

    @staticmethod
    def goto(step: str, /, **payload: Any) -> Transition:
        """Enter `step` with these arguments, at once (step styles only).

        Chained with `.cmd(...)`, the step is entered when all these commands have completed. Each result is passed to
        the step's parameter that is named like the command's id.
        """
        if not isinstance(step, str):
            raise SkillError(f'goto takes a step\'s name, not {shown(step)}; write `goto("name", ...)`')
        return altered(NOTHING, enters=Goto(step=step, payload=payload))

    # --- commands, messages, artifacts

    def cmd(self, command: Command | EmitMessage | EmitArtifact) -> Transition:
        """Add a command. All commands of a transition run at the same time."""
        match command:
            case EmitMessage():
                return self.message(command.content)
            case EmitArtifact():
                return self.artifact(command.artifact)
            case _:
                return altered(self, commands=(*self.commands, asked(command)))

    def message(self, content: str | Content) -> Transition:
        """Add a message to the user."""
        return altered(self, messages=(*self.messages, as_content(content)))

    def artifact(self, artifact: Artifact) -> Transition:
        """Add an artifact."""
        return altered(self, artifacts=(*self.artifacts, _handed_over(artifact)))

    def patch(self, patch: StatePatch | None = None, /, **fields: Any) -> Transition:
        """Change these fields of the state, as the step's contract allows: `ctx.goto("act").patch(thought=thought)`."""
        if patch is not None and not isinstance(patch, StatePatch):
            raise SkillError(f"patch takes a StatePatch, or fields by name, not {shown(patch)}; `.patch(name=value)`")
        earlier = {} if self.writes is None else self.writes.fields
        given = {} if patch is None else patch.fields
        return altered(self, writes=StatePatch(**{**earlier, **given, **fields}))

    def status(self, progress: str) -> Transition:
        """Set the progress, one line that clients show beside the status."""
        return altered(self, progress=_line(progress))

    @property
    def waits(self) -> tuple[AskUser | AskApproval, ...]:
        """The questions and gates among the commands."""
        return tuple(command for command in self.commands if isinstance(command, AskUser | AskApproval))

    def after(self, first: Transition) -> Transition:
        """This transition with the messages and artifacts of `first` before its own."""
        if not (first.messages or first.artifacts or first.progress is not None):
            return self
        return altered(
            self,
            messages=(*first.messages, *self.messages),
            artifacts=(*first.artifacts, *self.artifacts),
            progress=first.progress if self.progress is None else self.progress,
        )

    if not TYPE_CHECKING:  # a type checker finds the mistake by itself

        def __await__(self):
            raise SkillError("a transition is returned, not awaited: write `return ctx.goto(...)`, without `await`")


def altered(transition: Transition, **values: Any) -> Transition:
    """A copy with other fields, internal ones included. The caller has checked the values."""
    made = object.__new__(Transition)
    vars(made).update(vars(transition), **values)
    return made


def several(what: str, given: Any) -> Iterable[Any]:
    """`given`, the author's value of the argument `what`.

    Raises:
        SkillError: It is no list or tuple.
    """
    if isinstance(given, list | tuple):
        return given
    raise SkillError(f"{what} must be a list or tuple, not {shown(given)}; write `{what}=[...]`")


def _reason(method: str, reason: object) -> str:
    if isinstance(reason, BaseException):
        return describe(reason).removesuffix(": ")
    if isinstance(reason, str) and reason.strip():
        return text(reason)
    raise SkillError(
        f"{method} takes the reason as a text, or an exception, not {shown(reason)}; say why, for whoever started the "
        f'task: `{method}("no price for this item")`'
    )


def _line(progress: object) -> str:
    if isinstance(progress, str):
        return text(progress)
    raise SkillError(f'status takes one line of text, not {shown(progress)}; write `status(f"{{...}}")`')


def _handed_over(artifact: Any) -> Artifact:
    return admitted(artifact, Artifact, "an artifact", "write `Artifact.from_text(name, text)`, or `.from_data(...)`")


NOTHING = Transition()
"""The transition without any change."""
