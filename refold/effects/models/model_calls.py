"""Model calls of a worker that works while the providers' libraries are not loaded yet, or load in a thread.

The libraries take as long to load as the rest of a worker. They are loaded for the first call, which waits for them,
heartbeating; or else once the worker has called no tool for `IDLE_S`, as when it has taken over what another one left:
folds, tools and timers do not need them, and the loading would slow them down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from refold.conversation import LlmOutcome
from refold.core.chat import Reply
from refold.core.commands import CallLlm
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.client import HttpClient
from refold.seen.logs import logger

if TYPE_CHECKING:
    from refold.effects.models.conversations import Recalled
    from refold.effects.models.request import Show
    from refold.effects.models.resolve import Models
    from refold.effects.tools import Tool

IDLE_S = 2.0
"""How long a worker that was asked for no model call has called no tool before it loads the libraries, in seconds."""

log = logger(__name__)


class _Ask(Protocol):
    def __call__(
        self, command: CallLlm, models: Models, *, key: str, show: Show | None = None
    ) -> Awaitable[LlmOutcome]: ...


class _Converse(Protocol):
    def __call__(
        self, recalled: Recalled, models: Models, tools: Mapping[str, Tool], *, key: str, show: Show | None = None
    ) -> Awaitable[Reply]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    ask: _Ask
    converse: _Converse
    models: Models


class ModelCalls:
    """Makes model calls once the libraries are loaded. One for each worker, created on its event loop."""

    def __init__(self, default: str | None, http: HttpClient) -> None:
        """Load nothing yet.

        Args:
            default: The model of calls that name none; None takes `REFOLD_MODEL`, else the scripted one.
            http: The client that providers share.
        """
        self._default, self._http = default, http
        self._loading: asyncio.Task[_Loaded | Failure] | None = None
        self._loop = asyncio.get_running_loop()
        self.put_off()
        self._later = self._loop.call_later(IDLE_S, self._load_if_idle)

    def put_off(self) -> None:
        """Load only `IDLE_S` from now on, unless a call needs the libraries: the worker has other work."""
        self._worked_at = self._loop.time()

    def _load_if_idle(self) -> None:
        idle_s = self._loop.time() - self._worked_at
        if idle_s >= IDLE_S:
            _ = self._load()  # the first call awaits it
        else:
            self._later = self._loop.call_later(IDLE_S - idle_s, self._load_if_idle)

    async def ask(self, command: CallLlm, *, key: str, show: Show | None = None) -> LlmOutcome:
        """Make a model call; see `refold.effects.models.llm.ask`.

        Raises:
            Verdict: The libraries cannot be loaded, or `llm.ask` raised it.
        """
        loaded = await self._loaded()
        return await loaded.ask(command, loaded.models, key=key, show=show)

    async def converse(
        self, recalled: Recalled, tools: Mapping[str, Tool], *, key: str, show: Show | None = None
    ) -> Reply:
        """Make a model call in a conversation; see `refold.effects.models.chat.converse`.

        Raises:
            Verdict: The libraries cannot be loaded, or `chat.converse` raised it.
        """
        loaded = await self._loaded()
        return await loaded.converse(recalled, loaded.models, tools, key=key, show=show)

    async def unusable(self, names: Iterable[str]) -> list[str]:
        """For each of these models that cannot be used, why: no such provider, no key, a missing package."""
        found = []
        for name in names:
            try:
                loaded = await self._loaded()
                await loaded.models.get(name)
            except Verdict as verdict:
                found.append(verdict.failure.message)
        return found

    def _load(self) -> asyncio.Task[_Loaded | Failure]:
        if self._loading is None:
            self._loading = asyncio.create_task(asyncio.to_thread(_load, self._default, self._http))
        return self._loading

    async def _loaded(self) -> _Loaded:
        # Shielded: canceling one call must not cancel the loading that other calls await.
        found = await asyncio.shield(self._load())
        if isinstance(found, _Loaded):
            return found
        raise Verdict(found)

    async def close(self) -> None:
        """Close the providers' clients. While the libraries still load, there is none, and nobody waits for them: their
        thread cannot be stopped."""
        self._later.cancel()
        loading = self._loading
        if loading is None:
            return
        if loading.cancel():
            await asyncio.wait((loading,))
            return
        loaded = loading.result()
        if isinstance(loaded, _Loaded):
            await loaded.models.close()


def _load(default: str | None, http: HttpClient) -> _Loaded | Failure:
    try:
        from refold.effects.models.chat import converse
        from refold.effects.models.llm import ask
        from refold.effects.models.resolve import Models
    except Exception as error:  # a package that is broken may raise anything while it loads
        log.exception("model_libraries_missing")
        said = (
            f"model calls cannot be made: {type(error).__name__} while loading pydantic-ai and its providers: {error}"
        )
        way_out = "; install refold's requirements again, and restart the worker"
        return Failure(kind=FailureKind.PERMANENT, type="configuration", message=said + way_out)
    return _Loaded(ask=ask, converse=converse, models=Models(default, http))
