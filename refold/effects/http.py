"""The one HTTP client of a worker: a pool of connections that model calls and tools share.

httpx2, the successor of httpx with the same interface, because the OpenAI and Anthropic SDKs and pydantic-ai have moved
to it: they take a client of httpx itself only with a deprecation warning, and drop it in their next major version. What
httpx raises is classified all the same, for tools that bring a client of their own.
"""

from __future__ import annotations

# The name under which the OpenAI SDK exports `httpx2.AsyncClient`.
from openai import DefaultAsyncHttpxClient as HttpClient
from pydantic_ai.models import create_async_httpx2_client

from refold.effects.sending import keyed

__all__ = ["HttpClient", "open_client"]


def open_client() -> HttpClient:
    """A new client: close it with `aclose()`. Proxies and certificates come from the environment.

    What a tool sends by it carries the tool's idempotency key. A model may think for minutes before its first byte, so
    reading waits for 10 minutes; connecting for 5 seconds.
    """
    client = create_async_httpx2_client()
    keyed(client)
    return client
