"""The events that change a task, named in the past tense. Nothing else changes a task.

A result has the author's `id` of its command, for `match`, and the command's `invocation_id`, which is unique.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, JsonValue, TypeAdapter

from refold.core.chat import Reply, Usage
from refold.core.commands import (
    CALLBACK,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Notify,
    Sleep,
)
from refold.core.content import Artifact, Content
from refold.core.gates import DecisionMade
from refold.core.retry_policy import Failure, FailureKind
from refold.core.values import Name, Remark, Value, encodable, lean, text, unreadable
from refold.core.waits import Unresolved, Wait

Early = bool | Literal["interrupt"]
"""What a task does with a message that it has not asked for: it refuses it, holds it, or is interrupted by it."""


class UserMessage(Value):
    """A message of a person or another agent: the first starts the task, later ones answer its questions.

    Attributes:
        content: The message's content.
        slot: The name of the question that the message answers; None answers the only open one. Filled by the fold
            before the message is delivered to the skill.
        gate: The id of the question, if the sender knows it, so that a late answer to an older question of the same
            name is refused. Filled by the fold, too.
        delivery_id: The sender's id of this delivery; a second delivery with the same id is refused.
        sender: Who sent the message, as far as the gateway knows.
        message_id: The sender's own id of the message; need not be unique.
        early: If no question is open, store the message for the next question that it answers, instead of refusing it;
            `"interrupt"` does the same, but a step with `on_interrupt` that comes first is interrupted by the message.
    """

    kind: Literal["user_message"] = "user_message"
    content: Content
    slot: Name | None = lean()
    gate: Name | None = lean()
    delivery_id: Name | None = lean()
    sender: Name | None = lean()
    message_id: Name | None = lean()
    early: Early = lean(False)

    @property
    def called_back(self) -> bool:
        """Whether it came to the address of a callback, which `slot` then has."""
        return self.slot is not None and self.slot.startswith(CALLBACK)


class _Result(Value):
    answers: ClassVar[type[Value]]
    """The type of the command whose result this is."""

    id: str
    invocation_id: str


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
    """The outcome of another skill's task.

    Attributes:
        task_id: The task's id.
        text: The text of the task's last message.
        artifacts: The task's artifacts.
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

    value: ClassVar[None] = None

    kind: Literal["timer_fired"] = "timer_fired"


class CommandFailed(_Result):
    """A command failed. Delivered to the skill only when no retry is left."""

    kind: Literal["command_failed"] = "command_failed"
    failure: Failure


class BackoffOver(Value):
    """The wait before a command's next attempt is over. Never delivered to the skill."""

    kind: Literal["backoff_over"] = "backoff_over"
    invocation_id: str
    retry: int


class ChildAsked(Value):
    """What a part, which is a task of its own, waits for people with has changed. Never delivered to the skill.

    Attributes:
        invocation_id: The part's id.
        waits: All open questions of the part.
        unresolved: All commands of the part that only an operator can resolve.
        refused: Why the part refused answers that this task passed on, by the ids of the questions, which are still
            open. A worker of this task may not know the type that a part expects.
    """

    kind: Literal["child_asked"] = "child_asked"
    invocation_id: Name
    waits: tuple[Wait, ...] = lean(())
    unresolved: tuple[Unresolved, ...] = lean(())
    refused: dict[str, str] = lean(factory=dict)


class Notified(_Result):
    """A gate's reminder was sent. Never delivered to the skill."""

    answers = Notify

    value: ClassVar[None] = None

    kind: Literal["notified"] = "notified"


class ReminderDue(Value):
    """A gate's reminder is due. Never delivered to the skill."""

    kind: Literal["reminder_due"] = "reminder_due"
    gate: str


class GateTimedOut(Value):
    """A question or gate timed out."""

    kind: Literal["gate_timed_out"] = "gate_timed_out"
    gate: str


class GraceOver(Value):
    """A gate's grace time, in which a late grant is recorded, is over."""

    kind: Literal["grace_over"] = "grace_over"
    gate: str


class DependencyResolved(Value):
    """An operator decided on a blocked command. Only a stated outcome is delivered to the skill.

    Attributes:
        invocation_id: The command's id; None takes the blocked one.
        retry: Perform the command again: the effect did not take place, or may be repeated.
        outcome: If `retry` is false: the result of the effect, which took place, as JSON.
        by: The operator.
        comment: The operator's reason.
    """

    kind: Literal["dependency_resolved"] = "dependency_resolved"
    invocation_id: Name | None = lean()
    retry: bool = lean(False)
    outcome: JsonValue = lean()
    by: Name | None = lean()
    comment: Remark = lean("")


class Recovered(Value):
    """The task was started to recover a failed one.

    Attributes:
        task_id: The failed task.
        again: The event whose handling ended the failed task, to be delivered once more; None if there is none.
        in_time: `again` is the call to a callback, and came before the address expired, which it has by now. Earlier
            releases did not say so, and such a task's question times out.
        by: Who recovers the task.
    """

    kind: Literal["recovered"] = "recovered"
    task_id: str
    again: dict[str, JsonValue] | None = lean()
    in_time: bool = lean(False)
    by: str | None = lean()


class Forked(Value):
    """The task was started as a fork of another one.

    Attributes:
        task_id: The other task.
        seq: The other task's entry after which this task continues.
        live: Effects take place; otherwise each fails as `DryRun`.
        by: Who made the fork.
    """

    kind: Literal["forked"] = "forked"
    task_id: str
    seq: int
    live: bool = lean(False)
    by: str | None = lean()


CANCELED = "canceled on request"
"""Why a task was canceled, where nobody says why."""


class CancelRequested(Value):
    """A person or client asked to cancel the task."""

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
    """An event that is the same after it was written to JSON and read again.

    A result that could not be read back becomes a failure of its command. `refusal` refuses other such events.
    """
    kept = encodable(event)
    if kept is event or not isinstance(event, _Result) or not (why := unreadable(event)):
        return kept
    ids = {"id": text(event.id), "invocation_id": text(event.invocation_id)}
    if isinstance(event, CommandFailed):
        return CommandFailed(**ids, failure=event.failure.model_copy(update={"details": None}))
    message = f"its result {why}"
    return CommandFailed(**ids, failure=Failure(kind=FailureKind.PERMANENT, type="result", message=message))
