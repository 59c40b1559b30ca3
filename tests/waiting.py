"""What tests do between two looks at something that is about to happen."""

from __future__ import annotations

import asyncio

LOOK_S = 0.03
"""The pause between two looks, in seconds: without one they would take the time of what is waited for."""


async def a_moment() -> None:
    """Pause before the next look."""
    await asyncio.sleep(LOOK_S)
