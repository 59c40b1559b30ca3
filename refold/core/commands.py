"""The commands that a skill can send, named in the imperative. Each comes back as one event with the same `id`.

| command        | comes back as                     |
| -------------- | --------------------------------- |
| `CallLlm`      | `LlmResult`, `CommandFailed`      |
| `CallChat`     | `ChatResult`, `CommandFailed`     |
| `CallTool`     | `ToolResult`, `CommandFailed`     |
| `CallSkill`    | `SkillResult`, `CommandFailed`    |
| `CallActivity` | `ActivityResult`, `CommandFailed` |
| `CallWorkflow` | `WorkflowResult`, `CommandFailed` |
| `Sleep`        | `TimerFired`                      |
| `AskUser`      | `UserMessage` with its `slot`     |
| `AskApproval`  | `DecisionMade` with its `slot`    |

`authoring.cmd.Cmd` is the short way to make them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, MinLen
from pydantic import AwareDatetime, Field, JsonValue, TypeAdapter, model_validator

from refold.core.chat import Frame, Said, text_hash
from refold.core.content import Artifact, Content
from refold.core.gates import GatePolicy, digest_of
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import Schema
from refold.core.values import Name, Names, Patience, Seconds, Value, lean


class EffectPolicy(StrEnum):
    """What refold does when it is not known whether a tool's effect took place. Each tool declares its policy."""

    READ_ONLY = "read_only"
    """The tool changes nothing; the call may be repeated."""
    IDEMPOTENT = "idempotent"
    """The receiver knows the idempotency key; a repetition changes nothing."""
    AT_LEAST_ONCE = "at_least_once"
    """A repetition does no harm that matters; the receiver may see it twice."""
    AT_MOST_ONCE = "at_most_once"
    """Not repeated if the outcome is unknown: a probe finds it out, or a person decides."""
    COMPENSATE = "compensate"
    """As `AT_MOST_ONCE`, and compensated by another tool when the task fails or is canceled."""


class _Command(Value):
    subject_field: ClassVar[str] = "id"

    id: Annotated[Name, MinLen(1)]

    @property
    def subject(self) -> str:
        """The name of the tool, skill, activity or workflow; for other commands the author's id."""
        return str(self.__dict__[self.subject_field])


class CallLlm(_Command):
    """Ask a model.

    Attributes:
        id: The author's name of the call, for example `research`.
        prompt: The instructions.
        input: The content that the prompt is about; None if the prompt says all.
        model: `provider:name`; None takes the worker's setting.
        fallbacks: The models that are asked in turn where the one before fails; see `failures.moves_on`.
        expect: The type the answer must fit; None is plain text.
        settings: Passed on to the provider, for example `{"temperature": 0}`.
        retry: When a transient failure is retried; None takes the skill's policy.
        queue: The task queue of the workers that perform the call; None is the task's own.
    """

    kind: Literal["llm"] = "llm"
    prompt: str = lean("")
    input: Content | None = lean()
    model: str | None = lean()
    fallbacks: tuple[str, ...] = lean(())
    expect: Schema | None = lean()
    settings: dict[str, JsonValue] = lean(factory=dict)
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()


class CallChat(_Command):
    """Continue a conversation: add turns to a thread, and wait for the model's reply.

    Attributes:
        thread: The conversation's name; only one call at a time can be open in a thread.
        say: The new turns, in order.
        frame: Instructions, tools and settings; None if they are those of the thread's previous call.
        since: How many of the oldest turns are not sent to the model. They stay in the thread.
        fallbacks, retry, queue: As in `CallLlm`.
    """

    kind: Literal["chat"] = "chat"
    thread: Annotated[str, MinLen(1)] = lean("main")
    say: tuple[Said, ...] = lean(())
    frame: Frame | None = lean()
    since: Annotated[int, Ge(0)] = lean(0)
    fallbacks: tuple[str, ...] = lean(())
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()


class Undo(Value):
    """How a tool's effect is compensated.

    Attributes:
        name: The tool that compensates the effect.
        takes: The compensating tool's parameters: names of the effect's arguments, and `result` for its result.
    """

    name: str
    takes: tuple[str, ...] = lean(())


KeyScope = Literal["owner", "all"]
"""Whose tasks share a business key: those of the task's owner, or all tasks of the namespace."""


class Undoes(Value):
    """The effect that a call compensates. The ledger then allows the effect to be performed again under its key.

    Attributes:
        tool: The tool of the effect.
        invocation_id: The id of the effect's command.
        key: The effect's business key; None if it has none.
        key_scope: Whose tasks share the key.
        result: The hash of the effect's result.
    """

    tool: str
    invocation_id: str
    key: str | None = lean()
    key_scope: KeyScope = lean("owner")
    result: str


class CallTool(_Command):
    """Call a registered tool by its name.

    Attributes:
        name: The tool's name.
        args: Its arguments by name, as JSON.
        key: A business key such as `refund:A1`, used instead of the invocation id to recognise the same effect.
        key_scope: Whose tasks share the key: those of the task's owner, or all tasks of the namespace.
        retry, queue: As in `CallLlm`.
        undo: How the effect is compensated if the task does not complete.
        undoes: The effect that this call compensates. Set by the fold, never by a skill.
    """

    subject_field = "name"

    kind: Literal["tool"] = "tool"
    name: str
    undo: Undo | None = lean()
    args: dict[str, JsonValue] = lean(factory=dict)
    key: str | None = lean()
    key_scope: KeyScope = lean("owner")
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()
    undoes: Undoes | None = lean()


_Count = Annotated[int, Field(strict=True, gt=0)]


class PartBudget(Value):
    """What a part may spend in calls of its own; at least one limit.

    Attributes:
        tokens: Input and output together.
        usd: In US dollars.
        model_calls: Model calls.
        tool_calls: Tool calls.
    """

    tokens: _Count | None = lean()
    usd: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = lean()
    model_calls: _Count | None = lean()
    tool_calls: _Count | None = lean()

    @model_validator(mode="after")
    def _bounds_something(self) -> Self:
        if not any(limit is not None for _, limit in self):
            raise ValueError(f"a budget of nothing bounds nothing; give {', '.join(type(self).model_fields)}")
        return self


class CallSkill(_Command):
    """Run another skill as a task of its own and wait for it.

    Attributes:
        queue: The task queue of the workers that serve the skill; None is the task's own.
        timeout_s: Seconds until it is canceled, and the call fails with the type `timeout`; None waits for ever.
        budget: What its task may spend, if the skill is an agent; other skills refuse it.
    """

    subject_field = "skill"

    kind: Literal["skill"] = "skill"
    skill: str
    input: Content
    queue: str | None = lean()
    timeout_s: Patience | None = lean()
    budget: PartBudget | None = lean()


class CallActivity(_Command):
    """Run an existing Temporal activity, by name.

    Attributes:
        args: Positional arguments, as JSON.
        timeout_s: Start-to-close, in seconds.
        retry, queue: As in `CallLlm`.
    """

    subject_field = "name"

    kind: Literal["activity"] = "activity"
    name: str
    args: tuple[JsonValue, ...] = lean(())
    timeout_s: Annotated[Seconds, Gt(0)] = lean(600.0)
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()


class CallWorkflow(_Command):
    """Run an existing Temporal workflow as a child, by name."""

    subject_field = "name"

    kind: Literal["workflow"] = "workflow"
    name: str
    args: tuple[JsonValue, ...] = lean(())
    queue: str | None = lean()


class Sleep(_Command):
    """Wait, durably, for a number of seconds, at most a hundred years."""

    kind: Literal["sleep"] = "sleep"
    seconds: Seconds


class _Question(_Command):
    @property
    def slot(self) -> str:
        """The name of the question or gate."""
        return self.id


CALLBACK = "refold.callback"
"""The activity that makes the address of a callback; what comes to such an address names its slot so, too."""


CALLED = f"{CALLBACK} "
"""How the delivery id of a call to the address of a callback begins."""


class Callback(Value):
    """An address that answers one question, once, whoever calls it. Comes back from `Cmd.callback`.

    Attributes:
        url: The address. Whoever knows it can answer the question.
        digest: The hash of what the address holds: only a call to the address fits it.
        until: When the address expires; the question then times out.
    """

    url: str = lean("")
    digest: str
    until: AwareDatetime


class AskUser(_Question):
    """Wait for a message. Its `id` is the slot, unique among open questions.

    Attributes:
        message: The question.
        expect: The type the reply must fit, as other replies are refused; None takes any content.
        raced: Whether the question races with other calls (`ctx.first`): its answer is then delivered at once, although
            other questions are open.
        timeout_s: Seconds until the question times out: it is closed, and a `CommandFailed` is delivered whose failure
            has the type `timeout`. None waits for ever.
        callback: The address that answers the question, instead of a message; without its `url`.
    """

    kind: Literal["ask"] = "ask"
    message: Content
    expect: Schema | None = lean()
    raced: bool = lean(False)
    timeout_s: Patience | None = lean()
    callback: Callback | None = lean()


class AskApproval(_Question):
    """Wait for a decision. Its `id` is the slot, unique among open questions; its gate is its invocation id.

    Attributes:
        message: The question.
        show: The data to decide on: the approver sees it, and a decision is valid for exactly this data.
        policy: Who decides, and within which time.
        editable: Keys of `show`, which is then an object, whose values the approver may change or add; the decision's
            `shown` then has the data as granted.
        raced: As in `AskUser`.
    """

    kind: Literal["approval"] = "approval"
    message: Content
    show: JsonValue = lean()
    policy: GatePolicy = lean(factory=GatePolicy)
    editable: Names = lean(())
    raced: bool = lean(False)

    @property
    def digest(self) -> str:
        """The hash of what a person sees, and of who may decide."""
        return digest_of(self.id, self.show, self.model_dump(mode="json", include={"message", "policy", "editable"}))

    @property
    def former(self) -> str:
        """The digest as earlier releases made it: a decision that was made on one counts as it did."""
        return digest_of(self.id, self.policy.kind.value, self.show)

    def edited(self, changes: Mapping[str, JsonValue]) -> AskApproval:
        """The same gate with changed data, which gives it another digest and so voids earlier decisions."""
        shown = self.show if isinstance(self.show, dict) else {}
        return self.model_copy(update={"show": {**shown, **changes}})


class Notify(_Command):
    """Tell the people who can decide at a gate that it opened, or remind them. Sent by the fold, never by a skill."""

    kind: Literal["notify"] = "notify"
    gate: str
    message: Content
    show: JsonValue = lean()
    approvers: tuple[str, ...] = lean(())
    opened: bool = lean(False)


class EmitMessage(Value):
    """Send a message to the user. Has no result."""

    content: Content


class EmitArtifact(Value):
    """Publish an artifact. Has no result."""

    artifact: Artifact


Question = Annotated[AskUser | AskApproval, Field(discriminator="kind")]
Effect = Annotated[
    CallLlm | CallChat | CallTool | CallSkill | CallActivity | CallWorkflow | Sleep | Notify,
    Field(discriminator="kind"),
]
Command = Annotated[
    CallLlm | CallChat | CallTool | CallSkill | CallActivity | CallWorkflow | Sleep | Notify | AskUser | AskApproval,
    Field(discriminator="kind"),
]
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


def fingerprint(command: Command) -> str:
    """`kind:subject:hash`, equal for equal commands. Compared when a step is driven again."""
    return f"{command.kind}:{command.subject}:{text_hash(command.model_dump_json())[:12]}"


def result_hash(result: JsonValue) -> str:
    """The hash of an effect's result."""
    return text_hash(json.dumps(result, sort_keys=True, separators=(",", ":")))


def fallbacks_of(command: Command) -> tuple[str, ...]:
    """The models that a command may be sent to instead of its own."""
    return command.fallbacks if isinstance(command, CallLlm | CallChat) else ()


NO_RETRY = RetryPolicy.model_construct(max_retries=0)


def retry_of(command: Command, default: RetryPolicy) -> RetryPolicy:
    """The retry policy of a command: its own, else the skill's.

    Child tasks and workflows are never run again: their id is taken, and they retry their own commands.
    """
    match command:
        case CallLlm() | CallChat() | CallTool() | CallActivity():
            return command.retry or default
        case CallSkill() | CallWorkflow() | Sleep() | AskUser() | AskApproval():
            return NO_RETRY
        case Notify():
            return default
