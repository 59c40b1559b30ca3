"""A small server that speaks OpenAI's chat completions over real HTTP, on a free loopback port.

It knows streaming, structured output (as a tool call or as a response format), usage, and trouble on demand. It keeps
what it was asked, headers and all.

    with OpenAIServer() as server:
        server.say("Hello.", Trouble.status(429, retry_after="7"))
        os.environ |= server.environment

Alone, for a demo: `python -m tests.services.openai_server [--port 8321]` prints its address and answers everything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from refold.effects.scripted import answer
from tests.services.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as it came: its path, its headers by lower-case name, its JSON body."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What goes wrong with one request instead of an answer.

    Attributes:
        code: The status.
        headers: Sent with it.
        text: The body, if it is not an error object.
        cut_after: Stream this many pieces, then break the connection off.
        error: The code of the error object.
        delay_s: Wait so long before anything else.
    """

    code: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    cut_after: int | None = None
    error: str | None = None
    delay_s: float = 0.0

    @classmethod
    def status(cls, code: int, *, retry_after: str | None = None, error: str | None = None) -> Trouble:
        """Answer with a status and an error object."""
        return cls(code=code, headers={} if retry_after is None else {"retry-after": retry_after}, error=error)


class OpenAIServer(Serving):
    """The server; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        requests: What was asked, oldest first.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Asked] = []
        self._next: deque[str | Trouble] = deque()
        routes = [Route("/v1/chat/completions", self._complete, methods=["POST"])]
        super().__init__(Starlette(routes=routes), port)

    @property
    def base_url(self) -> str:
        """What `OPENAI_BASE_URL` should say."""
        return f"{self.address}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send `openai:` models here."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "sk-test-0123456789"}

    def say(self, *replies: str | Trouble) -> None:
        """Answer the next requests so, in order; after that, as the scripted model does."""
        self._next.extend(replies)

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(Asked(path=request.url.path, headers=dict(request.headers), body=body))
        reply = self._next.popleft() if self._next else _scripted(body)
        trouble = reply if isinstance(reply, Trouble) else Trouble()
        await asyncio.sleep(trouble.delay_s)
        if trouble.text is not None:
            return Response(trouble.text, trouble.code, trouble.headers, media_type="application/json")
        if trouble.code >= 400:
            error = {"message": "body with sk-secret-0123456789", "type": "error", "code": trouble.error}
            return JSONResponse({"error": error}, trouble.code, trouble.headers)
        text = reply if isinstance(reply, str) else _scripted(body)
        if body.get("stream"):
            return StreamingResponse(_stream(body, text, trouble.cut_after), media_type="text/event-stream")
        return JSONResponse(_whole(body, text))


def _scripted(body: dict[str, Any]) -> str:
    texts = {"system": "", "user": ""}
    for message in body["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
        texts["system" if message["role"] in ("system", "developer") else "user"] = text
    return answer(texts["system"], texts["user"], _schema(body))


def _schema(body: dict[str, Any]) -> dict[str, Any] | None:
    if body.get("tools"):
        parameters: dict[str, Any] = body["tools"][0]["function"]["parameters"]
        return parameters
    wanted = body.get("response_format", {}).get("json_schema", {}).get("schema")
    return wanted if isinstance(wanted, dict) else None


def _tool(body: dict[str, Any], text: str) -> str | None:
    """The tool to call with `text`; None where the answer is text, or is none that a tool could be called with."""
    if not body.get("tools") or not text.startswith("{"):
        return None
    return str(body["tools"][0]["function"]["name"])


def _usage(body: dict[str, Any], text: str) -> dict[str, int]:
    asked, said = len(json.dumps(body["messages"]).split()), len(text.split())
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _envelope(body: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": body["model"], "choices": choices}


def _whole(body: dict[str, Any], text: str) -> dict[str, Any]:
    tool = _tool(body, text)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tool is not None:
        call = {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": text}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "stop" if tool is None else "tool_calls"}
    return {**_envelope(body, "chat.completion", [choice]), "usage": _usage(body, text)}


async def _stream(body: dict[str, Any], text: str, cut_after: int | None) -> AsyncIterator[str]:
    tool = _tool(body, text)
    pieces = [text[start : start + 8] for start in range(0, len(text), 8)]
    for number, piece in enumerate(pieces):
        if number == cut_after:
            raise ConnectionError("cut on demand")
        delta: dict[str, Any] = {"role": "assistant", "content": piece}
        if tool is not None:
            function = {"name": tool, "arguments": piece} if number == 0 else {"arguments": piece}
            head = {"id": "call-1", "type": "function"} if number == 0 else {}
            delta = {"role": "assistant", "tool_calls": [{"index": 0, **head, "function": function}]}
        yield _chunk(body, [{"index": 0, "delta": delta, "finish_reason": None}])
    yield _chunk(body, [{"index": 0, "delta": {}, "finish_reason": "stop" if tool is None else "tool_calls"}])
    if body.get("stream_options", {}).get("include_usage"):
        yield _chunk(body, [], _usage(body, text))
    yield "data: [DONE]\n\n"


def _chunk(body: dict[str, Any], choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> str:
    extra = {} if usage is None else {"usage": usage}
    return f"data: {json.dumps({**_envelope(body, 'chat.completion.chunk', choices), **extra})}\n\n"


def main() -> None:
    """Serve until interrupted; the first line on stdout is what `OPENAI_BASE_URL` should say."""
    parser = argparse.ArgumentParser(description="An OpenAI-compatible server with scripted answers.")
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    with OpenAIServer(parser.parse_args().port) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
