"""Stand-ins for models, tools and other skills in a test: plain values and plain functions.

An *answer* is a value, a `Failure`, an exception, or a function of the command that returns one of these; for a chat, a
text, a tool call (`calls`) or a list of them. A list is several answers, one for each call, in order. Answers are
looked up by the command's own id, else by the name of the tool, activity or skill that it calls, else by its kind
(`"llm"`, `"tool"`, …).
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, validate_call
from pydantic_core import to_jsonable_python

from refold.core.authoring.tool import ToolSpec, tool_spec
from refold.core.chat import Reply, ToolCall
from refold.core.codec import misfit
from refold.core.commands import (
    AskApproval,
    AskUser,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    EffectPolicy,
    Notify,
    Sleep,
)
from refold.core.content import Artifact
from refold.core.errors import RefoldError
from refold.core.events import (
    ActivityResult,
    ChatResult,
    CommandFailed,
    Event,
    LlmResult,
    Notified,
    SkillOutcome,
    SkillResult,
    TimerFired,
    ToolResult,
    WorkflowResult,
)
from refold.core.retry_policy import Failure, FailureKind
from refold.engine.arguments import takes

if TYPE_CHECKING:
    from refold.effects.tools import Tool


class ScriptError(RefoldError, AssertionError):
    """The script does not fit the skill; the message says what the skill awaited. Fails a test like an assertion."""


@takes(ScriptError)
def transient(message: str, *, type: str = "busy", retry_after: float | None = None) -> Failure:
    """A transient failure as an answer: the task retries, as often as the retry policy says.

    Args:
        message: One sentence for people.
        type: A short name, for example `http_503`.
        retry_after: Seconds that the receiver asked to wait.
    """
    return Failure(kind=FailureKind.TRANSIENT, type=type, message=message, retry_after=retry_after)


@takes(ScriptError)
def unknown(message: str, *, type: str = "outcome_unknown") -> Failure:
    """A failure with an unknown outcome: the task blocks until a person resolves it."""
    return Failure(kind=FailureKind.UNKNOWN, type=type, message=message)


@takes(ScriptError)
def permanent(message: str, *, type: str = "refused") -> Failure:
    """A permanent failure as an answer: the skill receives it at once."""
    return Failure(kind=FailureKind.PERMANENT, type=type, message=message)


def _in_doubt(spec: ToolSpec, error: Exception) -> bool:
    """Whether a worker would not know if a tool that raised this has had its effect, which may happen once at most."""
    from refold.effects.failures.classify import surely_not_done

    return spec.effect in (EffectPolicy.AT_MOST_ONCE, EffectPolicy.COMPENSATE) and not surely_not_done(error, [])


def _as_workers_run(declared: list[Callable[..., Any]]) -> dict[str, Tool]:
    if not declared:
        return {}
    from refold.effects.tools import tools_of

    return tools_of(declared)


@takes(ScriptError)
def calls(tool: str | Callable[..., Any], /, **args: Any) -> ToolCall:
    """A model's tool call, as an answer: `answers={"model": [calls("weather", city="Oslo"), "It rains."]}`.

    Args:
        tool: The tool, by function or by name.
        args: Its arguments.
    """
    spec = None if isinstance(tool, str) else tool_spec(tool)
    name = tool if isinstance(tool, str) else spec.name if spec is not None else tool.__name__
    return ToolCall(id="", name=name, args=to_jsonable_python(args))


def as_failure(failure: str | Failure | Exception) -> Failure:
    """A failure; a plain sentence is a permanent one, and an exception is classified as on a worker."""
    if isinstance(failure, Failure):
        return failure
    if isinstance(failure, str):
        return permanent(failure)
    from refold.effects.failures.classify import classify

    return classify(failure)


def outcome(command: Command, invocation_id: str, answer: Any) -> Event:
    """The event that delivers an answer to a command.

    Raises:
        ScriptError: The value cannot be this command's result.
    """
    if isinstance(answer, Failure | Exception):
        return CommandFailed(id=command.id, invocation_id=invocation_id, failure=as_failure(answer))
    match command:
        case CallLlm():
            return LlmResult(id=command.id, invocation_id=invocation_id, value=_llm_value(command, answer))
        case CallChat():
            return ChatResult(id=command.id, invocation_id=invocation_id, reply=_reply(command, invocation_id, answer))
        case CallTool():
            return ToolResult(id=command.id, invocation_id=invocation_id, value=as_json(command, answer))
        case CallActivity():
            return ActivityResult(id=command.id, invocation_id=invocation_id, value=as_json(command, answer))
        case CallWorkflow():
            return WorkflowResult(id=command.id, invocation_id=invocation_id, value=as_json(command, answer))
        case CallSkill():
            came_to = _skill_outcome(command, invocation_id, answer)
            return SkillResult(id=command.id, invocation_id=invocation_id, outcome=came_to)
        case Sleep():
            return TimerFired(id=command.id, invocation_id=invocation_id)
        case AskUser():
            raise ScriptError(
                f"{command.id!r} is a question to the user: answer it with user(..., slot={command.id!r})"
            )
        case AskApproval():
            raise ScriptError(f"{command.id!r} is a gate: decide with approve({command.id!r}) or deny({command.id!r})")
        case Notify():
            return Notified(id=command.id, invocation_id=invocation_id)


def as_json(command: Command, value: Any) -> JsonValue:
    """An answer as JSON data: models, dataclasses, dates and so on are serialised."""
    try:
        data: JsonValue = to_jsonable_python(value)
    except Exception as error:
        raise ScriptError(f"the answer to {command.kind} {command.id!r} cannot be written as JSON: {error}") from error
    return data


def _llm_value(command: CallLlm, answer: Any) -> JsonValue:
    value = as_json(command, answer)
    if command.expect is None:
        if not isinstance(value, str):
            raise ScriptError(
                f"llm {command.id!r} expects text, but the answer is {_short(value)}; a model that is asked without "
                "`expect` answers with text"
            )
        return value
    found = misfit(command.expect, value)
    if found:
        raise ScriptError(
            f"the answer to llm {command.id!r} does not fit what it expects: {found}; a worker would make this a "
            f"failure: write fails({command.id!r}, ...) if that is meant"
        )
    return value


def _reply(command: CallChat, invocation_id: str, answer: Any) -> Reply:
    match answer:
        case Reply():
            return answer
        case ToolCall():
            return _calling([answer], invocation_id)
        case list() | tuple() if answer and all(isinstance(one, ToolCall) for one in answer):
            return _calling(answer, invocation_id)
        case _:
            pass
    value = as_json(command, answer)
    expect = None if command.frame is None else command.frame.expect
    if expect is None:
        if not isinstance(value, str):
            raise ScriptError(
                f"chat {command.id!r} is answered with text, with calls(...) or a list of them, or with a Reply; not "
                f"with {_short(value)}"
            )
        return Reply(text=value)
    found = misfit(expect, value)
    if found:
        raise ScriptError(
            f"the answer to chat {command.id!r} does not fit what it expects: {found}; a worker would make this a "
            f"failure: write fails({command.id!r}, ...) if that is meant"
        )
    return Reply(value=value)


def _calling(calls: Sequence[ToolCall], invocation_id: str) -> Reply:
    named = [
        call if call.id else call.model_copy(update={"id": f"{invocation_id}#{number}"})
        for number, call in enumerate(calls, 1)
    ]
    return Reply(tool_calls=tuple(named), stop="tools")


def _skill_outcome(command: CallSkill, invocation_id: str, answer: Any) -> SkillOutcome:
    match answer:
        case SkillOutcome():
            return answer
        case str():
            return SkillOutcome(task_id=invocation_id, text=answer)
        case Artifact():
            return SkillOutcome(task_id=invocation_id, artifacts=(answer,))
        case _:
            raise ScriptError(
                f"skill {command.id!r} comes to a SkillOutcome, an Artifact or a text, not to {_short(answer)}"
            )


def _short(value: object) -> str:
    return repr(value)[:100]


class Answers:
    """The stand-ins of one test.

    Args:
        answers: By id, by the name of what is called, or by kind.
        tools: Functions called with the command's arguments: declared with `@tool`, whose arguments and results are
            checked as on a worker; or plain ones, by their name. What one that is `at_most_once` or `compensate` raises
            leaves its outcome unknown where it would on a worker without a probe. Nothing keeps receipts: calls with
            the same `key` are all performed.

    Raises:
        DefinitionError: A worker would refuse a tool.
        TypeError: The answers are no mapping.
    """

    def __init__(self, answers: Mapping[str, Any] | None = None, tools: Iterable[Callable[..., Any]] = ()) -> None:
        self._lists: dict[str, Iterator[Any]] = {}
        self._left: dict[str, int] = {}
        self._always: dict[str, Any] = {}
        given = list(tools)
        self._tools = _as_workers_run([one for one in given if tool_spec(one) is not None])
        self._plain = {one.__name__: one for one in given if tool_spec(one) is None}
        if not isinstance(answers, Mapping | None):
            raise TypeError(
                f"answers= is a {type(answers).__name__}; write a dict, by the id of a command, the name of what it "
                'calls, or its kind: {"greeting": "Hello!"}'
            )
        for name, answer in (answers or {}).items():
            if isinstance(answer, list | tuple):
                self._lists[name], self._left[name] = iter(answer), len(answer)
            else:
                self._always[name] = answer

    def __bool__(self) -> bool:
        return bool(self._lists or self._always or self._tools or self._plain)

    def know(self, command: Command) -> bool:
        """Whether an answer to this command is left."""
        is_tool = isinstance(command, CallTool) and (command.name in self._tools or command.name in self._plain)
        return is_tool or self._key(command) is not None

    def used_up(self, command: Command) -> bool:
        """Whether there were answers to this command, but all of them are used."""
        return not self.know(command) and any(name in self._lists for name in _names(command))

    def left_over(self) -> list[str]:
        """Answers in lists that no command used, as `name (number)`."""
        return [f"{name!r} ({count})" for name, count in self._left.items() if count]

    def give(self, command: Command) -> Any:
        """The next answer to a command that has one; a coroutine if the stand-in is async.

        An exception that a stand-in raises is returned, or `unknown` where a worker would not know the outcome.

        Raises:
            AssertionError: The stand-in's own assertion failed, which is for the test.
        """
        key = self._key(command)
        try:
            if key is None:
                assert isinstance(command, CallTool)
                answer = self._called(command)
            else:
                answer = self._next(key)
                if callable(answer) and not isinstance(answer, type):
                    answer = answer(command)
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stand-in raises is its command's failure
            return self._failed(command, error)
        return self._settled(command, answer) if inspect.isawaitable(answer) else answer

    def _called(self, command: CallTool) -> Any:
        tool = self._tools.get(command.name)
        if tool is None:
            return validate_call(self._plain[command.name])(**command.args)
        try:
            given = tool.given(command)
        except Exception as refused:  # noqa: BLE001 - the tool does not begin, so its effect is not in doubt
            return refused
        answer = tool.spec.function(**given)
        return _written(tool, answer) if inspect.isawaitable(answer) else tool.as_json(answer)

    async def _settled(self, command: Command, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a stand-in raises is its command's failure
            return self._failed(command, error)

    def _failed(self, command: Command, error: Exception) -> Exception | Failure:
        tool = self._tools.get(command.name) if isinstance(command, CallTool) else None
        if tool is None or not _in_doubt(tool.spec, error):
            return error
        from refold.effects.ledger.ledgered_call import NO_PROBE, unknown_outcome

        cause = as_failure(error)
        why = cause.message if tool.spec.probe else f"{cause.message}; {NO_PROBE}"
        failure = unknown(unknown_outcome(command.subject, why))
        return failure.model_copy(update={"details": {"cause": cause.type}})

    def _key(self, command: Command) -> str | None:
        for name in _names(command):
            if self._left.get(name) or name in self._always:
                return name
        return None

    def _next(self, key: str) -> Any:
        if key in self._always:
            return self._always[key]
        self._left[key] -= 1
        return next(self._lists[key])


async def _written(tool: Tool, answer: Awaitable[Any]) -> JsonValue:
    return tool.as_json(await answer)


def _names(command: Command) -> tuple[str, str, str]:
    return (command.id, command.subject, command.kind)
