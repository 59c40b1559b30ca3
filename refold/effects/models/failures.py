"""Classifies pydantic-ai's exceptions, by the table in `refold.effects.failures.classify`.

`classify` loads this module only for an exception of pydantic-ai, which takes about a second to load.
"""

from __future__ import annotations

import re

from pydantic_ai import exceptions as ai

from refold.core.retry_policy import Failure
from refold.core.values import encodable
from refold.effects.failures.building import chain, permanent, scrubbed, transient
from refold.effects.failures.network import (
    TRANSIENT_TYPES,
    UNFIT_HEADER,
    addressed,
    by_network,
    http_failure,
    phrase,
    retry_after,
    unfit_header,
)


def by_pydantic_ai(error: BaseException) -> Failure | None:
    """The verdict on an exception of pydantic-ai; None for any other. A provider's own reason is kept."""
    match error:
        case ai.ModelAPIError():
            return _with_reason(_of_provider(error), error)
        case ai.ContentFilterError():
            return permanent("content_filter", "the provider's content filter stopped the answer")
        case ai.UnexpectedModelBehavior() if "ended without content" in str(error):
            return transient("empty_answer", "the model's stream ended before it had begun")
        case ai.UnexpectedModelBehavior():
            return permanent("corrupt_data", "the model sent an answer that cannot be read")
        case ai.UserError():
            return permanent("configuration", first_sentence(error))
        case _:
            return None


def _of_provider(error: ai.ModelAPIError) -> Failure:
    who, status = f"model {error.model_name!r}", getattr(error, "status_code", None)
    match error:
        case ai.ModelQuotaExceededError():
            return permanent("quota_exceeded", f"{who}: the account's quota or budget is used up", status)
        case ai.ModelContextWindowExceededError():
            return permanent("context_window", f"{who}: the input is too long for the model", status)
        case _ if _is_too_long(error):
            return permanent("context_window", f"{who}: the input is too long for the model", status)
        case _ if reason_in(error.body).get("code") == "content_filter":
            return permanent("content_filter", f"{who}: the provider's filter stopped the input", status)
        case ai.ModelUnavailableError() | ai.ModelRateLimitError() | ai.ModelServerError():
            return _busy(error)
        case ai.ModelHTTPError():
            wait = retry_after(error.headers) or error.retry_after
            # A model call may be repeated freely, so that a conflict with an earlier request is no reason to give up.
            hint = True if status == 409 and error.provider_retry_hint is None else error.provider_retry_hint
            return http_failure(error.status_code, f"{who} answered {phrase(error.status_code)}", wait, hint)
        case ai.ModelRequestRejectedError():
            return permanent("rejected", f"{who} rejected the request", status)
        case ai.ModelTimeoutError(phase="connect" | "pool"):  # as where a server's host is down, or drops what it gets
            return transient("connection", f"no connection in time{_whom(error)}")
        case ai.ModelRequestTimeout() | ai.ModelTimeoutError():
            return transient("timeout", TRANSIENT_TYPES["timeout"] + _whom(error))
        case ai.ModelConnectionError() if wrong := _unsendable(error):
            return permanent("configuration", f"{who}: {wrong}")
        case ai.ModelConnectionError():
            return by_network(error, sure=True, whom=_whom(error)) or transient(
                "connection", TRANSIENT_TYPES["connection"] + _whom(error)
            )
        case ai.ModelAPIError(in_stream=True):
            return transient("stream_broken", f"{who} broke off its answer with an error", error.retry_after)
        case _:
            return permanent("corrupt_data", f"{who} sent an answer that cannot be read", status)


_NO_ADDRESS = "its server has no http:// or https:// address; look at the provider's base URL, such as OPENAI_BASE_URL"
_NO_HEADER = f"{UNFIT_HEADER}; look for a line break in the provider's key and the setting extra_headers"


def _unsendable(error: BaseException) -> str:
    """The setting that keeps a request from being sent, however often it is tried; empty if there is none."""
    causes = list(chain(error, contexts=False))
    if any(unfit_header(one) for one in causes):
        return _NO_HEADER
    wrong = any(type(one).__name__ in ("UnsupportedProtocol", "InvalidURL") for one in causes)
    return _NO_ADDRESS if wrong else ""


def _busy(error: ai.ModelAPIError) -> Failure:
    wait, who = error.retry_after, f"model {error.model_name!r}"
    if isinstance(error, ai.ModelHTTPError):
        said = f"{who} answered {phrase(error.status_code)}"
        wait = retry_after(error.headers) or wait
        if isinstance(error, ai.ModelServerError) or error.provider_retry_hint is False:
            return http_failure(error.status_code, said, wait, error.provider_retry_hint)
        return transient(f"http_{error.status_code}", said, wait, {"status": error.status_code})
    return transient("overloaded", f"{who} cannot serve the request now", wait)


# --- the provider's own reason

_TOO_LONG = re.compile(
    r"exceed_context_size|context_length|maximum context|context (?:size|window|length)|prompt is too long"
)


def reason_in(body: object) -> dict[str, str]:
    """The `code`, `param` and `message` of a provider's error, as far as it has them; the message in one line."""
    if isinstance(body, dict) and isinstance(body.get("error"), dict | str):
        body = body["error"]
    if isinstance(body, str) and not body.lstrip().startswith("<"):  # a text is the reason, a page is none
        body = {"message": body}
    if not isinstance(body, dict):
        return {}
    found = {name: body.get(name) for name in ("code", "param", "message")}
    if found["code"] is None or isinstance(found["code"], int):
        found["code"] = body.get("type")  # llama.cpp repeats the status as the code
    kept = {name: scrubbed(encodable(value)) for name, value in found.items() if isinstance(value, str)}
    return {name: value for name, value in kept.items() if value}


def _is_too_long(error: ai.ModelAPIError) -> bool:
    """Whether a 400 or 413 is about the length of the input, in one of the ways in which servers say so."""
    reason = reason_in(error.body)
    told = f"{reason.get('code', '')} {reason.get('message', '')}".lower()
    return getattr(error, "status_code", None) in (400, 413) and _TOO_LONG.search(told) is not None


def _with_reason(failure: Failure, error: ai.ModelAPIError) -> Failure:
    reason = reason_in(error.body)
    said = reason.pop("message", "")
    known = failure.details if isinstance(failure.details, dict) else {}
    return failure.model_copy(
        update={
            "message": f"{failure.message}: {said}" if said else failure.message,
            "details": {**known, **reason} or None,
        }
    )


def first_sentence(error: BaseException) -> str:
    """The first sentence of a message that a library wrote for its users: what is wrong, without the advertisement."""
    return re.split(r"(?<=\.)\s", str(error).strip(), maxsplit=1)[0].rstrip(".")


def _whom(error: ai.ModelAPIError) -> str:
    return addressed(error, f"model {error.model_name!r}")
