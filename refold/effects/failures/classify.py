"""Classifies an effect's exception as transient or permanent: `classify`, one table for every kind of exception.

The question behind every row: *could a retry with the same inputs succeed?* If it could (the network, load, a rate
limit), the failure is transient, and the task retries. If not (wrong credentials, not found, an unreadable answer), the
failure is permanent.

| failure                                                | verdict   | type                            |
| ------------------------------------------------------ | --------- | ------------------------------- |
| no name, no connection, broken off, no answer in time  | transient | `dns`, `connection`, `timeout`  |
| HTTP 408, 425, 429, 500, 502, 503, 504 and other 5xx   | transient | `http_NNN`, Retry-After kept    |
| a quota or budget that is used up, though it is a 429  | permanent | `quota_exceeded`                |
| HTTP 501, 505, 506, 508, 510, 511, and every other 4xx | permanent | `http_NNN`                      |
| HTTP 409 of a model provider                           | transient | `http_409`                      |
| a certificate that does not hold                       | permanent | `certificate`                   |
| an answer that cannot be read, a value that misfits    | permanent | `corrupt_data`, `validation`    |
| a setting or header that is missing or wrong           | permanent | `configuration`                 |
| `TryLater`, `Never`, raised by the tool itself         | as it says| as it says                      |
| anything else: a bug, until someone says otherwise     | permanent | the exception's class name      |

500 counts as transient: the server failed, in practice by load, a deployment or a crash. Model providers' own SDKs
retry it too. Retries are few, and the policy of an effect that must not be repeated prevents them.

The rules for the network and HTTP are in `network` beside this module, those for pydantic-ai in `models.failures`.

Messages are for people: they name the host and the status, never a path, a query, a header or a body. Of a model
provider's error, they have its reason in one line, shortened, with likely secrets removed.

Source: S3.48, S3.49; RFC 9110 sections 10.2.3 and 15; RFC 6585; the exception classes of openai 3 and pydantic-ai 2.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from refold.core.errors import CommandError, DefinitionError, text_of
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import problems
from refold.effects.failures.building import chain, permanent, scrubbed, transient
from refold.effects.failures.network import attribute, by_network, by_status, never_sent, status_of
from refold.effects.failures.verdicts import Never, OutOfTime, TryLater, Verdict
from refold.effects.invocation import SENT, Sent

REFUSING = frozenset({*range(400, 432), 451} - {408, 409, 418, 419, 420, 430})
"""Statuses that say that the receiver has not performed the request. Not among them: 408, since a proxy may have timed
out waiting for the receiver; 409, which may refer to the same effect; and 5xx, after which the effect may be done."""

_SENT_ON = frozenset({307, 308})
"""Statuses by which a receiver asks for the same request elsewhere, and has not performed it."""


def classify(error: BaseException) -> Failure:
    """Classify an exception of an effect. Never raises. Callers handle `CancelledError` themselves."""
    for rule in _RULES:
        with suppress(Exception):  # what an exception's own code raises, such as a property's
            failure = rule(error)
            if failure is not None:
                return failure
    return _unknown(error)


def surely_unsent(error: BaseException) -> bool:
    """Whether the request behind `error` was certainly not sent: no name, no connection. False if in doubt."""
    if isinstance(error, TryLater):
        return error.unsent
    # Causes only: the context of an exception may belong to another request.
    return any(never_sent(one) for one in chain(error, contexts=False))


def surely_not_done(error: BaseException, sent: Sequence[Sent]) -> bool:
    """Whether a tool that raised `error` has certainly had no effect; False if in doubt.

    Args:
        error: The tool's exception.
        sent: The tool's writing requests as far as they are known, oldest first.
    """
    match error:
        case TryLater():
            return error.unsent
        case Never():
            return True
        case Verdict():
            return False
        case _:
            pass
    # An error excuses no request but its own: it may be about a read, and the write before it got no answer.
    unsent = [_write(one) for one in chain(error) if never_sent(one)]
    if any(_may_be_done(one, unsent=any(one is known for known in unsent)) for one in sent):
        return False
    if surely_unsent(error):
        return True
    found = status_of(error)
    # A refused read says nothing about writes that are not known here.
    return found is not None and found[0] in REFUSING and _method(error) not in _READING


def _may_be_done(one: Sent, *, unsent: bool) -> bool:
    if any(status not in REFUSING | _SENT_ON for status in one.earlier):
        return True
    return not unsent if one.status is None else one.status not in REFUSING


_READING = {"GET", "HEAD", "OPTIONS"}


def _write(error: BaseException) -> Sent | None:
    """The writing request behind an exception; None if it is a read, or one that is not counted."""
    extensions = attribute(_request(error), "extensions")
    sent = getattr(extensions.get(SENT), "sent", None) if isinstance(extensions, dict) else None
    return sent if isinstance(sent, Sent) else None


def _method(error: BaseException) -> str:
    """The method of the request behind an exception; empty if unknown."""
    return str(attribute(_request(error), "method") or "").upper()


def _request(error: BaseException) -> Any:
    """The request behind an exception: httpx and requests, then aiohttp; None if unknown."""
    return attribute(error, "request") or attribute(error, "request_info")


# --- the rules, in order; each classifies its own kind of exception, and returns None for others


def _by_its_author(error: BaseException) -> Failure | None:
    match error:
        case Verdict():
            return error.failure
        case CommandError():
            return error.failure
        case OutOfTime():
            return transient("timeout", str(error))
        case _:
            return None


def _group(error: BaseException) -> Failure | None:
    if not isinstance(error, BaseExceptionGroup):
        return None
    failures = [classify(one) for one in error.exceptions]
    # A retry helps only if it can help with all of them.
    return next((failure for failure in failures if failure.kind is FailureKind.PERMANENT), failures[0])


def _by_pydantic_ai(error: BaseException) -> Failure | None:
    if not any(cls.__module__.partition(".")[0] == "pydantic_ai" for cls in type(error).__mro__):
        return None
    from refold.effects.models.failures import by_pydantic_ai

    return by_pydantic_ai(error)


def _by_data(error: BaseException) -> Failure | None:
    match error:
        case ValidationError():
            return permanent("validation", f"a value does not fit {error.title}: {problems(error)}")
        case json.JSONDecodeError() | UnicodeDecodeError():
            return permanent("corrupt_data", "what came is neither JSON nor text that can be read")
        case DefinitionError():
            return permanent("configuration", str(error))
        case _:
            return None


def _unknown(error: BaseException) -> Failure:
    name = type(error).__name__
    said = _plain(error)
    return Failure(
        kind=FailureKind.PERMANENT, type=name, message=f"{name}: {said}" if said else name, details=_place(error)
    )


_RULES: tuple[Callable[[BaseException], Failure | None], ...] = (
    _by_its_author,
    _group,
    _by_pydantic_ai,
    by_status,
    by_network,
    _by_data,
)


# --- facts taken from an exception


def _plain(error: BaseException) -> str:
    """The first line of an exception's message, shortened, with likely secrets removed."""
    return scrubbed(text_of(error))


def _place(error: BaseException) -> dict[str, Any] | None:
    """The file name, line and function that raised an exception, for the tool's author."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    last = frames[-1]
    return {"at": f"{PurePath(last.filename).name}:{last.lineno} in {last.name}"}
