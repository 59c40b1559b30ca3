"""A server of OpenAI's Responses that checks requests, and answers with reasoning, tool calls, searches and images.

with StrictResponses() as server:
    server.say("Hello.", 'find(word="x")', PICTURE)
    os.environ |= server.environment
"""

from __future__ import annotations

import base64
import json
from typing import Any

from starlette.responses import JSONResponse, Response

from refold.effects.models.script import Wish
from tests.services.strict import NAME, NEWER, SEARCH, StrictServer, Unfit, check_function, check_writable, openai_error

THOUGHT = "The user wants it short."
PICTURE = "picture"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 12_000  # three megabytes


class StrictResponses(StrictServer):
    """OpenAI's Responses, checked. The reply `SEARCH` searches the web, `PICTURE` makes a picture,
    `NEWER` has an item of a kind that no client knows.

    Attributes:
        reasoning: How many tokens of each answer were reasoning; some servers send null.
    """

    path = "/v1/responses"
    reasoning: int | None = 5

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send `openai-responses:` models here."""
        return {"OPENAI_BASE_URL": f"{self.address}/v1", "OPENAI_API_KEY": "sk-test-0123456789"}

    def check(self, body: dict[str, Any]) -> None:
        """See `StrictServer`."""
        check_responses(body)

    def refusal(self, unfit: Unfit) -> dict[str, Any]:
        """See `StrictServer`."""
        return openai_error(unfit)

    def answer(self, body: dict[str, Any], said: str, wishes: list[Wish]) -> Response:
        """See `StrictServer`."""
        if body.get("background"):
            return JSONResponse({**self._answer(body, []), "status": "queued", "background": True, "usage": None})
        return JSONResponse(self._answer(body, self._output(said, wishes)))

    def _output(self, said: str, wishes: list[Wish]) -> list[dict[str, Any]]:
        number = len(self.requests)
        thought = [{"type": "summary_text", "text": THOUGHT}]
        signed = {"id": f"rs_{number}", "encrypted_content": f"e{number}"}
        output: list[dict[str, Any]] = [{"type": "reasoning", "summary": thought, **signed}]
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
        if said == NEWER:
            output.append({"type": "hologram", "id": f"hg_{number}"})
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
                "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": self.reasoning}, "total_tokens": 99,
            },
        }  # fmt: skip


def check_responses(body: dict[str, Any]) -> None:
    """Check a request of Responses.

    Raises:
        Unfit: It would be refused.
    """
    check_writable(body)
    if not body.get("input"):
        raise Unfit('One of "input" or "previous_response_id" must be provided.', "input")
    for number, tool in enumerate(body.get("tools") or ()):
        if tool["type"] == "function":
            check_function(tool, f"tools[{number}]")
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
