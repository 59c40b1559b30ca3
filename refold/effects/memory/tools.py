"""The tool pair by which an agent remembers over tasks. Both are journaled: a replay has what was remembered then."""

from __future__ import annotations

from refold.core.authoring.tool import tool
from refold.effects.failures.verdicts import Never
from refold.effects.invocation import current
from refold.effects.memory.memory import Memory


@tool(effect="idempotent", timeout_s=60)
async def remember(fact: str) -> str:
    """Remember a fact about this user, for later conversations: one sentence that can be understood on its own.

    Args:
        fact: The sentence, at most 4,000 characters.
    """
    await memory().remember(fact)
    return "remembered"


@tool(effect="read_only", timeout_s=60)
async def recall(query: str, limit: int = 5) -> list[str]:
    """Facts that were remembered about this user and share words with the query, best match first.

    Args:
        query: Words that the facts have; empty for the newest facts.
        limit: How many facts at the most.
    """
    return await memory().recall(query, limit)


def memory() -> Memory:
    """The memory of the running call's owner.

    Raises:
        Never: The call runs outside a worker.
    """
    found = current().memory
    if found is None:
        raise Never("this call has no memory: a worker gives it one; in a test, Invocation(memory=...)", type="memory")
    return found


MEMORY = (remember, recall)
