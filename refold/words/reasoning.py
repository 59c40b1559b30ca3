"""A model's reasoning: kept for the provider that wrote it, and shown to nobody who does not ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from refold.core.chat import Reply

HIDDEN = {"thinking": "hidden; --reasoning shows it"}


def without_reasoning(text: str) -> str:
    """A value as JSON text, without the reasoning in it."""
    if '"thinking"' not in text:
        return text
    return json.dumps(unreasoned(json.loads(text)), ensure_ascii=False, separators=(",", ":"))


def reasoning_in(reply: Reply) -> Iterator[str]:
    """The reasoning of a reply, piece by piece, as far as its provider tells it."""
    for part in reply.aside:
        thinking = part.get("thinking")
        if isinstance(thinking, dict) and (said := thinking.get("content")):
            yield str(said)


def unreasoned(value: Any) -> Any:
    """JSON data without the reasoning in it."""
    if isinstance(value, list):
        return [unreasoned(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _aside(one) if name == "aside" else unreasoned(one) for name, one in value.items()}


def _aside(parts: Any) -> Any:
    """What a reply keeps for its provider alone. Of another value by that name, nothing is changed."""
    if not isinstance(parts, list):
        return parts
    return [HIDDEN if isinstance(one, dict) and "thinking" in one else one for one in parts]
