"""The context that a skill's code receives: the time, calls to await, messages to send, and the ways a step can end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, cast, overload

from pydantic import JsonValue

from refold.core.authoring.cmd import AskOptions, CallOptions, Cmd, LlmOptions, SkillCallOptions, declared
from refold.core.authoring.transition import NOTHING, Transition, altered, several
from refold.core.chat import EMPTY, Reply, Said, Thread, ToolOffer
from refold.core.commands import Callback, Command, KeyScope, PartBudget
from refold.core.content import Artifact, Content, Message, stored
from refold.core.errors import CommandError, SkillError, shown
from refold.core.events import SkillOutcome, UserMessage
from refold.core.fold.snapshot import OWN_PATCHES, Receipt
from refold.core.gates import DecisionMade, GatePolicy
from refold.core.retry_policy import RetryPolicy
from refold.core.steps.calls import RACEABLE, Call, First, Gather, decode_as, name_apart
from refold.core.steps.parallel import Parallel
from refold.core.values import LONGEST_S, encodable, text

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

NOBODYS = "refold.step.shared_value_of_nobody"
"""The patch with which the value of a shared call is kept that came for coroutines which an error closed with it."""


@dataclass(slots=True, kw_only=True)  # not frozen, which takes three times as long: one is made for each call
class Moment:
    """What the fold passes to a skill in one call.

    Attributes:
        task_id: The task's id.
        known_as: The task id that the skill sees, if the task was recovered or forked: that of the first task.
        seq: The number of the entry that the fold is making.
        at: The entry's time.
        issued: How many commands this entry has before this call.
        receipts: Outcomes that the skill can read, the event's own among them.
        messages: The task's messages before the event.
        message: The message that the event brought; apart, since a task may have ten thousand messages to copy.
        threads: Conversations with models so far, by name.
        budget: What the task may spend as a part of another.
        patched: Answers `ctx.patched`: called with the patch id, and with whether the step is being driven again
            through its past.
        enters: Called by the skill with the name of each step or state that it enters.
        interruption: Takes the oldest message that waits to interrupt the task; returns None if there is none.
        withdrawn: The ids of what lost a race in this call, or whose await is over; steps add them, and a step that
            raises then returns no transition that names them.
        parked: The id of a call whose failure recovery skips, with this event; empty if it skips none.
        check: Raises a `SkillError` if the fold would refuse this transition. Called by skills with a contract before
            they return one, so that the refusal is a failure of the step.
    """

    task_id: str
    known_as: str = ""
    seq: int
    at: datetime
    issued: int = 0
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    message: Message | None = None
    threads: Mapping[str, Thread] = field(default_factory=dict)
    budget: PartBudget | None = None
    patched: Callable[[str, bool], bool] = lambda _, again: not again
    enters: Callable[[str], None] = lambda _: None
    interruption: Callable[[], UserMessage | None] = lambda: None
    withdrawn: list[str] = field(default_factory=list)
    parked: str = ""
    check: Callable[[Transition], None] = lambda _: None

    def invocation_id(self, position: int) -> str:
        """The id of the command at `position` (0 is the first) of the transition that this call returns."""
        return f"{self.task_id}/{self.seq}.{self.issued + position + 1}"


Input = str | Content | None
"""What a model call is about: text, content, or nothing."""


class Ctx:
    """The context of one task, as its skill sees it.

    A reducer uses the properties, `decode`, `say`, `hand_over` and `status`; a step uses everything. A skill reads no
    clock, random numbers, files or network: it uses a command for whatever the context does not have.
    """

    def __init__(self, moment: Moment) -> None:
        self._made: list[Call[Any] | Parallel[Any]] = []
        self._shared: dict[str, Call[Any]] = {}
        self._at(moment)

    def _at(
        self,
        moment: Moment,
        *,
        now: datetime | None = None,
        message_count: int | None = None,
        turns: Mapping[str, int] | None = None,
    ) -> None:
        """Set the moment. A step that is driven again gets the time, messages and threads of its first run."""
        self._moment = moment
        self._again = now is not None
        self._now = now or moment.at
        self._message_count = message_count
        self._turns = turns
        self._said = NOTHING

    # --- what a skill can read

    @property
    def now(self) -> datetime:
        """The current event's time, aware; the same on every replay."""
        return self._now

    @property
    def task_id(self) -> str:
        """The task's id; in a recovered or forked task the first task's, so that keys made from this id stay equal."""
        return self._moment.known_as or self._moment.task_id

    @property
    def budget(self) -> PartBudget | None:
        """What the task that this task is a part of lets it spend; None if that task has set no budget."""
        return self._moment.budget

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of this task so far, the current event's among them; oldest first."""
        brought = self._moment.message
        messages = self._moment.messages if brought is None else (*self._moment.messages, brought)
        return tuple(message.own() for message in messages[: self._message_count])

    def thread(self, name: str = "main") -> tuple[Said, ...]:
        """The turns so far of a conversation with a model, oldest first; empty if there is no thread of this name."""
        said = self._moment.threads.get(name, EMPTY).said
        return tuple(one.own() for one in said[: own_turn_count(self, name)])

    def patched(self, id: str) -> bool:
        """Whether this task runs the new code of a change: False if it passed here before the code had this call.

        The task stores the first answer and gives it from then on. The id does not begin with `refold.`: a task keeps
        the answers of refold's own patches beside those of the skill.

        Raises:
            SkillError: The id is no text, or begins with `refold.`.
        """
        if not isinstance(id, str) or id.startswith(OWN_PATCHES):
            raise SkillError(f"ctx.patched takes a text that does not begin with 'refold.'; it got {shown(id)}")
        return self._moment.patched(text(id), self._again)

    def decode(self, kind: type[T], value: JsonValue) -> T:
        """`value` decoded as the type `kind`.

        Raises:
            DecodeError: The value does not fit; the message says where.
        """
        return cast("T", decode_as(kind, value, "decode", ""))

    # --- calls: await each, alone or in `gather`

    @overload
    def llm(
        self, id: str, prompt: str = "", input: Input = None, *, expect: type[T], **options: Unpack[LlmOptions]
    ) -> Call[T]: ...

    @overload
    def llm(
        self, id: str, prompt: str = "", input: Input = None, *, expect: None = None, **options: Unpack[LlmOptions]
    ) -> Call[str]: ...

    @overload
    def llm(
        self, id: str, prompt: str = "", input: Input = None, *, expect: Any, **options: Unpack[LlmOptions]
    ) -> Call[Any]: ...

    def llm(
        self, id: str, prompt: str = "", input: Input = None, *, expect: Any = None, **options: Unpack[LlmOptions]
    ) -> Call[Any]:
        """Ask a model. The result is its text, or a value of the type `expect`. See `CallLlm`."""
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
        """Continue a conversation. The result is the model's reply, which may call tools. See `Cmd.chat`.

        With `expect`, the model's final answer is the reply's `value`; decode it with `ctx.decode(kind, reply.value)`.
        """
        asked = Cmd.chat(
            id, say, thread=thread, instructions=instructions, tools=tools, expect=expect, since=since, **options
        )
        return self._call(asked, Reply)

    @overload
    def tool(
        self, tool: Callable[..., Awaitable[T]], /, args: Mapping[str, Any] | None = None, *, id: str | None = None,
        key: str | None = None, key_scope: KeyScope = "owner", retry: RetryPolicy | None = None,
        queue: str | None = None, **more: Any,
    ) -> Call[T]: ...  # fmt: skip

    @overload
    def tool(
        self, tool: Callable[..., T], /, args: Mapping[str, Any] | None = None, *, id: str | None = None,
        key: str | None = None, key_scope: KeyScope = "owner", retry: RetryPolicy | None = None,
        queue: str | None = None, **more: Any,
    ) -> Call[T]: ...  # fmt: skip

    @overload
    def tool(
        self, tool: str, /, args: Mapping[str, Any] | None = None, *, id: str | None = None,
        key: str | None = None, key_scope: KeyScope = "owner", retry: RetryPolicy | None = None,
        queue: str | None = None, **more: Any,
    ) -> Call[Any]: ...  # fmt: skip

    def tool(
        self,
        tool: str | Callable[..., Any],
        /,
        args: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        key: str | None = None,
        key_scope: KeyScope = "owner",
        retry: RetryPolicy | None = None,
        queue: str | None = None,
        **more: Any,
    ) -> Call[Any]:
        """Call a tool by function or by name. By function, the result has its declared type. See `CallTool`.

        Args:
            tool: The function, declared with `@tool`, or its name.
            args: The tool's arguments by name; needed for arguments named like one of the options here.
            id: The author's name of the call; None takes the tool's name.
            key, key_scope, retry, queue: As in `CallTool`.
            more: The tool's arguments, as keywords.

        Raises:
            SkillError: The tool has a parameter named like an option here, and the call does not use `args` for it.
        """
        if isinstance(tool, str):
            name, kind = tool, Any
        else:
            spec = declared(tool)
            name, kind = spec.name, spec.returns
            options = {"args": args, "id": id, "key": key, "retry": retry, "queue": queue}
            if key_scope != "owner":
                options["key_scope"] = key_scope
            both = [one for one, given in options.items() if given is not None and one in spec.takes]
            if unclear := [one for one in both if one not in (args or {})]:
                raise SkillError(
                    f"tool {name!r} has a parameter {unclear[0]!r}, and so has ctx.tool: give the tool's in "
                    f"args={{{unclear[0]!r}: ...}}"
                )
        asked = Cmd.tool(id or name, tool, args, key=key, key_scope=key_scope, retry=retry, queue=queue, **more)
        return self._call(asked, kind)

    def skill(self, id: str, skill: Any, input: Any, **options: Unpack[SkillCallOptions]) -> Call[SkillOutcome]:
        """Run another skill as a task of its own, and wait for its outcome. See `CallSkill`."""
        return self._call(Cmd.skill(id, skill, input, **options), SkillOutcome)

    def activity(
        self,
        id: str,
        name: str,
        *args: Any,
        expect: Any = Any,
        timeout_s: float = 600.0,
        **options: Unpack[CallOptions],
    ) -> Call[Any]:
        """Run an existing Temporal activity. The result is decoded as `expect`. See `CallActivity`."""
        return self._call(Cmd.activity(id, name, *args, timeout_s=timeout_s, **options), expect)

    def workflow(self, id: str, name: str, *args: Any, expect: Any = Any, queue: str | None = None) -> Call[Any]:
        """Run an existing Temporal workflow as a child. The result is decoded as `expect`."""
        return self._call(Cmd.workflow(id, name, *args, queue=queue), expect)

    def sleep(self, seconds: float, *, id: str = "sleep") -> Call[None]:
        """Wait for this many seconds, durably."""
        return self._call(Cmd.sleep(id, seconds), None)

    def callback(self, id: str, *, expires_s: float = 86_400) -> Call[Callback]:
        """Make an address that expires after so many seconds, and that others call to answer `ask(…, callback=…)`."""
        if not (isinstance(expires_s, int | float) and 0 < expires_s <= LONGEST_S):
            bounds = f"more than 0 and at most {LONGEST_S:.0f} seconds (a hundred years)"
            raise SkillError(f"callback {id!r} expires after {bounds}, not {shown(expires_s)}")
        return self._call(Cmd.callback(id, self.now + timedelta(seconds=expires_s)), Callback)

    @overload
    def ask(self, slot: str, message: str | Content, *, expect: type[T], **options: Unpack[AskOptions]) -> Call[T]: ...

    @overload
    def ask(
        self, slot: str, message: str | Content, *, expect: None = None, **options: Unpack[AskOptions]
    ) -> Call[Content]: ...

    def ask(self, slot: str, message: str | Content, *, expect: Any = None, **options: Unpack[AskOptions]) -> Call[Any]:
        """Ask the user and wait for the reply: its content, or a value of the type `expect`. See `AskUser`.

        Without a reply within `timeout_s` seconds, or until the `callback` expires, the await raises a `CommandError`
        whose failure's type is `timeout`.
        """
        return self._call(Cmd.ask_user(slot, message, expect=expect, **options), _decoded_as(expect, Content))

    def approve(
        self,
        slot: str,
        message: str | Content,
        *,
        show: Any = None,
        policy: GatePolicy | None = None,
        editable: Collection[str] = (),
    ) -> Call[DecisionMade]:
        """Wait for a person's decision. See `AskApproval`.

        A denial ends the task, unless the policy says to continue.
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
        """Make several calls at once. The results come in the order of the arguments.

        The await lasts until all calls have completed, then raises the first failure in that order, if there is one.
        Calls with the same id are numbered: the second `search` becomes `search.2`.
        """
        _tell_apart("gather", calls)
        return Gather(calls)

    @overload
    def first(self, *calls: Call[T]) -> First[tuple[int, T]]: ...

    @overload
    def first(self, *calls: Call[Any]) -> First[tuple[int, Any]]: ...

    def first(self, *calls: Call[Any]) -> First[Any]:
        """Race calls. The result is the index of the first call that completes, and its value.

        A question that loses is closed, a timer stopped, a model call canceled:

            index, answer = await ctx.first(ctx.ask("size", "Which size?"), ctx.sleep(3600))

        Only timers, questions, gates and model calls can be raced: of another effect that loses it would not be known
        whether it took place. A paused task sends no model calls, so none is raced with a question or gate. If several
        calls have completed, the first in the order of the arguments wins.

        Raises:
            SkillError: There is no call, or there are calls that cannot be raced.
            CommandError: Raised by the await: the call that won has failed.
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
        kinds = {call.command.kind for call in calls}
        if "llm" in kinds and kinds & {"ask", "approval"}:
            raise SkillError(
                "first cannot race a model call with a question or gate: that pauses the task, and a paused task sends "
                "no model calls; race either with a timer, or await one after the other"
            )
        return First(calls)

    def parallel(self, *runs: Coroutine[Any, Any, T], limit: int | None = None) -> Parallel[T]:
        """Run several coroutines of yours at once. The results come in the order of the arguments.

        Each coroutine awaits calls of this context, and is resumed as soon as its own calls have completed. When all
        have ended, the await raises the first failure, in that order, that a coroutine did not catch. Questions and
        gates pause the task, and a paused task sends no commands; so all are asked together when no other call is
        outstanding. Calls with the same id are numbered as in `gather`.

        Any other error of a coroutine is raised by the await at once, and ends the other coroutines. Their effects stay
        in flight, and the outcomes are ignored. Their questions are closed, timers stopped and calls by `llm` canceled,
        and calls that waited for the `limit` of a `parallel` around this one, or for its turn to ask, are not sent.

        Args:
            runs: Coroutines, made by calling `async def` functions.
            limit: How many calls may be outstanding at once, sleeps not counted; None is no limit.

        Raises:
            SkillError: An argument is no coroutine, or the limit is less than 1. Raised by the await: two coroutines
                await one call at once, or one awaits a call that such an error left in flight, or a coroutine has begun
                already, as one that is given twice has.
        """
        for run in runs:
            if not inspect.iscoroutine(run):
                way_out = _starred("parallel", run) or "give calls of ctx to gather"
                raise SkillError(f"parallel takes coroutines, not {run!r}; {way_out}")
        if limit is not None and limit < 1:
            raise SkillError(f"limit={limit!r} would let nothing go on; give a positive number, or None")
        together = Parallel(runs, limit, lambda patch: own_patched(self, patch), self._made)
        self._made.append(together)
        return together

    def _call(self, command: Command, kind: Any) -> Call[Any]:
        if encodable(command) is not command:
            command = stored(command, type(command), f"command {command.id!r}")
        call: Call[Any] = Call(command, kind)
        self._made.append(call)
        return call

    # --- messages, sent when the step next waits or ends

    def say(self, text: str | Content) -> None:
        """Send a message to the user, and continue."""
        self._said = self._said.message(text)

    def hand_over(self, artifact: Artifact) -> None:
        """Publish an artifact, and continue."""
        self._said = self._said.artifact(artifact)

    def status(self, progress: str) -> None:
        """Set the progress, one line that clients show beside the status, and continue."""
        self._said = self._said.status(progress)

    # --- how a step ends: return one of these

    goto = staticmethod(Transition.goto)

    def complete(self, message: str | Content | None = None, artifacts: Sequence[Artifact] = ()) -> Transition:
        """Complete the task, with a last message and artifacts."""
        done = Transition.complete()
        if message is not None:
            done = done.message(message)
        for artifact in several("artifacts", artifacts):
            done = done.artifact(artifact)
        return done

    def fail(self, reason: str | BaseException) -> Transition:
        """Fail the task. The reason is a text that is not empty, or an exception, recorded as its type and text."""
        return Transition.fail(reason)

    def reject(self, reason: str | BaseException) -> Transition:
        """Reject the task, in answer to its first message only. The reason is as in `fail`."""
        return Transition.reject(reason)

    def await_input(
        self, slot: str, message: str | Content, *, expect: Any = None, timeout_s: float | None = None, **carry: Any
    ) -> Transition:
        """Ask the user. The step with `resume_from` this step receives the reply, and the arguments in `carry`.

        The reply fills that step's parameter of type `Content`, or, decoded, the parameter named like the slot. Without
        a reply within `timeout_s` seconds, this parameter is None, which its annotation must allow.
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
        """Wait for a decision. The step with `resume_from` this step receives it, and the arguments in `carry`.

        The decision fills that step's parameter of type `DecisionMade`.
        """
        asked = Cmd.ask_approval(slot, message, show=show, policy=policy, editable=editable)
        return altered(NOTHING, resume=carry).cmd(asked)


def own_patched(ctx: Ctx, patch: str) -> bool:
    """Whether this task takes a mend of refold's own code that a step runs: `ctx.patched` for ids of refold's own."""
    return ctx._moment.patched(patch, ctx._again)


def own_turn_count(ctx: Ctx, thread: str) -> int:
    """How many turns `ctx.thread` returns."""
    count = len(ctx._moment.threads.get(thread, EMPTY).said)
    return count if ctx._turns is None else min(count, ctx._turns.get(thread, 0))


async def own_shared(ctx: Ctx, key: str, make: Callable[[], Call[T]], patch: str) -> tuple[T, bool]:
    """Await a call that the branches of `ctx.parallel` have in common.

    Args:
        ctx: The task's context.
        key: Which call; a branch that comes while others await the call of this key awaits it with them, and one that
            comes after an error has ended them all has the value that came for them.
        make: Makes the call.
        patch: In tasks recorded before, each branch has a call of its own.

    Returns:
        The call's value, and whether this coroutine is the first one to have it.

    Raises:
        CommandError: The call has failed, for each of them.
    """
    call = ctx._shared.get(key)
    if call is None or not _is_in_common(ctx, call, patch):
        call = ctx._shared[key] = make()
        call.shared = True
    try:
        value = await call
    except CommandError:
        call.received = True
        raise
    first, call.received = not call.received, True
    return value, first


def _is_in_common(ctx: Ctx, call: Call[Any], patch: str) -> bool:
    """Whether a branch that comes now has the outcome of this shared call, too."""
    if call.received:
        return False
    nobodys = bool(call.outcome) and not isinstance(call.outcome[0], CommandError)
    return (call.waiting > 0 or (nobodys and own_patched(ctx, NOBODYS))) and own_patched(ctx, patch)


def _tell_apart(method: str, calls: Sequence[Any]) -> None:
    """Check that these are calls, and number those with the same id."""
    for call in calls:
        if not isinstance(call, Call):
            if inspect.iscoroutine(call):
                call.close()  # else Python warns of a coroutine that was never awaited
            way_out = _starred(method, call) or "give coroutines of yours to ctx.parallel"
            raise SkillError(f"{method} takes calls of ctx, not {call!r}; {way_out}")
    name_apart(calls)


def _starred(method: str, given: object) -> str:
    """The way out where several were given as one argument; else empty."""
    return f"write ctx.{method}(*...)" if isinstance(given, list | tuple | Generator) else ""


def _decoded_as(expect: Any, otherwise: Any) -> Any:
    """The type that a result is decoded as: `expect` if it is a type, `Any` if it is only a type's name or schema."""
    if expect is None:
        return otherwise
    return Any if isinstance(expect, str | dict) else expect
