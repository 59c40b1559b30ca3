"""A small server that speaks OpenAI's chat completions over real HTTP, on a free loopback port.

It knows streaming, tool calls, structured output (as a tool call or as a response format), usage, and trouble on
demand. It keeps what it was asked, headers and all.

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
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from refold.core.chat import Reply, Said, ToolReturn, UserSaid
from refold.core.content import as_content
from refold.effects.models.output import FINAL_RESULT
from refold.effects.models.script import Wish, wishes_in
from refold.effects.models.scripted import converse
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
        ends_after: Stream this many pieces, then end as if these were all.
        error: The code of the error object.
        delay_s: Wait so long before anything else.
        says: What is said in the end; None is what is said without trouble.
        pace_s: Wait so long before each piece of a stream.
        repeats_usage: Send the usage with each piece of a stream.
        repeats_names: Send the tool's name with each piece of a call.
    """

    code: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    text: str | None = None
    cut_after: int | None = None
    ends_after: int | None = None
    error: str | None = None
    delay_s: float = 0.0
    says: str | None = None
    pace_s: float = 0.0
    repeats_usage: bool = False
    repeats_names: bool = False

    @classmethod
    def status(cls, code: int, *, retry_after: str | None = None, error: str | None = None) -> Trouble:
        """Answer with a status and an error object."""
        return cls(code=code, headers={} if retry_after is None else {"retry-after": retry_after}, error=error)


class OpenAIServer(Serving):
    """The server; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        requests: What was asked, oldest first.

    Args:
        port: Where it listens; 0 is a free one.
        repeats: A call that comes again under its key, as after its worker was killed, is answered as before.
    """

    def __init__(self, port: int = 0, *, repeats: bool = False) -> None:
        self.requests: list[Asked] = []
        self._next: deque[str | Trouble] = deque()
        self._repeats = repeats
        self._answered: dict[str | None, str | Trouble | list[Wish] | dict[str, Any]] = {}
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
        """Answer the next requests so, in order; after that, as the scripted model does.

        A reply that reads as tool calls, `weather(city="Oslo")`, calls them, if they are offered.
        """
        self._next.extend(replies)

    def reply_to(self, body: dict[str, Any]) -> str | list[Wish] | dict[str, Any]:
        """What is answered where nothing else is to be said: text, tool calls, or a whole message."""
        return _scripted(body)

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(Asked(path=request.url.path, headers=dict(request.headers), body=body))
        key = request.headers.get("idempotency-key")
        if self._repeats and key in self._answered:
            reply = self._answered[key]
        else:
            reply = self._answered[key] = self._next.popleft() if self._next else self.reply_to(body)
        trouble = reply if isinstance(reply, Trouble) else Trouble()
        await asyncio.sleep(trouble.delay_s)
        if trouble.text is not None:
            return Response(trouble.text, trouble.code, trouble.headers, media_type="application/json")
        if trouble.code >= 400:
            error = {"message": "body with sk-secret-0123456789", "type": "error", "code": trouble.error}
            return JSONResponse({"error": error}, trouble.code, trouble.headers)
        said = (self.reply_to(body) if reply.says is None else reply.says) if isinstance(reply, Trouble) else reply
        message = _message(body, said)
        if body.get("stream"):
            return StreamingResponse(_stream(body, message, trouble), media_type="text/event-stream")
        return JSONResponse(_whole(body, message))


def _scripted(body: dict[str, Any]) -> str | list[Wish]:
    system = [_text(one) for one in body["messages"] if one["role"] in ("system", "developer")]
    tools = {tool["name"]: tool["parameters"] for tool in _tools(body)}
    return converse("\n".join(system), list(_said(body["messages"])), tools, _schema(body))


def _said(messages: list[dict[str, Any]]) -> Iterator[Said]:
    names: dict[str, str] = {}
    for message in messages:
        match message["role"]:
            case "user":
                yield UserSaid(content=as_content(_text(message)))
            case "assistant":
                names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
                yield Reply(text=_text(message))
            case "tool":
                id = message["tool_call_id"]
                yield ToolReturn(id=id, name=names[id], value=_text(message))
            case _:
                pass


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _tools(body: dict[str, Any], *, final: bool = False) -> list[dict[str, Any]]:
    """The tools that are offered; or the one that stands for the final answer."""
    functions = [tool["function"] for tool in body.get("tools") or ()]
    return [one for one in functions if (one["name"] == FINAL_RESULT) is final]


def _schema(body: dict[str, Any]) -> dict[str, Any] | None:
    for tool in _tools(body, final=True):
        parameters: dict[str, Any] = tool["parameters"]
        return parameters
    wanted = body.get("response_format", {}).get("json_schema", {}).get("schema")
    return wanted if isinstance(wanted, dict) else None


def _message(body: dict[str, Any], said: str | list[Wish] | dict[str, Any]) -> dict[str, Any]:
    """What the assistant says: text, or calls of tools; the final answer as a call where it is asked for so."""
    if isinstance(said, dict):
        return said
    offered = {tool["name"] for tool in _tools(body)}
    wishes = said if isinstance(said, list) else [wish for wish in wishes_in(said) if wish.tool in offered]
    calls = [(wish.tool, json.dumps(wish.args)) for wish in wishes]
    if isinstance(said, str) and not calls and said.startswith("{") and _tools(body, final=True):
        calls = [(FINAL_RESULT, said)]
    if not calls:
        return {"role": "assistant", "content": said}
    ids = len(body["messages"])
    made = [
        {"id": f"call-{ids}-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def _usage(body: dict[str, Any], message: dict[str, Any]) -> dict[str, int]:
    asked, said = len(json.dumps(body["messages"]).split()), len((message["content"] or json.dumps(message)).split())
    return {"prompt_tokens": asked, "completion_tokens": said, "total_tokens": asked + said}


def _envelope(body: dict[str, Any], kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": body["model"], "choices": choices}


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if message.get("tool_calls") else "stop"


def _whole(body: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    return {**_envelope(body, "chat.completion", [choice]), "usage": _usage(body, message)}


async def _stream(body: dict[str, Any], message: dict[str, Any], trouble: Trouble) -> AsyncIterator[str]:
    for number, delta in enumerate(_deltas(message, named=trouble.repeats_names)):
        await asyncio.sleep(trouble.pace_s)
        if number == trouble.cut_after:
            raise ConnectionError("cut on demand")
        if number == trouble.ends_after:
            return
        usage = _usage(body, message) if trouble.repeats_usage else None
        yield _chunk(body, [{"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": None}], usage)
    yield _chunk(body, [{"index": 0, "delta": {}, "finish_reason": _finish(message)}])
    if body.get("stream_options", {}).get("include_usage"):
        yield _chunk(body, [], _usage(body, message))
    yield "data: [DONE]\n\n"


def _deltas(message: dict[str, Any], *, named: bool) -> Iterator[dict[str, Any]]:
    for piece in _pieces(message["content"] or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        for number, piece in enumerate(_pieces(function["arguments"])):
            head = {"id": call["id"], "type": "function"} if number == 0 else {}
            name = {"name": function["name"]} if number == 0 or named else {}
            yield {"tool_calls": [{"index": index, **head, "function": {**name, "arguments": piece}}]}


def _pieces(text: str) -> list[str]:
    return [text[start : start + 8] for start in range(0, len(text), 8)]


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
