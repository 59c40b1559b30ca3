"""A session with an MCP server, opened on first use and reused until it fails.

This module, `listing` and `rounds` alone import the MCP SDK, which `refold[mcp]` installs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

import anyio
import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import Transport
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolResult,
    Implementation,
    RequestParamsMeta,
    TextContent,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import JsonValue
from pydantic_core import from_json, to_json

from refold.core.commands import EffectPolicy
from refold.core.retry_policy import FailureKind
from refold.core.schema import first_line
from refold.effects.failures.classify import REFUSING
from refold.effects.failures.network import UNFIT_HEADER, http_failure, never_sent, retry_after, unfit_header
from refold.effects.failures.verdicts import Never, TryLater, Verdict
from refold.effects.http.certificates import trusted
from refold.effects.mcp.http import HEARD, McpHttp, listen
from refold.effects.mcp.listing import readable
from refold.effects.mcp.rounds import first_alone_refused
from refold.effects.mcp.servers import LIST, McpServer, McpTool, effect_of, pin_of
from refold.seen.logs import logger

KEY = "refold/idempotency-key"
"""The field of a call's `_meta` that carries the idempotency key."""

PING_S = 5.0
"""How long a program that has not answered a call in time may take to answer anything at all, in seconds."""

MOST_PAGES = 1_000
"""How many pages of a listing are read: a server whose cursors never repeat would be asked for ever."""

PROBE_S = 10.0
"""How long MCP's SDK waits for an answer to its first question, which servers of older versions do not know, in
seconds."""

_FINAL = (401, 403, 404, 405)
"""Statuses that a retry cannot change: no such address, or no access with these headers."""

_ENDED = (400, 404)
"""Statuses by which a server says that it knows no such session, as after its restart. MCP has 404 for it; servers that
follow an example of MCP's SDK for TypeScript, or older ones of that for Python, answer with 400. Servers of MCP
2026-07-28 have no sessions, and answer with 400 also for an error of a tool that has begun."""

_CLOSED, _CUT_OFF = "Connection closed", "SSE stream"
"""How the SDK's own messages begin that a session, or the answer to one call, has ended: servers use the same code,
-32000, for any failure."""

_UNREAD = {PARSE_ERROR: "Failed to parse", CONNECTION_CLOSED: "SSE stream failed"}
"""How the SDK's own messages begin about an answer that it cannot read, of which they quote a part, by their codes."""

_UNSAID = "Server returned an error response"
"""The SDK's own message for an answer by status alone."""

_GONE = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)

log = logger(__name__)


@dataclass(eq=False, slots=True)
class _Kept:
    """An open session.

    Attributes:
        client: The SDK's client.
        leave: Set to end the session.
        ended: Set once the server has ended it.
        unfit: Why tools were left out of the listings, by their names at the server.
        tools: The tools listed last, by their names at the server; None before the first listing.
    """

    client: Client
    leave: asyncio.Event
    ended: asyncio.Event
    unfit: dict[str, str]
    tools: dict[str, McpTool] | None = None


class Session:
    """The session with one server. An asyncio task owns the client, since the SDK must exit it where it was entered.

    Calls that find no session wait for the same opening: if it fails, it fails for all of them.
    """

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._kept: _Kept | None = None
        self._opening: asyncio.Future[_Kept] | None = None
        self._keepers: dict[asyncio.Task[None], asyncio.Future[_Kept]] = {}

    async def tools(self, *, again: bool = False) -> dict[str, McpTool]:
        """The server's tools, by their names at the server.

        Args:
            again: Ask the server even if its tools were listed before.

        Raises:
            TryLater: The server is unavailable, or the whole list took longer than `timeout_s`.
            Never: The server refuses these headers, the address does not exist, or the list has no end.
        """
        for last in (False, True):
            kept = await self._open()
            if kept.tools is not None and not again:
                return kept.tools
            try:
                async with self._told(kept, LIST):
                    known = dict(kept.unfit)
                    kept.unfit.clear()
                    kept.tools = await self._listed(kept.client)
                    if kept.unfit != known:
                        log.warning("mcp_tools_left_out", server=self.server.name, tools=kept.unfit)
                    return kept.tools
            except TryLater:
                # An old session may have ended unnoticed: a new one shows whether the server is available.
                if last or self._kept is kept:
                    raise
        raise AssertionError("the last try returns or raises")

    @property
    def unfit(self) -> dict[str, str]:
        """Why tools were left out of the listings, by their names at the server."""
        return self._kept.unfit if self._kept is not None else {}

    async def _listed(self, client: Client) -> dict[str, McpTool]:
        found: dict[str, McpTool] = {}
        cursor: str | None = None
        seen: set[str] = set()
        async with asyncio.timeout(self.server.timeout_s):
            while len(seen) < MOST_PAGES:
                page = await client.list_tools(cursor=cursor, cache_mode="refresh")
                found |= {tool.name: self._as_ours(tool) for tool in page.tools}
                cursor = page.next_cursor
                if not cursor:  # some servers end with an empty one
                    return found
                if cursor in seen:
                    raise self._endless(f"its page {cursor[:40]!r} leads back to itself")
                seen.add(cursor)
        raise self._endless(f"{MOST_PAGES:,} pages do not hold them")

    def _endless(self, why: str) -> Never:
        said = f"MCP server {self.server.name!r} lists its tools without end: {why}; a last page has no nextCursor"
        return Never(said, type="mcp_server")

    async def call(
        self, tool: str, args: dict[str, JsonValue], key: str, report: Callable[[JsonValue], None]
    ) -> JsonValue:
        """Call a tool.

        Args:
            tool: The tool's name at the server.
            args: The arguments.
            key: The idempotency key, which a server may ignore.
            report: Receives what the server tells of the call's progress: `{"done": 3, "of": 8, "message": "…"}`.

        Raises:
            TryLater: The server is or became unavailable, or the call took longer than `timeout_s`; `unsent` is False
                if the server may have received the call.
            Never: The tool reports a failure, or the server refuses the call.
            Verdict: The server refuses a later request of the call (`rounds`).
        """

        async def reported(progress: float, total: float | None, message: str | None) -> None:
            told = {"done": _whole(progress), "of": _whole(total), "message": message}
            report({name: value for name, value in told.items() if value is not None})

        kept = await self._open()
        with first_alone_refused():
            async with self._told(kept, tool), asyncio.timeout(self.server.timeout_s):
                result = await kept.client.call_tool(
                    tool, args, progress_callback=reported, meta=cast(RequestParamsMeta, {KEY: key})
                )
        if result.is_error:
            raise Never(_text(result) or _structured(result) or "it failed, and does not say why", type="tool_error")
        return _value(result)

    async def close(self) -> None:
        """End the session, and the server's program if it has one. Calls that wait for a session fail."""
        if self._kept is not None:
            self._forget(self._kept)
        for keeper, opened in self._keepers.items():
            if not opened.done():  # it may take as long as the server may be silent
                keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    # --- the client

    async def _open(self) -> _Kept:
        if self._kept is not None and self._kept.ended.is_set():
            self._forget(self._kept)
        if self._kept is not None:
            return self._kept
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
            keeper = asyncio.create_task(self._keep(self._opening))
            self._keepers[keeper] = self._opening
            keeper.add_done_callback(self._ended)
        return await asyncio.shield(self._opening)  # a call that is given up ends it for no other one

    async def _keep(self, opened: asyncio.Future[_Kept]) -> None:
        listen()
        unfit: dict[str, str] = {}
        leave, ended = asyncio.Event(), asyncio.Event()
        limit = asyncio.timeout(self.server.timeout_s + PROBE_S)

        def note_end() -> None:
            ended.set()
            if not leave.is_set():
                log.info("mcp_session_lost", server=self.server.name, error="the server ended it")

        try:
            async with contextlib.AsyncExitStack() as stack:
                async with limit:
                    client = await stack.enter_async_context(await self._connected(stack, unfit, note_end))
                self._kept, self._opening = _Kept(client, leave, ended, unfit), None
                opened.set_result(self._kept)
                log.info("mcp_session_opened", server=self.server.name)
                await leave.wait()
        except Exception as error:  # noqa: BLE001 - an unavailable program or address may raise anything
            if not opened.done():
                self._fail(opened, self._too_late() if limit.expired() else self._not_opened(error))
            else:
                log.info("mcp_session_lost", server=self.server.name, error=type(error).__name__)

    def _ended(self, keeper: asyncio.Task[None]) -> None:
        if not (opened := self._keepers.pop(keeper)).done():
            said = f"MCP server {self.server.name!r} is not called: this worker has ended its sessions"
            self._fail(opened, TryLater(said, type="mcp_server", unsent=True))

    def _fail(self, opened: asyncio.Future[_Kept], why: Verdict) -> None:
        self._opening = None
        opened.set_exception(why)
        opened.exception()  # the calls that waited may all have been given up

    async def _connected(
        self, stack: contextlib.AsyncExitStack, unfit: dict[str, str], ended: Callable[[], None]
    ) -> Client:
        server = self.server
        if server.url is not None:
            http = await stack.enter_async_context(
                McpHttp(verify=trusted(), headers=dict(server.headers), timeout=server.timeout_s)
            )
            # An answer may be as long as one in plain JSON, for which the SDK has no limit either.
            reached: Transport = streamable_http_client(server.url, http_client=http, max_sse_event_size=None)
        else:
            assert server.command is not None
            program = StdioServerParameters(
                command=server.command,
                args=list(server.args),
                env=dict(server.env),
                cwd=server.cwd,
                encoding_error_handler="replace",  # else one byte that is no UTF-8 silences all calls of the session
            )
            reached = stdio_client(program)
        info = Implementation(name="refold", version="0")
        reached = readable(reached, unfit, lambda: client.protocol_version, ended)
        # Longer than the limit of a call, which must end first: it finds out whether the program is stuck.
        client = Client(reached, read_timeout_seconds=server.timeout_s + PING_S, client_info=info)
        return client

    def _forget(self, kept: _Kept) -> None:
        kept.leave.set()
        if self._kept is kept:
            self._kept = None

    def _too_late(self) -> TryLater:
        limit_s = self.server.timeout_s + PROBE_S
        said = f"MCP server {self.server.name!r} cannot be reached: it has opened no session within {limit_s:g} s"
        return TryLater(said, type="mcp_server", unsent=True)

    def _not_opened(self, error: BaseException) -> Verdict:
        status = _status()
        if status < 400:
            return self._unreachable(_lost() or error)
        if status in _FINAL:
            return self._barred(status)
        return TryLater(self._answer(status), type="mcp_server", unsent=True)

    def _barred(self, status: int) -> Never:
        headers = ", ".join(self.server.headers) or "none"
        return Never(f"{self._answer(status)}, with the headers: {headers}", type="mcp_server")

    def _refused(self, words: str) -> Verdict:
        status, headers = _status(), getattr(_newest(), "headers", None)
        failure = http_failure(status, f"{self._answer(status)}{_words(words)}", retry_after(headers))
        # A server of MCP 2026-07-28 answers with 400 also for an error of a tool that has begun.
        not_done = status in REFUSING and status not in _ENDED
        if failure.kind is FailureKind.PERMANENT:
            return Never(failure.message, type=failure.type, details=failure.details) if not_done else Verdict(failure)
        return TryLater(
            failure.message,
            after=failure.retry_after,
            type=failure.type,
            details=failure.details,
            unsent=not_done,
        )

    def _mismatched(self, error: MCPError, what: str) -> Verdict:
        """The server refuses the headers that follow from the tool's definition; the SDK has tried once more by itself,
        unless the tools could not be listed again."""
        message = f"MCP server {self.server.name!r} refuses {what}: {error.message}"
        if error.__cause__ is None:
            return Never(message)
        return TryLater(f"{message}; and its tools cannot be listed again", type="mcp_server", unsent=True)

    def _answer(self, status: int) -> str:
        # Without what may be a key.
        called_at = httpx2.URL(self.server.url or "").copy_with(userinfo=b"", query=None, fragment=None)
        return f"MCP server {self.server.name!r} answers with HTTP {status}; it is called at {called_at}"

    def _unreachable(self, error: BaseException) -> TryLater:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = (first_line(error) if isinstance(error, Exception) else "") or type(error).__name__
        if self.server.command is not None and isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            said = f"its program {self.server.command!r} ended; what it wrote on stderr is on the worker's"
        if unfit_header(error):
            said = UNFIT_HEADER
        return TryLater(f"MCP server {self.server.name!r} cannot be reached: {said}", type="mcp_server", unsent=True)

    def _broken_off(self, error: httpx2.RequestError, what: str) -> TryLater:
        if never_sent(error):  # an earlier request of the same call may have had an effect, see `rounds`
            return self._unreachable(error)
        if isinstance(error, httpx2.TimeoutException):
            return self._late(what)
        return self._unreadable(what) if isinstance(error, httpx2.DecodingError) else self._went_away(what)

    def _went_away(self, what: str) -> TryLater:
        return TryLater(f"MCP server {self.server.name!r} went away while {what} was under way", type="mcp_server")

    def _unreadable(self, what: str) -> TryLater:
        said = f"MCP server {self.server.name!r} answered {what} with what is no message of MCP"
        return TryLater(said, type="mcp_error")

    def _late(self, what: str) -> TryLater:
        message = f"{self.server.name}.{what} did not answer within {self.server.timeout_s:g} s"
        return TryLater(message, type="timeout")

    async def _restarted_if_stuck(self, kept: _Kept) -> None:
        """End the session with a program that answers nothing more; the next call starts the program again."""
        if self.server.command is None:
            return
        try:
            async with asyncio.timeout(min(PING_S, self.server.timeout_s)):
                await kept.client.session.send_ping()
        except TimeoutError:
            log.warning("mcp_server_stuck", server=self.server.name)
            self._forget(kept)
        except (MCPError, *_GONE):
            pass  # an error is an answer too, and the next call finds out that the program has ended

    # --- answers

    @contextlib.asynccontextmanager
    async def _told(self, kept: _Kept, what: str) -> AsyncIterator[None]:
        listen()
        try:
            yield
        except TimeoutError:
            await self._restarted_if_stuck(kept)
            raise self._late(what) from None
        except _GONE as error:
            self._forget(kept)
            raise self._unreachable(error) from None
        except MCPError as error:
            modern = kept.client.protocol_version in MODERN_PROTOCOL_VERSIONS
            if error.code == HEADER_MISMATCH and modern:
                raise self._mismatched(error, what) from None
            if (lost := _lost()) is not None:
                raise self._broken_off(lost, what) from None
            match error.code:
                case code if code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                    raise Never(f"MCP server {self.server.name!r} refuses {what}: {error.message}") from None
                # By the status first: servers give these answers codes that the SDK uses for its own errors.
                case _ if _status() in _ENDED and not modern:
                    self._forget(kept)
                    said = _words(error.message) if _status() != 404 else ""
                    message = f"MCP server {self.server.name!r} has ended the session{said}"
                    raise TryLater(message, type="mcp_server", unsent=True) from None
                case _ if _status() in _FINAL:
                    raise self._barred(_status()) from None
                case _ if _status() >= 400:
                    raise self._refused(error.message) from None
                case code if code in _UNREAD and error.message.startswith(_UNREAD[code]):
                    raise self._unreadable(what) from None
                case code if code == CONNECTION_CLOSED and error.message.startswith((_CLOSED, _CUT_OFF)):
                    if error.message.startswith(_CLOSED):
                        self._forget(kept)
                    raise self._went_away(what) from None
                case _:
                    said = f"{self.server.name}.{what} failed: {error.message}"
                    raise TryLater(said, type="mcp_error") from None

    def _as_ours(self, tool: Tool) -> McpTool:
        hints = tool.annotations
        description = tool.description or ""
        effect = effect_of(
            trusted=self.server.trusted,
            read_only=hints.read_only_hint if hints else None,
            idempotent=hints.idempotent_hint if hints else None,
        )
        return McpTool(
            name=f"{self.server.name}.{tool.name}",
            description=description,
            parameters=tool.input_schema,
            effect=effect,
            vouched_for=self.server.trusted,
            pin=pin_of(description, tool.input_schema, only_reads=effect is EffectPolicy.READ_ONLY),
        )


def _status() -> int:
    """The status of the newest answer to a call; 0 if there was none."""
    newest = _newest()
    return newest.status_code if isinstance(newest, httpx2.Response) else 0


def _lost() -> httpx2.RequestError | None:
    """How the newest request of a call failed; None if it was answered, or there was none."""
    newest = _newest()
    return newest if isinstance(newest, httpx2.RequestError) else None


def _words(said: str) -> str:
    """What a server says of its refusal, unless the SDK says it in the server's place."""
    return "" if said == _UNSAID else f"; it says: {said}"


def _newest() -> httpx2.Response | httpx2.RequestError | None:
    heard = HEARD.get(())
    return heard[-1] if heard else None


def _value(result: CallToolResult) -> JsonValue:
    """The result of a tool: its structured content, else its text, else its whole content, as JSON."""
    if result.structured_content is not None:
        value: JsonValue = result.structured_content
        return value["result"] if isinstance(value, dict) and _is_wrapped(value, _text(result)) else value
    if all(isinstance(block, TextContent) for block in result.content):
        return _text(result)
    blocks: JsonValue = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
    return blocks


def _is_wrapped(value: dict[str, JsonValue], text: str) -> bool:
    """Whether a server has put a result that is no object into `{"result": …}`, as older versions of MCP require.

    MCP has no field that says so. The text beside it tells: that is the JSON of what the tool itself returned.
    """
    if value.keys() != {"result"}:
        return False
    try:
        return bool(from_json(text) != value)
    except ValueError:
        return True


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and float(number).is_integer() else number


def _text(result: CallToolResult) -> str:
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


def _structured(result: CallToolResult) -> str:
    return to_json(result.structured_content).decode() if result.structured_content else ""
