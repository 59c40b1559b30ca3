"""`Cmd`, the short ways to make commands, and the checks of a command where a skill gives it to its task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from inspect import isawaitable
from typing import Any, NoReturn, TypedDict, TypeVar, Unpack, cast, get_args

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from refold.core.authoring.tool import ToolSpec
from refold.core.chat import Frame, Said, ToolOffer, as_said
from refold.core.codec import NoData, dumped, may_hold_set, parsed
from refold.core.commands import (
    CALLBACK,
    AskApproval,
    AskUser,
    CallActivity,
    Callback,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    EmitArtifact,
    EmitMessage,
    KeyScope,
    Notify,
    PartBudget,
    Sleep,
)
from refold.core.content import Artifact, Content, as_content, stored
from refold.core.errors import AWAIT, SkillError, brief, shown
from refold.core.gates import GatePolicy
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import problems, reference_of, schema_of
from refold.core.values import Value, has_set, text

V = TypeVar("V", bound=Value)
_COMMANDS = get_args(get_args(Command)[0])


class CallOptions(TypedDict, total=False):
    """Options of any call.

    Attributes:
        retry: When a transient failure is retried; left out, the skill's policy.
        queue: The task queue of the workers that perform the call; left out, the task's own.
    """

    retry: RetryPolicy | None
    queue: str | None


class SkillCallOptions(TypedDict, total=False):
    """Options of a part; see `CallSkill`. The budget may be a mapping: `{"usd": 0.5, "model_calls": 10}`."""

    queue: str | None
    timeout_s: float | None
    budget: PartBudget | Mapping[str, float] | None


class AskOptions(TypedDict, total=False):
    """Options of a question; see `AskUser`."""

    timeout_s: float | None
    callback: Callback | None


class LlmOptions(CallOptions, total=False):
    """Options of a model call.

    Attributes:
        model: `provider:name`; several, each of which is asked where the one before is out of service; left out, the
            worker's setting.
        settings: Passed to the provider, for example `{"temperature": 0}`.
    """

    model: str | Sequence[str] | None
    settings: dict[str, JsonValue] | None


class Cmd:
    """Short ways to make commands.

    Raises:
        SkillError: An argument of a method does not fit its command, or cannot be written as JSON.
    """

    @staticmethod
    def llm(
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        expect: Any = None,
        **options: Unpack[LlmOptions],
    ) -> CallLlm:
        """Ask a model; see `CallLlm`. `expect` is any type that pydantic knows."""
        content = None if input is None else as_content(input)
        given = _with_fallbacks(id, options)
        return _valid(CallLlm, id, given, id=id, prompt=prompt, input=content, expect=schema_of(expect))

    @staticmethod
    def chat(
        id: str,
        say: str | Content | Said | Sequence[str | Content | Said] = (),
        *,
        thread: str = "main",
        instructions: str = "",
        tools: Sequence[str | ToolOffer | Callable[..., Any]] = (),
        expect: Any = None,
        since: int = 0,
        **options: Unpack[LlmOptions],
    ) -> CallChat:
        """Continue a conversation; see `CallChat` and `Frame`.

        Args:
            say: The new turns: text or content of the user, results of tools, or replies of another conversation.
            tools: The tools that the model may call: by function or name, which the worker looks up, or full offers.
            expect: The type of the model's final answer, which is then the reply's `value`; any that pydantic knows.
        """
        if isinstance(tools, str) or not isinstance(tools, Sequence):
            raise SkillError(f"chat {id!r}: tools={shown(tools)}: they are a list; write tools=[...]")
        offers = tuple(map(_offered, tools))
        names = [offer.name for offer in offers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SkillError(f"chat {id!r} offers two tools named {', '.join(twice)}; a model asks for a tool by name")
        given = _with_fallbacks(id, options)
        framed = {"model": given.pop("model"), "settings": given.pop("settings", None)}
        frame = _valid(Frame, id, framed, instructions=instructions, tools=offers, expect=schema_of(expect))
        return _valid(CallChat, id, given, id=id, thread=thread, say=as_said(say), frame=frame, since=since)

    @staticmethod
    def tool(
        id: str,
        tool: str | Callable[..., Any],
        /,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        key_scope: KeyScope = "owner",
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> CallTool:
        """Call a tool; see `CallTool`. Give arguments by keyword, or in `args` if this method has the name itself."""
        spec = None if isinstance(tool, str) else declared(tool)
        name, undo = (tool, None) if spec is None else (spec.name, spec.undone_by)
        if args is not None and not isinstance(args, Mapping):
            raise SkillError(by_place(name, args))
        given = {**(args or {}), **more}
        if spec is not None and (found := spec.unfit(given.keys())):
            raise SkillError(f"command {id!r} cannot call the tool {name!r}: {found}")
        data = {one: as_json(value, "argument {!r} of command {!r}", one, id) for one, value in given.items()}
        about = {"key": key, "key_scope": key_scope, "retry": retry, "queue": queue, "undo": undo}
        return _valid(CallTool, id, id=id, name=name, args=data, **about)

    @staticmethod
    def skill(id: str, skill: Any, input: Any, **options: Unpack[SkillCallOptions]) -> CallSkill:
        """Run another skill, given by id, class or table. Input that is neither text nor `Content` is data."""
        name = skill if isinstance(skill, str) else _skill_name(skill)
        if input is None:
            raise SkillError(f"input of {id!r} is None, which is no data; give '' to a skill that needs none")
        content = input if isinstance(input, str | Content) else Content.from_data(as_json(input, "input of {!r}", id))
        return _valid(CallSkill, id, options, id=id, skill=name, input=as_content(content))

    @staticmethod
    def activity(
        id: str, name: str, *args: Any, timeout_s: float = 600.0, **options: Unpack[CallOptions]
    ) -> CallActivity:
        """Run an existing Temporal activity; see `CallActivity`."""
        return _valid(CallActivity, id, options, id=id, name=name, args=_all_as_json(id, args), timeout_s=timeout_s)

    @staticmethod
    def workflow(id: str, name: str, *args: Any, queue: str | None = None) -> CallWorkflow:
        """Run an existing Temporal workflow; see `CallWorkflow`."""
        return _valid(CallWorkflow, id, id=id, name=name, args=_all_as_json(id, args), queue=queue)

    @staticmethod
    def sleep(id: str, seconds: float) -> Sleep:
        """Wait; see `Sleep`."""
        return _valid(Sleep, id, id=id, seconds=seconds)

    @staticmethod
    def callback(id: str, until: datetime) -> CallActivity:
        """Make an address that expires then; comes back as an `ActivityResult` with a `Callback`, for `ask_user`."""
        return Cmd.activity(id, CALLBACK, until)

    @staticmethod
    def ask_user(slot: str, message: str | Content, *, expect: Any = None, **options: Unpack[AskOptions]) -> AskUser:
        """Wait for a message; see `AskUser`. `expect` is a class at module level, so that replies can be checked."""
        checked = schema_of(expect) if isinstance(expect, str) else reference_of(expect)
        if checked is None and expect is not None:
            raise SkillError(
                f"question {slot!r}: expect={expect!r} is not a class at module level, so that a reply could not be "
                "checked before it is taken; name one, for example `class Reply(RootModel[list[int]])`"
            )
        asked = _valid(AskUser, slot, options, id=slot, message=as_content(message), expect=checked)
        if asked.callback is None:
            return asked
        return asked.changed({"callback": asked.callback.changed({"url": ""})})

    @staticmethod
    def ask_approval(
        slot: str,
        message: str | Content,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
    ) -> AskApproval:
        """Wait for a decision; see `AskApproval`."""
        shown = as_json(show, "what gate {!r} shows", slot)
        fields = {"message": as_content(message), "show": shown, "editable": editable}
        gate = _valid(AskApproval, slot, {"policy": policy}, id=slot, **fields)
        if gate.editable and not isinstance(shown, dict):
            raise SkillError(f"gate {slot!r}: editable={gate.editable!r} names keys, but what it shows is no object")
        return gate

    @staticmethod
    def message(content: str | Content) -> EmitMessage:
        """Send a message; see `EmitMessage`."""
        return EmitMessage(content=as_content(content))

    @staticmethod
    def artifact(artifact: Artifact) -> EmitArtifact:
        """Publish an artifact; see `EmitArtifact`."""
        return EmitArtifact(artifact=artifact)


def declared(tool: Callable[..., Any]) -> ToolSpec:
    """A tool's declaration.

    Raises:
        SkillError: The function is not declared a tool.
    """
    spec: ToolSpec | None = getattr(tool, "__refold_tool__", None)
    if spec is None:
        called = getattr(tool, "__name__", repr(tool))
        raise SkillError(f"{called} is not a tool: declare it with @tool(effect=...), or give a tool's name")
    return spec


def by_place(tool: str, args: object) -> str:
    """What is wrong with `args` as the arguments of a tool, if it does not name them."""
    return f"arguments of the tool {tool!r} are given by name, `name=value`, not {shown(args)}"


def _offered(tool: str | ToolOffer | Callable[..., Any]) -> ToolOffer:
    if isinstance(tool, ToolOffer):
        return tool if tool.parameters is None else stored(tool, ToolOffer, f"the offer of the tool {tool.name!r}")
    return ToolOffer(name=tool if isinstance(tool, str) else declared(tool).name)


def _skill_name(skill: Any) -> str:
    compiled = vars(skill).get("__refold_skill__") if isinstance(skill, type) else skill
    options = getattr(compiled, "options", None)
    if options is None:
        raise SkillError(f"{skill!r} is not a skill: give a skill's id, a class with @flow_skill, or a table")
    return str(options.card.id)


def _with_fallbacks(id: str, options: LlmOptions) -> dict[str, Any]:
    """The options of a model call, with the first of several models as its own, and the others as fallbacks."""
    model = options.get("model")
    if model is None or isinstance(model, str):
        return {"model": None, **options}
    models = list(model) if isinstance(model, Sequence) else []
    if not models or not all(isinstance(one, str) and one for one in models) or len(set(models)) < len(models):
        raise SkillError(f"command {id!r}: model={brief(model)} is no model; give one, or a list of different ones")
    return {**options, "model": models[0], "fallbacks": models[1:]}


def _valid(kind: type[V], command_id: object, options: Mapping[str, Any] | None = None, /, **fields: Any) -> V:
    """A command, or a part of it, with these fields. An option that is None takes the field's default."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    try:
        return kind(**fields, **given)
    except ValidationError as error:
        raise SkillError(f"command {shown(command_id)}: {problems(error)}{_way_out(kind, error)}") from None


def _way_out(kind: type[Value], error: ValidationError) -> str:
    """What to write instead, for two mistakes in a call of a model."""
    wrong = {detail["loc"]: detail["type"] for detail in error.errors()}
    if ("prompt",) in wrong:
        return '; a prompt is a text, and stands after the name of the call: `llm("draft", "Write.", topic)`'
    if "extra_forbidden" in wrong.values() and "settings" in kind.model_fields:
        return "; what the model's provider takes stands in `settings={...}`"
    return ""


def _all_as_json(id: str, args: Sequence[Any]) -> tuple[JsonValue, ...]:
    return tuple(as_json(value, "argument {} of command {!r}", n, id) for n, value in enumerate(args, 1))


def as_json(value: Any, what: str, *named: object) -> JsonValue:
    """An author's value as a copy in JSON data.

    Raises:
        SkillError: The value cannot be written as JSON; `what`, formatted with `named`, names it in the message.
    """
    kind = type(value)
    if kind is str:
        return text(value)
    if kind is bool or value is None or (kind is int and abs(value) < 2**63):
        return cast("JsonValue", value)
    try:
        data = parsed(dumped(lambda one: to_json(one, inf_nan_mode="strings", fallback=_no_data), value))
        if kind is not int and kind is not float and has_set(value, lambda kind: not may_hold_set(kind)):
            raise NoData("it holds a set, which has no order: give a list, for example `sorted(...)`")
        return data
    except Exception as error:
        why = str(error).removeprefix("Error serializing to JSON: NoData: ")  # pydantic's words about `_no_data`
        raise SkillError(f"{what.format(*named)} cannot be written as JSON: {why}") from error


def _no_data(value: Any) -> NoReturn:
    """Called for a value of a type that JSON does not have."""
    if isawaitable(value):
        raise NoData(f"it holds {brief(value)}; {AWAIT}")
    raise NoData(f"Unable to serialize unknown type: {type(value)}")


def admitted(command: object) -> Command:
    """A copy of a skill's command; see `stored`.

    Raises:
        SkillError: `command` is no command, or one that only the fold sends, or could not be read back.
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
    return stored(asked, type(asked), f"command {asked.id!r}")
