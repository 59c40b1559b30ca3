"""A server of OpenAI's Responses that checks requests, and answers with reasoning, tool calls, searches and images.

with StrictResponses() as server:
    server.say("Hello.", 'find(word="x")', PICTURE)
    os.environ |= server.environment
"""

from __future__ import annotations

import base64
import json
from collections import deque
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from refold.effects.models.script import wishes_in
from tests.services.openai_server import Asked
from tests.services.serving import Serving
from tests.services.strict import NAME, Unfit, _check_function, _writable

THOUGHT = "The user wants it short."
SEARCH = "search"
PICTURE = "picture"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000  # three megabytes


class StrictResponses(Serving):
    """OpenAI's Responses, checked.

    Attributes:
        requests: What was asked, oldest first.
        refused: What was wrong with requests, oldest first.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Asked] = []
        self.refused: list[str] = []
        self._next: deque[str] = deque()
        super().__init__(Starlette(routes=[Route("/v1/responses", self._respond, methods=["POST"])]), port)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send `openai-responses:` models here."""
        return {"OPENAI_BASE_URL": f"{self.address}/v1", "OPENAI_API_KEY": "sk-test-0123456789"}

    def say(self, *replies: str) -> None:
        """Answer the next requests so, in order; then with "Yes.". `SEARCH` searches the web, `PICTURE` makes one."""
        self._next.extend(replies)

    async def _respond(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(Asked(path=request.url.path, headers=dict(request.headers), body=body))
        try:
            check_responses(body)
        except Unfit as unfit:
            self.refused.append(str(unfit))
            error = {"message": str(unfit), "type": "invalid_request_error", "param": unfit.param, "code": None}
            return JSONResponse({"error": error}, 400)
        said = self._next.popleft() if self._next else "Yes."
        return JSONResponse(self._answer(body, self._output(body, said)))

    def _output(self, body: dict[str, Any], said: str) -> list[dict[str, Any]]:
        number = len(self.requests)
        thought = [{"type": "summary_text", "text": THOUGHT}]
        signed = {"id": f"rs_{number}", "encrypted_content": f"e{number}"}
        output: list[dict[str, Any]] = [{"type": "reasoning", "summary": thought, **signed}]
        offered = {tool.get("name") for tool in body.get("tools") or ()}
        wishes = [wish for wish in wishes_in(said) if wish.tool in offered]
        if wishes:
            return output + [
                {
                    "type": "function_call", "id": f"fc_{number}_{at}", "call_id": f"call_{number}_{at}",
                    "name": wish.tool, "arguments": json.dumps(wish.args), "status": "completed",
                }
                for at, wish in enumerate(wishes)
            ]  # fmt: skip
        if said == SEARCH:
            action = {"type": "search", "query": "tea", "queries": ["tea"]}
            output.append({"type": "web_search_call", "id": f"ws_{number}", "status": "completed", "action": action})
        if said == PICTURE:
            made = base64.b64encode(PNG).decode()
            output.append({
                "type": "image_generation_call", "id": f"ig_{number}", "status": "completed", "result": made,
                "output_format": "png",
            })  # fmt: skip
        text = {"type": "output_text", "text": f"Here: {said}." if said in (SEARCH, PICTURE) else said}
        message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
        return [*output, {**message, "content": [{**text, "annotations": []}]}]

    def _answer(self, body: dict[str, Any], output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"resp_{len(self.requests)}", "object": "response", "created_at": 1_700_000_000,
            "model": body["model"],
            "status": "completed", "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
            "usage": {
                "input_tokens": 90, "input_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 0},
                "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 99,
            },
        }  # fmt: skip


def check_responses(body: dict[str, Any]) -> None:
    """Check a request of Responses.

    Raises:
        Unfit: It would be refused.
    """
    _writable(body)
    if not body.get("input"):
        raise Unfit('One of "input" or "previous_response_id" must be provided.', "input")
    for number, tool in enumerate(body.get("tools") or ()):
        if tool["type"] == "function":
            _check_function(tool, f"tools[{number}]")
    if body.get("tool_choice") not in (None, "auto", "none") and not body.get("tools"):
        raise Unfit("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice")
    _check_items(body["input"])


def _check_items(items: list[dict[str, Any]]) -> None:
    due: list[str] = []
    seen: set[str] = set()
    for number, item in enumerate(items):
        place, kind = f"input[{number}]", item.get("type", "message")
        if kind == "function_call":
            if not NAME.fullmatch(item["name"]):
                raise Unfit(f"Invalid '{place}.name': string does not match pattern.", f"{place}.name")
            if len(item["call_id"]) > 64 or not item["call_id"]:
                raise Unfit(f"Invalid '{place}.call_id': string too long, or empty.", f"{place}.call_id")
            due.append(item["call_id"])
        elif kind == "function_call_output":
            if item["call_id"] not in due:
                raise Unfit(f"No tool call found for function call output with call_id {item['call_id']}.", "input")
            due.remove(item["call_id"])
        elif kind == "message" and not item.get("content"):
            raise Unfit(f"Invalid '{place}.content': empty.", place)
        elif kind == "reasoning" and (number + 1 == len(items) or items[number + 1].get("role") == "user"):
            raise Unfit(f"Item '{item.get('id')}' of type 'reasoning' was provided without its required item.", "input")
        if (id := item.get("id")) in seen and id is not None:
            raise Unfit(f"Duplicate item found with id {id}. Remove duplicate items from your input.", "input")
        seen.add(id or "")
    if due:
        raise Unfit(f"No tool output found for function call {', '.join(due)}.", "input")
