"""Middleware that caches results, and that limits how much of a conversation the model sees."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from refold.agent.middleware import Proceed, Scope, Simple
from refold.agent.steps import ModelTurn, ToolTurn, heard
from refold.core.chat import Reply, Said, ToolReturn, Usage, UserSaid
from refold.core.pins import offered
from refold.core.schema import schema_of
from refold.core.values import Value, is_count


@dataclass(frozen=True)
class Cache(Simple):
    """Identical calls are made once: a cached result skips the step, and streams nothing.

    In workflow scope the cache is the task's own. In activity scope all tasks of one owner in a worker's process share
    it; a result that a task took from it is recorded with the task, so a replay needs no cache. Failures are not
    cached.

    Attributes:
        tools: The tools whose results are cached; they should change nothing.
        models: Cache model replies too, by everything that the model is sent.
        size: How many results, the newest ones.
        scope: Where.
    """

    streams = True  # what the model answers stays as it is
    tools: Collection[str] = ()
    models: bool = False
    size: int = 100
    scope: Scope = "workflow"
    _shared: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _calls: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if isinstance(self.tools, str) or not (self.tools or self.models):
            raise ValueError(f"{self!r} keeps nothing; name tools, tools=[...], or say models=True")
        if not is_count(self.size):
            raise ValueError(f"size={self.size!r} is no number of results; give a whole number, 1 or more")
        object.__setattr__(self, "tools", tuple(self.tools))  # copied: the caller may change its list

    @property
    def steps(self) -> Collection[str]:  # type: ignore[override]  # follows from what is kept
        """The kinds of step whose results it caches."""
        return (*(("model",) if self.models else ()), *(("tool",) if self.tools else ()))

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        if self.scope == "activity":
            return await self._in_worker(turn, proceed)
        if isinstance(turn, ToolTurn) and (turn.call.name not in self.tools or turn.call.problem):
            return await proceed(turn)
        kept = turn.state.kept.setdefault("cache", {})
        assert isinstance(kept, dict)
        key = _key(turn)
        if key in kept:
            return _fresh(turn, kept[key])
        result = await proceed(turn)
        if not (isinstance(result, ToolReturn) and result.failed):
            _keep(kept, key, result.model_dump(mode="json"), self.size)
        return result

    async def _in_worker(self, turn: Any, proceed: Proceed) -> Any:
        command = turn.command
        name = getattr(command, "name", None)
        if name is not None and name not in self.tools and offered(name) not in self.tools:
            return await proceed(turn)
        key = _hash([turn.owner, to_jsonable_python(command, exclude=_NOT_SENT)])
        # An equal call that comes meanwhile waits, and makes the call itself if this one fails.
        async with self._calls.setdefault(key, asyncio.Lock()):
            if key in self._shared:
                return deepcopy(self._shared[key])  # a copy, which its receiver may change
            result = await proceed(turn)
            _keep(self._shared, key, deepcopy(_unpaid(result) if name is None else result), self.size)
            return result


_UNTOLD = {"__all__": {"usage", "model"}}
_NOT_SENT: Any = {"id": True, "prior": _UNTOLD, "say": _UNTOLD}
"""Fields of a command that are not sent to a tool or model: its id, and the model and usage of earlier replies."""


def _unpaid(answer: Any) -> Any:
    """A model's answer without model and usage, so that an answer from the cache costs nothing."""
    usage = Usage(requests=0) if isinstance(answer, Reply) else None
    return answer.model_copy(update={"model": "", "usage": usage}) if isinstance(answer, Value) else answer


def _keep(kept: dict[str, Any], key: str, value: Any, size: int) -> None:
    kept[key] = value
    while len(kept) > size:
        del kept[next(iter(kept))]


def _key(turn: ModelTurn | ToolTurn) -> str:
    if isinstance(turn, ToolTurn):
        return _hash(["tool", turn.call.name, turn.call.args])
    said = [*turn.ctx.thread(turn.state.thread), *turn.state.unsaid, *turn.say]
    told: list[JsonValue] = [one.model_dump(mode="json", exclude={"usage", "model"}) for one in said]
    form = [schema_of(turn.expect), turn.since, dict(turn.settings)]
    return _hash(["model", turn.model, turn.instructions, [tool.name for tool in turn.tools], turn.final, told, form])


def _fresh(turn: ModelTurn | ToolTurn, data: Any) -> Reply | ToolReturn:
    if isinstance(turn, ToolTurn):
        return ToolReturn.model_validate({**data, "id": turn.call.id})
    return Reply.model_validate(data)


def _hash(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Window(Simple):
    """Limits how much of a conversation the model sees: the newest turns, beginning with one of the user's.

    The thread retains everything; only the part sent to the model is shorter.

    Attributes:
        turns: About how many turns, tool results counted each; at least the new ones.
    """

    streams = True  # what the model answers stays as it is
    turns: int
    steps: Collection[str] = ("model",)

    def __post_init__(self) -> None:
        if not is_count(self.turns):
            raise ValueError(f"turns={self.turns!r} shows nothing; give a whole number, 1 or more")

    async def around(self, turn: ModelTurn, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        said = [*heard(turn), *turn.state.unsaid, *turn.say]
        return await proceed(replace(turn, since=max(turn.since, _first_shown(said, max(self.turns, len(turn.say))))))


def _first_shown(said: list[Said], turns: int) -> int:
    """The newest turn to begin at so that enough turns remain: a tool's result is never shown without its call."""
    answered = [0, *(place for place, one in enumerate(said, 1) if isinstance(one, Reply))]
    # A message beside the results of tools begins no turn: the question that the results answer would be hidden.
    begins = [place for place in answered if len(said) - place >= turns and isinstance(said[place], UserSaid)]
    return begins[-1] if begins else 0
