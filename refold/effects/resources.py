"""What the effects of a worker share: HTTP client, models, heartbeats, threads, ledger, memory and middleware."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from temporalio import activity
from temporalio.common import RawValue

from refold.conversation import MEMORY_TOOLS
from refold.core.commands import CallTool
from refold.core.errors import DefinitionError
from refold.cost import OWNER_DAY
from refold.effects.attempt import heartbeats, was_left, workers_beside
from refold.effects.heartbeat import Heartbeater
from refold.effects.http.client import HttpClient, open_client
from refold.effects.http.keys import wire_key
from refold.effects.ledger.ledgered_call import until_answered
from refold.effects.ledger.mark import mark_in
from refold.effects.ledger.receipts import LEASE_S
from refold.effects.ledger.thread_pool import ThreadPool
from refold.effects.mcp.servers import McpServer, servers_from_env
from refold.effects.memory.memory import Memory, scope_of
from refold.effects.middleware import Emitting, MiddlewareBySkill, shown
from refold.effects.models import MODEL_SETTING
from refold.effects.models.conversations import Conversations
from refold.effects.models.model_calls import ModelCalls
from refold.effects.models.owner_day import OwnerDay
from refold.effects.notify import Notifier, notifier_from_env
from refold.effects.progress import Reports
from refold.effects.short.local import Local
from refold.effects.short.stretch import PLACES
from refold.effects.threads import TOOL_THREADS, Threads
from refold.effects.tools import tools_of
from refold.middleware import ActivityMiddleware, ActivityTurn

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger
    from refold.effects.ledger.spending import Spending
    from refold.effects.ledger.store import Seal
    from refold.effects.mcp.tools import McpTools
    from refold.effects.models.request import Show

STEPS = 16
"""How many threads the code of tasks has between effects of one workflow task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The resources that all effects of a running worker share."""

    http: HttpClient
    models: ModelCalls
    heartbeater: Heartbeater
    threads: Threads
    conversations: Conversations
    ledger: Ledger | None
    notifier: Notifier
    places: asyncio.Semaphore


class Resources:
    """What a worker's effects share. Enter it around the worker's run: it owns the HTTP client, models and heartbeats.

    Attributes:
        tools: The registered tools by name.
        servers: The names of the MCP servers.
        mcp: The MCP servers' tools; None without servers.
        ledger: Holds the receipts of effects; None if no tool needs one.
        fallback: Whether the worker has a dynamic activity for all other names.
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
        self.fallback = fallback
        if servers and not fallback:
            raise DefinitionError(self.servers[0], ["its tools need the fallback activity"], what="MCP server")
        needed = records or bool(servers) or any(tool.ledgered for tool in self.tools.values())
        self.ledger = (ledger or _ledger_from_env()) if needed else None
        self._model = model
        self._threads = threads
        self._middleware = MiddlewareBySkill(middleware)
        self._notifier = notifier
        self._opened: Open | None = None
        self._spending: Spending | None = None
        self._local = Local(self._ledger_of_records)
        self._records_open = False
        self._users = 0
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
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
            self._opened = Open(
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
        """See `Local.brought`. Without a `ledger` the effect is performed, and its outcome is not recorded."""
        if ledger is None:
            return await perform()
        with heartbeats(self.open.heartbeater):
            return await self._local.brought(ledger, command, perform)

    async def made_elsewhere(self) -> str:
        """Why an earlier attempt of the current activity may have a receipt in another ledger than this worker's; empty
        if none may. No worker without a ledger has begun an effect that needs a receipt."""
        ledger, id = self.open.ledger, activity.info().activity_id
        if ledger is None:
            return ""
        workers = {worker: mark for worker in sorted(await workers_beside()) if (mark := mark_in(worker))}
        known = {
            mark
            for mark in set(workers.values())
            if await until_answered(partial(ledger.run, ledger.store.is_marked, mark), id)
        }
        others = [worker for worker, mark in workers.items() if mark not in known]
        if not others or await was_left():
            return ""
        return (
            f"an earlier attempt may have been made by a worker with another ledger, such as {others[0]}, and this one "
            "has no receipt; let REFOLD_LEDGER name the same ledger at all workers of the task queue"
        )

    def heartbeats(self, beat: Callable[[], None]) -> AbstractContextManager[None]:
        """Heartbeat for the current activity within the block by `beat`, called in the event loop."""
        return heartbeats(self.open.heartbeater, beat=beat)

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
        # An owner of None is left out of the arguments. Tasks send the owner with these commands, so here it has none.
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
    def open(self) -> Open:
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
