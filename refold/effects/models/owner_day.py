"""The limit on what a task's owner spends in a day: checked before a model call, counted after it.

The sum is in the ledger's database, so it holds for all tasks, workers and gateways. The answer is recorded with the
call: a call that is not admitted fails, and a replay of the task decides nothing anew.

Calls of one owner that are under way together are all admitted while the sum is below the limit; so a day may exceed it
by what they cost. While the database does not answer, calls wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import JsonValue

from refold.conversation import LlmOutcome
from refold.core.chat import Reply, Usage, paid_in_vain
from refold.core.errors import DefinitionError
from refold.core.retry_policy import Failure
from refold.cost import NO_PRICE, NO_USAGE, OWNER_DAY, OWNER_DAY_SPENT, misspelt, unfit_owner_day
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict
from refold.effects.ledger.ledgered_call import until_answered

if TYPE_CHECKING:
    from refold.effects.ledger.spending import DaySpent, Spending

T = TypeVar("T", bound=LlmOutcome | Reply)
LIMITS = ("usd", "tokens")
PAID: ContextVar[Callable[[Usage], None]] = ContextVar("refold_paid", default=lambda usage: None)
"""Told after each answer of a model call what the call has used so far: one that is canceled later returns nothing."""

COUNTED_S = 5.0
"""For how long a canceled call waits until it is counted, in seconds; after that it is counted in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerDay:
    """The day of one owner, for one model call.

    Attributes:
        open: Opens the sums; raises `DefinitionError` if the ledger's setting is wrong.
        owner: The hash of the owner.
        invocation_id: The call, for the log.
    """

    open: Callable[[], Spending]
    owner: str
    invocation_id: str

    async def today(self) -> DaySpent:
        """What the owner has spent today. Waits while the database does not answer."""
        return await self._answered(partial(self._spending().today, self.owner))

    async def add(self, usage: Usage) -> None:
        """Count a call. Is not cut off by a cancellation: the call was paid for."""
        add = partial(self._spending().add, self.owner)
        tokens = usage.input_tokens + usage.output_tokens
        await asyncio.shield(self._answered(partial(add, tokens=tokens, usd=usage.usd or 0.0)))

    async def _answered(self, work: Callable[[], DaySpent]) -> DaySpent:
        return await until_answered(lambda: asyncio.to_thread(work), self.invocation_id)

    def _spending(self) -> Spending:
        try:
            return self.open()
        except DefinitionError as error:
            raise Verdict(permanent("configuration", f"settings: {OWNER_DAY} needs the ledger: {error}")) from None


async def within_day(day: OwnerDay, settings: Mapping[str, JsonValue], call: Callable[[], Awaitable[T]]) -> T:
    """Make a model call if the owner's day admits it; without the setting, make it.

    Args:
        day: The owner's.
        settings: The call's.
        call: Makes the call.

    Raises:
        Verdict: The limit is reached; the provider gave no count of tokens; the limit is in US dollars, and the model
            has no known price; or the setting is wrong.
    """
    if wrong := misspelt(settings):
        raise Verdict(permanent("configuration", f"settings: {wrong}"))
    if OWNER_DAY not in settings:
        return await call()
    limits = _limits(settings[OWNER_DAY])
    if limits:
        _admit(limits, await day.today())
    paid = list[Usage]()
    PAID.set(paid.append)
    try:
        result = await call()
    except asyncio.CancelledError:
        if paid:
            with suppress(TimeoutError, Verdict):  # a worker that is stopped waits for this call
                await asyncio.wait_for(day.add(paid[-1]), COUNTED_S)
        raise
    except Verdict as verdict:
        if in_vain := paid_in_vain(verdict.failure.details):
            await day.add(in_vain[0])
        raise
    usage = result.usage or Usage()
    await day.add(usage)
    if failure := _unbounded(limits, result.model, usage):
        raise Verdict(
            failure.model_copy(update={"details": {"model": result.model, "usage": usage.model_dump(mode="json")}})
        )
    return result


def _unbounded(limits: Mapping[str, float], model: str, usage: Usage) -> Failure | None:
    """The failure of a call that the limits cannot count; None if they can."""
    if limits and usage.unmeasured:
        return permanent(
            NO_USAGE,
            f"the owner's day has a limit, and the provider of model {model!r} gave no count of tokens, so it bounds "
            "nothing; have its server send `usage`, or leave the limit out",
        )
    if "usd" in limits and usage.usd is None and not model.startswith("scripted:"):
        return permanent(
            NO_PRICE,
            f"the owner's day has a limit in usd, and no price is known for model {model!r}, so it bounds nothing; "
            "give the limit in tokens, or the model's price by the setting usd_per_million_tokens",
        )
    return None


def _admit(limits: Mapping[str, float], spent: DaySpent) -> None:
    for what, limit in limits.items():
        used = spent.usd if what == "usd" else spent.tokens
        if used >= limit:
            said = (
                f"the owner's budget of {limit:g} {what} for {spent.day} (UTC) is used up: {used:g} spent; the day "
                "ends at midnight UTC"
            )
            found = {"what": what, "limit": limit, "spent": used, "day": spent.day}
            raise Verdict(permanent(OWNER_DAY_SPENT, said).model_copy(update={"details": found}))


def _limits(given: JsonValue) -> dict[str, float]:
    """The limits of a day, by what they limit; none counts only.

    Raises:
        Verdict: The setting is something else.
    """
    if wrong := unfit_owner_day(given):
        raise Verdict(permanent("configuration", f"settings: {wrong}"))
    limits = cast("dict[str, float]", given)
    return {what: float(limits[what]) for what in LIMITS if what in limits}
