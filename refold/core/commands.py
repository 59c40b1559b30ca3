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

`Cmd` is the short way to write them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol, TypeVar, cast, get_args

from annotated_types import Ge, Gt, MinLen
from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from refold.core.chat import Frame, Said, ToolOffer, as_offer, as_said
from refold.core.codec import may_hold_set
from refold.core.content import Artifact, Content, as_content
from refold.core.errors import SkillError, shown
from refold.core.gates import GatePolicy, digest_of
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import Schema, problems, reference_of, schema_of
from refold.core.values import Name, Patience, Seconds, Value, encodable, has_set, lean, mended, text, unreadable

V = TypeVar("V", bound=Value)


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
    id: Annotated[Name, MinLen(1)]

    @property
    def subject(self) -> str:
        """The name of the tool, skill, activity or workflow; for other commands the author's id."""
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


class CallChat(_Command):
    """Continue a conversation: add turns to a thread, and wait for the model's reply.

    Attributes:
        id: The author's name of the call.
        thread: The conversation's name; only one call at a time can be open in a thread.
        say: The new turns, in order.
        frame: Instructions, tools and settings; None if they are those of the thread's previous call.
        since: How many of the oldest turns are not sent to the model. They stay in the thread.
        retry: How "try later" is tried again; None takes the skill's.
        queue: The task queue of the workers that serve it; None is the task's own.
    """

    kind: Literal["chat"] = "chat"
    thread: Annotated[str, MinLen(1)] = lean("main")
    say: tuple[Said, ...] = lean(())
    frame: Frame | None = lean()
    since: Annotated[int, Ge(0)] = lean(0)
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
        id: The author's name of the call.
        name: The tool's name.
        args: Its arguments by name, as JSON.
        key: A business key such as `refund:A1`, used instead of the invocation id to recognise the same effect.
        key_scope: Whose tasks share the key: those of the task's owner, or all tasks of the namespace.
        retry: How "try later" is tried again; None takes the skill's.
        queue: The task queue of the workers that serve it; None is the task's own.
        undo: How the effect is compensated if the task does not complete.
        undoes: The effect that this call compensates. Set by the fold, never by a skill.
    """

    kind: Literal["tool"] = "tool"
    name: str
    undo: Undo | None = lean()
    args: dict[str, JsonValue] = lean(factory=dict)
    key: str | None = lean()
    key_scope: KeyScope = lean("owner")
    retry: RetryPolicy | None = lean()
    queue: str | None = lean()
    undoes: Undoes | None = lean()

    @property
    def subject(self) -> str:
        """The tool's name."""
        return self.name


class CallSkill(_Command):
    """Run another skill as a task of its own and wait for it.

    Attributes:
        queue: The task queue of the workers that serve the skill; None is the task's own.
    """

    kind: Literal["skill"] = "skill"
    skill: str
    input: Content
    queue: str | None = lean()

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
    timeout_s: Annotated[Seconds, Gt(0)] = lean(600.0)
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
    """Wait, durably, for a number of seconds, at most a hundred years."""

    kind: Literal["sleep"] = "sleep"
    seconds: Seconds


class AskUser(_Command):
    """Wait for a message. Its `id` is the slot.

    Attributes:
        message: What is asked.
        expect: The type the reply must fit; None takes any content.
        raced: Whether the question races with other calls (`ctx.first`): its answer is then delivered at once, although
            other questions are open.
        timeout_s: Seconds until the question times out: it is closed, and a `CommandFailed` is delivered whose failure
            has the type `timeout`. None waits for ever.
    """

    kind: Literal["ask"] = "ask"
    message: Content
    expect: Schema | None = lean()
    raced: bool = lean(False)
    timeout_s: Patience | None = lean()

    @property
    def slot(self) -> str:
        """The wait's name."""
        return self.id


class AskApproval(_Command):
    """Wait for a decision. Its `id` is the slot; its gate is its invocation id.

    Attributes:
        message: What is asked.
        show: The data to decide on: the approver sees it, and a decision is valid for exactly this data.
        policy: Who decides, and within which time.
        editable: Keys of `show` whose values the approver may change or add; `show` must then be an object.
        raced: As in `AskUser`.
    """

    kind: Literal["approval"] = "approval"
    message: Content
    show: JsonValue = lean()
    policy: GatePolicy = lean(factory=GatePolicy)
    editable: tuple[str, ...] = lean(())
    raced: bool = lean(False)

    @property
    def slot(self) -> str:
        """The wait's name."""
        return self.id

    @property
    def digest(self) -> str:
        """The hash of the data shown."""
        return digest_of(self.id, self.policy.kind, self.show)

    def changed(self, changes: Mapping[str, JsonValue]) -> AskApproval:
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
_COMMANDS = get_args(get_args(Command)[0])
COMMAND: TypeAdapter[Command] = TypeAdapter(Command)


def fingerprint(command: Command) -> str:
    """`kind:subject:hash`, equal for equal commands. Compared when a step is driven again."""
    digest = hashlib.sha256(command.model_dump_json().encode()).hexdigest()[:12]
    return f"{command.kind}:{command.subject}:{digest}"


def result_hash(result: JsonValue) -> str:
    """The hash of an effect's result."""
    written = json.dumps(result, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(written.encode()).hexdigest()[:32]


NO_RETRY = RetryPolicy(max_retries=0)


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


class Declared(Protocol):
    """A tool's declaration, as commands use it; see `authoring.tool.ToolSpec`."""

    @property
    def name(self) -> str:
        """Its name in commands."""
        ...

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of its parameters."""
        ...

    @property
    def returns(self) -> Any:
        """The type it returns."""
        ...

    @property
    def undone_by(self) -> Undo | None:
        """How its effect is undone."""
        ...

    def unfit(self, args: Collection[str]) -> str:
        """Why the tool cannot be called with arguments of these names; empty if it can."""
        ...


def declared(tool: Callable[..., Any]) -> Declared:
    """A tool's declaration.

    Raises:
        SkillError: The function is not declared a tool.
    """
    spec: Declared | None = getattr(tool, "__refold_tool__", None)
    if spec is None:
        called = getattr(tool, "__name__", repr(tool))
        raise SkillError(f"{called} is not a tool: declare it with @tool(effect=...), or give a tool's name")
    return spec


def _skill_name(skill: Any) -> str:
    compiled = vars(skill).get("__refold_skill__") if isinstance(skill, type) else skill
    options = getattr(compiled, "options", None)
    if options is None:
        raise SkillError(f"{skill!r} is not a skill: give a skill's id, a class with @flow_skill, or a table")
    return str(options.card.id)


def admitted(command: object) -> Command:
    """A copy of a skill's command that can be written as JSON.

    Raises:
        SkillError: `command` is no command, or one that only the fold sends, or its values are nested too deep.
    """
    if type(command) not in _COMMANDS:
        raise SkillError(
            f"cmd takes a command, for example `Cmd.llm(...)`, not {shown(command)}; for several, write "
            "`.cmd(...).cmd(...)`"
        )
    asked = cast("Command", command)
    if isinstance(asked, Notify) or (isinstance(asked, CallTool) and asked.undoes is not None):
        wrong = "Notify" if isinstance(asked, Notify) else "`undoes`"
        raise SkillError(f"command {asked.id!r}: {wrong} is the task's own; a skill asks for a gate, or for a tool")
    kept = encodable(asked)
    if kept is not asked and (why := unreadable(asked)):
        raise SkillError(f"command {asked.id!r} {why}: keep such data elsewhere, and say where")
    said = kept.__dict__.get("input") or kept.__dict__.get("message")
    return kept.own() if isinstance(kept, CallChat) or (said is not None and said.has_data) else kept


def _valid(kind: type[V], command_id: object, **fields: Any) -> V:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise SkillError(f"command {shown(command_id)}: {problems(error)}") from None


def as_json(value: Any, what: str) -> JsonValue:
    """An author's value as a copy in JSON data.

    Raises:
        SkillError: The value cannot be written as JSON; `what` names the value in the message.
    """
    if value is None or type(value) is bool:
        return cast("JsonValue", value)
    if type(value) is str:
        return text(value)
    try:
        try:
            data: JsonValue = to_jsonable_python(value)
        except UnicodeEncodeError:  # half a surrogate pair, in a key
            data = to_jsonable_python(mended(value))
    except Exception as error:
        raise SkillError(f"{what} cannot be written as JSON: {error}") from error
    if has_set(value, lambda kind: not may_hold_set(kind)):
        raise SkillError(f"{what} holds a set, which has no order: give a list, for example `sorted(...)`")
    if why := unreadable(data):
        raise SkillError(f"{what} {why}: keep such data elsewhere, and say where")
    return encodable(data)


def _checkable(kind: Any, slot: str) -> Schema | None:
    if kind is None or isinstance(kind, str):
        return schema_of(kind)
    reference = reference_of(kind)
    if reference is None:
        raise SkillError(
            f"question {slot!r}: expect={kind!r} is not a class at module level, so that a reply could not be checked "
            "before it is taken; name one, for example `class Reply(RootModel[list[int]])`"
        )
    return reference


class Cmd:
    """Short ways to make commands."""

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
        return _valid(
            CallLlm,
            id,
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
    def chat(
        id: str,
        say: str | Content | Said | Sequence[str | Content | Said] = (),
        *,
        thread: str = "main",
        instructions: str = "",
        tools: Sequence[str | ToolOffer | Callable[..., Any]] = (),
        model: str | None = None,
        expect: Any = None,
        settings: dict[str, JsonValue] | None = None,
        since: int = 0,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
    ) -> CallChat:
        """Continue a conversation; see `CallChat` and `Frame`.

        Args:
            id: The author's name of the call.
            say: What is new: text or content in the user's name, what tools returned; or a reply that was heard
                elsewhere.
            thread: The conversation's name.
            instructions: What the model is to do. Written to history where they change, and not with each call.
            tools: What it may ask for: tools by function or name, which the worker looks up, or full offers.
            model: `provider:name`; None takes the worker's setting.
            expect: The type of its final answer, which is then the reply's `value`; any type that pydantic knows.
            settings: Passed on to the provider.
            since: How many of the oldest turns the model is not shown.
            retry: How "try later" is tried again; None takes the skill's.
            queue: The task queue of the workers that serve it; None is the task's own.

        Raises:
            SkillError: Something in `tools` is no tool, or two have one name; `expect` is no type that can be checked.
        """
        offers = tuple(as_offer(tool, lambda function: declared(function).name) for tool in tools)
        names = [offer.name for offer in offers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SkillError(f"chat {id!r} offers two tools named {', '.join(twice)}; a model asks for a tool by name")
        frame = _valid(
            Frame,
            id,
            instructions=instructions,
            tools=offers,
            model=model,
            expect=schema_of(expect),
            settings=settings or {},
        )
        return _valid(
            CallChat, id, id=id, thread=thread, say=as_said(say), frame=frame, since=since, retry=retry, queue=queue
        )

    @staticmethod
    def tool(
        id: str,
        tool: str | Callable[..., Any],
        /,
        args: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        key_scope: KeyScope = "owner",
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> CallTool:
        """Call a tool; see `CallTool`. Arguments by keyword, or in `args` where a name is taken here.

        Raises:
            SkillError: It is no tool, it does not take these arguments, or they cannot be written as JSON.
        """
        given = {**(args or {}), **more}
        undo = None
        if isinstance(tool, str):
            name = tool
        else:
            spec = declared(tool)
            name, undo = spec.name, spec.undone_by
            if found := spec.unfit(given.keys()):
                raise SkillError(f"command {id!r} cannot call the tool {name!r}: {found}")
        data = {one: as_json(value, f"argument {one!r} of command {id!r}") for one, value in given.items()}
        about = {"key": key, "key_scope": key_scope, "retry": retry, "queue": queue, "undo": undo}
        return _valid(CallTool, id, id=id, name=name, args=data, **about)

    @staticmethod
    def skill(id: str, skill: Any, input: str | Content | Any, *, queue: str | None = None) -> CallSkill:
        """Run another skill, given by id, class or table; see `CallSkill`.

        Anything but text and `Content` is sent as data.

        Raises:
            SkillError: It is no skill, or the input cannot be written as JSON.
        """
        name = skill if isinstance(skill, str) else _skill_name(skill)
        content = input if isinstance(input, str | Content) else Content.from_data(as_json(input, f"input of {id!r}"))
        return _valid(CallSkill, id, id=id, skill=name, input=as_content(content), queue=queue)

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
        data = tuple(as_json(value, f"argument {n} of command {id!r}") for n, value in enumerate(args, 1))
        return _valid(CallActivity, id, id=id, name=name, args=data, timeout_s=timeout_s, retry=retry, queue=queue)

    @staticmethod
    def workflow(id: str, name: str, *args: Any, queue: str | None = None) -> CallWorkflow:
        """Run an existing Temporal workflow; see `CallWorkflow`."""
        data = tuple(as_json(value, f"argument {n} of command {id!r}") for n, value in enumerate(args, 1))
        return _valid(CallWorkflow, id, id=id, name=name, args=data, queue=queue)

    @staticmethod
    def sleep(id: str, seconds: float) -> Sleep:
        """Wait; see `Sleep`."""
        return _valid(Sleep, id, id=id, seconds=seconds)

    @staticmethod
    def ask_user(slot: str, message: str | Content, *, expect: Any = None, timeout_s: float | None = None) -> AskUser:
        """Wait for a message; see `AskUser`.

        Args:
            slot: The wait's name.
            message: What is asked.
            expect: A class at module level that the reply must fit; a reply that does not is refused.
            timeout_s: Seconds until the question is closed without an answer; None waits for ever.

        Raises:
            SkillError: `expect` is no such class, so that no reply could be checked.
        """
        checked = _checkable(expect, slot)
        return _valid(AskUser, slot, id=slot, message=as_content(message), expect=checked, timeout_s=timeout_s)

    @staticmethod
    def ask_approval(
        slot: str,
        message: str | Content,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
    ) -> AskApproval:
        """Wait for a decision; see `AskApproval`.

        Raises:
            SkillError: What is shown cannot be written as JSON; or it is to be editable, and is no object.
        """
        shown = as_json(show, f"what gate {slot!r} shows")
        if editable and not isinstance(shown, dict):
            raise SkillError(f"gate {slot!r}: editable={tuple(editable)!r} names keys, but what it shows is no object")
        return _valid(
            AskApproval,
            slot,
            id=slot,
            message=as_content(message),
            show=shown,
            policy=policy or GatePolicy(),
            editable=tuple(editable),
        )

    @staticmethod
    def message(content: str | Content) -> EmitMessage:
        """Say something; see `EmitMessage`."""
        return EmitMessage(content=as_content(content))

    @staticmethod
    def artifact(artifact: Artifact) -> EmitArtifact:
        """Hand over a result; see `EmitArtifact`."""
        return EmitArtifact(artifact=artifact)
