"""The names of MCP servers' tools: `shop.search`, or pinned to one definition, `shop.search@5f0c1b2a3d4e5f60`."""

from __future__ import annotations

import re

PIN_CHARS = 16

_PINNED = re.compile(rf"(.+)@([0-9a-f]{{{PIN_CHARS}}})", re.DOTALL)


def pinned(name: str, pin: str) -> str:
    """The name that calls a tool only if its definition has this pin; the name itself if there is none."""
    return f"{name}@{pin}" if pin else name


def unpinned(name: str) -> tuple[str, str]:
    """A tool's name, and its pin; empty without one. The name may hold an `@` of its own."""
    found = _PINNED.fullmatch(name)
    return (found[1], found[2]) if found else (name, "")


def offered(name: str) -> str:
    """The name by which a model calls a tool, pinned or not: providers accept no dots."""
    return unpinned(name)[0].replace(".", "__", 1)
