"""Half a surrogate pair in what an MCP server sends, as of a text that was cut within an emoji.

JavaScript cuts texts there, and writes what is left as an escape, `\\ud83d`. MCP's SDK refuses the whole message for
it.
"""

from __future__ import annotations

import re

_ANY = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|u([dD][89a-fA-F]..)|.)", re.DOTALL)


def mended(json: bytes) -> bytes:
    """JSON text with each half of a surrogate pair in it replaced by U+FFFD."""
    if not _ANY.search(json):
        return json
    return _ESCAPE.sub(lambda found: rb"\ufffd" if found[1] else found[0], json)
