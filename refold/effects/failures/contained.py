"""Keeps the code of a tool from ending its worker: a `SystemExit` or `StopIteration` becomes a failure, as any bug is.

`SystemExit` ends an event loop, whichever of its asyncio tasks raised it; a tool that calls the `main()` of a program
raises it. `StopIteration` cannot be put into a future, so the call would never end; `next(...)` without a match raises
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def contained(error: BaseException) -> Exception:
    """The exception itself, or a `RuntimeError` that names it if it would do more than end the call."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    bug = RuntimeError(f"it raised {type(error).__name__}({error}); let it return, or raise an Exception")
    bug.__cause__ = error
    return bug.with_traceback(error.__traceback__)


async def awaited(call: Awaitable[T]) -> T:
    """Await a tool, a probe or a whole effect.

    Raises:
        CancelledError, KeyboardInterrupt, GeneratorExit: Unchanged, since they end the call from outside.
        Exception: See `contained`.
    """
    try:
        return await call
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise contained(error) from error
