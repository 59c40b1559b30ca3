"""Calls the tools of a worker's MCP servers with the policies, receipts and failures of any other tool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from refold.core.authoring.tool import ToolSpec
from refold.core.commands import CallTool, EffectPolicy
from refold.core.errors import DefinitionError
from refold.core.pins import unpinned
from refold.core.retry_policy import NO_TOOL, Failure, FailureKind
from refold.effects.failures.classify import classify
from refold.effects.failures.verdicts import Never, TryLater, Verdict
from refold.effects.invocation import Invocation, Stopped
from refold.effects.ledger.receipts import LEASE_S
from refold.effects.mcp.servers import LIST, McpServer, McpTool, pin_of
from refold.effects.mcp.session import Session
from refold.effects.tools import LEDGERED, call_with_receipt

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger


FRESH_S = 1.0
"""For how long, in seconds, a definition that was looked up counts: a call may wait for the ledger, or for another call
of its key, and the server may change meanwhile."""


class McpTools:
    """A worker's sessions with its MCP servers. Close them when the worker ends."""

    def __init__(self, servers: Iterable[McpServer]) -> None:
        """Open nothing yet, so that a server that is down affects only its own tools.

        Raises:
            DefinitionError: Two servers share a name.
        """
        self._sessions: dict[str, Session] = {}
        for server in servers:
            if server.name in self._sessions:
                raise DefinitionError(server.name, ["two servers have this name"], what="MCP server")
            self._sessions[server.name] = Session(server)

    def __contains__(self, name: str) -> bool:
        """Whether a name belongs to one of these servers: `server` or `server.…`."""
        return "." in name and name.partition(".")[0] in self._sessions

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers' names."""
        return tuple(self._sessions)

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.close() for session in self._sessions.values()))

    async def call(
        self,
        command: CallTool,
        invocation: Invocation,
        ledger: Ledger | None,
        *,
        lease_s: float = LEASE_S,
        decided: int = 0,
        why: Callable[[], Stopped] = lambda: Stopped.UNWANTED,
        elsewhere: Callable[[], Awaitable[str]] | None = None,
    ) -> JsonValue:
        """Call a tool, or list a server's tools; arguments as `Tool.call`.

        Raises:
            Verdict: The server is unavailable, has no such tool, has changed a pinned definition, or
                `LedgeredCall.result` raised it.
        """
        name, pin = unpinned(command.name)
        server, _, tool = name.partition(".")
        session = self._sessions[server]
        if tool == LIST:
            listed = await session.tools(again=True)
            return [one.model_dump(mode="json") for one in listed.values()]
        # An earlier attempt may have made the call before the server went away or changed: the receipt knows.
        effect, refused = EffectPolicy.AT_MOST_ONCE, None
        try:
            effect = (await self._defined(session, tool, pin)).effect
        except Exception as error:  # noqa: BLE001 - raised below, unless there is a receipt
            refused = _nothing_done(classify(error))
        looked_up = time.monotonic()

        async def perform(invocation: Invocation) -> Any:
            if refused is not None:
                raise refused
            if time.monotonic() - looked_up > FRESH_S:
                try:
                    await self._defined(session, tool, pin)
                except Exception as error:  # noqa: BLE001 - as above
                    raise _nothing_done(classify(error)) from None
            return await session.call(tool, command.args, invocation.idempotency_key, invocation.progress)

        if effect not in LEDGERED:
            result: JsonValue = await perform(invocation)
            return result
        return await call_with_receipt(
            _spec(name, effect, session.server),
            command,
            invocation,
            ledger,
            perform,
            lambda value: value,
            lease_s=lease_s,
            decided=decided,
            why=why,
            elsewhere=elsewhere,
        )

    async def _defined(self, session: Session, tool: str, pin: str) -> McpTool:
        # An untrusted server's tools are listed before each call, to notice a dead session or a changed definition.
        tools = await session.tools(again=not session.server.trusted)
        found = tools.get(tool)
        if session.server.trusted and (found is None or not found.fits(pin)):
            tools = await session.tools(again=True)  # the list here may be older than the task's
            found = tools.get(tool)
        if found is None and (why := session.unfit.get(tool)):
            message = f"MCP server {session.server.name!r} defines {tool!r} as MCP does not allow it: {why}"
            raise Never(message, type=NO_TOOL)
        if found is None:
            there = ", ".join(sorted(tools)) or "none"
            raise Never(f"MCP server {session.server.name!r} has no tool {tool!r}; it has: {there}", type=NO_TOOL)
        if pin == pin_of(found.description, found.parameters, only_reads=True) and not found.only_reads:
            message = (
                f"{tool!r} of MCP server {session.server.name!r} only read when this task first saw it, and may have "
                "effects now: "
            )
            if not session.server.trusted:  # another worker may, as while the setting is rolled out
                way_out = "let all workers of the task queue trust it, or start a new task to use the tool as it is"
                raise TryLater(f"{message}this worker does not trust the server; {way_out}", type="tool_changed")
            way_out = "start a new task to use it as it is"
            raise Never(f"{message}the server gives no readOnlyHint any more; {way_out}", type="tool_changed")
        if not found.fits(pin):
            raise Never(
                f"MCP server {session.server.name!r} defines {tool!r} otherwise than when this task first saw it "
                f"({found.pin}, not {pin}); start a new task to use it as it is",
                type="tool_changed",
            )
        return found


def _nothing_done(failure: Failure) -> Verdict:
    """The failure of looking a tool up, which has no effect."""
    if failure.kind is FailureKind.PERMANENT:
        return Never(failure.message, type=failure.type, details=failure.details)
    return TryLater(failure.message, after=failure.retry_after, type=failure.type, details=failure.details, unsent=True)


def _spec(name: str, effect: EffectPolicy, server: McpServer) -> ToolSpec:
    def elsewhere() -> None:
        raise AssertionError("it runs at its server")

    return ToolSpec(name=name, effect=effect, function=elsewhere, timeout_s=server.timeout_s)
