"""What a skill's code is given to work with: the time, calls to await, and the ways a step can end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from datetime import datetime
from typing import Any, Generic, TypeVar, overload

from pydantic import JsonValue, ValidationError

from refold.core.commands import (
    AskUser,
    CallActivity,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Cmd,
    Sleep,
    tool_name,
)
from refold.core.content import Artifact, Content, Message, as_content
from refold.core.errors import DecodeError, SkillError
from refold.core.events import SkillOutcome
from refold.core.retry import Failure, FailureKind, RetryPolicy
from refold.core.schema import adapter, problems
from refold.core.skill import Moment
from refold.core.transition import Transition

T = TypeVar("T")
Called = CallLlm | CallTool | CallSkill | CallActivity | CallWorkflow | Sleep | AskUser


class Call(Generic[T]):
    """A command that a step awaits: `draft = await ctx.llm("draft", "Write.", topic)`."""

    __slots__ = ("awaited", "command", "decode")

    def __init__(self, command: Called, decode: Callable[[Any], T]) -> None:
        self.command: Called = command
        self.decode = decode
        self.awaited = False

    def __await__(self) -> Generator[Asked, Any, T]:
        self.awaited = True
        results: tuple[T] = yield (self,)
        return results[0]


class Gather(Generic[T]):
    """Several calls at once; see `Ctx.gather`."""

    __slots__ = ("calls",)

    def __init__(self, calls: tuple[Call[Any], ...]) -> None:
        for call in calls:
            call.awaited = True
        self.calls = calls

    def __await__(self) -> Generator[Asked, Any, T]:
        result: T = yield self.calls
        return result


Asked = tuple[Call[Any], ...]


class Ctx:
    """The context of one task, as its skill sees it.

    A reducer uses `now`, `task_id`, `messages`, `decode` and `patched`. A step uses all of it. There is no clock, no
    random and no input or output here: what is not in the context is asked for by a command.
    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._now = moment.at
        self._made: list[Call[Any]] = []
        self._said = Transition()

    # --- what it knows

    @property
    def now(self) -> datetime:
        """The current event's time, aware; the same on every replay."""
        return self._now

    @property
    def task_id(self) -> str:
        """The task's id."""
        return self._moment.task_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said in this task so far, oldest first."""
        return self._moment.messages

    def patched(self, id: str) -> bool:
        """Whether this task takes the new path of a change: True for tasks that come here first with new code.

        The first answer is kept with the task for ever.
        """
        return self._moment.patched(id)

    def decode(self, kind: type[T], value: JsonValue) -> T:
        """`value` as a `kind`.

        Raises:
            DecodeError: It does not fit; the message says where.
        """
        return decode_as(kind, value, "decode", "")

    # --- what it can ask for; await each, alone or in `gather`

    @overload
    def llm(self, id: str, prompt: str = "", input: str | Content | None = None, *, expect: type[T],
            model: str | None = None, settings: dict[str, JsonValue] | None = None,
            retry: RetryPolicy | None = None, queue: str | None = None) -> Call[T]: ...  # fmt: skip

    @overload
    def llm(self, id: str, prompt: str = "", input: str | Content | None = None, *, expect: None = None,
            model: str | None = None, settings: dict[str, JsonValue] | None = None,
            retry: RetryPolicy | None = None, queue: str | None = None) -> Call[str]: ...  # fmt: skip

    def llm(self, id: str, prompt: str = "", input: str | Content | None = None, *, expect: Any = None,
            **options: Any) -> Call[Any]:  # fmt: skip
        """Ask a model: its text, or a value of the type `expect`. See `CallLlm`."""
        command = Cmd.llm(id, prompt, input, expect=expect, **options)
        return self._call(command, str if expect is None else expect)

    @overload
    def tool(self, tool: Callable[..., Awaitable[T]], *, id: str | None = None, key: str | None = None,
             retry: RetryPolicy | None = None, queue: str | None = None, **args: Any) -> Call[T]: ...  # fmt: skip

    @overload
    def tool(self, tool: Callable[..., T], *, id: str | None = None, key: str | None = None,
             retry: RetryPolicy | None = None, queue: str | None = None, **args: Any) -> Call[T]: ...  # fmt: skip

    @overload
    def tool(self, tool: str, *, id: str | None = None, key: str | None = None,
             retry: RetryPolicy | None = None, queue: str | None = None, **args: Any) -> Call[Any]: ...  # fmt: skip

    def tool(self, tool: Any, *, id: str | None = None, key: str | None = None,
             retry: RetryPolicy | None = None, queue: str | None = None, **args: Any) -> Call[Any]:  # fmt: skip
        """Call a tool by function or by name. By function, the result has its declared type. See `CallTool`."""
        name = tool_name(tool)
        command = Cmd.tool(id or name, name, args, key=key, retry=retry, queue=queue)
        return self._call(command, Any if isinstance(tool, str) else tool.__refold_tool__.returns)

    def skill(self, id: str, skill: str | type, input: str | Content | Any) -> Call[SkillOutcome]:
        """Run another skill as a task of its own, and wait for what it comes to. See `CallSkill`."""
        return self._call(Cmd.skill(id, skill, input), SkillOutcome)

    def activity(self, id: str, name: str, *args: Any, expect: Any = Any, **options: Any) -> Call[Any]:
        """Run an existing Temporal activity. See `CallActivity`."""
        return self._call(Cmd.activity(id, name, *args, **options), expect)

    def workflow(self, id: str, name: str, *args: Any, expect: Any = Any, queue: str | None = None) -> Call[Any]:
        """Run an existing Temporal workflow as a child. See `CallWorkflow`."""
        return self._call(Cmd.workflow(id, name, *args, queue=queue), expect)

    def sleep(self, seconds: float, *, id: str = "sleep") -> Call[None]:
        """Wait, durably."""
        return self._call(Cmd.sleep(id, seconds), None)

    @overload
    def ask(self, slot: str, message: str | Content, *, expect: type[T]) -> Call[T]: ...

    @overload
    def ask(self, slot: str, message: str | Content, *, expect: None = None) -> Call[Content]: ...

    def ask(self, slot: str, message: str | Content, *, expect: Any = None) -> Call[Any]:
        """Ask the user and wait here for the reply: its content, or a value of the type `expect`."""
        return self._call(Cmd.ask_user(slot, message, expect=expect), Content if expect is None else expect)

    def gather(self, *calls: Call[Any]) -> Gather[tuple[Any, ...]]:
        """Ask for several things at once: the results, in the order of the arguments.

        Waits until all have come back, then raises the first failure in that order, if there is one.
        """
        for call in calls:
            if not isinstance(call, Call):
                raise SkillError(f"gather takes calls of ctx, not {call!r}; run a coroutine of yours as a skill")
        seen: dict[str, int] = {}
        for call in calls:
            count = seen[call.command.id] = seen.get(call.command.id, 0) + 1
            if count > 1:  # two in flight need two ids
                call.command = call.command.model_copy(update={"id": f"{call.command.id}.{count}"})
        return Gather(calls)

    # --- what it can say, at once

    def say(self, text: str | Content) -> None:
        """Say something to the user, and go on."""
        self._said = self._said.message(text)

    def hand_over(self, artifact: Artifact) -> None:
        """Hand over a result, and go on."""
        self._said = self._said.artifact(artifact)

    def status(self, progress: str) -> None:
        """Say in one line what is going on, and go on."""
        self._said = self._said.status(progress)

    # --- how a step ends: return one of these

    def goto(self, step: str, **payload: Any) -> Transition:
        """Go to another step, with these arguments."""
        return Transition.goto(step, **payload)

    def complete(self, message: str | Content | None = None, artifacts: list[Artifact] | None = None) -> Transition:
        """The task is done."""
        done = Transition.complete()
        if message is not None:
            done = done.message(as_content(message))
        for artifact in artifacts or []:
            done = done.artifact(artifact)
        return done

    def fail(self, reason: str) -> Transition:
        """The task has failed."""
        return Transition.fail(reason)

    def reject(self, reason: str) -> Transition:
        """The skill declines the task; in the first step only."""
        return Transition.reject(reason)

    def await_input(self, slot: str, message: str | Content, *, expect: Any = None, **carry: Any) -> Transition:
        """Ask the user; the step that says `resume_from` this one meets the reply, with what is carried."""
        return Transition(resume=carry).cmd(Cmd.ask_user(slot, message, expect=expect))

    # --- for the styles

    def _at(self, moment: Moment, now: datetime | None = None) -> None:
        self._moment, self._now, self._said = moment, now or moment.at, Transition()

    def _call(self, command: Called, kind: Any) -> Call[Any]:
        call: Call[Any] = Call(command, _decoder(kind, command.id))
        self._made.append(call)
        return call


def _decoder(kind: Any, id: str) -> Callable[[Any], Any]:
    if kind is Any or kind is None or kind is str:
        return lambda value: value
    return lambda value: decode_as(kind, value, id, "")


def decode_as(kind: Any, value: JsonValue, id: str, invocation_id: str) -> Any:
    """`value` as a `kind`.

    Raises:
        DecodeError: It does not fit; the message says where.
    """
    try:
        return adapter(kind).validate_python(value)
    except ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        message = f"the value does not fit {name}: {problems(error)}"
        failure = Failure(kind=FailureKind.PERMANENT, type="decode", message=message)
        raise DecodeError(id, invocation_id, failure) from None
