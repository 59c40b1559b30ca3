"""Servers that check requests as the big providers do, and answer 400 with their words where one does not fit.

`StrictOpenAI` checks chat completions, `StrictAnthropic` messages. Both keep what was asked.

    with StrictAnthropic() as server:
        server.say("Hello.")
        os.environ |= server.environment
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from refold.effects.models.script import Wish, wishes_in
from tests.services.openai_server import Asked, OpenAIServer
from tests.services.serving import Serving

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
SEARCH = "search"
PAUSED = "paused"
CUT = "cut"
NEWER = "newer"
ASIDE = "<aside>"


class Unfit(Exception):
    """What a provider would say of a request.

    Attributes:
        param: The part of the request that does not fit.
    """

    def __init__(self, message: str, param: str) -> None:
        self.param = param
        super().__init__(message)


class StrictServer(Serving):
    """A server that checks each request, and answers what it was told to say.

    Attributes:
        path: Where it is asked.
        requests: What was asked, oldest first.
        refused: What was wrong with requests, oldest first.
        canceled: The ids of the answers that were canceled, oldest first.
    """

    path: ClassVar[str]

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Asked] = []
        self.refused: list[str] = []
        self.canceled: list[str] = []
        self._next: deque[str] = deque()
        routes = [
            Route(self.path, self._serve, methods=["POST"]),
            Route(f"{self.path}/{{id}}/cancel", self._cancel, methods=["POST"]),
        ]
        super().__init__(Starlette(routes=routes), port)

    def say(self, *replies: str) -> None:
        """Answer the next requests so, in order; then with "Yes.". A reply that reads as tool calls makes them."""
        self._next.extend(replies)

    def check(self, body: dict[str, Any]) -> None:
        """Check a request.

        Raises:
            Unfit: It would be refused.
        """
        raise NotImplementedError

    def refusal(self, unfit: Unfit) -> dict[str, Any]:
        """The answer to a request that does not fit."""
        raise NotImplementedError

    def answer(self, body: dict[str, Any], said: str, wishes: list[Wish]) -> Response:
        """The answer to a request that fits: a text, or the tool calls that it reads as, of tools that are offered."""
        raise NotImplementedError

    async def _cancel(self, request: Request) -> Response:
        self.canceled.append(request.path_params["id"])
        return JSONResponse({"id": self.canceled[-1], "object": "response", "status": "cancelled", "output": []})

    async def _serve(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(Asked(path=request.url.path, headers=dict(request.headers), body=body))
        try:
            self.check(body)
        except Unfit as unfit:
            self.refused.append(str(unfit))
            return JSONResponse(self.refusal(unfit), 400)
        said = self._next.popleft() if self._next else "Yes."
        offered = {tool.get("name") for tool in body.get("tools") or ()}
        return self.answer(body, said, [wish for wish in wishes_in(said) if wish.tool in offered])


class StrictOpenAI(OpenAIServer):
    """Chat completions, checked.

    Attributes:
        refused: What was wrong with requests, oldest first.
    """

    def __init__(self, port: int = 0) -> None:
        self.refused: list[str] = []
        super().__init__(port)

    async def _complete(self, request: Request) -> Response:
        try:
            check_openai(await request.json())
        except Unfit as unfit:
            self.refused.append(str(unfit))
            return JSONResponse(openai_error(unfit), 400)
        return await super()._complete(request)


def openai_error(unfit: Unfit) -> dict[str, Any]:
    """OpenAI's answer to a request that does not fit."""
    error = {"message": str(unfit), "type": "invalid_request_error", "param": unfit.param, "code": None}
    return {"error": error}


def check_openai(body: dict[str, Any]) -> None:
    """Check a request of chat completions.

    Raises:
        Unfit: It would be refused.
    """
    check_writable(body)
    if not body["messages"]:
        raise Unfit("Invalid 'messages': empty array. Expected an array with minimum length 1.", "messages")
    for number, tool in enumerate(body.get("tools") or ()):
        check_function(tool["function"], f"tools[{number}].function")
    if body.get("tool_choice") and not body.get("tools"):
        raise Unfit("Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.", "")
    _check_turns(body["messages"])


def _check_turns(messages: list[dict[str, Any]]) -> None:
    due: list[str] = []
    for number, message in enumerate(messages):
        place = f"messages[{number}]"
        if message["role"] == "tool":
            if message["tool_call_id"] not in due:
                raise Unfit(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    "'tool_calls'.",
                    f"{place}.role",
                )
            due.remove(message["tool_call_id"])
            continue
        _answered(due, place)
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            if message.get("content") is None and not calls:
                raise Unfit(f"Invalid value for 'content': expected a string, got null. ({place})", place)
            for at, call in enumerate(calls):
                _check_call(call, f"{place}.tool_calls[{at}]")
            due = [call["id"] for call in calls]
            if len(set(due)) < len(due):
                raise Unfit(f"Duplicate value for 'tool_call_id' in {place}", place)
        elif message.get("content") is None:
            raise Unfit(f"Invalid value for 'content': expected a string, got null. ({place})", place)
    _answered(due, "messages")


def _answered(due: list[str], place: str) -> None:
    if due:
        raise Unfit(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(due)}",
            place,
        )


def _check_call(call: dict[str, Any], place: str) -> None:
    if not NAME.fullmatch(call["function"]["name"]):
        raise Unfit(
            f"Invalid '{place}.function.name': string does not match pattern. Expected a string that matches the "
            "pattern '^[a-zA-Z0-9_-]+$'.",
            f"{place}.function.name",
        )
    if len(call["id"]) > 40:
        raise Unfit(
            f"Invalid '{place}.id': string too long. Expected a string with maximum length 40, but got a string with "
            f"length {len(call['id'])} instead.",
            f"{place}.id",
        )


def check_function(function: dict[str, Any], place: str) -> None:
    name = function["name"]
    if not NAME.fullmatch(name):
        raise Unfit(f"Invalid '{place}.name': string does not match pattern '^[a-zA-Z0-9_-]+$'.", f"{place}.name")
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    if schema.get("type") != "object":
        raise Unfit(f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"'", place)
    if at := next((word for word in ("oneOf", "anyOf", "allOf", "enum", "not") if word in schema), None):
        raise Unfit(f"Invalid schema for function '{name}': schema must not have '{at}' at the top level.", place)
    for part in _parts(schema):
        if part.get("type") == "array" and "items" not in part:
            raise Unfit(f"Invalid schema for function '{name}': array schema missing items.", place)
        if part.get("type") == "object" and "properties" not in part and "additionalProperties" not in part:
            raise Unfit(f"Invalid schema for function '{name}': object schema missing properties.", place)
        if function.get("strict") is True:
            _check_strict(name, part, place)


def _check_strict(name: str, part: dict[str, Any], place: str) -> None:
    if not {"type", "$ref", "anyOf", "enum", "const"} & part.keys():
        raise Unfit(f"Invalid schema for function '{name}': schema must have a 'type' key.", place)
    for word in ("prefixItems", "oneOf", "allOf", "default"):
        if word in part:
            raise Unfit(f"Invalid schema for function '{name}': '{word}' is not permitted.", place)
    if part.get("type") == "object" and part.get("additionalProperties") is not False:
        raise Unfit(
            f"Invalid schema for function '{name}': 'additionalProperties' is required to be supplied and to be false.",
            place,
        )


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word in ("properties", "$defs", "definitions"):
        for part in (schema.get(word) or {}).values():
            yield from _parts(part)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for part in schema.get(word) or ():
            yield from _parts(part)
    yield from _parts(schema.get("items"))


def check_writable(body: Any) -> None:
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Unfit("We could not parse the JSON body of your request.", "") from None


# --- Anthropic


class StrictAnthropic(StrictServer):
    """Anthropic's messages, checked. The replies `SEARCH` and `PAUSED` search the web, and the latter pauses then; the
    stream of `CUT` ends before its end, one that begins with `NEWER` has a block of a kind that no client knows, and
    `ASIDE` in a text is where the web is searched."""

    path = "/v1/messages"
    stop = ""
    """The stop reason of all its answers; by default each has its own."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send `anthropic:` models here."""
        return {"ANTHROPIC_BASE_URL": self.address, "ANTHROPIC_API_KEY": "sk-ant-test-0123456789"}

    def check(self, body: dict[str, Any]) -> None:
        """See `StrictServer`."""
        check_anthropic(body)

    def refusal(self, unfit: Unfit) -> dict[str, Any]:
        """See `StrictServer`."""
        return {"type": "error", "error": {"type": "invalid_request_error", "message": str(unfit)}}

    def answer(self, body: dict[str, Any], said: str, wishes: list[Wish]) -> Response:
        """See `StrictServer`."""
        content: list[dict[str, Any]] = [
            {"type": "tool_use", "id": f"toolu_{len(self.requests)}_{number}", "name": wish.tool, "input": wish.args}
            for number, wish in enumerate(wishes)
        ] or [*(_searched(len(self.requests)) if said in (SEARCH, PAUSED) else ()), {"type": "text", "text": said}]
        if ASIDE in said:
            before, after = said.split(ASIDE)
            between = _searched(len(self.requests))
            content = [{"type": "text", "text": before}, *between, {"type": "text", "text": after}]
        if said.startswith(NEWER):
            content = [{"type": "hologram", "shape": said}, *(content if said != NEWER else ())]
        stop = self.stop or ("tool_use" if wishes else "pause_turn" if said == PAUSED else "end_turn")
        reason = {"stop_reason": stop, "stop_sequence": None}
        message = {
            "id": f"msg_{len(self.requests)}", "type": "message", "role": "assistant", "model": body["model"],
            "content": content, **reason, "usage": {"input_tokens": 7, "output_tokens": 3},
        }  # fmt: skip
        if body.get("stream"):
            events = [*_events(message, content, reason)]
            return Response("".join(events[:3] if said == CUT else events), media_type="text/event-stream")
        return JSONResponse(message)


def _searched(number: int) -> list[dict[str, Any]]:
    id = f"srvtoolu_{number}"
    return [
        {"type": "server_tool_use", "id": id, "name": "web_search", "input": {"query": "tea"}},
        {"type": "web_search_tool_result", "tool_use_id": id, "content": []},
    ]


def _events(message: dict[str, Any], content: list[dict[str, Any]], reason: dict[str, Any]) -> Iterator[str]:
    yield _event("message_start", message={**message, "content": [], "stop_reason": None})
    for index, block in enumerate(content):
        begun, piece = block, None
        if "text" in block:
            begun, piece = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        if "input" in block:
            begun, piece = {**block, "input": {}}, {
                "type": "input_json_delta", "partial_json": json.dumps(block["input"])
            }  # fmt: skip
        yield _event("content_block_start", index=index, content_block=begun)
        if piece is not None:
            yield _event("content_block_delta", index=index, delta=piece)
        yield _event("content_block_stop", index=index)
    yield _event("message_delta", delta=reason, usage={"output_tokens": 3})
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


def check_anthropic(body: dict[str, Any]) -> None:
    """Check a request of messages.

    Raises:
        Unfit: It would be refused.
    """
    check_writable(body)
    messages = body["messages"]
    if not messages:
        raise Unfit("messages: at least one message is required", "messages")
    if messages[0]["role"] != "user":
        raise Unfit('messages: first message must use the "user" role', "messages")
    if messages[-1]["role"] != "user" and not _paused(messages[-1]):
        raise Unfit("This model does not support assistant message prefill.", "messages")
    for tool in body.get("tools") or ():
        if "input_schema" not in tool:  # Anthropic's own
            continue
        if not ANTHROPIC_NAME.fullmatch(tool["name"]):
            raise Unfit(f"tools.0.custom.name: String should match pattern '{ANTHROPIC_NAME.pattern}'", "tools")
        if tool["input_schema"].get("type") != "object":
            raise Unfit("tools.0.custom.input_schema.type: Field required", "tools")
        if at := next((word for word in ("oneOf", "anyOf", "allOf") if word in tool["input_schema"]), None):
            raise Unfit(f"tools.0.custom.input_schema: input_schema does not support {at} at the top level", "tools")
    _check_blocks(messages, has_tools=bool(body.get("tools")))


def _paused(message: dict[str, Any]) -> bool:
    """Whether an answer that is sent back is one that paused while the provider's own tools were at work."""
    return any(block["type"] == "server_tool_use" for block in message["content"] if isinstance(block, dict))


def _check_blocks(messages: list[dict[str, Any]], *, has_tools: bool) -> None:
    due: set[str] = set()
    used: set[str] = set()
    for number, message in enumerate(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not blocks:
            raise Unfit(f"messages.{number}: all messages must have non-empty content", "messages")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        if due - set(results):
            raise Unfit(
                f"messages.{number}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{', '.join(sorted(due - set(results)))}.",
                "messages",
            )
        if set(results) - due:
            raise Unfit(f"messages.{number}: unexpected `tool_use_id` found in `tool_result` blocks", "messages")
        if len(set(results)) < len(results):
            raise Unfit(f"messages.{number}: each tool_use must have a single result", "messages")
        calls = [block for block in blocks if block["type"] == "tool_use"]
        for block in calls:
            if block["id"] in used:
                raise Unfit(f"messages.{number}: `tool_use` ids must be unique", "messages")
            if not ANTHROPIC_ID.fullmatch(block["id"]) or not ANTHROPIC_NAME.fullmatch(block["name"]):
                raise Unfit(f"messages.{number}: id or name should match pattern '^[a-zA-Z0-9_-]+$'", "messages")
            used.add(block["id"])
        due = {block["id"] for block in calls}
        if (calls or results) and not has_tools:
            raise Unfit("Requests which include `tool_use` or `tool_result` blocks must define tools", "tools")
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                raise Unfit(f"messages.{number}: text content blocks must contain non-whitespace text", "messages")
    if due:
        raise Unfit(f"`tool_use` ids were found without `tool_result` blocks: {', '.join(sorted(due))}", "messages")
