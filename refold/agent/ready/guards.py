"""Middleware that checks texts, and blocks some of them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from refold.agent.errors import GuardrailError
from refold.agent.middleware import Proceed, Simple
from refold.agent.steps import ModelTurn, ToolTurn
from refold.core.chat import Reply, Said, ToolReturn, UserSaid


@dataclass(frozen=True, slots=True)
class Block:
    """A guardrail's verdict: block the text.

    Attributes:
        reason: Why.
    """

    reason: str = "not allowed"


Verdict = Literal["pass", "block"] | Block | None
Evaluate = Callable[[str], Verdict | Awaitable[Verdict]] | Callable[[str, Any], Verdict | Awaitable[Verdict]]


@dataclass(frozen=True)
class Guardrail(Simple):
    """Evaluates a text, and passes or blocks it.

    Attributes:
        evaluate: `evaluate(text)` or `evaluate(text, turn)`, which may await calls of `turn.ctx`: `"pass"` or None,
            `"block"`, or `Block(reason)`.
        on: Which texts: the model's replies, messages to the model (of users and tools), or tools' results.
        instead: The text in place of a blocked reply or result; for a blocked message to the model, the answer to the
            user. None raises `GuardrailError`.
        name: For people.
    """

    evaluate: Evaluate
    on: Literal["reply", "said", "result"] = "reply"
    instead: str | None = None
    name: str = "guardrail"

    def __post_init__(self) -> None:
        if self.on not in ("reply", "said", "result"):
            raise ValueError(f'on={self.on!r} is unknown: "reply", "said" or "result"')

    @property
    def steps(self) -> Collection[str]:  # type: ignore[override]  # follows from `on`
        """The kind of step that `on` concerns."""
        return ("tool",) if self.on == "result" else ("model",)

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`.

        Raises:
            GuardrailError: It blocks, and has no `instead`.
        """
        if self.on == "said" and isinstance(turn, ModelTurn):
            verdicts = [await self._judge(_text(one), turn) for one in turn.say]
            if blocks := {place: found for place, found in enumerate(verdicts) if found is not None}:
                turn.state.withheld = [*turn.state.withheld, *blocks]
                return Reply(text=self._instead(next(iter(blocks.values()))))
        result = await proceed(turn)
        if self.on == "said" or (blocked := await self._judge(_text(result), turn)) is None:
            return result
        if isinstance(result, ToolReturn):
            return result.model_copy(update={"value": self._instead(blocked), "failed": True})
        return replace_reply(result, self._instead(blocked))

    async def _judge(self, text: str, turn: ModelTurn | ToolTurn) -> Block | None:
        if not text:
            return None
        takes_turn = len(inspect.signature(self.evaluate).parameters) > 1
        verdict: Any = self.evaluate(text, turn) if takes_turn else self.evaluate(text)  # type: ignore[call-arg]
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if verdict == "block":
            return Block()
        return verdict if isinstance(verdict, Block) else None

    def _instead(self, blocked: Block) -> str:
        if self.instead is None:
            raise GuardrailError(self.name, blocked.reason)
        return self.instead


def replace_reply(reply: Reply, text: str) -> Reply:
    """A reply with another text, and no tool calls."""
    return reply.model_copy(update={"text": text, "tool_calls": (), "value": None, "stop": "end"})


def _text(said: Said) -> str:
    match said:
        case UserSaid(content=content):
            return content.text or _json(content.data)
        case ToolReturn(value=value):
            return value if isinstance(value, str) else _json(value)
        case Reply(text=text, value=value):
            return text or _json(value)


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
