"""Who calls, and whether that caller may call now; the same for all bindings."""

from __future__ import annotations

from typing import Any

from starlette.authentication import BaseUser
from starlette.datastructures import Headers
from starlette.types import Scope

from refold.a2a.security.authentication import caller_of
from refold.a2a.security.http_errors import Refused
from refold.a2a.security.principal import NOBODY, Principal, problem_with
from refold.a2a.security.rate import Rate
from refold.a2a.security.settings import Security
from refold.web.hosts import address_of


class Admission:
    """Authenticates callers, and counts their calls.

    Args:
        security: Who may call, and how often.
    """

    def __init__(self, security: Security) -> None:
        self.security = security
        self.rate = None if security.rate is None else Rate(security.rate, security.rate_storage)

    async def caller(self, scope: Scope, headers: Headers, *, anyone: bool = False) -> Principal:
        """The caller of a request.

        Args:
            scope: Of the request: its address, and its user if the application in front has authenticated it.
            headers: Of the request.
            anyone: The request needs no credentials, and any that it has are not checked.

        Raises:
            Refused: The caller is unknown, may not call, or calls too often.
        """
        outside = scope.get("user")
        try:
            if isinstance(outside, BaseUser) and outside.is_authenticated:
                caller = _named(outside.display_name)
            else:
                caller = NOBODY if anyone else await caller_of(scope, headers, self.security)
        except Exception:
            await self._count(NOBODY, scope)
            raise
        await self._count(caller, scope)
        return caller

    async def _count(self, caller: Principal, scope: Scope) -> None:
        if self.rate is not None:
            await self.rate.count(f"caller:{caller.name}" if caller.known else f"address:{address_of(scope)}")


def _named(name: Any) -> Principal:
    """A caller whom the application in front has authenticated.

    Raises:
        Refused: The name can own no task.
    """
    if problem := problem_with(name):
        raise Refused(403, f"nobody can call under the name that this application gives you: {problem}")
    return Principal(name)
