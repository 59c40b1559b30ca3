"""What a skill's code is given to work with: the time, calls to await, and the ways a step can end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack, cast, overload

from pydantic import JsonValue

from refold.core.authoring.moment import Moment
from refold.core.authoring.transition import NOTHING, Transition, altered, several
from refold.core.chat import EMPTY, Reply, Said, ToolOffer
from refold.core.commands import Cmd, admitted, declared
from refold.core.content import Artifact, Content, Message
from refold.core.errors import SkillError, shown
from refold.core.events import SkillOutcome
from refold.core.gates import DecisionMade, GatePolicy
from refold.core.retry import RetryPolicy
from refold.core.steps.calls import RACEABLE, Call, Called, First, Gather, decode_as
from refold.core.steps.parallel import Parallel
from refold.core.values import text

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")


class CallOptions(TypedDict, total=False):
    """What can be said of any call.

    Attributes:
        retry: How "try later" is tried again; left out, as the skill says.
        queue: The task queue of the workers that serve it; left out, the task's own.
    """

    retry: RetryPolicy | None
    queue: str | None


class LlmOptions(CallOptions, total=False):
    """What can be said of a model call.

    Attributes:
        model: `provider:name`; left out, the worker's setting.
        settings: Passed on to the provider, for example `{"temperature": 0}`.
    """

    model: str | None
    settings: dict[str, JsonValue] | None


class Ctx:
    """The context of one task, as its skill sees it.

    A reducer uses what it knows, `decode` and what it can say. A step uses all of it. There is no clock, no random
    and no input or output here: what is not in the context is asked for by a command.
    """

    def __init__(self, moment: Moment) -> None:
        self._made: list[Call[Any] | Parallel[Any]] = []
        self._at(moment)

    def _at(
        self,
        moment: Moment,
        *,
        now: datetime | None = None,
        heard: int | None = None,
        turns: Mapping[str, int] | None = None,
    ) -> None:
        """Move on to a moment; or, for a step that is driven again, back to what it knew when it came here first."""
        self._moment = moment
        self._again = now is not None
        self._now = now or moment.at
        self._heard = heard
        self._turns = turns
        self._said = NOTHING

    # --- what it knows

    @property
    def now(self) -> datetime:
        """The current event's time, aware; the same on every replay."""
        return self._now

    @property
    def task_id(self) -> str:
        """The task's id. A recovered or forked task has that of the task it goes on from: what was made of it stays."""
        return self._moment.known_as or self._moment.task_id

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said in this task before this moment, and the message that it is about; oldest first."""
        return tuple(message.own() for message in self._moment.messages[: self._heard])

    def thread(self, name: str = "main") -> tuple[Said, ...]:
        """What was said in a conversation with a model before this moment, oldest first; empty where there is none."""
        said = self._moment.threads.get(name, EMPTY).said
        known = said if self._turns is None else said[: self._turns.get(name, 0)]
        return tuple(one.own() for one in known)

    def patched(self, id: str) -> bool:
        """Whether this task takes the new path of a change: True for tasks that come here first with new code.

        The first answer is kept with the task for ever.
        """
        if not isinstance(id, str):
            raise SkillError(f"ctx.patched takes the name of a change, a text; it got {shown(id)}")
        return self._moment.patched(text(id), self._again)

    def decode(self, kind: type[T], value: JsonValue) -> T:
        """`value` as a `kind`.

        Raises:
            DecodeError: It does not fit; the message says where.
        """
        decoded: T = decode_as(kind, value, "decode", "")
        return decoded

    # --- what it can ask for; await each, alone or in `gather`

    @overload
    def llm(
        self,
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        expect: type[T],
        **options: Unpack[LlmOptions],
    ) -> Call[T]: ...

    @overload
    def llm(
        self,
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        expect: None = None,
        **options: Unpack[LlmOptions],
    ) -> Call[str]: ...

    @overload
    def llm(
        self,
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        expect: Any,
        **options: Unpack[LlmOptions],
    ) -> Call[Any]: ...

    def llm(
        self,
        id: str,
        prompt: str = "",
        input: str | Content | None = None,
        *,
        expect: Any = None,
        **options: Unpack[LlmOptions],
    ) -> Call[Any]:
        """Ask a model: its text, or a value of the type `expect`. See `CallLlm`."""
        return self._call(Cmd.llm(id, prompt, input, expect=expect, **options), _decoded_as(expect, str))

    def chat(
        self,
        id: str,
        say: str | Content | Said | Sequence[str | Content | Said] = (),
        *,
        thread: str = "main",
        instructions: str = "",
        tools: Sequence[str | ToolOffer | Callable[..., Any]] = (),
        expect: Any = None,
        since: int = 0,
        **options: Unpack[LlmOptions],
    ) -> Call[Reply]:
        """Go on with a conversation: the model's reply, which may call tools. See `Cmd.chat`.

        Where `expect` names a type, the model's final answer is the reply's `value`; `ctx.decode(kind, reply.value)`
        reads it.
        """
        asked = Cmd.chat(
            id, say, thread=thread, instructions=instructions, tools=tools, expect=expect, since=since, **options
        )
        return self._call(asked, Reply)

    @overload
    def tool(
        self,
        tool: Callable[..., Awaitable[T]],
        /,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> Call[T]: ...

    @overload
    def tool(
        self,
        tool: Callable[..., T],
        /,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> Call[T]: ...

    @overload
    def tool(
        self,
        tool: str,
        /,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> Call[Any]: ...

    def tool(
        self,
        tool: Any,
        /,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> Call[Any]:
        """Call a tool by function or by name. By function, the result has its declared type. See `CallTool`.

        Args:
            tool: The function, declared with `@tool`, or its name.
            args: Its arguments by name; needed for those that are named as one of the options here.
            id: The author's name of the call; None takes the tool's name.
            key: A business key such as `refund:A1`, instead of the invocation id.
            retry: How "try later" is tried again; None takes the skill's.
            queue: The task queue of the workers that serve it; None is the task's own.
            more: Its arguments, the usual way.
        """
        arguments = dict(args or {})
        if isinstance(tool, str):
            name, kind = tool, Any
        else:
            spec = declared(tool)
            name, kind = spec.name, spec.returns
            options = {"args": args, "id": id, "key": key, "retry": retry, "queue": queue}
            both = [one for one, given in options.items() if given is not None and one in spec.takes]
            if unclear := [one for one in both if one not in arguments]:
                raise SkillError(
                    f"tool {name!r} has a parameter {unclear[0]!r}, and so has ctx.tool: give the tool's in "
                    f"args={{{unclear[0]!r}: ...}}"
                )
        return self._call(Cmd.tool(id or name, tool, {**arguments, **more}, key=key, retry=retry, queue=queue), kind)

    def skill(self, id: str, skill: Any, input: str | Content | Any) -> Call[SkillOutcome]:
        """Run another skill as a task of its own, and wait for what it comes to. See `CallSkill`."""
        return self._call(Cmd.skill(id, skill, input), SkillOutcome)

    def activity(
        self,
        id: str,
        name: str,
        *args: Any,
        expect: Any = Any,
        timeout_s: float = 600.0,
        **options: Unpack[CallOptions],
    ) -> Call[Any]:
        """Run an existing Temporal activity: its result, or a value of the type `expect`. See `CallActivity`."""
        return self._call(Cmd.activity(id, name, *args, timeout_s=timeout_s, **options), expect)

    def workflow(self, id: str, name: str, *args: Any, expect: Any = Any, queue: str | None = None) -> Call[Any]:
        """Run an existing Temporal workflow as a child: its result, or a value of the type `expect`."""
        return self._call(Cmd.workflow(id, name, *args, queue=queue), expect)

    def sleep(self, seconds: float, *, id: str = "sleep") -> Call[None]:
        """Wait, durably."""
        return self._call(Cmd.sleep(id, seconds), None)

    @overload
    def ask(self, slot: str, message: str | Content, *, expect: type[T], timeout_s: float | None = None) -> Call[T]: ...

    @overload
    def ask(
        self, slot: str, message: str | Content, *, expect: None = None, timeout_s: float | None = None
    ) -> Call[Content]: ...

    def ask(
        self, slot: str, message: str | Content, *, expect: Any = None, timeout_s: float | None = None
    ) -> Call[Any]:
        """Ask the user and wait here for the reply: its content, or a value of the type `expect`. See `AskUser`.

        Where nobody answers within `timeout_s` seconds, a `CommandError` is raised; its failure has the type `timeout`.
        """
        return self._call(Cmd.ask_user(slot, message, expect=expect, timeout_s=timeout_s), _decoded_as(expect, Content))

    def approve(
        self,
        slot: str,
        message: str | Content,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
    ) -> Call[DecisionMade]:
        """Wait here for a person's decision. A denial ends the task, unless the policy says to go on.

        Args:
            slot: The gate's name.
            message: What is asked.
            show: What is decided on, as data: the approver sees it, and the decision is for exactly this.
            policy: Who decides, and how long they have.
            editable: What of it whoever grants may change, or add: keys of `show`. The decision's `shown` is then what
                was granted.
        """
        asked = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return self._call(asked, DecisionMade)

    @overload
    def gather(self, one: Call[T1], two: Call[T2], /) -> Gather[tuple[T1, T2]]: ...

    @overload
    def gather(self, one: Call[T1], two: Call[T2], three: Call[T3], /) -> Gather[tuple[T1, T2, T3]]: ...

    @overload
    def gather(
        self, one: Call[T1], two: Call[T2], three: Call[T3], four: Call[T4], /
    ) -> Gather[tuple[T1, T2, T3, T4]]: ...

    @overload
    def gather(self, *calls: Call[T]) -> Gather[tuple[T, ...]]: ...

    def gather(self, *calls: Call[Any]) -> Gather[Any]:
        """Ask for several things at once: the results, in the order of the arguments.

        Waits until all have come back, then raises the first failure in that order, if there is one. Calls of one
        id are told apart: the second of `search` becomes `search.2`.
        """
        _tell_apart("gather", calls)
        return Gather(calls)

    @overload
    def first(self, *calls: Call[T]) -> First[tuple[int, T]]: ...

    @overload
    def first(self, *calls: Call[Any]) -> First[tuple[int, Any]]: ...

    def first(self, *calls: Call[Any]) -> First[Any]:
        """Race calls: the index of the first one that comes back, and its value. The others are withdrawn.

        A question that loses is closed, a timer stopped, a model call canceled:

            index, answer = await ctx.first(ctx.ask("size", "Which size?"), ctx.sleep(3600))

        Timers, questions, gates and model calls can be raced. Nobody could say of another effect that loses whether it
        takes place. Where several have come back, the first in the order of the arguments counts.

        Raises:
            SkillError: There is no call, or one that cannot be raced.
            CommandError: At the `await`: the first to come back has failed.
        """
        _tell_apart("first", calls)
        if not calls:
            raise SkillError("first takes one call at least: ctx.first(ctx.ask(...), ctx.sleep(...))")
        for call in calls:
            if not isinstance(call.command, RACEABLE):
                raise SkillError(
                    f"first cannot race {call.command.id!r}, a {call.command.kind}: if it lost, nobody could say "
                    "whether it takes place; race timers, questions, gates and model calls"
                )
        return First(calls)

    def parallel(self, *runs: Coroutine[Any, Any, T], limit: int | None = None) -> Parallel[T]:
        """Run several coroutines of yours at once: their results, in the order of the arguments.

        Each awaits calls of this context, and goes on as soon as they have come back, whatever the others wait for.
        When all have ended, the first uncaught failure of a command, in that order, is raised. A question or gate is
        asked when nothing else is going on, together with the others' questions: it pauses the task, and then nothing
        new is started. Calls of one id are told apart as in `gather`.

        Args:
            runs: Coroutines, as `async def` functions give when they are called.
            limit: How many calls may be out at once, sleeps not counted; None is no limit.

        Raises:
            SkillError: One of them is no coroutine, or the limit is no positive number.
        """
        for run in runs:
            if not inspect.iscoroutine(run):
                raise SkillError(f"parallel takes coroutines, not {run!r}; give calls of ctx to gather")
        if limit is not None and limit < 1:
            raise SkillError(f"limit={limit!r} would let nothing go on; give a positive number, or None")
        together = Parallel(runs, limit)
        self._made.append(together)
        return together

    def _call(self, command: Called, kind: Any) -> Call[Any]:
        call: Call[Any] = Call(cast("Called", admitted(command)), kind)
        self._made.append(call)
        return call

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

    def goto(self, step: str, /, **payload: Any) -> Transition:
        """Go to another step, with these arguments."""
        return Transition.goto(step, **payload)

    def complete(self, message: str | Content | None = None, artifacts: Sequence[Artifact] = ()) -> Transition:
        """The task is done."""
        done = Transition.complete()
        if message is not None:
            done = done.message(message)
        for artifact in several("artifacts", artifacts):
            done = done.artifact(artifact)
        return done

    def fail(self, reason: str | BaseException) -> Transition:
        """The task has failed. An exception is told by its type and text; an empty reason, or None, is an error."""
        return Transition.fail(reason)

    def reject(self, reason: str | BaseException) -> Transition:
        """The skill declines the task, for a reason as in `fail`; only in answer to the first message."""
        return Transition.reject(reason)

    def await_input(
        self,
        slot: str,
        message: str | Content,
        *,
        expect: Any = None,
        timeout_s: float | None = None,
        **carry: Any,
    ) -> Transition:
        """Ask the user; the step that says `resume_from` this one receives the reply, and what is carried.

        That step gets the reply in its parameter of type `Content`, or, decoded, in the one named like the slot. Where
        nobody answers within `timeout_s` seconds, that parameter is None; it must be annotated as one that may be.
        """
        return altered(NOTHING, resume=carry).cmd(Cmd.ask_user(slot, message, expect=expect, timeout_s=timeout_s))

    def await_approval(
        self,
        slot: str,
        message: str | Content,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
        **carry: Any,
    ) -> Transition:
        """Wait for a person's decision; the step that says `resume_from` this one meets it, with what is carried.

        That step gets the decision in its parameter of type `DecisionMade`.
        """
        asked = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return altered(NOTHING, resume=carry).cmd(asked)


def _tell_apart(method: str, calls: Sequence[Any]) -> None:
    """Check that these are calls, and give each an id of its own: two in flight need two."""
    seen: dict[str, int] = {}
    for call in calls:
        if not isinstance(call, Call):
            if inspect.iscoroutine(call):
                call.close()  # or Python would warn that nobody awaited it
            raise SkillError(f"{method} takes calls of ctx, not {call!r}; give coroutines of yours to ctx.parallel")
        count = seen[call.command.id] = seen.get(call.command.id, 0) + 1
        if count > 1:
            call.command = call.command.model_copy(update={"id": f"{call.command.id}.{count}"})


def _decoded_as(expect: Any, otherwise: Any) -> Any:
    """The type a result is decoded to: what is expected, where that is a type and not only its name or schema."""
    if expect is None:
        return otherwise
    return Any if isinstance(expect, str | dict) else expect
