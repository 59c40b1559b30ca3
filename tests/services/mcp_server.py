"""A real MCP server, over stdio or HTTP: `python -m tests.services.mcp_server [PORT]`.

It notes in the file `MCP_LEDGER` what was done, with the idempotency key that came along.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("shop")


class Item(BaseModel):
    """What the shop has."""

    sku: str
    cents: int


def note(line: str) -> None:
    """Write down what was done."""
    with Path(os.environ["MCP_LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), description=os.environ.get("MCP_DESCRIPTION"))
def search(words: str) -> list[Item]:
    """Look for items."""
    return [Item(sku=f"{word}-1", cents=100 * len(word)) for word in words.split()]


@server.tool()
def buy(sku: str, ctx: Context) -> str:
    """Buy an item."""
    meta = ctx.request_context.meta or {}
    note(f"buy {sku} {meta.get('refold/idempotency-key')}")
    return f"bought {sku}"


@server.tool()
async def pack(items: int, ctx: Context) -> str:
    """Pack items, and say how far it is."""
    for packed in range(1, items + 1):
        await ctx.report_progress(packed, items if packed > 1 else None, "taped" if packed == items else None)
    return f"packed {items}"


@server.tool()
def refuse(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def stock_up(what: str) -> None:
    """Have another tool from here on."""
    server.add_tool(lambda: f"a {what}", name=what, description="It was not there at first.")


@server.tool()
def who() -> int:
    """The process that serves."""
    return os.getpid()


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    note("die")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
