"""The activities of a worker: model calls and tools as Temporal runs them.

| activity           | arguments                                                   | result       |
| ------------------ | ----------------------------------------------------------- | ------------ |
| `refold.llm`       | `CallLlm`, whether to stream, the owner                     | `LlmOutcome` |
| `refold.chat`      | `ChatRequest`, whether to stream, the owner                 | `Reply`      |
| `tool.NAME`        | `CallTool`, the decided fence, the outcome a person gave, the owner | JSON |
| `tool.SERVER.NAME` | the same, for an MCP server                                 | JSON         |
| `refold.notify`    | `Notify`                                                    | nothing      |
| `refold.ledger`    | nothing                                                     | the ledger's id |
| `refold.stretch`   | the token of a run in this process                          | the `Record` of each effect |
| `refold.stretch_end` | nothing                                                   | nothing      |
| any other name     | anything                                                    | is left to a worker that knows it |

The owner is sent only where it matters: for a business key of the owner's own, to a model call that counts towards the
owner's day, and to a skill with middleware, which may keep results. So most calls have no such argument, and their
histories do not name the owner again.

`refold.llm`, `refold.chat` and `tool.NAME` may have one argument more: the id of the ledger that their outcome is
recorded in (`refold.effects.short`). Their result is then a `Brought`, where they are local activities, or performed by
`refold.stretch`, which is one.

The decided fence is the fence of the attempt that a person decided to repeat (`details["fence"]` of the failure
`outcome_unknown`); 0 without a decision. The decision covers that attempt alone: if the outcome of the next attempt is
unknown too, the task asks the person again, although the command still carries the decision. `true` means the latest
attempt, whatever its fence, and applies on the activity's first attempt only: later ones postdate the decision. So does
a call that middleware repeats.

The activity's id is the command's InvocationId, and its workflow's id is the task's. Every failure is raised as an
`ApplicationError` that Temporal does not retry, with the classified `Failure` as its one detail: the task retries by
its own policy, and Temporal retries only after a lost worker.

Of the modules of effects, only this one, `resources`, `attempt`, `asking`, `callbacks` and those in `short` but
`outcomes` import Temporal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property, partial, wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue, TypeAdapter
from temporalio import activity
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from refold.conversation import ChatRequest, Conversation, LlmOutcome
from refold.core.chat import Reply
from refold.core.commands import CallLlm, CallTool, Notify, Undoes
from refold.core.errors import DefinitionError
from refold.core.fold.snapshot import Given
from refold.core.pins import unpinned
from refold.core.retry_policy import NO_ACTIVITY, NO_TOOL, Failure, FailureKind
from refold.effects.asking import asked
from refold.effects.attempt import (
    NEEDS_TASK,
    about_try,
    another_release,
    as_application_error,
    effect,
    heartbeats,
    lease_s,
    left_to_others,
    readable,
    still_wanted,
    until_stored,
    why_stopped,
)
from refold.effects.callbacks import make_address
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.keys import key_of_call, wire_key
from refold.effects.invocation import Invocation
from refold.effects.keepers import keeper_of
from refold.effects.ledger.ledgered_call import until_answered
from refold.effects.ledger.receipts import Finished, LedgerUnavailable, ReceiptState, storable, undone_before
from refold.effects.models.conversations import Recalled
from refold.effects.models.owner_day import within_day
from refold.effects.models.tail import Tail
from refold.effects.notify import Reminder
from refold.effects.progress import Reports
from refold.effects.resources import Open, Resources
from refold.effects.short.local import goes_over
from refold.effects.short.stretch import RUNS, STRETCH, STRETCH_END, Record, Stretch
from refold.effects.short.within import Within
from refold.effects.tools import Tool, receipt_left, record_outcome
from refold.effects.tracing import note, note_content

if TYPE_CHECKING:
    from refold.effects.mcp.tools import McpTools
    from refold.effects.models.request import Show

LLM = "refold.llm"
CHAT = "refold.chat"
CONVERSATION = "conversation"
"""The query by which an activity reads a conversation's turns from the task."""

TOOL = "tool."
NOTIFY = "refold.notify"
LEDGER = "refold.ledger"
ASK_AGAIN_S = 0.2
"""The pause before a refused query for a conversation is sent again, in seconds."""

TOOL_ARGUMENTS = 5
"""The most arguments of a tool's activity, as the table above lists them, with the ledger."""

TASK_PATIENCE_S = (2.0, 10.0, 30.0)
"""The timeouts of the conversation query, in seconds, one for each attempt. A worker without the task in its cache
replays its whole history first, and the SDK drops a query that arrives while it evicts the task."""

Answer = TypeVar("Answer", bound=LlmOutcome | Reply)
_TOO_LATE = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


class Effects(Resources):
    """A worker's effects. Enter it around the worker's run, which opens what they share.

    async with Effects([charge_card]) as effects:
        await Worker(client, task_queue="refold", activities=effects.activities).run()
    """

    @cached_property
    def activities(self) -> list[Callable[..., Any]]:
        """The activities that the worker registers."""
        own = (_notify_activity(self), make_address, _ledger_activity(self), _stretch_activity(self), stretch_end)
        return [*self._by_type.values(), *own, *([self._other] if self.fallback else [])]

    @cached_property
    def within(self) -> Within:
        """Performs the activities within workflow tasks."""
        return Within(self._by_type, self._other)

    @cached_property
    def _by_type(self) -> dict[str, Callable[..., Any]]:
        by_tool = {TOOL + name: _tool_activity(self, tool) for name, tool in self.tools.items()}
        return {LLM: _llm_activity(self), CHAT: _chat_activity(self), **by_tool}

    @cached_property
    def _other(self) -> Callable[..., Any]:
        return _other_activity(self)


def _declared(
    name: str, *, receipt: bool = False
) -> Callable[[Callable[..., Awaitable[Any]]], Callable[..., Awaitable[Any]]]:
    """As `activity.defn`, for an activity that a later release may give more arguments; see `another_release`."""

    def declare(perform: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        known = len(signature(perform).parameters)

        @activity.defn(name=name)
        @wraps(perform)  # the SDK reads the types of the arguments
        async def attempt(*args: Any) -> Any:
            _leave_more(args, known, receipt=receipt)
            return await perform(*args)

        return attempt

    return declare


def _leave_more(args: Sequence[Any], known: int, *, receipt: bool) -> None:
    """Leave a call with more arguments than this release knows to workers of the release that sent it.

    Raises:
        ApplicationError: It has more. The error of a function that takes fewer would fail the command for good.
    """
    if len(args) > known:
        message = f"another release of refold sent {len(args)} arguments, of which this worker knows {known}"
        raise another_release(message, receipt=receipt)


def _llm_activity(effects: Resources) -> Callable[..., Awaitable[Any]]:
    @_declared(LLM)
    async def llm(command: RawValue, stream: bool = False, owner: str | None = None, ledger: str | None = None) -> Any:
        return await effects.brought(ledger, command, partial(attempt, command, stream, owner))

    async def attempt(given: RawValue, stream: bool, owner: str | None) -> LlmOutcome:
        command = readable(CallLlm, given)
        note("refold.command", command.id)

        async def call(key: str, tail: Tail | None) -> LlmOutcome:
            async def request(command: CallLlm, show: Show | None) -> LlmOutcome:
                ask = partial(effects.open.models.ask, command, key=key, show=show)
                return await within_day(effects.day_of(owner), command.settings, ask)

            outcome: LlmOutcome = await effects.performed("model", command, tail, request, owner=owner)
            await until_stored(outcome)
            return outcome

        name = command.model or "the worker's"
        return await _model_effect(effects, LLM, name, call, stream=stream, counted_as=command.model or "default")

    return llm


def _chat_activity(effects: Resources) -> Callable[..., Awaitable[Any]]:
    @_declared(CHAT)
    async def chat(command: RawValue, stream: bool = False, owner: str | None = None, ledger: str | None = None) -> Any:
        return await effects.brought(ledger, command, partial(attempt, command, stream, owner))

    async def attempt(given: RawValue, stream: bool, owner: str | None) -> Reply:
        command = readable(ChatRequest, given)
        note("refold.thread", command.thread)

        async def call(key: str, tail: Tail | None) -> Reply:
            async def request(recalled: Recalled, show: Show | None) -> Reply:
                converse = partial(opened.models.converse, recalled, effects.tools, key=key, show=show)
                return await within_day(effects.day_of(owner), recalled.frame.settings, converse)

            opened = effects.open
            recalled = await opened.conversations.recall(command, _ask_task)
            reply: Reply = await effects.performed("model", recalled, tail, request, owner=owner)
            await until_stored(reply)
            opened.conversations.heard(command, recalled, reply)
            return reply

        return await _model_effect(effects, CHAT, command.thread, call, stream=stream, counted_as="chat")

    return chat


async def _model_effect(
    effects: Resources,
    activity_type: str,
    name: str,
    call: Callable[[str, Tail | None], Awaitable[Answer]],
    *,
    stream: bool,
    counted_as: str,
) -> Answer:
    """One attempt of a model call; `call` makes it, given its idempotency key and what shows the answer meanwhile."""
    info = activity.info()
    tail = Tail(info.attempt, activity.heartbeat) if stream else None
    key = wire_key(namespace=info.namespace, tool=activity_type, key=info.activity_id)

    async def in_heartbeats() -> Answer:
        with heartbeats(effects.open.heartbeater, tail):
            return await call(key, tail)

    try:
        return await effect(activity_type.removeprefix("refold."), name, in_heartbeats, counted_as=counted_as)
    finally:
        if tail is not None:
            tail.close()


async def _ask_task(thread: str, since: int, upto: int) -> Conversation:
    """Query the run that this activity belongs to: other runs of the task may not hold this call."""
    NEEDS_TASK.get()()
    info = activity.info()
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    why: Exception | None = None
    for seconds in TASK_PATIENCE_S:
        try:
            patience = timedelta(seconds=seconds)
            answer: Conversation = await asked(
                partial(
                    handle.query,
                    CONVERSATION,
                    args=[thread, since, upto],
                    result_type=Conversation,
                    rpc_timeout=patience,
                ),
                lambda _: asyncio.sleep(ASK_AGAIN_S),
            )
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError) as error:
            why = error
            if not (isinstance(error, RPCError) and error.status in _TOO_LATE):
                break
        else:
            return answer
    message = f"the task does not say what was said in thread {thread!r}: {why}"
    raise Verdict(Failure(kind=FailureKind.TRANSIENT, type="conversation", message=message))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAttempt:
    """One attempt of a tool call.

    Attributes:
        name: The tool's.
        command: The call.
        decided: What the task has decided about attempts whose outcome is unknown; see `about_try`.
        given: The outcome that an operator gave, to be recorded in place of a call; None if none was given.
        owner: The task's owner.
        returns: The type of the tool's result; None takes any JSON.
        ledger: The id of the only ledger whose workers perform this effect; None if workers with any may.
    """

    name: str
    command: CallTool
    decided: int | bool
    given: Given | None
    owner: str | None
    returns: TypeAdapter[Any] | None = None
    ledger: str | None = None


def _tool_activity(effects: Resources, tool: Tool) -> Callable[..., Awaitable[Any]]:
    @_declared(TOOL + tool.spec.name, receipt=tool.ledgered)
    async def call_tool(
        command: RawValue,
        decided: int | bool = 0,
        given: Given | None = None,
        owner: str | None = None,
        ledger: str | None = None,
    ) -> Any:
        return await effects.brought(ledger, command, partial(attempt, command, decided, given, owner, ledger))

    async def attempt(
        command: RawValue, decided: int | bool, given: Given | None, owner: str | None, ledger: str | None
    ) -> JsonValue:
        tried = ToolAttempt(
            name=tool.spec.name,
            command=readable(CallTool, command, receipt=tool.ledgered),
            decided=decided,
            given=None if given is None else readable(Given, given, receipt=tool.ledgered),
            owner=owner,
            returns=tool.result,
            ledger=ledger,
        )

        async def call(command: CallTool, invocation: Invocation, opened: Open, **about: Any) -> JsonValue:
            return await tool.call(command, invocation, opened.threads, opened.ledger, wanted=still_wanted, **about)

        return await _tool_effect(effects, tried, call)

    return call_tool


async def _tool_effect(
    effects: Resources, attempt: ToolAttempt, call: Callable[..., Awaitable[JsonValue]]
) -> JsonValue:
    """One attempt of a tool call; `call` makes it, unless an operator has given its outcome."""
    info, name, command, owner = activity.info(), attempt.name, attempt.command, attempt.owner

    async def in_heartbeats() -> JsonValue:
        opened, reports = effects.open, Reports(info.attempt, activity.heartbeat)
        opened.models.put_off()
        key = _key(info, attempt)
        # Made for each call: middleware may repeat one, and its requests begin with the first key again.
        invocation = partial(
            Invocation,
            task_id=info.workflow_id or "",
            invocation_id=info.activity_id,
            idempotency_key=key,
            attempt=info.attempt,
            http=opened.http,
            report=reports.add,
            memory=effects.memory_of(command, owner),
        )
        note("refold.command", command.id)
        note_content("refold.idempotency_key", key)
        if command.undoes is not None:
            note("refold.compensates", command.undoes.invocation_id)
        with closing(reports), heartbeats(opened.heartbeater, reports):
            if attempt.given is not None:
                outcome = attempt.given.outcome
                result = await record_outcome(name, command, invocation(), opened.ledger, outcome, attempt.returns)
            elif command.undoes is not None and await _is_undone(effects, command.undoes, info, owner):
                result = None
            else:
                lease = effects.local_lease_s if info.is_local else lease_s(info)
                elsewhere = effects.made_elsewhere if info.attempt > 1 and attempt.ledger is None else None
                of_first = [{"decided": about_try(attempt.decided, info.attempt), "elsewhere": elsewhere}]

                async def perform(command: CallTool, _: Any) -> JsonValue:
                    # A person's decision, and what is known of the attempt before, hold for one call.
                    first = of_first.pop() if of_first else {}
                    return await call(command, invocation(), opened, lease_s=lease, why=why_stopped, **first)

                result = await effects.performed("tool", command, None, perform, owner=owner, reports=reports)
            if command.undoes is not None:
                await _note_undone(effects, command.undoes, info, owner)
            await until_stored(result)
        opened.conversations.returned(result)
        return result

    return await effect("tool", name, in_heartbeats)


async def _is_undone(effects: Resources, undoes: Undoes, info: activity.Info, owner: str | None) -> bool:
    """Whether an effect that several calls have in common, by its business key, was undone for another one of them.

    Raises:
        Verdict: Another task made it, and has completed or may still need it: that task undoes it if it fails.
    """
    if undoes.key is None:
        return False
    key = _key_of_undone(undoes, info, owner)
    found = await until_answered(lambda: asyncio.to_thread(effects.ledger_of_undone.look, key), info.activity_id)
    if found is None or undone_before(found, info.activity_id):
        return found is not None
    if found.invocation_id != storable(undoes.invocation_id) and (keeper := await keeper_of(found.task_id)):
        why = f"task {keeper!r} has this effect, too, by the business key {undoes.key!r}, and made it: it stays"
        raise Verdict(permanent("of_another_task", why))
    return False


def _key_of_undone(undoes: Undoes, info: activity.Info, owner: str | None) -> str:
    return key_of_call(
        info.namespace, undoes.tool, undoes.key, undoes.invocation_id, scope=undoes.key_scope, owner=owner
    )


async def _note_undone(effects: Resources, undoes: Undoes, info: activity.Info, owner: str | None) -> None:
    """Record on an effect's receipt that the effect was undone, so that it may be performed again under its key."""
    key = _key_of_undone(undoes, info, owner)
    await until_answered(
        lambda: asyncio.to_thread(effects.ledger_of_undone.undone, key, info.activity_id, undoes.result),
        info.activity_id,
    )


def _notify_activity(effects: Resources) -> Callable[..., Awaitable[None]]:
    @_declared(NOTIFY)
    async def notify(given: RawValue) -> None:
        command, info = readable(Notify, given), activity.info()
        key = wire_key(namespace=info.namespace, tool=NOTIFY, key=info.activity_id)

        async def call() -> None:
            await effects.open.notifier.notify(Reminder.of(command, key))

        try:
            with heartbeats(effects.open.heartbeater):
                await effect("notify", command.gate, call, counted_as="gate")
        except ApplicationError as error:
            # Temporal retries a reminder, not the task, so that an undeliverable reminder delays nothing.
            later = isinstance(error.details[0], Failure) and error.details[0].kind is FailureKind.TRANSIENT
            raise (as_application_error(error.details[0], retryable=True) if later else error) from None

    return notify


def _ledger_activity(effects: Resources) -> Callable[..., Awaitable[str]]:
    """A local activity: which ledger the effects of a task are recorded in that are performed in workflow tasks."""

    @activity.defn(name=LEDGER)
    async def ledger() -> str:
        return await effects.ledger_id()

    return ledger


def _stretch_activity(effects: Effects) -> Callable[..., Awaitable[list[Record]]]:
    """A local activity: performs effects of a task, and gives it their outcomes in the order of the commands."""

    @activity.defn(name=STRETCH)
    async def stretch(token: str) -> list[Record]:
        run = RUNS.get(token)
        if run is None:  # the workflow has left the cache, and nobody waits for the outcomes
            raise goes_over()
        opened = effects.open
        return await Stretch(run, effects.within.begin, effects.steps, opened.places).records()

    return stretch


@activity.defn(name=STRETCH_END)
async def stretch_end() -> None:
    """Does nothing. Workers that perform a stretch by `refold.stretch` never schedule it."""


def _other_activity(effects: Resources) -> Callable[..., Awaitable[Any]]:
    """The dynamic activity: calls the tool of an MCP server, or leaves an unknown name to other workers."""

    @activity.defn(dynamic=True)
    async def other(args: Sequence[RawValue]) -> Any:
        kind = activity.info().activity_type
        name = kind.removeprefix(TOOL)
        if kind.startswith(TOOL):
            _leave_more(args, TOOL_ARGUMENTS, receipt=True)
        if kind.startswith(TOOL) and effects.mcp is not None and name in effects.mcp:
            return await _mcp_tool(effects, effects.mcp, args)
        if kind.startswith(TOOL):
            removed = partial(_removed_tool, effects, name, args)
            if len(args) < TOOL_ARGUMENTS:
                return await removed()
            ledger = activity.payload_converter().from_payload(args[4].payload, str)
            return await effects.brought(ledger, args[0], removed)
        raise left_to_others(NO_ACTIVITY, f"no activity {kind!r} is registered with this worker")

    return other


async def _removed_tool(effects: Resources, name: str, args: Sequence[RawValue]) -> JsonValue:
    """A call of a tool that this worker does not have. Another worker may have it, or may have called it before it was
    removed: the receipt knows."""
    listed = ", ".join([*sorted(effects.tools), *(f"{server}.…" for server in effects.servers)]) or "none"
    missing, info = f"no tool {name!r} is registered; there are: {listed}", activity.info()
    if not args:  # another program's
        raise left_to_others(NO_TOOL, missing)
    attempt, found, doubt = _attempt(args), None, ""
    try:
        look = partial(receipt_left, effects.ledger_of_undone, attempt.name, attempt.command, _key(info, attempt))
        found = await asyncio.to_thread(look, decided=about_try(attempt.decided, info.attempt), why=missing)
    except (LedgerUnavailable, DefinitionError) as error:
        # A worker without a ledger has no tool that needs one, and there may never have been one.
        doubt = "" if effects.ledger is None else str(error)
    if found is not None and found.state is ReceiptState.DONE:
        recorded = Finished(result=found.result or "null").value

        async def call(*_: Any, **__: Any) -> JsonValue:
            return recorded

        return await _tool_effect(effects, replace(attempt, given=None), call)
    if found is not None and found.state is not ReceiptState.RELEASED:
        doubt = "a worker that had it may have called it, and was lost"
    if doubt and attempt.given is None:  # else a person has said what came of it
        raise left_to_others(NO_TOOL, f"{missing}; {doubt}", kind=FailureKind.UNKNOWN)
    raise left_to_others(NO_TOOL, missing)


async def _mcp_tool(effects: Resources, mcp: McpTools, args: Sequence[RawValue]) -> JsonValue:
    async def call(command: CallTool, invocation: Invocation, opened: Open, **about: Any) -> JsonValue:
        return await mcp.call(command, invocation, opened.ledger, **about)

    return await _tool_effect(effects, _attempt(args), call)


def _attempt(args: Sequence[RawValue]) -> ToolAttempt:
    """The attempt that the arguments of the dynamic activity are about."""
    command, read = readable(CallTool, args[0], receipt=True), activity.payload_converter().from_payload
    return ToolAttempt(
        name=unpinned(command.name)[0],
        command=command,
        # Without a type, since read as a number `true` would be the first fence.
        decided=read(args[1].payload) if len(args) > 1 else 0,
        given=readable(Given, args[2], receipt=True) if len(args) > 2 and args[2].payload.data else None,
        owner=read(args[3].payload, str) if len(args) > 3 else None,
    )


def _key(info: activity.Info, attempt: ToolAttempt) -> str:
    command = attempt.command
    return key_of_call(
        info.namespace, attempt.name, command.key, info.activity_id, scope=command.key_scope, owner=attempt.owner
    )
