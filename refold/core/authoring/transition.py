"""What a skill returns for an event: the next state, and what it asks for, says and hands over.

A transition is a value. Each method of the chain returns a new one:

    Transition.to(Drafting(order=order)).cmd(Cmd.llm("draft", prompt)).message("One moment.")
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from refold.core.authoring.patch import StatePatch
from refold.core.commands import AskApproval, AskUser, Cmd, Command, EmitArtifact, EmitMessage
from refold.core.content import Artifact, Content, as_content
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.errors import SkillError
from refold.core.gates import GatePolicy
from refold.core.lifecycle import Ending


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What follows from one event. Write it with the class methods, then chain.

    Attributes:
        state: The next state; `UNCHANGED` keeps the one there is.
        enters: The step to enter next (step styles only).
        ending: How the task ends with this transition; None goes on.
        reason: Why it failed or was rejected.
        commands: What is asked for, in order; waits for the user are among them.
        messages: What is said, in order.
        artifacts: What is handed over, in order.
        progress: One line for people on what is going on; None leaves the line as it is.
        ignored: The skill has no use for this event.
        resume: The payload that the awaited reply's step gets (step styles only).
        forgets: The receipts kept so far are not needed any more (set by the styles).
        uncaught: What ends the task: a command's failure, or whatever else nobody caught (set by the step styles).
        writes: What changes in the state of the skill's contract.
        audit: What became of each step that ended (set by skills with a contract).
    """

    state: Any = UNCHANGED
    enters: Goto | None = None
    ending: Ending | None = None
    reason: str = ""
    commands: tuple[Command, ...] = ()
    messages: tuple[Content, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    progress: str | None = None
    ignored: bool = False
    resume: dict[str, Any] | None = None
    forgets: bool = False
    uncaught: BaseException | None = None
    writes: StatePatch | None = None
    audit: tuple[StateTransitionEvent, ...] = ()

    # --- how it goes on

    @staticmethod
    def to(state: Any) -> Transition:
        """Go to `state`."""
        return Transition(state=state)

    @staticmethod
    def ignore(state: Any = UNCHANGED) -> Transition:
        """This event means nothing here."""
        return Transition(state=state, ignored=True)

    @staticmethod
    def complete(state: Any = UNCHANGED) -> Transition:
        """The task is done."""
        return Transition(state=state, ending=Ending.COMPLETED)

    @staticmethod
    def fail(reason: str, state: Any = UNCHANGED) -> Transition:
        """The task has failed, for this reason."""
        return Transition(state=state, ending=Ending.FAILED, reason=reason)

    @staticmethod
    def reject(reason: str, state: Any = UNCHANGED) -> Transition:
        """The skill declines the task. Only in answer to the first message."""
        return Transition(state=state, ending=Ending.REJECTED, reason=reason)

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
        return Transition(state=state).cmd(Cmd.ask_user(slot, message, expect=expect, timeout_s=timeout_s))

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
        asked = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return Transition(state=state).cmd(asked)

    @staticmethod
    def goto(step: str, /, **payload: Any) -> Transition:
        """Enter `step` with these arguments, at once (step styles only).

        Chained with `.cmd(...)`, the step is entered when all those commands have come back; each result goes to
        the step's parameter that is named as the command's id.
        """
        return Transition(enters=Goto(step=step, payload=payload))

    # --- what it asks for, says and hands over

    def cmd(self, command: Command | EmitMessage | EmitArtifact) -> Transition:
        """Ask for something; several in one transition run at the same time."""
        match command:
            case EmitMessage():
                return self.message(command.content)
            case EmitArtifact():
                return self.artifact(command.artifact)
            case _:
                return replace(self, commands=(*self.commands, command))

    def message(self, content: str | Content) -> Transition:
        """Say something to the user."""
        return replace(self, messages=(*self.messages, as_content(content)))

    def artifact(self, artifact: Artifact) -> Transition:
        """Hand over a result."""
        return replace(self, artifacts=(*self.artifacts, artifact))

    def patch(self, patch: StatePatch | None = None, /, **fields: Any) -> Transition:
        """Change these fields of the state, as the step's contract allows: `ctx.goto("act").patch(thought=thought)`."""
        earlier = {} if self.writes is None else self.writes.fields
        given = {} if patch is None else patch.fields
        return replace(self, writes=StatePatch(**{**earlier, **given, **fields}))

    def status(self, progress: str) -> Transition:
        """Say in one line what is going on; it is shown beside the status."""
        return replace(self, progress=progress)

    @property
    def waits(self) -> tuple[AskUser | AskApproval, ...]:
        """The questions and gates among the commands."""
        return tuple(command for command in self.commands if isinstance(command, AskUser | AskApproval))

    def after(self, first: Transition) -> Transition:
        """This transition, with what `first` says in front of what it says itself."""
        if not (first.messages or first.artifacts or first.progress is not None):
            return self
        return replace(
            self,
            messages=(*first.messages, *self.messages),
            artifacts=(*first.artifacts, *self.artifacts),
            progress=first.progress if self.progress is None else self.progress,
        )

    if not TYPE_CHECKING:  # a type checker finds the mistake by itself

        def __await__(self):
            raise SkillError("a transition is returned, not awaited: write `return ctx.goto(...)`, without `await`")
