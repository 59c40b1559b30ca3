"""What a skill returns for an event: the next state, and what it asks for, says and hands over.

A transition is a value. Each method of the chain returns a new one:

    Transition.to(Drafting(order=order)).cmd(Cmd.llm("draft", prompt)).message("One moment.")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from refold.core.authoring.patch import StatePatch
from refold.core.commands import AskApproval, AskUser, Cmd, Command, EmitArtifact, EmitMessage
from refold.core.commands import admitted as asked
from refold.core.content import Artifact, Content, admitted, as_content
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.errors import SkillError, describe, shown
from refold.core.gates import GatePolicy
from refold.core.lifecycle import Ending
from refold.core.values import text


class _Unchanged:
    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Any = _Unchanged()
"""The state stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goto:
    """The step to enter next, and the arguments it is entered with."""

    step: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Transition:
    """What follows from one event. Write it with the class methods, then chain.

    Each method takes what it is given as JSON could hold it, and copies it: what an author changes later in a content
    or an artifact does not change what was said. Text that ends in half a surrogate pair gets U+FFFD in its place.

    Attributes:
        state: The next state; `UNCHANGED` keeps the one there is.
        ending: How the task ends with this transition; None goes on.
        reason: Why it failed or was rejected.
        commands: What is asked for, in order; waits for the user are among them.
        messages: What is said, in order.
        artifacts: What is handed over, in order.
        progress: One line for people on what is going on; None leaves the line as it is.
        ignored: The skill has no use for this event.
        enters: The step to enter next (set by `goto`).
        resume: The payload that the awaited reply's step gets (set by `Ctx.await_input`).
        withdraws: Ids of questions and commands that are not wanted any more (set by the step styles).
        forgets: The receipts kept so far are not needed any more (set by the styles).
        uncaught: What ends the task: a command's failure, or whatever else nobody caught (set by the step styles).
        writes: What changes in the state of the skill's contract (set by `patch`).
        audit: What became of each step that ended (set by skills with a contract).

    Raises:
        SkillError: A method is given what it does not take; the message says what came and what to write.
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
        """Check what an author gives without the methods, as the methods do."""
        if self.ending is not None and not isinstance(self.ending, Ending):
            raise SkillError(f"ending must be an Ending, not {shown(self.ending)}; write `Transition.complete(...)`")
        if self.reason:
            object.__setattr__(self, "reason", _reason("fail", self.reason))
        if self.progress is not None:
            object.__setattr__(self, "progress", _line(self.progress))
        if self.commands or self.messages or self.artifacts:
            vars(self).update(
                commands=tuple(map(asked, several("commands", self.commands))),
                messages=tuple(map(_said, several("messages", self.messages))),
                artifacts=tuple(map(_handed_over, several("artifacts", self.artifacts))),
            )

    # --- how it goes on

    @staticmethod
    def to(state: Any) -> Transition:
        """Go to `state`."""
        return altered(NOTHING, state=state)

    @staticmethod
    def ignore(state: Any = UNCHANGED) -> Transition:
        """This event means nothing here."""
        return altered(NOTHING, state=state, ignored=True)

    @staticmethod
    def complete(state: Any = UNCHANGED) -> Transition:
        """The task is done."""
        return altered(NOTHING, state=state, ending=Ending.COMPLETED)

    @staticmethod
    def fail(reason: str | BaseException, state: Any = UNCHANGED) -> Transition:
        """The task has failed, for this reason: a text that is not empty, or an exception, which is told by its type
        and text.
        """
        return altered(NOTHING, state=state, ending=Ending.FAILED, reason=_reason("fail", reason))

    @staticmethod
    def reject(reason: str | BaseException, state: Any = UNCHANGED) -> Transition:
        """The skill declines the task, for a reason as in `fail`. Only in answer to the first message."""
        return altered(NOTHING, state=state, ending=Ending.REJECTED, reason=_reason("reject", reason))

    @staticmethod
    def await_input(
        slot: str,
        message: str | Content,
        state: Any = UNCHANGED,
        *,
        expect: Any = None,
        timeout_s: float | None = None,
    ) -> Transition:
        """Ask the user, and wait in `state` for the reply.

        Args:
            slot: The wait's name, unique among the open ones.
            message: What is asked.
            state: Where the reply is met.
            expect: A class at module level that the reply must fit; a reply that does not is refused.
            timeout_s: Seconds until `CommandFailed` comes instead, with the slot as its id; None waits for ever.
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
        """Wait in `state` for a person's decision, which comes as `DecisionMade`.

        Args:
            slot: The gate's name, unique among the open ones.
            message: What is asked.
            state: Where the decision is met.
            show: What is decided on, as data.
            policy: Who decides, and how long they have.
            editable: What of it whoever grants may change, or add: keys of `show`.
        """
        gate = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return altered(NOTHING, state=state).cmd(gate)

    @staticmethod
    def goto(step: str, /, **payload: Any) -> Transition:
        """Enter `step` with these arguments, at once (step styles only).

        Chained with `.cmd(...)`, the step is entered when all those commands have come back; each result goes to
        the step's parameter that is named as the command's id.
        """
        if not isinstance(step, str):
            raise SkillError(f'goto takes a step\'s name, not {shown(step)}; write `goto("name", ...)`')
        return altered(NOTHING, enters=Goto(step=step, payload=payload))

    # --- what it asks for, says and hands over

    def cmd(self, command: Command | EmitMessage | EmitArtifact) -> Transition:
        """Ask for something; several in one transition run at the same time."""
        match command:
            case EmitMessage():
                return self.message(command.content)
            case EmitArtifact():
                return self.artifact(command.artifact)
            case _:
                return altered(self, commands=(*self.commands, asked(command)))

    def message(self, content: str | Content) -> Transition:
        """Say something to the user."""
        return altered(self, messages=(*self.messages, _said(content)))

    def artifact(self, artifact: Artifact) -> Transition:
        """Hand over a result."""
        return altered(self, artifacts=(*self.artifacts, _handed_over(artifact)))

    def patch(self, patch: StatePatch | None = None, /, **fields: Any) -> Transition:
        """Change these fields of the state, as the step's contract allows: `ctx.goto("act").patch(thought=thought)`."""
        if patch is not None and not isinstance(patch, StatePatch):
            raise SkillError(f"patch takes a StatePatch, or fields by name, not {shown(patch)}; `.patch(name=value)`")
        earlier = {} if self.writes is None else self.writes.fields
        given = {} if patch is None else patch.fields
        return altered(self, writes=StatePatch(**{**earlier, **given, **fields}))

    def status(self, progress: str) -> Transition:
        """Say in one line what is going on; it is shown beside the status."""
        return altered(self, progress=_line(progress))

    @property
    def waits(self) -> tuple[AskUser | AskApproval, ...]:
        """The questions and gates among the commands."""
        return tuple(command for command in self.commands if isinstance(command, AskUser | AskApproval))

    def after(self, first: Transition) -> Transition:
        """This transition, with what `first` says in front of what it says itself."""
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
    """A copy with other fields, those of the engine among them, unchecked: whoever calls this has checked them."""
    made = object.__new__(Transition)
    vars(made).update(vars(transition), **values)
    return made


def several(what: str, given: Any) -> Iterable[Any]:
    """What an author gives as several things.

    Raises:
        SkillError: It is one thing only.
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


def _said(content: Any) -> Content:
    return as_content(content, "a message")


def _handed_over(artifact: Any) -> Artifact:
    return admitted(artifact, Artifact, "an artifact", "write `Artifact.from_text(name, text)`, or `.from_data(...)`")


NOTHING = Transition()
"""Nothing is said, asked for or changed."""
