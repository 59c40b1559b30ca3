"""What a tool's probe answers: whether the effect with this key took place.

    async def charged(key: str) -> Done | NotDone | Unknown:
        found = await current().http.get(f"{GATEWAY}/charges", params={"key": key})
        return Done(found.json()) if found.is_success else Unknown()

    @tool(effect="at_most_once", probe=charged)
    async def charge(order: str, cents: int) -> dict[str, str]: ...

A worker calls the probe when the worker that began the effect is gone, or when its own request got no answer. A probe
only reads: it must change nothing. An exception it raises counts as `Unknown`.
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
    """The effect has not taken place, and no request sent so far will cause it later: the worker calls the tool again.

    If the receiver may still process an earlier request, answer `Unknown`: `NotDone` would then lead to two effects.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """The probe cannot tell. It is asked again for an hour; then a person decides.

    Attributes:
        why: For that person.
    """

    why: str = ""
