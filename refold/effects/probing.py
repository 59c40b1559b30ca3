"""What a tool's probe answers: whether the effect with this key took place.

    async def charged(key: str) -> Done | NotDone | Unknown:
        found = await current().http.get(f"{GATEWAY}/charges", params={"key": key})
        return Done(found.json()) if found.is_success else Unknown()

    @tool(effect="at_most_once", probe=charged)
    async def charge(order: str, cents: int) -> dict[str, str]: ...

A probe is asked when the worker that began the effect is gone, or when its request was sent and no answer came. It
only looks: it must change nothing. What it raises counts as `Unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """The effect took place.

    Attributes:
        result: What the tool would have returned.
    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect has not taken place and will not any more, by any request sent so far: the tool is called again.

    A receiver that only has not got round to it yet is `Unknown`: answering `NotDone` then makes two effects.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell, and a person decides.

    Attributes:
        why: For that person.
    """

    why: str = ""


Answer = Done | NotDone | Unknown
