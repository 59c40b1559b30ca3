"""Plugins observe an agent at fixed points, and raise flags that a step acts on. They may add tools.

A hook observes. It cannot replace a model's result, which is the task of middleware; each event lists the fields that a
hook may write, and writing any other is an error. Hooks are called in the plugins' order, "after" hooks in reverse
order. What one hook has raised stays raised, whatever hooks after it write. A hook must be pure like a step: no clock,
no network; it stores its data in `event.state.app`. It may be `async def`, and then await calls of `event.ctx`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import ValidationError

from refold.agent.state import AgentState
from refold.core.authoring.context import Ctx, own_patched
from refold.core.authoring.signatures import signature
from refold.core.chat import Reply, Said, ToolCall, ToolReturn
from refold.core.errors import CommandError, SkillError
from refold.core.schema import problems

FLAGS = ("cancel", "retry", "resume")
"""The fields by which hooks have a step do something else."""

RAISED_STAYS = "refold.step.agent_raised_stays"
"""A patch: in tasks recorded before, a later hook lowers what an earlier one has raised, and an empty text vetoes
nothing."""


class HookEvent:
    """Something that is about to happen, or has happened.

    Attributes:
        ctx: The task's context.
        state: The state of the agent's run.
    """

    WRITABLE: ClassVar[Mapping[str, tuple[type, ...]]] = {}
    AFTER: ClassVar[bool] = False

    def __init__(self, ctx: Ctx, state: AgentState, **fields: Any) -> None:
        for name, value in {"ctx": ctx, "state": state, **fields}.items():
            object.__setattr__(self, name, value)

    ctx: Ctx
    state: AgentState

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.WRITABLE:
            may = ", ".join(self.WRITABLE) or "nothing"
            raise SkillError(
                f"a hook wrote {type(self).__name__}.{name}, and may write {may} only; to put something in a result's "
                "place, use middleware"
            )
        if not isinstance(value, self.WRITABLE[name]):
            kinds = " or ".join("None" if kind is NoneType else kind.__name__ for kind in self.WRITABLE[name])
            raise SkillError(f"a hook wrote {type(self).__name__}.{name} = {repr(value)[:200]}; it is {kinds}")
        if name in FLAGS and value == "" and own_patched(self.ctx, RAISED_STAYS):
            true = ", or True" if bool in self.WRITABLE[name] else ""
            lowered = False if bool in self.WRITABLE[name] else None
            raise SkillError(
                f"a hook wrote {type(self).__name__}.{name} = '', an empty text; write a text that is not empty{true}, "
                f"or {lowered} to leave it"
            )
        object.__setattr__(self, name, value)

    def keep_raised(self, flags: Mapping[str, Any]) -> None:
        """Raise those of the flags again that the newest hook has lowered.

        Args:
            flags: What `flags` was before that hook.
        """
        for name, value in flags.items():
            if value and not getattr(self, name) and own_patched(self.ctx, RAISED_STAYS):
                object.__setattr__(self, name, value)

    @property
    def flags(self) -> dict[str, Any]:
        """What hooks have written of the flags so far."""
        return {name: getattr(self, name) for name in FLAGS if name in self.WRITABLE}


class BeforeInvocation(HookEvent):
    """The user has sent a message, and the agent begins to work on it.

    Attributes:
        say: The message.
        cancel: Writable. True, or a text: the agent does not work on the message, and answers with the text.
    """

    WRITABLE = {"cancel": (bool, str)}
    say: tuple[Said, ...]
    cancel: bool | str


class AfterInvocation(HookEvent):
    """The agent has an answer.

    Attributes:
        reply: The answer.
        resume: Writable. A text: the agent continues, as if the user had sent it.
    """

    WRITABLE = {"resume": (str, NoneType)}
    AFTER = True
    reply: Reply
    resume: str | None


class MessageAdded(HookEvent):
    """The user, the model or a tool has added a message.

    Attributes:
        message: The message.
    """

    message: Said


class BeforeModelCall(HookEvent):
    """The model is about to be called.

    Attributes:
        say: The new messages.
        cancel: Writable. True, or a text: the model is not called, and the text counts as its answer.
    """

    WRITABLE = {"cancel": (bool, str)}
    say: tuple[Said, ...]
    cancel: bool | str


class AfterModelCall(HookEvent):
    """The model has replied, or the call has failed.

    Attributes:
        reply: The reply; None if the call failed.
        error: Why it failed; None if it did not.
        attempt_count: How often the model was called in this step.
        retry: Writable. Call the model again, and discard this reply.
    """

    WRITABLE = {"retry": (bool,)}
    AFTER = True
    reply: Reply | None
    error: CommandError | None
    attempt_count: int
    retry: bool


class BeforeTools(HookEvent):
    """Tools are about to be called.

    Attributes:
        calls: The requested calls.
        cancel: Writable. True, or a text: none is made, and the model reads the text as each one's result.
    """

    WRITABLE = {"cancel": (bool, str)}
    calls: tuple[ToolCall, ...]
    cancel: bool | str


class AfterTools(HookEvent):
    """All requested calls have a result.

    Attributes:
        results: In the order of the calls.
    """

    AFTER = True
    results: tuple[ToolReturn, ...]


class BeforeToolCall(HookEvent):
    """A tool is about to be called; before its gate, if it has one.

    Attributes:
        tool_use: Writable. The requested call: name and arguments.
        selected_tool: Writable. The name of the tool to call instead; the model does not learn of it.
        cancel: Writable. True, or a text: the tool is not called, and the model reads the text as its error.
    """

    WRITABLE = {"cancel": (bool, str), "selected_tool": (str,), "tool_use": (ToolCall,)}
    tool_use: ToolCall
    selected_tool: str
    cancel: bool | str


class AfterToolCall(HookEvent):
    """A tool has a result, or an error.

    Attributes:
        tool_use: The call.
        result: Writable. The result that the model reads.
        error: Why it failed; None if it succeeded, or was refused.
        attempt_count: How often the tool was called in this step.
        retry: Writable. Call it again, with a new gate if the tool has one.
    """

    WRITABLE = {"result": (ToolReturn,), "retry": (bool,)}
    AFTER = True
    tool_use: ToolCall
    result: ToolReturn
    error: CommandError | None
    attempt_count: int
    retry: bool


EVENTS: tuple[type[HookEvent], ...] = (
    BeforeInvocation,
    AfterInvocation,
    MessageAdded,
    BeforeModelCall,
    AfterModelCall,
    BeforeTools,
    AfterTools,
    BeforeToolCall,
    AfterToolCall,
)
E = TypeVar("E", bound=HookEvent)
Hook = Callable[[Any], Any]


class Plugin:
    """Hooks that belong together, and tools. A hook is a method named after its event: `before_tool_call(self, event)`.

    Attributes:
        tools: Tools that it adds to the agent's.
        streams: Whether a model's answer and a tool's progress may be shown meanwhile, although hooks of this plugin
            could still discard the reply, change or cancel its calls, or change a tool's result.
    """

    tools: Sequence[Any] = ()
    streams: bool = False

    def before_invocation(self, event: BeforeInvocation) -> Any:
        """See `BeforeInvocation`; and so on for the others."""

    def after_invocation(self, event: AfterInvocation) -> Any: ...

    def message_added(self, event: MessageAdded) -> Any: ...

    def before_model_call(self, event: BeforeModelCall) -> Any: ...

    def after_model_call(self, event: AfterModelCall) -> Any: ...

    def before_tools(self, event: BeforeTools) -> Any: ...

    def after_tools(self, event: AfterTools) -> Any: ...

    def before_tool_call(self, event: BeforeToolCall) -> Any: ...

    def after_tool_call(self, event: AfterToolCall) -> Any: ...


METHODS: dict[type[HookEvent], str] = {
    BeforeInvocation: "before_invocation",
    AfterInvocation: "after_invocation",
    MessageAdded: "message_added",
    BeforeModelCall: "before_model_call",
    AfterModelCall: "after_model_call",
    BeforeTools: "before_tools",
    AfterTools: "after_tools",
    BeforeToolCall: "before_tool_call",
    AfterToolCall: "after_tool_call",
}


VETOES = (AfterModelCall, AfterInvocation, BeforeTools, BeforeToolCall)
"""The events whose hooks may discard a reply, or change or cancel its calls."""


class Hooks:
    """The hooks of an agent, by event.

    Attributes:
        problems: Mistakes in the given plugins.
        tools: The tools that plugins add.
        streams: Whether a model's answer may be shown while it is written.
        reports: Whether a tool's progress may be shown.
    """

    def __init__(self, plugins: Iterable[Plugin | Hook] = ()) -> None:
        """Sort the hooks by event.

        Args:
            plugins: `Plugin` values, or functions whose one parameter is annotated with its event.
        """
        self.problems: list[str] = []
        self.tools: list[Any] = []
        self.streams = self.reports = True
        self._hooks: dict[type[HookEvent], list[Hook]] = {kind: [] for kind in EVENTS}
        for plugin in plugins:
            if isinstance(plugin, Plugin):
                self.tools += plugin.tools
                self.problems += _misspelt(type(plugin))
                for kind, method in METHODS.items():
                    if getattr(type(plugin), method) is not getattr(Plugin, method):
                        self._hooks[kind].append(getattr(plugin, method))
                        self._count(kind, streams=plugin.streams)
            else:
                self._add(plugin)

    def _add(self, function: Any) -> None:
        kind = _event_of(function)
        if kind is not None:
            self._hooks[kind].append(function)
            self._count(kind, streams=False)
            return
        events = ", ".join(event.__name__ for event in EVENTS)
        self.problems.append(
            f"plugins: {function!r} is neither a Plugin nor a function of one parameter that is annotated with its "
            f"event, one of {events}"
        )

    def _count(self, kind: type[HookEvent], *, streams: bool) -> None:
        """Take account of what a hook could still change."""
        self.streams = self.streams and (streams or kind not in VETOES)
        self.reports = self.reports and (streams or kind is not AfterToolCall)

    async def fire(self, event: E) -> E:
        """Call the hooks of an event, and return it with the flags they raised.

        Raises:
            SkillError: A hook wrote what it may not write, or a value that does not fit.
        """
        hooks = self._hooks[type(event)]
        for hook in reversed(hooks) if event.AFTER else hooks:
            flags = event.flags
            try:
                answered = hook(event)
                if inspect.isawaitable(answered):
                    await answered
            except ValidationError as error:
                name = getattr(hook, "__qualname__", type(hook).__name__)
                raise SkillError(
                    f"hook {name} wrote a value that does not fit {error.title}: {problems(error)}"
                ) from error
            event.keep_raised(flags)
        return event

    async def said(self, ctx: Ctx, state: AgentState, messages: Iterable[Said]) -> None:
        """Fire `MessageAdded` for each."""
        for message in messages:
            await self.fire(MessageAdded(ctx, state, message=message))


def _misspelt(plugin: type[Plugin]) -> Iterator[str]:
    """Public methods that look like hooks and have no hook's name: they would never be called."""
    known = list(METHODS.values())
    for name, method in inspect.getmembers(plugin, inspect.isfunction):
        _, *takes = signature(method).parameters or [""]
        if name.startswith("_") or name in known or len(takes) != 1:
            continue
        is_hook = name.startswith(("before_", "after_")) and takes == ["event"]
        kind = _event_of(method, own=1)
        near = [METHODS[kind]] if kind else difflib.get_close_matches(name, known, 1, 0.0 if is_hook else 0.8)
        if near:
            yield (
                f"plugins: {plugin.__name__}.{name} looks like a hook, and no event has this name; write {near[0]}, or "
                f"_{name} if it is no hook"
            )


def _event_of(function: Any, own: int = 0) -> type[HookEvent] | None:
    """The event of a function whose one parameter, after its `own`, is annotated with it; None for any other."""
    if not inspect.isfunction(function):
        return None
    parameters = list(signature(function).parameters)[own:]
    try:
        kind = get_type_hints(function).get(parameters[0]) if len(parameters) == 1 else None
    except NameError:
        return None
    return kind if isinstance(kind, type) and kind in EVENTS else None


def canceled(flag: bool | str, otherwise: str) -> str:
    """The text in place of a canceled call's result."""
    return flag if isinstance(flag, str) else otherwise
