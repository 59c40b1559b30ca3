"""Resolves a model's name: `openai:gpt-5`, `scripted:demo`, or any `provider:model` that pydantic-ai knows."""

from __future__ import annotations

import inspect
import os
import re
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.building import scrubbed
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.client import HttpClient
from refold.effects.models import MODEL_SETTING
from refold.effects.models.failures import first_sentence
from refold.effects.models.scripted import SCRIPTED, scripted_model
from refold.effects.models.trouble import error_as_status

DEFAULT_MODEL = "scripted:demo"
_RENAMED = {"google-gla": "google", "gemini": "google", "claude": "anthropic", "gpt": "openai"}
_EXAMPLES = "for example openai:gpt-5, anthropic:claude-sonnet-5-5 or scripted:demo"


class Models:
    """The models of one worker, each created on first use, all on one HTTP client."""

    def __init__(self, default: str | None, http: HttpClient) -> None:
        """Make none yet.

        Args:
            default: The model of calls that name none; None takes `REFOLD_MODEL`, else the scripted one.
            http: The shared client; providers whose SDK needs another kind of client make their own.
        """
        self._default = default or os.environ.get(MODEL_SETTING) or DEFAULT_MODEL
        self._http = http
        http.event_hooks = {**http.event_hooks, "response": [*http.event_hooks["response"], error_as_status]}
        self._made: dict[str, Model] = {}
        self._open = AsyncExitStack()

    async def close(self) -> None:
        """Close the clients that providers made for themselves."""
        await self._open.aclose()

    async def get(self, name: str | None) -> tuple[str, Model]:
        """The model, and its resolved name.

        Args:
            name: `provider:model`; None takes the worker's setting.

        Raises:
            Verdict: There is no such provider, its key or package is missing, or its client cannot be made; the message
                says what to set.
        """
        name = name or self._default
        if name not in self._made:
            try:
                model = _make(name, self._http)
                await self._open.enter_async_context(model)
            except Verdict:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a client raises, as for an empty key
                raise _unusable(name, scrubbed(_in_our_words(error)) or type(error).__name__) from None
            self._made[name] = model
        return name, self._made[name]


def _make(name: str, http: HttpClient) -> Model:
    provider, colon, rest = name.partition(":")
    if not (provider and colon and rest):
        raise _unusable(name, f"a model is named provider:model, {_EXAMPLES}")
    if provider == SCRIPTED:
        try:
            return scripted_model(rest)
        except LookupError as error:
            raise _unusable(name, str(error.args[0])) from None
    try:
        infer_provider_class(provider)
    except ValueError:
        meant = f"; {provider}: is now {_RENAMED[provider]}:" if provider in _RENAMED else ""
        raise _unusable(name, f"there is no provider {provider!r}{meant}; write provider:model, {_EXAMPLES}") from None
    except ImportError as error:
        raise _unusable(name, f"a package is missing: {_in_our_words(error)}") from None
    if wrong := _unfit_setting(provider):
        raise _unusable(name, wrong)
    if provider == "openai" and _speaks_chat_only():
        name = f"openai-chat:{rest}"
    return infer_model(name, provider_factory=lambda wanted: _provider(wanted, http))


def _in_our_words(error: BaseException) -> str:
    """What a provider's library says of its set-up, without ways out that a setting cannot take."""
    if found := re.search(r"pip install [\"']?([\w.\[\]-]+)", str(error)):
        return f"pip install '{found.group(1)}'"
    return re.sub(r",? or pass [^.]*?`\w+\([^`]*\)`", "", first_sentence(error))


def _unfit_setting(provider: str) -> str:
    """Why a provider's key or base URL cannot be used; empty if they can, as far as that is known without a request."""
    prefix = provider.partition("-")[0].upper()
    key, url = (os.environ.get(f"{prefix}_{name}", "") for name in ("API_KEY", "BASE_URL"))
    if not (key.isascii() and key.isprintable()):
        return f"{prefix}_API_KEY has a line break, another control character or one that is not ASCII; set it without"
    if f"{prefix}_BASE_URL" in os.environ and not _is_address(url):
        shown = url.rpartition("@")[2].partition("?")[0]
        return f"{prefix}_BASE_URL={shown!r} is no address; set an http:// or https:// address with a host, or unset it"
    return ""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.split() == [url]
    except ValueError:  # a host or a port that is none
        return False


def _speaks_chat_only() -> bool:
    """Whether `openai:` means a server other than OpenAI's.

    Such servers support chat completions; few support OpenAI's newer Responses, which pydantic-ai uses for `openai:`.
    `openai-responses:NAME` selects Responses explicitly.
    """
    host = urlsplit(os.environ.get("OPENAI_BASE_URL", "")).hostname
    return host is not None and host != "api.openai.com" and not host.endswith(".api.openai.com")


def _provider(name: str, http: HttpClient) -> Provider[Any]:
    if name.startswith("gateway/"):
        return infer_provider(name)
    provider: Any = infer_provider_class(name)
    if "http_client" in inspect.signature(provider).parameters:
        try:
            made: Provider[Any] = provider(http_client=http)
        except (TypeError, AssertionError):
            pass  # its SDK needs another kind of client
        else:
            return made
    return infer_provider(name)


def _unusable(name: str, why: str) -> Verdict:
    message = f"model {name!r} cannot be used: {why} (set by the command's `model`, else by {MODEL_SETTING})"
    return Verdict(Failure(kind=FailureKind.PERMANENT, type="configuration", message=message))
