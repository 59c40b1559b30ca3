"""Agents of the tests of guards, with and without something around their model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from refold import Ctx, Transition, flow_skill, step
from refold.agent import Agent, Block, Guardrail, around
from refold.core.content import Content
from refold.temporal import workflow_for

CARD = "4111 1111 1111 1111"
_DIGITS = re.compile(r"(?<![0-9A-Za-z.+/-])(4111|1111)(?![0-9A-Fa-f-])")
"""Four digits of the card, but not those that ids, dates and encoded bytes have by chance."""


def seen(place: str) -> bool:
    """Whether some of the card's digits are in a text, a journal or a history."""
    return _DIGITS.search(place) is not None


def no_cards(text: str) -> Block | None:
    """Blocks a text with the card's number."""
    return Block("a card's number") if "4111" in text else None


@around("model")
async def without_digits(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Changes a reply in the task."""
    reply = await proceed(turn)
    return reply.model_copy(update={"text": "".join(one for one in reply.text if not one.isdigit())})


Open = Agent("open", instructions="Help.")
Guarded = Agent("guarded", instructions="Help.", middleware=[Guardrail(no_cards, instead="I cannot say.")])
BySentence = Agent(
    "by_sentence", instructions="Help.", middleware=[Guardrail(no_cards, instead="I cannot say.", by="sentence")]
)
Changed = Agent("changed", instructions="Help.", middleware=[without_digits])


@flow_skill(id="asks_once")
class AsksOnce:
    """Asks a model once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask."""
        return ctx.complete(await ctx.llm("answer", "Answer.", content))


OpenWorkflow = workflow_for(Open)
GuardedWorkflow = workflow_for(Guarded)
BySentenceWorkflow = workflow_for(BySentence)
ChangedWorkflow = workflow_for(Changed)
AsksOnceWorkflow = workflow_for(AsksOnce)
