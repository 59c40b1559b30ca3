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
attempt, whatever its fence, and applies on the activity's first attempt only: later ones postdate the decision.

The activity's id is the command's InvocationId, and its workflow's id is the task's. Every failure is raised as an
`ApplicationError` that Temporal does not retry, with the classified `Failure` as its one detail: the task retries by
its own policy, and Temporal retries only after a lost worker.

Of the modules of effects, only this one, `attempt`, and those in `short` but `outcomes` import Temporal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue, TypeAdapter
from temporalio import activity
from temporalio.client import WorkflowQueryFailedError, WorkflowQueryRejectedError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from refold.conversation import MEMORY_TOOLS, ChatRequest, Conversation, LlmOutcome
from refold.core.chat import Reply
from refold.core.commands import CallLlm, CallTool, Notify, Undoes
from refold.core.errors import DefinitionError
from refold.core.fold.snapshot import Given
from refold.core.retry_policy import Failure, FailureKind
from refold.cost import OWNER_DAY
from refold.effects.asking import asked
from refold.effects.attempt import (
    NEEDS_TASK,
    about_try,
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
from refold.effects.failures.verdicts import Verdict
from refold.effects.heartbeat import Heartbeater
from refold.effects.http.client import HttpClient, open_client
from refold.effects.http.keys import key_of_call, wire_key
from refold.effects.invocation import Invocation
from refold.effects.ledger.ledgered_call import until_answered
from refold.effects.ledger.receipts import LEASE_S
from refold.effects.ledger.thread_pool import ThreadPool
from refold.effects.mcp.servers import McpServer, servers_from_env
from refold.effects.memory.memory import Memory, scope_of
from refold.effects.middleware import Emitting, MiddlewareBySkill, shown
from refold.effects.models import MODEL_SETTING
from refold.effects.models.conversations import Conversations
from refold.effects.models.model_calls import ModelCalls
from refold.effects.models.owner_day import OwnerDay, within_day
from refold.effects.models.tail import Tail
from refold.effects.notify import Notifier, Reminder, notifier_from_env
from refold.effects.progress import Reports
from refold.effects.short.local import Local, goes_over
from refold.effects.short.stretch import PLACES, RUNS, STRETCH, STRETCH_END, Record, Stretch
from refold.effects.short.within import Within
from refold.effects.threads import TOOL_THREADS, Threads
from refold.effects.tools import Tool, record_outcome, tools_of
from refold.effects.tracing import note, note_content
from refold.middleware import ActivityMiddleware, ActivityTurn

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger
    from refold.effects.ledger.spending import Spending
    from refold.effects.ledger.store import Seal
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

TASK_PATIENCE_S = (2.0, 10.0, 30.0)
"""The timeouts of the conversation query, in seconds, one for each attempt. A worker without the task in its cache
replays its whole history first, and the SDK drops a query that arrives while it evicts the task."""

STEPS = 16
"""How many threads the code of tasks has between effects of one workflow task."""

_TOO_LATE = (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    """The resources that all effects of a running worker share."""

    http: HttpClient
    models: ModelCalls
    heartbeater: Heartbeater
    threads: Threads
    conversations: Conversations
    ledger: Ledger | None
    notifier: Notifier
    places: asyncio.Semaphore


class Effects:
    """A worker's effects. Enter it around the worker's run: it owns the HTTP client, the models and the heartbeats.

    async with Effects([charge_card]) as effects:
        await Worker(client, task_queue="refold", activities=effects.activities).run()

    Attributes:
        tools: The registered tools by name.
        servers: The names of the MCP servers.
        mcp: The MCP servers' tools; None without servers.
        ledger: Holds the receipts of effects; None if no tool needs one.
        activities: The activities that the worker registers.
        within: Performs them within workflow tasks.
        seal: Encrypts what receipts hold of results and failures; None leaves it readable.
        server: The address of the worker's Temporal server, `host:port`; None if it is not known.
        local_lease_s: The lease of an effect that a local activity performs, in seconds.
    """

    seal: Seal | None = None
    server: str | None = None
    local_lease_s: float = LEASE_S

    def __init__(
        self,
        tools: Iterable[Callable[..., Any]] = (),
        *,
        model: str | None = None,
        ledger: Ledger | None = None,
        fallback: bool = True,
        notifier: Notifier | None = None,
        mcp: Iterable[McpServer] | None = None,
        middleware: Mapping[str, Sequence[ActivityMiddleware]] | None = None,
        threads: int = TOOL_THREADS,
        records: bool = False,
    ) -> None:
        """Check the tools; open nothing yet.

        Args:
            tools: Functions declared with `@tool`.
            model: The model of calls that name none; None takes `REFOLD_MODEL`, else the scripted one.
            ledger: For tools that are `at_most_once` or `compensate`; None takes `REFOLD_LEDGER`, else a file.
            fallback: Register a dynamic activity for all other names: it calls the tools of MCP servers, and fails an
                unknown tool with the names of the registered ones. A worker can have only one dynamic activity: pass
                False to register another.
            notifier: Notifies people of waiting gates; None takes `REFOLD_NOTIFY_URL`, else the log.
            mcp: MCP servers; None takes those in the file that `REFOLD_MCP` names.
            middleware: The middleware around a skill's model calls and tools, by the skill's id.
            threads: The most tools that are a plain `def` running at once.
            records: Effects may be performed within workflow tasks, which needs the ledger, too.

        Raises:
            DefinitionError: A tool is not declared or has types that JSON cannot express, two tools share a name, the
                ledger's setting names an unsupported database, an MCP server's entry is wrong, or `refold[mcp]` is
                missing.
        """
        self.tools = tools_of(tools)
        servers = tuple(servers_from_env() if mcp is None else mcp)
        self.servers = tuple(server.name for server in servers)
        self.mcp = _mcp_tools(servers) if servers else None
        if servers and not fallback:
            raise DefinitionError(self.servers[0], ["its tools need the fallback activity"], what="MCP server")
        needed = records or bool(servers) or any(tool.ledgered for tool in self.tools.values())
        self.ledger = (ledger or _ledger_from_env()) if needed else None
        self._model = model
        self._threads = threads
        self._middleware = MiddlewareBySkill(middleware)
        self._notifier = notifier
        self._opened: _Open | None = None
        self._spending: Spending | None = None
        self._local = Local(self._ledger_of_records)
        self._records_open = False
        self._users = 0
        self._closing = AsyncExitStack()
        by_type = {LLM: _llm_activity(self), CHAT: _chat_activity(self)}
        by_type |= {TOOL + name: _tool_activity(self, tool) for name, tool in self.tools.items()}
        other = _other_activity(self)
        self.within = Within(by_type, other)
        self.activities: list[Callable[..., Any]] = [
            *by_type.values(),
            _notify_activity(self),
            make_address,
            _ledger_activity(self),
            _stretch_activity(self),
            stretch_end,
        ]
        if fallback:
            self.activities.append(other)

    async def __aenter__(self) -> Effects:
        self._users += 1  # several workers of one process may share it
        if self._opened is None:
            http = open_client()
            self._closing.push_async_callback(http.aclose)
            threads = Threads(self._threads, "refold-tool")
            self._closing.callback(threads.close)
            models = ModelCalls(self._model, http)
            self._closing.push_async_callback(models.close)
            if self.mcp is not None:
                self._closing.push_async_callback(self.mcp.close)
            heartbeater = self._closing.enter_context(Heartbeater())
            if self.ledger is not None:
                self.ledger.store.seal = self.seal
                self._closing.enter_context(self.ledger)
            self._opened = _Open(
                http=http,
                models=models,
                heartbeater=heartbeater,
                threads=threads,
                conversations=Conversations(),
                ledger=self.ledger,
                notifier=self._notifier or notifier_from_env(http),
                places=asyncio.Semaphore(PLACES),
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._users == 0:
            await self._local.close()
            self._opened = None
            self._records_open = False
            self.__dict__.pop("steps", None)
            await self._closing.aclose()

    async def unusable_models(self, names: Iterable[str | None]) -> list[str]:
        """See `ModelCalls.unusable`. Waits until the providers' libraries are loaded, unless no model needs them."""
        named = {name for name in (self._model or os.environ.get(MODEL_SETTING), *names) if name}
        wanted = {name for name in named if not name.startswith("scripted:")}
        return await self.open.models.unusable(sorted(wanted)) if wanted else []

    async def performed(
        self,
        kind: str,
        command: Any,
        show: Show | None,
        perform: Callable[[Any, Any], Awaitable[Any]],
        *,
        owner: str | None,
        reports: Reports | None = None,
    ) -> Any:
        """Perform a command of the current activity's skill, inside the skill's middleware.

        Args:
            kind: `model` or `tool`.
            command: The command.
            show: Receives a model's streamed answer; None asks for the whole answer at once.
            perform: Performs the command, given the command and `show`.
            owner: The task's owner.
            reports: Receives what a tool reports of its progress.
        """
        info = activity.info()
        turn = ActivityTurn(
            command=command,
            task_id=info.workflow_id or "",
            invocation_id=info.activity_id,
            attempt=info.attempt,
            owner=owner,
        )

        async def innermost(command: Any, emit: Callable[[Any], None]) -> Any:
            if reports is not None:
                reports.through = emit
            return await perform(command, None if show is None else Emitting(emit))

        seen = shown(show) if reports is None else reports.show
        return await self._middleware.perform(info.workflow_type or "", kind, turn, seen, innermost)

    @cached_property
    def steps(self) -> ThreadPool:
        """Where the code of tasks runs between effects of one workflow task. No wait for them: such code may hang."""
        threads = ThreadPool(STEPS, "refold-step")
        self._closing.callback(partial(threads.close, wait=False))
        return threads

    @cached_property
    def ledger_of_undone(self) -> Ledger:
        """The ledger with the receipts of undone effects, whose tools another worker may have."""
        if self.ledger is not None:
            return self.ledger
        ledger = _ledger_from_env()
        ledger.store.seal = self.seal
        self._closing.callback(ledger.store.close)
        return ledger

    async def ledger_id(self) -> str:
        """See `Local.ledger_id`."""
        return await self._local.ledger_id()

    async def brought(self, ledger: str | None, command: RawValue, perform: Callable[[], Awaitable[Any]]) -> Any:
        """See `Local.brought`. Where `ledger` is None, the outcome is recorded in none: perform the effect alone."""
        if ledger is None:
            return await perform()
        with heartbeats(self.open.heartbeater):
            return await self._local.brought(ledger, command, perform)

    def _ledger_of_records(self) -> Ledger:
        """The ledger, open; also where no tool of this worker needs one."""
        if self.open.ledger is not None:
            return self.open.ledger
        ledger = self._shared_ledger()
        if not self._records_open:
            self._records_open = True
            self._closing.enter_context(ledger)
        return ledger

    def day_of(self, owner: str | None) -> OwnerDay:
        """What an owner spends today, for the current activity."""
        info = activity.info()
        return OwnerDay(
            open=self._open_spending,
            owner=wire_key(namespace=info.namespace, tool=OWNER_DAY, key="", owner=owner or ""),
            invocation_id=info.activity_id,
        )

    def memory_of(self, command: CallTool, owner: str | None) -> Memory:
        """The memory of a call's owner, for the current activity."""
        info = activity.info()
        own_key = command.key is not None and command.key_scope == "owner"
        # None is sent as nothing. Where the task sends the owner for such a command, nothing means that it has none.
        told = owner is not None or own_key or command.name in MEMORY_TOOLS
        scope = scope_of(info.namespace, owner or "") if told else None
        id = info.activity_id

        def patiently(call: Callable[[], Awaitable[Any]]) -> Awaitable[Any]:
            return until_answered(call, id)

        return Memory(
            lambda: self._shared_ledger().store, scope=scope, task_id=info.workflow_id or "", patiently=patiently
        )

    def _shared_ledger(self) -> Ledger:
        """The ledger, for what all workers of the task queue must see.

        Raises:
            DefinitionError: It is a file, and the workers may run on several hosts.
        """
        ledger = self.ledger_of_undone
        if self.server is not None:
            ledger.refuse_remote(self.server)
        return ledger

    def _open_spending(self) -> Spending:
        if self._spending is None:
            from refold.effects.ledger.spending import Spending

            self._spending = Spending(self._shared_ledger().store)
        return self._spending

    @property
    def open(self) -> _Open:
        """The shared resources.

        Raises:
            RuntimeError: Called outside `async with effects`.
        """
        if self._opened is None:
            raise RuntimeError("these effects are not open: run the worker inside `async with effects:`")
        return self._opened


def _ledger_from_env() -> Ledger:
    from refold.effects.ledger.ledger import Ledger

    return Ledger()


def _mcp_tools(servers: Iterable[McpServer]) -> McpTools:
    try:
        from refold.effects.mcp.tools import McpTools
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise DefinitionError("MCP", ["its client is missing: pip install 'refold[mcp]'"], what="servers of") from None
    return McpTools(servers)


# --- the activities


def _llm_activity(effects: Effects) -> Callable[..., Awaitable[Any]]:
    @activity.defn(name=LLM)
    async def llm(command: RawValue, stream: bool = False, owner: str | None = None, ledger: str | None = None) -> Any:
        return await effects.brought(ledger, command, partial(asks, command, stream, owner))

    async def asks(command: RawValue, stream: bool, owner: str | None) -> LlmOutcome:
        asked = readable(CallLlm, command)
        info = activity.info()
        note("refold.command", asked.id)
        tail = Tail(info.attempt, activity.heartbeat) if stream else None
        key = wire_key(namespace=info.namespace, tool=LLM, key=info.activity_id)

        async def call() -> LlmOutcome:
            opened = effects.open
            with heartbeats(opened.heartbeater, tail):
                outcome: LlmOutcome = await effects.performed(
                    "model",
                    asked,
                    tail,
                    lambda command, show: within_day(
                        effects.day_of(owner),
                        command.settings,
                        partial(opened.models.ask, command, key=key, show=show),
                        lambda outcome: (outcome.model, outcome.usage),
                    ),
                    owner=owner,
                )
                await until_stored(outcome)
            return outcome

        try:
            return await effect("llm", asked.model or "the worker's", call, counted_as=asked.model or "default")
        finally:
            if tail is not None:
                tail.close()

    return llm


def _chat_activity(effects: Effects) -> Callable[..., Awaitable[Any]]:
    @activity.defn(name=CHAT)
    async def chat(command: RawValue, stream: bool = False, owner: str | None = None, ledger: str | None = None) -> Any:
        return await effects.brought(ledger, command, partial(asks, command, stream, owner))

    async def asks(command: RawValue, stream: bool, owner: str | None) -> Reply:
        request = readable(ChatRequest, command)
        info = activity.info()
        note("refold.thread", request.thread)
        tail = Tail(info.attempt, activity.heartbeat) if stream else None
        key = wire_key(namespace=info.namespace, tool=CHAT, key=info.activity_id)

        async def call() -> Reply:
            opened = effects.open
            with heartbeats(opened.heartbeater, tail):
                recalled = await opened.conversations.recall(request, _ask_task)
                reply: Reply = await effects.performed(
                    "model",
                    recalled,
                    tail,
                    lambda recalled, show: within_day(
                        effects.day_of(owner),
                        recalled.frame.settings,
                        partial(opened.models.converse, recalled, effects.tools, key=key, show=show),
                        lambda reply: (reply.model, reply.usage),
                    ),
                    owner=owner,
                )
                await until_stored(reply)
            opened.conversations.heard(request, recalled, reply)
            return reply

        try:
            return await effect("chat", request.thread, call, counted_as="chat")
        finally:
            if tail is not None:
                tail.close()

    return chat


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


def _tool_activity(effects: Effects, tool: Tool) -> Callable[..., Awaitable[Any]]:
    @activity.defn(name=TOOL + tool.spec.name)
    async def call_tool(
        command: RawValue,
        decided: int | bool = 0,
        given: Given | None = None,
        owner: str | None = None,
        ledger: str | None = None,
    ) -> Any:
        return await effects.brought(ledger, command, partial(calls, command, decided, given, owner))

    async def calls(command: RawValue, decided: int | bool, given: Given | None, owner: str | None) -> JsonValue:
        asked = readable(CallTool, command)
        outcome = None if given is None else readable(Given, given)

        async def call(command: CallTool, invocation: Invocation, opened: _Open, **about: Any) -> JsonValue:
            return await tool.call(command, invocation, opened.threads, opened.ledger, wanted=still_wanted, **about)

        return await _tool_effect(effects, tool.spec.name, asked, decided, outcome, owner, call, tool.result)

    return call_tool


async def _tool_effect(
    effects: Effects,
    name: str,
    command: CallTool,
    decided: int | bool,
    given: Given | None,
    owner: str | None,
    call: Callable[..., Awaitable[JsonValue]],
    returns: TypeAdapter[Any] | None = None,
) -> JsonValue:
    info = activity.info()

    async def made() -> JsonValue:
        opened, reports = effects.open, Reports(info.attempt, activity.heartbeat)
        opened.models.put_off()
        invocation = Invocation(
            task_id=info.workflow_id or "",
            invocation_id=info.activity_id,
            idempotency_key=key_of_call(
                info.namespace, name, command.key, info.activity_id, scope=command.key_scope, owner=owner
            ),
            attempt=info.attempt,
            http=opened.http,
            report=reports.add,
            memory=effects.memory_of(command, owner),
        )
        note("refold.command", command.id)
        note_content("refold.idempotency_key", invocation.idempotency_key)
        if command.undoes is not None:
            note("refold.compensates", command.undoes.invocation_id)
        with closing(reports), heartbeats(opened.heartbeater, reports):
            if given is not None:
                result = await record_outcome(name, command, invocation, opened.ledger, given.outcome, returns)
            else:
                lease = effects.local_lease_s if info.is_local else lease_s(info)
                about = {"lease_s": lease, "decided": about_try(decided, info.attempt), "why": why_stopped}
                result = await effects.performed(
                    "tool", command, None, lambda command, _: call(command, invocation, opened, **about), owner=owner,
                    reports=reports,
                )  # fmt: skip
            if command.undoes is not None:
                await _note_undone(effects, command.undoes, info, owner)
            await until_stored(result)
        opened.conversations.returned(result)
        return result

    return await effect("tool", name, made)


async def _note_undone(effects: Effects, undoes: Undoes, info: activity.Info, owner: str | None) -> None:
    """Record on an effect's receipt that the effect was undone, so that it may be performed again under its key."""
    key = key_of_call(
        info.namespace, undoes.tool, undoes.key, undoes.invocation_id, scope=undoes.key_scope, owner=owner
    )
    await until_answered(
        lambda: asyncio.to_thread(effects.ledger_of_undone.undone, key, info.activity_id, undoes.result),
        info.activity_id,
    )


def _notify_activity(effects: Effects) -> Callable[..., Awaitable[None]]:
    @activity.defn(name=NOTIFY)
    async def notify(command: RawValue) -> None:
        asked, info = readable(Notify, command), activity.info()
        key = wire_key(namespace=info.namespace, tool=NOTIFY, key=info.activity_id)

        async def call() -> None:
            await effects.open.notifier.notify(Reminder.of(asked, key))

        try:
            with heartbeats(effects.open.heartbeater):
                await effect("notify", asked.gate, call, counted_as="gate")
        except ApplicationError as error:
            # Temporal retries a reminder, not the task, so that an undeliverable reminder delays nothing.
            later = isinstance(error.details[0], Failure) and error.details[0].kind is FailureKind.TRANSIENT
            raise (as_application_error(error.details[0], retryable=True) if later else error) from None

    return notify


def _ledger_activity(effects: Effects) -> Callable[..., Awaitable[str]]:
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
    """Does nothing: where workers perform a stretch by `refold.stretch`, its end is told without it."""


def _other_activity(effects: Effects) -> Callable[..., Awaitable[JsonValue]]:
    """The dynamic activity: calls the tool of an MCP server, or leaves an unknown name to other workers."""

    @activity.defn(dynamic=True)
    async def other(args: Sequence[RawValue]) -> JsonValue:
        asked = activity.info().activity_type
        name = asked.removeprefix(TOOL)
        if asked.startswith(TOOL) and effects.mcp is not None and name in effects.mcp:
            return await _mcp_tool(effects, effects.mcp, args)
        if asked.startswith(TOOL):
            listed = ", ".join([*sorted(effects.tools), *(f"{server}.…" for server in effects.servers)]) or "none"
            raise left_to_others("unknown_tool", f"no tool {name!r} is registered; there are: {listed}")
        raise left_to_others("unknown_activity", f"no activity {asked!r} is registered with this worker")

    return other


async def _mcp_tool(effects: Effects, mcp: McpTools, args: Sequence[RawValue]) -> JsonValue:
    command = readable(CallTool, args[0])
    # Without a type, since read as a number `true` would be the first fence.
    decided = activity.payload_converter().from_payload(args[1].payload) if len(args) > 1 else 0
    given = readable(Given, args[2]) if len(args) > 2 and args[2].payload.data else None
    owner = activity.payload_converter().from_payload(args[3].payload, str) if len(args) > 3 else None

    async def call(command: CallTool, invocation: Invocation, opened: _Open, **about: Any) -> JsonValue:
        return await mcp.call(command, invocation, opened.ledger, **about)

    return await _tool_effect(effects, command.name.partition("@")[0], command, decided, given, owner, call)
