"""Classifies pydantic-ai's exceptions, by the table in `refold.effects.failures.classify`.

`classify` loads this module only for an exception of pydantic-ai, which takes about a second to load.
"""

from __future__ import annotations

import re

from pydantic_ai import exceptions as ai

from refold.core.retry_policy import Failure
from refold.effects.failures.network import (
    TRANSIENT_TYPES,
    addressed,
    by_network,
    http_failure,
    permanent,
    phrase,
    retry_after,
    transient,
)


def by_pydantic_ai(error: BaseException) -> Failure | None:
    """The verdict on an exception of pydantic-ai; None for any other."""
    match error:
        case ai.ModelQuotaExceededError():
            return permanent(
                "quota_exceeded", f"{_model(error)}: the account's quota or budget is used up", _status(error)
            )
        case ai.ModelContextWindowExceededError():
            return permanent("context_window", f"{_model(error)}: the input is too long for the model", _status(error))
        case ai.ModelUnavailableError() | ai.ModelRateLimitError() | ai.ModelServerError():
            return _busy(error)
        case ai.ModelHTTPError():
            said = f"{_model(error)} answered {phrase(error.status_code)}"
            wait = retry_after(error.headers) or error.retry_after
            return http_failure(error.status_code, said, wait, error.provider_retry_hint)
        case ai.ModelRequestRejectedError():
            return permanent("rejected", f"{_model(error)} rejected the request", _status(error))
        case ai.ModelRequestTimeout() | ai.ModelTimeoutError():
            return transient("timeout", TRANSIENT_TYPES["timeout"] + _whom(error))
        case ai.ModelConnectionError():
            return by_network(error, sure=True, whom=_whom(error)) or transient(
                "connection", TRANSIENT_TYPES["connection"] + _whom(error)
            )
        case ai.ModelAPIError(in_stream=True):
            return transient("stream_broken", f"{_model(error)} broke off its answer with an error", error.retry_after)
        case ai.ModelAPIError():
            return permanent("corrupt_data", f"{_model(error)} sent an answer that cannot be read", _status(error))
        case ai.ContentFilterError():
            return permanent("content_filter", "the provider's content filter stopped the answer")
        case ai.UnexpectedModelBehavior():
            return permanent("corrupt_data", "the model sent an answer that cannot be read")
        case ai.UserError():
            return permanent("configuration", first_sentence(error))
        case _:
            return None


def _busy(error: ai.ModelAPIError) -> Failure:
    wait = error.retry_after
    if isinstance(error, ai.ModelHTTPError):
        said = f"{_model(error)} answered {phrase(error.status_code)}"
        wait = retry_after(error.headers) or wait
        if isinstance(error, ai.ModelServerError) or error.provider_retry_hint is False:
            return http_failure(error.status_code, said, wait, error.provider_retry_hint)
        return transient(f"http_{error.status_code}", said, wait, {"status": error.status_code})
    return transient("overloaded", f"{_model(error)} cannot serve the request now", wait)


def first_sentence(error: BaseException) -> str:
    """The first sentence of a message that a library wrote for its users: what is wrong, without the advertisement."""
    return re.split(r"(?<=\.)\s", str(error).strip(), maxsplit=1)[0].rstrip(".")


def _whom(error: ai.ModelAPIError) -> str:
    return addressed(error, _model(error))


def _model(error: ai.ModelAPIError) -> str:
    return f"model {error.model_name!r}"


def _status(error: ai.ModelAPIError) -> int | None:
    return getattr(error, "status_code", None)
