"""Authenticates a caller: by an API key, by a bearer token, or as anonymous."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from refold.a2a.security.api_keys import HEADER
from refold.a2a.security.http_errors import Refused
from refold.a2a.security.principal import NOBODY, Principal
from refold.a2a.security.settings import Security
from refold.a2a.security.tokens import BadToken, KeysUnavailable, Lacks
from refold.web.hosts import on_loopback

REALM = "refold"


async def caller_of(scope: Scope, headers: Headers, security: Security) -> Principal:
    """The caller of a request. Wrong credentials are refused, even where none are required.

    An API key is also accepted as a bearer token, for clients that support no other header.

    Raises:
        Refused: The caller is unknown (401), the token lacks the scope (403), or the token cannot be checked now (503).
    """
    key = headers.get(HEADER)
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if key is not None:
        return _by_key(key, security)
    if scheme:
        return await _by_authorization(scheme, credentials.strip(), security)
    if security.open_to_all or (security.anonymous == "loopback" and on_loopback(scope, headers)):
        return NOBODY
    if not security.knows_names:
        raise Refused(403, "this agent is for callers on its own machine; whoever runs it can let others in by a key")
    raise unknown("say who calls", security)


def _by_key(key: str, security: Security) -> Principal:
    caller = None if security.keys is None else security.keys.caller(key)
    if caller is None:
        raise unknown("nobody has this API key", security)
    return Principal(caller)


async def _by_authorization(scheme: str, credentials: str, security: Security) -> Principal:
    if scheme.lower() != "bearer":
        raise unknown("the scheme of `Authorization` is not `Bearer`", security)
    if security.keys is not None and (caller := security.keys.caller(credentials)) is not None:
        return Principal(caller)
    if security.tokens is None:
        raise unknown("nobody has this API key", security)
    try:
        return Principal(await security.tokens.caller(credentials))
    except BadToken as error:
        raise unknown(f"the token does not count: {error}", security, "invalid_token") from error
    except Lacks as error:
        challenge = f'Bearer realm="{REALM}", error="insufficient_scope", scope="{security.tokens.scope}"'
        raise Refused(403, str(error), {"WWW-Authenticate": challenge}) from error
    except KeysUnavailable as error:
        raise Refused(503, "tokens cannot be checked now; try again", {"Retry-After": "30"}) from error


def unknown(message: str, security: Security, error: str = "") -> Refused:
    """The 401 for an unknown caller: why, and how to authenticate."""
    ways, challenges = [], []
    if security.tokens is not None:
        ways.append("Authorization: Bearer TOKEN")
        challenges.append(f'Bearer realm="{REALM}"' + (f', error="{error}"' if error else ""))
    if security.keys is not None:
        ways.append("X-API-Key: KEY")
        challenges.append(f'ApiKey realm="{REALM}", in="header", name="X-API-Key"')
    if not ways:  # no method is configured, but the caller sent credentials
        return Refused(401, f"{message}; send none", {"WWW-Authenticate": f'Bearer realm="{REALM}"'})
    return Refused(401, f"{message}; send `{'` or `'.join(ways)}`", {"WWW-Authenticate": ", ".join(challenges)})
