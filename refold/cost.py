"""What model calls cost: the price of each call, and totals by task, skill, owner and day.

A worker prices each call when it makes it, and the price is recorded with the result. A call that has no recorded price
is priced when it is shown, by the price list of the installed `genai-prices` for the day of the call. Both are
estimates: the provider's invoice knows of discounts, batches and credits that no price list has.

Rule 1: a call whose price is unknown has none; it never counts as 0. The scripted model is free.
Rule 2: no decision of a task depends on a price list: budgets count what is recorded.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

from pydantic import JsonValue

from refold.core.chat import Usage, paid_in_vain
from refold.core.commands import CallChat, CallLlm, CallSkill
from refold.core.errors import brief
from refold.core.events import ChatResult, CommandFailed, LlmResult
from refold.core.fold.journal import Entry
from refold.core.retry_policy import Failure
from refold.core.values import Value, lean

OWNER_DAY = "owner_day"
"""The setting of a model call that limits what the task's owner spends in a day: `{"usd": 5.0, "tokens": 200000}`."""

OWNER_DAY_SPENT = "owner_day_spent"
"""The type of the failure of a model call that such a limit does not admit."""

RATE = "usd_per_million_tokens"
"""The setting of a model call that gives the model's price: `{"input": 0.2, "output": 0.6}`."""

NO_USAGE = "no_usage"
"""The type of the failure of a model call that has a limit, and whose provider gave no count of tokens."""

NO_PRICE = "no_price"
"""The type of the failure of a model call that has a limit in US dollars, and whose model has no known price."""

Priced = Literal["recorded", "listed", "free", "unknown", "unmeasured"]
"""Where a price is from: the worker recorded it, the installed price list has it, the model is the scripted one."""


class ModelCall(Value):
    """A model call that was answered, and so was paid for.

    Attributes:
        task_id: The task that made it.
        seq: The journal entry with its result.
        at: The time of that entry.
        invocation_id: The call.
        id: The author's name of the call.
        model: `provider:name`; empty if nobody recorded it.
        input_tokens: As the provider counts them, in all requests of the call.
        output_tokens: As the provider counts them, in all requests of the call.
        cached_tokens: Of the input tokens, those that were read from the provider's cache.
        reasoning_tokens: Of the output tokens, those that were reasoning.
        usd: The estimated price in US dollars; None if it is not known.
        priced: Where the price is from.
        failed: The answer was of no use: cut off, filtered, or of the wrong type.
    """

    task_id: str
    seq: int
    at: datetime
    invocation_id: str
    id: str
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = lean(0)
    reasoning_tokens: int = lean(0)
    usd: float | None = None
    priced: Priced = "unknown"
    failed: bool = False

    @property
    def day(self) -> str:
        """The day of the call in UTC: `2026-03-01`."""
        return self.at.astimezone(UTC).date().isoformat()


class Cost(Value):
    """What some model calls cost together.

    Attributes:
        calls: How many calls were answered.
        input_tokens: Of all calls.
        output_tokens: Of all calls.
        cached_tokens: Of all calls.
        reasoning_tokens: Of all calls.
        usd: The estimated sum, in US dollars, of the calls whose price is known; None if there are none.
        unpriced_calls: How many calls have no known price, and are not in the sum.
        unpriced_models: The models without a known price; an empty text stands for a model that nobody recorded.
        unmeasured_calls: How many of those calls have no price since the provider gave no count of tokens.
        listed_calls: How many calls were priced just now, for want of a recorded price.
        prices: The price list that those calls were priced by: `genai-prices 0.2.3`; empty without such calls.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = lean(0)
    reasoning_tokens: int = lean(0)
    usd: float | None = None
    unpriced_calls: int = lean(0)
    unpriced_models: tuple[str, ...] = lean(())
    unmeasured_calls: int = lean(0)
    listed_calls: int = lean(0)
    prices: str = lean("")

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


def price_of(model: str, usage: Usage, at: datetime) -> tuple[float | None, Priced]:
    """The estimated price of one model call in US dollars, and where it is from.

    Args:
        model: `provider:name`, as the result names it.
        usage: What the call used; a recorded price in it is taken as it is.
        at: The time of the call: prices change.

    Returns:
        None, "unknown" for a model without a known price; None, "unmeasured" for a call whose provider gave no count of
        tokens.
    """
    if usage.usd is not None:
        return usage.usd, "recorded"
    if model.startswith("scripted:"):
        return 0.0, "free"
    if usage.unmeasured:
        return None, "unmeasured"
    listed = _listed(model, usage, at)
    return listed, "unknown" if listed is None else "listed"


def unfit_rate(given: JsonValue) -> str:
    """Why the setting `usd_per_million_tokens` is no price, nor prices by `provider:model`; empty if it is.

    None is no price of one's own: the price list applies.
    """
    each = given.values() if isinstance(given, dict) and any(":" in name for name in given) else (given,)
    if all(one is None or _is_price(one) for one in each):
        return ""
    return f'{RATE}={brief(given)} is no price; give US dollars for each, {{"input": 0.2, "output": 0.6}}'


def misspelt(names: Iterable[str]) -> str:
    """Which name of a setting is nearly that of a limit or a price; empty if none is.

    A provider ignores such a name, and the call would have no limit.
    """
    for name in names:
        near = get_close_matches(name, (OWNER_DAY, RATE), 1, 0.8)
        if near and name != near[0]:
            return f"there is no {name!r}; write {near[0]!r}"
    return ""


def _is_price(given: JsonValue) -> bool:
    return isinstance(given, dict) and given.keys() == {"input", "output"} and all(map(_is_amount, given.values()))


def unfit_owner_day(given: JsonValue) -> str:
    """Why the setting `owner_day` is no limit; empty if it is."""
    limits = given if isinstance(given, dict) and given.keys() <= {"usd", "tokens"} else {"none": None}
    if all(_is_amount(one) and one != 0 for one in limits.values()):
        return ""
    either = '{"usd": 5}, {"tokens": 100000}, both, or {} to count only'
    return f"{OWNER_DAY}={brief(given)} is no limit; give {either}"


def _is_amount(given: JsonValue) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= sys.float_info.max


def price_list() -> str:
    """The installed price list, by name and version."""
    return f"genai-prices {importlib.metadata.version('genai-prices')}"


def _listed(model: str, usage: Usage, at: datetime) -> float | None:
    from genai_prices import Usage as Tokens
    from genai_prices import calc_price

    provider, _, name = model.partition(":")
    if not name:
        return None
    cached = min(usage.cached_tokens, usage.input_tokens)  # the list has no price for more
    tokens = Tokens(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=cached)
    # `openai-chat` and `google-gla` are ways to reach the models of `openai` and `google`.
    for one in dict.fromkeys((provider, provider.partition("-")[0])):
        try:
            return float(calc_price(tokens, name, provider_id=one, genai_request_timestamp=at).total_price)
        except (LookupError, ValueError):
            continue
    return None


def model_calls(task_id: str, entries: Iterable[Entry]) -> Iterator[ModelCall]:
    """The answered model calls of a journal, in order. Calls that were not made, such as cached ones, are not in it.

    Args:
        task_id: The task.
        entries: Its journal from the first entry on, since a failed call is told by the model that it was sent to.
    """
    sent = _Sent()
    for entry in entries:
        if not entry.refused and (found := _paid(entry, sent)) is not None:
            model, usage, failed = found
            usd, priced = price_of(model, usage, entry.at)
            event = entry.event
            assert isinstance(event, LlmResult | ChatResult | CommandFailed), "only these were paid for"
            yield ModelCall(
                task_id=task_id, seq=entry.seq, at=entry.at, invocation_id=event.invocation_id, id=event.id,
                model=model, input_tokens=usage.input_tokens, output_tokens=usage.output_tokens,
                cached_tokens=usage.cached_tokens, reasoning_tokens=usage.reasoning_tokens,
                usd=usd, priced=priced, failed=failed,
            )  # fmt: skip
        sent.note(entry)


class _Sent:
    """The models that the calls of a journal were sent to, and the ids of its other commands."""

    def __init__(self) -> None:
        self.models: dict[str, str] = {}
        self.others: set[str] = set()
        self._threads: dict[str, str] = {}

    def note(self, entry: Entry) -> None:
        for one in entry.commands:
            match one.command:
                case CallLlm(model=model):
                    self.models[one.invocation_id] = model or ""
                case CallChat(thread=thread, frame=frame):
                    if frame is not None:  # else it is that of the thread's previous call
                        self._threads[thread] = frame.model or ""
                    self.models[one.invocation_id] = self._threads.get(thread, "")
                case _:
                    self.others.add(one.invocation_id)


def _paid(entry: Entry, sent: _Sent) -> tuple[str, Usage, bool] | None:
    """The model and usage of the call that an entry has the answer of, and whether the answer was of no use."""
    match entry.event:
        case LlmResult(model=model, usage=Usage() as usage):
            return model, usage, False
        case ChatResult(reply=reply) if reply.model:
            return reply.model, reply.usage, False
        case CommandFailed(invocation_id=id, failure=Failure(details=details)) if id not in sent.others:
            if (paid := paid_in_vain(details)) is None:
                return None
            # A call that was taken over from another task was sent in that one: only the failure names its model.
            usage, named = paid
            sent_to = named or sent.models.get(id)
            return None if sent_to is None else (sent_to, usage, True)
        case _:
            return None


def parts_of(entries: Iterable[Entry]) -> list[str]:
    """The ids of the tasks that a task has started as its parts; their calls are in journals of their own."""
    return [one.invocation_id for entry in entries for one in entry.commands if isinstance(one.command, CallSkill)]


def total(calls: Iterable[ModelCall]) -> Cost:
    """What these calls cost together."""
    calls = list(calls)
    known = [one.usd for one in calls if one.usd is not None]
    listed = sum(one.priced == "listed" for one in calls)
    unpriced = [one for one in calls if one.usd is None]
    return Cost(
        calls=len(calls),
        input_tokens=sum(one.input_tokens for one in calls),
        output_tokens=sum(one.output_tokens for one in calls),
        cached_tokens=sum(one.cached_tokens for one in calls),
        reasoning_tokens=sum(one.reasoning_tokens for one in calls),
        usd=math.fsum(known) if known or not calls else None,
        unpriced_calls=len(unpriced),
        unpriced_models=tuple(sorted({one.model for one in unpriced if one.priced == "unknown"})),
        unmeasured_calls=sum(one.priced == "unmeasured" for one in unpriced),
        listed_calls=listed,
        prices=price_list() if listed else "",
    )
