"""What a skill can ask for: requests, in the imperative. Each comes back as one event with the same `id`.

| command        | comes back as                     |
| -------------- | --------------------------------- |
| `CallLlm`      | `LlmResult`, `CommandFailed`      |
| `CallTool`     | `ToolResult`, `CommandFailed`     |
| `CallSkill`    | `SkillResult`, `CommandFailed`    |
| `CallActivity` | `ActivityResult`, `CommandFailed` |
| `CallWorkflow` | `WorkflowResult`, `CommandFailed` |
| `Sleep`        | `TimerFired`                      |
| `AskUser`      | `UserMessage` with its `slot`     |

`Cmd` is the short way to write them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Ge
from pydantic import Field, JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from refold.core.base import Value, lean
from refold.core.content import Artifact, Content, as_content
from refold.core.errors import SkillError
from refold.core.retry import RetryPolicy
from refold.core.schema import Schema, schema_of


class EffectPolicy(StrEnum):
    """What may happen when it is not known whether a tool's effect took place. Each tool declares its own."""

    READ_ONLY = "read_only"
    """It changes nothing; repeat it freely."""
    IDEMPOTENT = "idempotent"
    """The receiver knows the idempotency key; a repetition changes nothing."""
    AT_LEAST_ONCE = "at_least_once"
    """A repetition does no harm that matters; the receiver may see it twice."""
    AT_MOST_ONCE = "at_most_once"
    """Never repeated blindly: where the outcome is unknown, the command fails and says so."""


class _Command(Value):
    id: str = Field(min_length=1)

    @property
    def subject(self) -> str:
        """What is called, by name; the author's id where nothing has a name."""
        return self.id


class CallLlm(_Command):
    """Ask a model.

    Attributes:
        id: The author's name of the call, for example `research`.
        prompt: The instructions.
        input: What it is about; None where the prompt says all.
        model: `provider:name`; None takes the worker's setting.
        expect: The type the answer must fit; None is plain text.
        settings: Passed on to the provider, for example `{"temperature": 0}`.
        retry: How "try later" is tried again; None takes the skill's.
        queue: The task queue of the workers that serve it; None is the task's own.
    """

    kind: Literal["llm"] = "llm"
    prompt: str = lean("")
    input: Content | None = lean()
    model: str | None = lean()
    expect: Schema | None = lean()
    settings: dict[str, JsonValue] = lean(factory=dict)
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()


class CallTool(_Command):
    """Call a registered tool by its name.

    Attributes:
        id: The author's name of the call.
        name: The tool's name.
        args: Its arguments by name, as JSON.
        key: A business key such as `refund:A1`, used instead of the invocation id to recognise the same effect.
        retry: How "try later" is tried again; None takes the skill's.
        queue: The task queue of the workers that serve it; None is the task's own.
    """

    kind: Literal["tool"] = "tool"
    name: str
    args: dict[str, JsonValue] = lean(factory=dict)
    key: str | None = lean()
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()

    @property
    def subject(self) -> str:
        """The tool's name."""
        return self.name


class CallSkill(_Command):
    """Run another skill as a task of its own and wait for it."""

    kind: Literal["skill"] = "skill"
    skill: str
    input: Content

    @property
    def subject(self) -> str:
        """The skill's id."""
        return self.skill


class CallActivity(_Command):
    """Run an existing Temporal activity, by name.

    Attributes:
        args: Positional arguments, as JSON.
        timeout_s: Start-to-close, in seconds.
        retry: How "try later" is tried again; None takes the skill's.
        queue: The task queue of the workers that serve it; None is the task's own.
    """

    kind: Literal["activity"] = "activity"
    name: str
    args: tuple[JsonValue, ...] = lean(())
    timeout_s: Annotated[float, Ge(0)] = lean(600.0)
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()

    @property
    def subject(self) -> str:
        """The activity's name."""
        return self.name


class CallWorkflow(_Command):
    """Run an existing Temporal workflow as a child, by name."""

    kind: Literal["workflow"] = "workflow"
    name: str
    args: tuple[JsonValue, ...] = lean(())
    queue: str | None = lean()

    @property
    def subject(self) -> str:
        """The workflow's name."""
        return self.name


class Sleep(_Command):
    """Wait, durably, for a number of seconds."""

    kind: Literal["sleep"] = "sleep"
    seconds: Annotated[float, Ge(0)]


class AskUser(_Command):
    """Wait for a message. Its `id` is the slot.

    Attributes:
        message: What is asked.
        expect: The type the reply must fit; None takes any content.
    """

    kind: Literal["ask"] = "ask"
    message: Content
    expect: Schema | None = lean()

    @property
    def slot(self) -> str:
        """The wait's name."""
        return self.id


class EmitMessage(Value):
    """Say something to the user. Has no result."""

    content: Content


class EmitArtifact(Value):
    """Hand over a result. Has no result of its own."""

    artifact: Artifact


Effect = CallLlm | CallTool | CallSkill | CallActivity | CallWorkflow | Sleep
Command = Annotated[
    CallLlm | CallTool | CallSkill | CallActivity | CallWorkflow | Sleep | AskUser,
    Field(discriminator="kind"),
]
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


def fingerprint(command: Command) -> str:
    """`kind:subject:hash`, equal for equal commands: what a step, driven again, must ask for again."""
    digest = hashlib.sha256(command.model_dump_json().encode()).hexdigest()[:12]
    return f"{command.kind}:{command.subject}:{digest}"


def retry_of(command: Command) -> RetryPolicy | None:
    """The command's own retry policy; None where the skill's holds, or where nothing is retried."""
    match command:
        case CallLlm() | CallTool() | CallActivity():
            return command.retry
        case _:
            return None


def tool_name(tool: str | Callable[..., Any]) -> str:
    """A tool's name, from the tool or from its name.

    Raises:
        SkillError: It is neither a name nor a function declared as a tool.
    """
    if isinstance(tool, str):
        return tool
    spec = getattr(tool, "__refold_tool__", None)
    if spec is None:
        called = getattr(tool, "__name__", repr(tool))
        raise SkillError(f"{called} is not a tool: declare it with @tool(effect=...), or give a tool's name")
    return str(spec.name)


def _json(value: Any, what: str) -> JsonValue:
    try:
        data: JsonValue = to_jsonable_python(value)
    except Exception as error:
        raise SkillError(f"{what} cannot be written as JSON: {error}") from error
    return data


class Cmd:
    """The short way to write a command."""

    @staticmethod
    def llm(
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        model: str | None = None,
        expect: Any = None,
        settings: dict[str, JsonValue] | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
    ) -> CallLlm:
        """Ask a model; see `CallLlm`. `expect` is any type that pydantic knows."""
        return CallLlm(
            id=id,
            prompt=prompt,
            input=None if input is None else as_content(input),
            model=model,
            expect=schema_of(expect),
            settings=settings or {},
            retry=retry,
            queue=queue,
        )

    @staticmethod
    def tool(
        id: str,
        tool: str | Callable[..., Any],
        /,
        args: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> CallTool:
        """Call a tool; see `CallTool`. Arguments by keyword, or in `args` where a name is taken here."""
        data = {
            name: _json(value, f"argument {name!r} of command {id!r}")
            for name, value in {**(args or {}), **more}.items()
        }
        return CallTool(id=id, name=tool_name(tool), args=data, key=key, retry=retry, queue=queue)

    @staticmethod
    def skill(id: str, skill: str | type, input: str | Content | Any) -> CallSkill:
        """Run another skill; see `CallSkill`. Anything but text and `Content` is sent as data."""
        name = skill if isinstance(skill, str) else str(getattr(skill, "__refold_skill__", skill).id)
        content = input if isinstance(input, str | Content) else Content.from_data(_json(input, f"input of {id!r}"))
        return CallSkill(id=id, skill=name, input=as_content(content))

    @staticmethod
    def activity(
        id: str,
        name: str,
        *args: Any,
        timeout_s: float = 600.0,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
    ) -> CallActivity:
        """Run an existing Temporal activity; see `CallActivity`."""
        data = tuple(_json(value, f"argument {n} of command {id!r}") for n, value in enumerate(args, 1))
        return CallActivity(id=id, name=name, args=data, timeout_s=timeout_s, retry=retry, queue=queue)

    @staticmethod
    def workflow(id: str, name: str, *args: Any, queue: str | None = None) -> CallWorkflow:
        """Run an existing Temporal workflow; see `CallWorkflow`."""
        data = tuple(_json(value, f"argument {n} of command {id!r}") for n, value in enumerate(args, 1))
        return CallWorkflow(id=id, name=name, args=data, queue=queue)

    @staticmethod
    def sleep(id: str, seconds: float) -> Sleep:
        """Wait; see `Sleep`."""
        return Sleep(id=id, seconds=seconds)

    @staticmethod
    def ask_user(slot: str, message: str | Content, *, expect: Any = None) -> AskUser:
        """Wait for a message; see `AskUser`. `expect` is a class at module level that pydantic knows."""
        return AskUser(id=slot, message=as_content(message), expect=schema_of(expect))

    @staticmethod
    def message(content: str | Content) -> EmitMessage:
        """Say something; see `EmitMessage`."""
        return EmitMessage(content=as_content(content))

    @staticmethod
    def artifact(artifact: Artifact) -> EmitArtifact:
        """Hand over a result; see `EmitArtifact`."""
        return EmitArtifact(artifact=artifact)
