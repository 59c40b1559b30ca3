"""Middleware that checks texts, and blocks some of them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, assert_never

from pydantic import JsonValue

from refold.agent.errors import GuardrailError
from refold.agent.middleware import Middleware, Proceed, Scope, Simple
from refold.agent.steps import Emit, ModelTurn, Step, ToolTurn, short, withheld
from refold.core.authoring.signatures import signature
from refold.core.chat import Reply, Said, ToolReturn, UserSaid
from refold.core.errors import CommandError, SkillError
from refold.core.retry_policy import Failure, FailureKind
from refold.middleware import TextPiece


@dataclass(frozen=True, slots=True)
class Block:
    """A guardrail's verdict: block the text.

    Attributes:
        reason: Why.
    """

    reason: str = "not allowed"


Verdict = Literal["pass", "block"] | Block | None
Evaluate = Callable[[str], Verdict | Awaitable[Verdict]] | Callable[[str, Any], Verdict | Awaitable[Verdict]]


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Guardrail(Simple):
    """Evaluates a text, and passes or blocks it.

    A function of the text alone that guards replies is called in the worker too, right after the model's answer: a
    blocked reply is replaced before it is recorded, so that no journal, stream or log has it. Until a reply has passed,
    nothing of it is shown.

    Attributes:
        evaluate: `evaluate(text)` or `evaluate(text, turn)`, which may await calls of `turn.ctx`: `"pass"` or None,
            `"block"`, or `Block(reason)`. The turn is given to a second parameter that is named `turn` or has no
            default; others keep their defaults. The text is all of a message: its text, then its data as JSON, in
            lines.
        on: Which texts: the model's replies, messages to the model (of users and tools), or tools' results.
        instead: The text in place of a blocked reply or result; for a blocked message to the model, the answer to the
            user. None raises `GuardrailError`.
        name: For people.
        by: Of a reply that is shown while it is written: `"whole"` shows nothing before all of it has passed;
            `"sentence"` shows each sentence once the text up to its end has passed. What a later sentence gives away
            together with an earlier one is blocked too late. Arguments of tool calls are not shown.
    """

    evaluate: Evaluate
    on: Literal["reply", "said", "result"] = "reply"
    instead: str | None = None
    name: str = "guardrail"
    by: Literal["whole", "sentence"] = "whole"

    def __post_init__(self) -> None:
        if self.on not in ("reply", "said", "result"):
            raise ValueError(f'on={self.on!r} is unknown: "reply", "said" or "result"')
        if self.by not in ("whole", "sentence"):
            raise ValueError(f'by={self.by!r} is unknown: "whole" or "sentence"')
        _ = self._takes_turn  # refuses a function that cannot be called
        if self.by == "sentence" and not (self.on == "reply" and self._needs_text_only):
            raise ValueError('by="sentence" is for replies, and for a plain function of the text alone')

    @property
    def steps(self) -> Collection[str]:  # type: ignore[override]  # follows from `on`
        """The kind of step that `on` concerns."""
        return ("tool",) if self.on == "result" else ("model",)

    @property
    def streams(self) -> bool:  # type: ignore[override]  # follows from `on` and `by`
        """Whether a reply may be streamed: not if this guardrail checks replies by more than their text."""
        return self.on != "reply" or self._needs_text_only

    @property
    def shows_progress(self) -> bool:
        """See `Middleware`: a result that it may block is not shown beforehand."""
        return self.on != "result"

    @property
    def in_worker(self) -> Middleware | None:
        """Evaluates replies in the worker, before they are recorded."""
        return _Screen(self) if self.on == "reply" and self._needs_text_only else None

    @cached_property
    def _takes_turn(self) -> bool:
        """Whether the function has a second parameter that is named `turn`, or that has no default."""
        try:
            taken = signature(self.evaluate)
            second = [one for one in taken.parameters.values() if one.kind in _BY_POSITION][1:2]
            takes = any(one.default is one.empty or one.name == "turn" for one in second)
            taken.bind(*("text", "turn")[: 1 + takes])
            if not takes and "turn" in list(taken.parameters)[1:]:
                raise TypeError("turn is not its second parameter")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.evaluate!r} can be called neither as evaluate(text) nor as evaluate(text, turn): {error}"
            ) from None
        return takes

    @property
    def _needs_text_only(self) -> bool:
        called = (self.evaluate, type(self.evaluate).__call__)  # an object's own is a coroutine function, too
        return not self._takes_turn and not any(map(inspect.iscoroutinefunction, called))

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`.

        Raises:
            GuardrailError: It blocks, and has no `instead`.
        """
        if self.on == "said" and isinstance(turn, ModelTurn):
            await self._withhold_unsaid(turn)
            verdicts = [await self._judge(one, turn) for one in turn.say]
            if blocks := {place: found for place, found in enumerate(verdicts) if found is not None}:
                turn.state.withheld = [*turn.state.withheld, *blocks]
                return Reply(text=self._instead(next(iter(blocks.values()))))
        try:
            result = await proceed(turn)
        except CommandError as error:
            raise self._blocked_in_worker(error) or error from None
        if self.on == "said" or (blocked := await self._judge(result, turn)) is None:
            return result
        if isinstance(result, ToolReturn):
            return result.model_copy(update={"value": self._instead(blocked), "failed": True})
        return replace_reply(result, self._instead(blocked))

    def judged(self, text: str) -> Block | None:
        """The verdict of an `evaluate` that takes the text alone; None if it must be awaited, which only the task does.

        Raises:
            SkillError: `evaluate` answered something else than a verdict.
        """
        # mypy does not know that `evaluate` takes no turn here: `in_worker` is only used for such a function.
        verdict: Any = self.evaluate(text) if text else None  # type: ignore[call-arg]
        if inspect.isawaitable(verdict) and self.by == "whole":
            if inspect.iscoroutine(verdict):
                verdict.close()
            return None
        return self._read(verdict)

    async def _withhold_unsaid(self, turn: ModelTurn) -> None:
        """Judge messages that were answered without the model, too: the model reads them with this call."""
        state = turn.state
        for place, one in enumerate(state.unsaid):
            new = not isinstance(one, Reply) and one != withheld(one)
            if new and await self._judge(one, turn) is not None:
                state.unsaid = [*state.unsaid[:place], withheld(one), *state.unsaid[place + 1 :]]

    async def _judge(self, said: Said, turn: ModelTurn | ToolTurn) -> Block | None:
        if not (text := "\n".join(_texts(said))):
            return None
        verdict: Any = self.evaluate(text, turn) if self._takes_turn else self.evaluate(text)  # type: ignore[call-arg]
        if inspect.isawaitable(verdict):
            verdict = await verdict
        return self._read(verdict)

    def _read(self, verdict: Any) -> Block | None:
        if isinstance(verdict, Block):
            return verdict
        if verdict in (None, "pass", "block") and not isinstance(verdict, bool):
            return Block() if verdict == "block" else None
        raise SkillError(
            f'guardrail {self.name!r}: its function answered {short(verdict)}; it answers "pass" or None, "block", or '
            "Block(reason)"
        )

    def _instead(self, blocked: Block) -> str:
        if self.instead is None:
            raise GuardrailError(self.name, blocked.reason)
        return self.instead

    def _blocked_in_worker(self, error: CommandError) -> GuardrailError | None:
        details = error.failure.details
        if error.failure.type != GUARDRAIL or not isinstance(details, dict) or details.get("guardrail") != self.name:
            return None
        return GuardrailError(self.name, str(details.get("reason")))


GUARDRAIL = "guardrail"
"""The type of the failure of a model call whose reply is blocked in the worker, without another text in its place."""


@dataclass(frozen=True)
class _Screen(Middleware):
    guard: Guardrail

    steps = ("model",)
    scope: Scope = "activity"
    streams = True

    def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
        return _Screened(step, self.guard)


class _Screened(Step[Any, Any]):
    """A model call in the worker whose reply a guardrail evaluates."""

    kind: ClassVar[str] = "model"

    def __init__(self, inner: Step[Any, Any], guard: Guardrail) -> None:
        self._inner, self._guard = inner, guard

    async def stream(self, turn: Any, emit: Emit) -> Any:
        """See `Step.stream`.

        Raises:
            CommandError: The reply is blocked, and there is no other text in its place.
        """
        shown = _Sentences(self._guard, emit)
        reply = await self._inner.stream(turn, shown.add)
        blocked = self._guard.judged("\n".join(_texts(reply))) if isinstance(reply, Reply) else None
        if blocked is None:
            shown.rest()
            return reply
        if self._guard.instead is not None:
            return replace_reply(reply, self._guard.instead)
        details: JsonValue = {
            "guardrail": self._guard.name,
            "reason": blocked.reason,
            "usage": reply.usage.model_dump(mode="json"),
            "model": reply.model,
        }
        message = str(GuardrailError(self._guard.name, blocked.reason))
        failure = Failure(kind=FailureKind.PERMANENT, type=GUARDRAIL, message=message, details=details)
        raise CommandError("model", turn.invocation_id, failure)


_END = re.compile(r"[.!?…。！？][\"')\]]*\s|\n")


class _Sentences:
    """The part of an answer that may be shown: whole sentences that have passed."""

    def __init__(self, guard: Guardrail, emit: Emit) -> None:
        self._guard, self._emit = guard, emit
        self._text, self._shown = "", 0

    def add(self, piece: object) -> None:
        """Take the next piece; pieces of tool calls are not shown."""
        if not isinstance(piece, TextPiece):
            return
        self._text += piece.text
        if self._guard.by == "sentence" and (ends := [end.end() for end in _END.finditer(self._text, self._shown)]):
            self._show(ends[-1])

    def rest(self) -> None:
        """Show what is left, since the whole reply has passed."""
        if self._guard.by == "sentence":
            self._show(len(self._text))

    def _show(self, end: int) -> None:
        if end > self._shown and self._guard.judged(self._text[:end]) is None:
            self._emit(TextPiece(self._text[self._shown : end]))
            self._shown = end


def replace_reply(reply: Reply, text: str) -> Reply:
    """A reply with another text, and without calls, files and reasoning; of the provider's calls the names stay."""
    made = tuple(call.model_copy(update={"args": {}}) for call in reply.provider_calls)
    gone: dict[str, Any] = {"tool_calls": (), "value": None, "stop": "end", "files": (), "aside": ()}
    return reply.model_copy(update={"text": text, "provider_calls": made, **gone})


def _texts(said: Said) -> list[str]:
    """What a message says, as texts that are not empty: its text, then its data."""
    match said:
        case UserSaid(content=content):
            every = [content.text, *(_json(part.data) for part in content.parts)]
        case ToolReturn(value=value):
            every = [value if isinstance(value, str) else _json(value)]
        case Reply(text=text, value=value):
            every = [text, _json(value)]
        case _:
            assert_never(said)
    return [one for one in every if one]


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)
