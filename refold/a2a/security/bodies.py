"""Reads a request's body whole before it is parsed, and checks that it is text, not too large, not too deep, and does
not hold too many values."""

from __future__ import annotations

import asyncio
import functools
import json
import re

from a2a.server.jsonrpc_models import JSONParseError
from a2a.types import InvalidRequestError
from a2a.utils.error_handlers import build_error_details
from starlette.types import Message, Receive, Scope

from refold.a2a.security.http_errors import Refused

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

# The tokens that matter for depth: brackets, behind whatever else comes with whole strings. Possessive quantifiers, so
# that no text causes backtracking.
_STRING = rb'"(?:[^"\\]++|\\.?)*+"?'
_BRACKETS = re.compile(rb'(?:[^"\[{\]}]++|' + _STRING + rb")*+(?:([\[{])|([\]}])|\Z)", re.DOTALL)
_STRINGS = re.compile(_STRING, re.DOTALL)
_LONG_NUMBER = re.compile(rb"\d{4301}")  # more digits than Python parses as a number
_HALF_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]")


async def read(scope: Scope, receive: Receive, *, most: int, seconds: float) -> bytes:
    """Read the whole body.

    Raises:
        Refused: It is larger than `most` bytes (413), takes longer than `seconds` (408), or the caller disconnected
            (400).
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > most:
            raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Refused(400, "the request broke off")
                body += message.get("body", b"")
                if len(body) > most:
                    raise _too_large(most)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise Refused(408, f"the request took longer than {seconds:g} seconds to arrive") from None


def again(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body again, then whatever else the server sends."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again


def check(body: bytes, *, depth: int, values: int) -> None:
    """Check that the body is text that can be parsed safely; its content is checked later.

    Args:
        body: As it came.
        depth: Maximum depth of its JSON.
        values: Maximum number of values in its JSON. Converting one holds the event loop for some ten microseconds.

    Raises:
        Refused: It is not.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        raise _unreadable("the body is not UTF-8") from None
    if json.detect_encoding(body) != "utf-8":  # the SDK would read UTF-16, in which half of a character may be a quote
        raise _unreadable("the body is not UTF-8 without a byte order mark")
    if body.count(b",") + body.count(b"[") + body.count(b"{") >= values and _more_than(values).match(body):
        raise Refused(413, too_many(values))
    if body.count(b"[") + body.count(b"{") > depth and _deepest(body) > depth:
        raise _unreadable(f"the JSON goes deeper than {depth} levels")
    long_number = _LONG_NUMBER.search(body) and _LONG_NUMBER.search(_STRINGS.sub(b'""', body))  # in a text it is none
    if long_number or (_HALF_CHARACTER.search(body) and not _all_characters_whole(body)):
        raise _unreadable("the JSON has a number or a character that nobody can read")


def _too_large(most: int) -> Refused:
    return Refused(413, f"a request holds at most {most} bytes; send large files by URL")


def _unreadable(message: str) -> Refused:
    error = JSONParseError(message=message, data=build_error_details(InvalidRequestError(message)))
    return Refused(400, message, error=error)


def too_many(values: int) -> str:
    """Why a request of more values is refused, and what its sender can do instead."""
    return f"a request holds at most {values} values; send large data as one text, or as a file"


@functools.cache
def _more_than(values: int) -> re.Pattern[bytes]:
    """What a body of more values begins with: each value but the first stands behind a comma, or first in brackets."""
    passed = _STRING + rb"|[\[{]\s*+[\]}]"  # texts, and brackets with nothing in them
    return re.compile(rb"""(?:[^",\[{]*+(?:(?:%b)[^",\[{]*+)*+[,\[{]){%d}+""" % (passed, values), re.DOTALL)


def _deepest(body: bytes) -> int:
    now = deepest = 0
    for found in _BRACKETS.finditer(body):
        if found[1]:
            now += 1
            deepest = max(deepest, now)
        elif found[2]:
            now -= 1
            if now < 0:
                break  # no JSON; its parser will report it
    return deepest


def _all_characters_whole(body: bytes) -> bool:
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    except ValueError:
        pass  # not JSON; its parser will report it
    return True
