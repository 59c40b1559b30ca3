"""What can happen to a task: facts, in the past tense. They are all that ever changes it.

A result carries the author's `id` of the command it answers, for `match`, and its `invocation_id`, which is unique.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, JsonValue, TypeAdapter

from refold.core.chat import Reply, Usage
from refold.core.commands import CallActivity, CallChat, CallLlm, CallSkill, CallTool, CallWorkflow, Notify, Sleep
from refold.core.content import Artifact, Content
from refold.core.gates import DecisionMade
from refold.core.retry import Failure, FailureKind
from refold.core.values import Name, Remark, Value, encodable, lean, text, unreadable
from refold.core.waits import Wait


class UserMessage(Value):
    """A person, or another agent, said something: the first message starts the task, later ones answer it.

    Attributes:
        content: What was said.
        slot: The wait it answers; None answers the only one there is. The skill is always told it.
        gate: The wait's own id, where the sender knows it: an answer to an older question is then not taken for one
            to this. The skill is always told it.
        delivery_id: The sender's id of this delivery; a second message with the same one is not taken again.
        sender: Who said it, as far as the gateway knows.
        message_id: The sender's own id of the message; two messages may have the same one.
        early: Where nothing waits for it yet, it is kept for the next question that it answers, and not refused.
    """

    kind: Literal["user_message"] = "user_message"
    content: Content
    slot: Name | None = lean()
    gate: Name | None = lean()
    delivery_id: Name | None = lean()
    sender: Name | None = lean()
    message_id: Name | None = lean()
    early: bool = lean(False)


class _Result(Value):
    answers: ClassVar[type[Value]]
    """The command that comes back as this."""

    id: str
    invocation_id: str


class LlmOutcome(Value):
    """What a model call came to, as it leaves the process that made it."""

    value: JsonValue
    model: str = lean("")
    usage: Usage | None = lean()


class LlmResult(_Result):
    """A model answered. `value` is text, or JSON where the command named a type to `expect`."""

    answers = CallLlm

    kind: Literal["llm_result"] = "llm_result"
    value: JsonValue
    model: str = lean("")
    usage: Usage | None = lean()


class ChatResult(_Result):
    """A model replied, in a conversation."""

    answers = CallChat

    kind: Literal["chat_result"] = "chat_result"
    reply: Reply

    @property
    def value(self) -> JsonValue:
        """The reply as data, as every result has it."""
        return self.reply.model_dump(mode="json")


class ToolResult(_Result):
    """A tool returned `value`, as JSON."""

    answers = CallTool

    kind: Literal["tool_result"] = "tool_result"
    value: JsonValue = lean()


class SkillOutcome(Value):
    """What another skill's task came to.

    Attributes:
        task_id: The task's id.
        text: The last thing it said.
        artifacts: What it handed over.
    """

    task_id: str
    text: str = lean("")
    artifacts: tuple[Artifact, ...] = lean(())


class SkillResult(_Result):
    """Another skill, run as a task of its own, completed."""

    answers = CallSkill

    kind: Literal["skill_result"] = "skill_result"
    outcome: SkillOutcome

    @property
    def value(self) -> JsonValue:
        """The outcome as data, as every result has it."""
        return self.outcome.model_dump(mode="json")


class ActivityResult(_Result):
    """An existing Temporal activity returned `value`, as JSON."""

    answers = CallActivity

    kind: Literal["activity_result"] = "activity_result"
    value: JsonValue = lean()


class WorkflowResult(_Result):
    """An existing Temporal workflow, run as a child, returned `value`, as JSON."""

    answers = CallWorkflow

    kind: Literal["workflow_result"] = "workflow_result"
    value: JsonValue = lean()


class TimerFired(_Result):
    """A `Sleep` is over."""

    answers = Sleep

    kind: Literal["timer_fired"] = "timer_fired"

    @property
    def value(self) -> JsonValue:
        """A sleep has no result."""
        return None


class CommandFailed(_Result):
    """A command failed. The skill hears of it only when no retry is left."""

    kind: Literal["command_failed"] = "command_failed"
    failure: Failure


class BackoffOver(Value):
    """The wait before a command's next try is over. The skill never hears of it."""

    kind: Literal["backoff_over"] = "backoff_over"
    invocation_id: str
    retry: int


class ChildAsked(Value):
    """A part of the task, which is a task of its own, asks; or has its answer. The skill never hears of it.

    Attributes:
        invocation_id: The part.
        waits: All its open questions now; empty where it waits for nothing.
    """

    kind: Literal["child_asked"] = "child_asked"
    invocation_id: Name
    waits: tuple[Wait, ...] = lean(())


class Notified(_Result):
    """The people who can decide were reminded. The skill never hears of it."""

    answers = Notify

    kind: Literal["notified"] = "notified"

    @property
    def value(self) -> JsonValue:
        """A reminder has no result."""
        return None


class ReminderDue(Value):
    """A gate has been open for so long that people are reminded. The skill never hears of it."""

    kind: Literal["reminder_due"] = "reminder_due"
    gate: str


class GateTimedOut(Value):
    """Nobody decided at a gate in time."""

    kind: Literal["gate_timed_out"] = "gate_timed_out"
    gate: str


class GraceOver(Value):
    """The time for a late grant is over."""

    kind: Literal["grace_over"] = "grace_over"
    gate: str


class DependencyResolved(Value):
    """An operator says how it goes on with a blocked command. The skill hears of the outcome only.

    Attributes:
        invocation_id: The command; None where only one is blocked.
        retry: Perform it again: the effect did not take place, or may be repeated.
        outcome: Its result, as JSON, where `retry` is false: the effect took place.
        by: Who says so.
        comment: Why.
    """

    kind: Literal["dependency_resolved"] = "dependency_resolved"
    invocation_id: Name | None = lean()
    retry: bool = lean(False)
    outcome: JsonValue = lean()
    by: Name | None = lean()
    comment: Remark = lean("")


class Recovered(Value):
    """The task goes on from where another one failed.

    Attributes:
        task_id: The one that failed.
        again: The event that a bug in the skill met, delivered once more; None where it is not to be.
        by: Who wants it.
    """

    kind: Literal["recovered"] = "recovered"
    task_id: str
    again: dict[str, JsonValue] | None = lean()
    by: str | None = lean()


class Forked(Value):
    """The task branches off from another one.

    Attributes:
        task_id: The other one.
        seq: Its entry that this one goes on from.
        live: Effects take place; otherwise each fails as `DryRun`.
        by: Who wants it.
    """

    kind: Literal["forked"] = "forked"
    task_id: str
    seq: int
    live: bool = lean(False)
    by: str | None = lean()


class CancelRequested(Value):
    """Somebody wants the task to stop."""

    kind: Literal["cancel_requested"] = "cancel_requested"
    reason: str = lean("")
    by: str | None = lean()


class Unreadable(Value):
    """Something was sent that no task can read, or that none takes. It is always refused.

    Attributes:
        sent_as: How it was sent: the name of a signal, or `start`.
        why: What came, in short, and what was expected.
    """

    kind: Literal["unreadable"] = "unreadable"
    sent_as: str
    why: str


Result = LlmResult | ChatResult | ToolResult | SkillResult | ActivityResult | WorkflowResult | TimerFired | Notified
RESULT_TYPES: tuple[type[Result], ...] = get_args(Result)
Event = Annotated[
    Result
    | CommandFailed
    | UserMessage
    | DecisionMade
    | ReminderDue
    | GateTimedOut
    | GraceOver
    | DependencyResolved
    | Recovered
    | Forked
    | BackoffOver
    | ChildAsked
    | CancelRequested
    | Unreadable,
    Field(discriminator="kind"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def admitted(event: Event) -> Event:
    """An event as a task can keep it: written to JSON and read again, it is the same.

    A result that nobody could read back is a failure of its command. Any other event of that kind `refusal` refuses.
    """
    kept = encodable(event)
    if kept is event or not isinstance(event, _Result) or not (why := unreadable(event)):
        return kept
    ids = {"id": text(event.id), "invocation_id": text(event.invocation_id)}
    if isinstance(event, CommandFailed):
        return CommandFailed(**ids, failure=event.failure.model_copy(update={"details": None}))
    message = f"its result {why}, which a task cannot keep"
    return CommandFailed(**ids, failure=Failure(kind=FailureKind.PERMANENT, type="result", message=message))
