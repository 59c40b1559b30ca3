"""What a failed model call means: an outage is waited out, and what went wrong inside a library is said in our words.

| what happened                                               | failure                                              |
| ----------------------------------------------------------- | ---------------------------------------------------- |
| the server is away, restarting or overloaded (`OUTAGES`)    | transient; the task waits until the server is back   |
| an error in a body with status 200                          | as with the status that it names or means            |
| an answer without any choice, or that lacks the calls that  | transient, `empty_answer`                            |
| it says it makes                                            |                                                      |
| an answer that ends for another reason than that it is      | as that reason says: transient, `stream_broken`; or  |
| whole, also one that pydantic-ai does not know              | permanent, `length`, `context_window`,               |
|                                                             | `content_filter`                                     |
| an answer that the provider's client does not know         | permanent, `corrupt_data`                            |
| a type asked for in a way that the model does not have      | permanent, `configuration`                           |
| a file that the model or its client cannot take             | permanent, `attachment`                              |
| a file whose address cannot be resolved or reached          | transient, `dns`, `connection`, ...                  |
| anything else                                               | by the table in `refold.effects.failures.classify`   |
"""

from __future__ import annotations

import re
import socket
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress

from httpx2 import Response
from pydantic_ai import exceptions as ai
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FinishReason,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    UserPromptPart,
    VideoUrl,
)

from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.building import permanent, scrubbed, transient
from refold.effects.failures.classify import classify
from refold.effects.failures.verdicts import Verdict
from refold.effects.invocation import serving
from refold.effects.models.failures import first_sentence, reason_in

_AWAY = (502, 503, 504, 521, 522, 523, 529, 530)  # 521 to 523 and 530 are Cloudflare's
OUTAGES = frozenset({"connection", "dns", "overloaded", "http_429", *(f"http_{status}" for status in _AWAY)})
"""The types of transient failures that a server's restart, deployment or overload explains."""

OUTAGE_S = 24 * 3600.0
"""Says in a failure that its cause is an outage; see `Failure.again_s`."""

UPDATE = "update pydantic-ai and that client, or leave out what asks for it"
"""The way out of an answer that the provider's client does not know."""

_KIND = r"(?:image|audio|video|vision|multimodal|media|file|pdf|document)"
_NOT = r"(?:not support|n't support|unsupported|only supported|endpoints found that support|at most 0)"
# Servers have neither a status nor a code of its own for it, so their words decide.
_NO_FILES = re.compile(rf"{_KIND}.{{0,60}}{_NOT}|{_NOT}.{{0,60}}{_KIND}", re.IGNORECASE)
_NOT_OF_FILES = re.compile(r"\b(?:output|tool)s?\b", re.IGNORECASE)
"""Marks errors of the provider's client that concern outputs or tools, not the message's files."""
_ANYWHERE = re.compile("")
_READING = re.compile(r"_process_\w*response|_get_event_iterator")
"""The functions of pydantic-ai's models that read an answer, which is paid for by then."""
_FILES = (BinaryContent, ImageUrl, AudioUrl, VideoUrl, DocumentUrl)


_ENDS: dict[str, FinishReason] = {
    "abort": "error",  # vLLM, SGLang
    "aborted": "error",
    "canceled": "error",
    "cancelled": "error",
    "error": "error",
    "failed": "error",
    "in_progress": "error",  # OpenAI's Responses, if its stream ends there
    "incomplete": "error",
    "insufficient_system_resource": "error",  # DeepSeek
    "network_error": "error",  # Zhipu
    "other": "error",  # Google: it stopped, for none of the reasons that it names
    "queued": "error",
    "timeout": "error",
    "context_length_exceeded": "length",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "model_length": "length",
    "guardrail_intervened": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",  # Zhipu
}
"""Reasons that pydantic-ai does not know for each provider, in lower case: servers use one another's. Any other reason
is that of a whole answer, for which servers have many words."""


OVERFULL = frozenset({"context_length_exceeded", "model_context_window_exceeded"})
"""Reasons of a cut answer that no higher limit of output tokens can change."""


def end_of(response: ModelResponse) -> str:
    """The provider's own word for why an answer ended, in lower case; `none` without one."""
    return str((response.provider_details or {}).get("finish_reason")).lower()


def finish_reason_of(response: ModelResponse) -> FinishReason | None:
    """Why an answer ended; None if the provider has not said why, or in words that nobody knows."""
    if response.finish_reason is not None:
        return response.finish_reason
    return _ENDS.get(end_of(response))


def failure_of(error: Exception, name: str, messages: Sequence[ModelMessage]) -> Failure:
    """The failure of a request.

    Args:
        error: What the provider's client raised.
        name: The model, `provider:name`.
        messages: What was sent.
    """
    failure = _of_client(error, name, messages) or _of_files(error, name, messages) or classify(error)
    if failure.kind is FailureKind.TRANSIENT and failure.type in OUTAGES:
        return failure.model_copy(update={"again_s": OUTAGE_S})
    return failure


def _of_client(error: Exception, name: str, messages: Sequence[ModelMessage]) -> Failure | None:
    of_provider = isinstance(error, ai.UnexpectedModelBehavior | ai.ModelAPIError)  # these are RuntimeErrors, too
    if of_provider or isinstance(error, Verdict) or not _raised_in_client(error):
        return None
    files = ", ".join(dict.fromkeys(_files_in(messages)))
    if isinstance(error, IndexError):
        return transient("empty_answer", f"model {name!r} sent an answer without any choice")
    if isinstance(error, TypeError | AttributeError | KeyError | AssertionError) and _raised_in_client(error, _READING):
        why = scrubbed(f"{type(error).__name__}: {error}")
        said = f"model {name!r} sent an answer that the installed client of its provider cannot read ({why}); {UPDATE}"
        return permanent("corrupt_data", said)
    if not files or (isinstance(error, ai.UserError) and _NOT_OF_FILES.search(str(error))):
        return _refused_here(error, name)
    if isinstance(error.__cause__, socket.gaierror):
        return transient("dns", f"a file for model {name!r} cannot be fetched: its host's name cannot be resolved")
    if isinstance(error, AssertionError | NotImplementedError | KeyError | RuntimeError | ValueError | ai.UserError):
        why = f": {scrubbed(str(error))}" if str(error) else ""
        return permanent("attachment", f"model {name!r} cannot be sent this file ({files}){why}; send another type")
    return None


def _of_files(error: Exception, name: str, messages: Sequence[ModelMessage]) -> Failure | None:
    """The failure if the provider says that its model takes no such files; some say so with status 500."""
    if not isinstance(error, ai.ModelHTTPError) or error.status_code not in (400, 404, 415, 422, 500, 501):
        return None
    said, files = reason_in(error.body).get("message", ""), ", ".join(dict.fromkeys(_files_in(messages)))
    if not files or not _NO_FILES.search(said):
        return None
    way_out = "send another type, or name a model that takes it"
    why = f"model {name!r} does not take this file ({files}); {way_out}. The provider says: {said}"
    return permanent("attachment", why, error.status_code)


def _refused_here(error: Exception, name: str) -> Failure | None:
    """What the provider's client does not send, such as a way to ask for a type that the model does not have."""
    if not isinstance(error, ai.UserError):
        return None
    said = first_sentence(error).replace("this model", f"model {name!r}")
    way_out = "; leave the setting output_mode out, or take `tool`" if "structured output" in said else ""
    named = "" if name in said else f"model {name!r}: "
    return permanent("configuration", f"{named}{said}{way_out}")


_ANSWERS = {"/chat/completions": "choices", "/messages": "content", "/responses": "object"}
"""A field that an answer has, by the end of its address. What a gateway sends in place of an answer has none; a failed
answer of OpenAI's Responses has its `object`, and is read by the provider's client."""


async def error_as_status(response: Response) -> None:
    """Give an answer with status 200 that is an error, `{"error": {"code": 429, ...}}`, the status that it names or
    means; 400 if it does neither.

    A hook of the HTTP client. Gateways send such answers; the providers' clients would say that it cannot be read. What
    a tool is answered stays as it is.
    """
    path = response.request.url.path
    answer = next((field for end, field in _ANSWERS.items() if path.endswith(end)), "") if serving() is None else ""
    if not (answer and response.status_code == 200 and "json" in response.headers.get("content-type", "")):
        return
    await response.aread()
    with suppress(ValueError):
        body = response.json()
        if isinstance(body, dict) and not body.get(answer) and (found := body.get("error")):
            response.status_code = _meant(found)


_MEANINGS = (
    (re.compile(r"rate_?limit|too_many_requests|quota|billing|limit_exceeded"), 429),
    (re.compile(r"overloaded|unavailable"), 503),
    (re.compile(r"server_error|api_error"), 500),
)
"""The statuses that an error's words mean, as pydantic-ai reads the words of one in a stream."""


def _meant(error: object) -> int:
    said = [error.get(name) for name in ("code", "status", "type")] if isinstance(error, dict) else [error]
    for one in map(str, said):
        if one.isdecimal() and 400 <= int(one) < 600:
            return int(one)
    words = " ".join(map(str, said)).lower()
    return next((status for meaning, status in _MEANINGS if meaning.search(words)), 400)


def _raised_in_client(error: BaseException, where: re.Pattern[str] = _ANYWHERE) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any("pydantic_ai" in frame.filename and where.match(frame.name) for frame in frames)


def _files_in(messages: Sequence[ModelMessage]) -> Iterator[str]:
    for message in messages:
        for part in message.parts if isinstance(message, ModelRequest) else ():
            if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
                yield from (_type_of(one) for one in part.content if isinstance(one, _FILES))


def _type_of(file: object) -> str:
    try:
        return str(getattr(file, "media_type", "")) or "of no known type"
    except ValueError:
        return "of no known type"
