"""Who calls: keys, tokens, and nobody by name; every way in which a caller is refused."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.registry import HeaderParameter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from refold.a2a.security import Security, key_set
from refold.a2a.security.api_keys import api_keys
from refold.a2a.security.key_set import LARGEST, KeySet
from refold.a2a.security.tokens import KeysUnavailable, StaticKeys, TokenRules
from tests.a2a.conftest import free_socket, serving
from tests.a2a.security.guarding import (
    ADA_KEY,
    AUDIENCE,
    BOB_KEY,
    ELSEWHERE,
    HERE,
    ISSUER,
    RSA,
    client,
    token,
    tokens,
)

KEYS = api_keys(f"ada={ADA_KEY}, bob={BOB_KEY}")
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
STRANGE = RSAKey.generate_key(2048, {"kid": "one"})
BOTH = Security(keys=KEYS, tokens=tokens(), anonymous=None)


async def called(security: Security, headers: dict[str, str] | None = None, at: tuple[str, int] = ELSEWHERE) -> Any:
    async with client(security, at=at) as http:
        return await http.post("/", headers=headers or {})


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        pytest.param({"X-API-Key": ADA_KEY}, "ada", id="a-key"),
        pytest.param({"X-API-Key": BOB_KEY}, "bob", id="another-key"),
        pytest.param({"Authorization": f"Bearer {BOB_KEY}"}, "bob", id="a-key-as-bearer"),
        pytest.param({"Authorization": f"Bearer {token()}"}, "ada", id="a-token"),
        pytest.param({"Authorization": f"bearer  {token(sub='grâce')}"}, "grâce", id="a-name-with-an-accent"),
        pytest.param({"Authorization": f"Bearer {token(aud=['x', AUDIENCE])}"}, "ada", id="one-audience-of-two"),
        pytest.param({"Authorization": f"Bearer {token(header={'kid': None})}"}, "ada", id="no-key-id"),
    ],
)
async def test_a_known_caller_passes_under_its_name(headers: dict[str, str], caller: str) -> None:
    """
    Keys and tokens count side by side; either says who calls.
    """
    answer = await called(BOTH, headers)

    assert (answer.status_code, answer.json()["caller"], answer.json()["known"]) == (200, caller, True)


async def test_clocks_may_differ_a_little() -> None:
    """
    A token that ended ten seconds ago counts, one that ended two minutes ago does not.
    """
    ended = [token(exp=int(time.time()) - seconds) for seconds in (10, 120)]

    assert [(await called(BOTH, {"Authorization": f"Bearer {one}"})).status_code for one in ended] == [200, 401]


@pytest.mark.parametrize(
    ("key", "alg"),
    [(RSA, "PS256"), (EC, "ES256"), (ED, "Ed25519")],
    ids=["rsa-pss", "ecdsa", "ed25519"],
)
async def test_a_key_may_sign_with_what_it_can(key: Any, alg: str) -> None:
    """
    Which algorithms count follows from the key.
    """
    answer = await called(
        Security(tokens=tokens(RSA, EC, ED), anonymous=None), {"Authorization": f"Bearer {token(key, alg)}"}
    )

    assert answer.json()["caller"] == "ada"


def unsigned() -> str:
    _, payload, _ = token().split(".")
    return f"eyJhbGciOiJub25lIn0.{payload}."


def confused() -> str:
    """The public key, which everybody has, taken for a secret."""
    header = _base64(json.dumps({"alg": "HS256", "kid": "one"}).encode())
    signed = f"{header}.{token().split('.')[1]}"
    return f"{signed}.{_base64(hmac.digest(RSA.as_pem(private=False), signed.encode(), 'sha256'))}"


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def tampered() -> str:
    header, _, signature = token().split(".")
    return ".".join([header, token(sub="root").split(".")[1], signature])


HALF = "\ud83d"
LATER = int(time.time()) + 3600
REFUSED = {
    "nothing": {},
    "an-empty-key": {"X-API-Key": ""},
    "a-wrong-key": {"X-API-Key": "mallory-0123456789abcdef"},
    "a-key-with-odd-bytes": {"X-API-Key": "\xff" * 20},
    "a-wrong-key-beside-a-good-token": {"X-API-Key": "x" * 20, "Authorization": f"Bearer {token()}"},
    "basic": {"Authorization": "Basic YWRhOnB3"},
    "no-credentials": {"Authorization": "Bearer"},
    "no-token": {"Authorization": "Bearer not.a.token"},
    "a-token-of-dots": {"Authorization": "Bearer ...."},
    "a-huge-token": {"Authorization": "Bearer " + "x" * 20_000},
    "unsigned": {"Authorization": f"Bearer {unsigned()}"},
    "a-public-key-as-secret": {"Authorization": f"Bearer {confused()}"},
    "another-signature": {"Authorization": f"Bearer {token(STRANGE)}"},
    "tampered": {"Authorization": f"Bearer {tampered()}"},
    "an-unknown-key-id": {"Authorization": f"Bearer {token(header={'kid': 'two'})}"},
    "expired": {"Authorization": f"Bearer {token(exp=int(time.time()) - 120)}"},
    "without-an-end": {"Authorization": f"Bearer {token(exp=None)}"},
    "an-end-that-is-no-number": {"Authorization": f"Bearer {token(exp='never')}"},
    "not-yet": {"Authorization": f"Bearer {token(nbf=LATER)}"},
    "from-the-future": {"Authorization": f"Bearer {token(iat=LATER)}"},
    "another-audience": {"Authorization": f"Bearer {token(aud='https://other.example.org')}"},
    "no-audience": {"Authorization": f"Bearer {token(aud=None)}"},
    "another-issuer": {"Authorization": f"Bearer {token(iss='https://other.example.org')}"},
    "no-issuer": {"Authorization": f"Bearer {token(iss=None)}"},
    "no-subject": {"Authorization": f"Bearer {token(sub=None)}"},
    "an-empty-subject": {"Authorization": f"Bearer {token(sub=' ')}"},
    "a-number-as-subject": {"Authorization": f"Bearer {token(sub=7)}"},
    "the-router-s": {"Authorization": f"Bearer {token(sub='(router) ada')}"},
    "half-a-character": {"Authorization": f"Bearer {token(sub=HALF)}"},
}


@pytest.mark.parametrize("headers", [pytest.param(value, id=name) for name, value in REFUSED.items()])
async def test_whoever_shows_nothing_or_something_wrong_is_refused(headers: dict[str, str]) -> None:
    """
    401, with the ways to be known and a sentence; never a way in.
    """
    answer = await called(BOTH, {name: value.encode("latin-1") for name, value in headers.items()})  # type: ignore[misc]

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer realm=")
    assert "ApiKey" in answer.headers["www-authenticate"]
    assert answer.json()["error"]["message"]


async def test_another_scheme_is_named_with_those_that_count() -> None:
    """
    What came in its place is not repeated: it may be a key without its scheme.
    """
    answer = await called(BOTH, {"Authorization": "adas-key-0123456789"})

    assert answer.json()["error"]["message"] == (
        "the scheme of `Authorization` is not `Bearer`; send `Authorization: Bearer TOKEN` or `X-API-Key: KEY`"
    )


async def test_what_a_token_says_must_be_understood_is_understood() -> None:
    """
    A critical header that nobody here knows voids the token.
    """
    registry = jws.JWSRegistry(algorithms=["RS256"], header_registry={"odd": HeaderParameter("odd", "str")})
    claims = json.dumps({"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": LATER}).encode()
    odd = jws.serialize_compact(
        {"alg": "RS256", "kid": "one", "crit": ["odd"], "odd": "x"}, claims, RSA, registry=registry
    )

    assert (await called(BOTH, {"Authorization": f"Bearer {odd}"})).status_code == 401


@pytest.mark.parametrize("value", [5, None, True, [5], [None], [[]], {"a": 1}, "crit", 2**70], ids=repr)
@pytest.mark.parametrize("name", ["alg", "b64", "crit", "cty", "jku", "jwk", "kid", "typ", "x5c", "x5u", "zip"])
async def test_a_header_of_any_kind_is_no_error_of_ours(name: str, value: object) -> None:
    """
    A token that nobody signed is refused whatever its header holds, and counts as a guess.
    """
    header = {"alg": "RS256", "kid": "one", name: value}
    junk = {"Authorization": f"Bearer {_base64(json.dumps(header).encode())}.{_base64(b'{}')}.{_base64(b'x')}"}
    security = Security(keys=KEYS, tokens=tokens(), anonymous=None, rate="1/hour")
    async with client(security, at=ELSEWHERE) as http:
        statuses = [(await http.post("/", headers=junk)).status_code for _ in range(2)]

    assert statuses == [401, 429]


async def test_a_token_without_the_scope_is_not_for_this() -> None:
    """
    Known, and not allowed: 403, and which scope it takes.
    """
    security = Security(tokens=tokens(scope="agent"), anonymous=None)

    lacking = await called(security, {"Authorization": f"Bearer {token(scope='mail files')}"})
    having = [
        await called(security, {"Authorization": f"Bearer {one}"})
        for one in (token(scope="mail agent"), token(scp=["agent"]))
    ]

    assert lacking.status_code == 403
    assert 'error="insufficient_scope", scope="agent"' in lacking.headers["www-authenticate"]
    assert [answer.status_code for answer in having] == [200, 200]


async def test_a_secret_counts_where_one_was_given_and_nowhere_else() -> None:
    """
    A shared secret takes HS256; the issuer's set of public keys never does.
    """
    secret = OctKey.import_key("s" * 32)
    by_hand = Security(
        tokens=TokenRules(keys=StaticKeys((secret,)), issuer=ISSUER, audience=(AUDIENCE,)), anonymous=None
    )
    signed = token(secret, "HS256", header={"kid": "any"})

    assert (await called(by_hand, {"Authorization": f"Bearer {signed}"})).json()["caller"] == "ada"
    assert (await called(by_hand, {"Authorization": f"Bearer {token()}"})).status_code == 401
    assert (await called(BOTH, {"Authorization": f"Bearer {signed}"})).status_code == 401


async def test_algorithms_can_be_narrowed() -> None:
    """
    What the keys could do counts only as far as it was allowed.
    """
    security = Security(tokens=tokens(RSA, EC, algorithms=("ES256",)), anonymous=None)

    assert (await called(security, {"Authorization": f"Bearer {token(EC, 'ES256')}"})).status_code == 200
    assert (await called(security, {"Authorization": f"Bearer {token()}"})).status_code == 401


@pytest.mark.parametrize(
    ("anonymous", "at", "headers", "status"),
    [
        pytest.param("loopback", HERE, {}, 200, id="here"),
        pytest.param("loopback", ("::1", 1), {}, 200, id="here-by-ipv6"),
        pytest.param("loopback", ("::ffff:127.0.0.1", 1), {}, 200, id="here-by-both"),
        pytest.param("loopback", ELSEWHERE, {}, 403, id="elsewhere"),
        pytest.param("loopback", ("testclient", 1), {}, 403, id="no-address"),
        pytest.param("loopback", HERE, {"X-Forwarded-For": "203.0.113.7"}, 403, id="for-somebody-else"),
        pytest.param("loopback", HERE, {"X-API-Key": ADA_KEY}, 401, id="a-key-where-there-are-none"),
        pytest.param("everywhere", ELSEWHERE, {}, 200, id="everywhere"),
        pytest.param("everywhere", ELSEWHERE, {"Authorization": "Bearer x"}, 401, id="something-wrong-everywhere"),
    ],
)
async def test_callers_without_a_name(
    anonymous: Any, at: tuple[str, int], headers: dict[str, str], status: int
) -> None:
    """
    They pass on the machine itself, or where everybody may; never by showing something wrong.
    """
    answer = await called(Security(anonymous=anonymous), headers, at)

    assert answer.status_code == status
    if status == 200:
        assert (answer.json()["caller"], answer.json()["known"]) == ("", False)


async def test_the_card_is_for_everybody() -> None:
    """
    How else would a caller know what to show?
    """
    async with client(BOTH, at=ELSEWHERE) as http:
        assert (await http.get("/.well-known/agent-card.json")).status_code == 200
        assert (await http.get("/.well-known/other.json")).status_code == 401


# --- the keys of an issuer, from its address


class Address:
    """Serves a key set, and counts how often it is asked."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys)
        self.asked = 0
        self.now = 0.0
        self.down = False

    async def fetch(self, url: str) -> Any:
        self.asked += 1
        if self.down:
            raise ValueError("down")
        return {"keys": [key.as_dict(private=False) for key in self.keys] + [{"kty": "new"}]}

    def key_set(self) -> KeySet:
        return KeySet("https://issuer.example.org/jwks", fetch=self.fetch, clock=lambda: self.now)


async def test_a_key_that_is_not_known_is_asked_for_and_not_too_often() -> None:
    """
    A new key counts at once; made-up key ids cost the issuer one question in half a minute.
    """
    address = Address(RSA)
    keys = address.key_set()

    assert [key.kid for key in await keys.find("one")] == ["one"]
    address.keys.append(EC)
    address.now = 31
    assert [key.kid for key in await keys.find("ec")] == ["ec"]
    for n in range(50):
        assert await keys.find(f"made-up-{n}") == []
    assert address.asked == 2


async def test_keys_go_on_to_count_while_their_address_is_down() -> None:
    """
    What was fetched counts on; where nothing ever was, nobody can say, and that is no refusal.
    """
    address = Address(RSA)
    keys, fresh = address.key_set(), address.key_set()
    await keys.find("one")
    address.down, address.now = True, 10_000

    assert [key.kid for key in await keys.find("one")] == ["one"]
    with pytest.raises(KeysUnavailable):
        await fresh.find("one")
    unsure = Security(tokens=TokenRules(keys=fresh, issuer=ISSUER, audience=(AUDIENCE,)), anonymous=None)
    assert (await called(unsure, {"Authorization": f"Bearer {token()}"})).status_code == 503


async def test_a_caller_who_gives_up_does_not_stop_the_fetch() -> None:
    """
    The keys are there for whoever comes next, and the issuer was asked once.
    """
    address = Address(RSA)
    asked, answers = asyncio.Event(), asyncio.Event()

    async def slow(url: str) -> Any:
        asked.set()
        await answers.wait()
        return await address.fetch(url)

    keys = KeySet("https://issuer.example.org/jwks", fetch=slow)
    gone = asyncio.create_task(keys.find("one"))
    await asked.wait()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    waits = asyncio.create_task(keys.find("one"))
    answers.set()

    assert [key.kid for key in await waits] == ["one"]
    assert (gone.cancelled(), address.asked) == (True, 1)


async def test_a_fetch_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An issuer that sends a byte now and then keeps no caller waiting for ever.
    """
    monkeypatch.setattr(key_set, "PAUSE_S", 0.01)

    async def never(url: str) -> Any:
        await asyncio.Future()

    with pytest.raises(KeysUnavailable):
        await KeySet("https://issuer.example.org/jwks", fetch=never).find("one")


async def test_a_secret_in_a_public_key_set_is_none() -> None:
    """
    Everybody can read it there.
    """
    secret = OctKey.import_key("s" * 32, {"kid": "oct"})

    async def fetch(url: str) -> Any:
        return {"keys": [secret.as_dict(private=True)]}

    assert await KeySet("https://issuer.example.org/jwks", fetch=fetch).find(None) == ()


async def test_a_key_set_is_fetched_from_its_address() -> None:
    """
    Over HTTP, as an issuer serves it; what is too large, moved or no key set counts as not there.
    """

    async def served(request: Request) -> Response:
        match request.url.path:
            case "/keys":
                return JSONResponse({"keys": [RSA.as_dict(private=False)]})
            case "/moved":
                return RedirectResponse("/keys")
            case "/large":
                return Response(b"[" * (LARGEST + 1))
            case _:
                return JSONResponse([])

    async with serving(Starlette(routes=[Route("/{name}", served)]), free_socket()) as address:
        found = await KeySet(f"{address}/keys").find("one")
        assert [key.kid for key in found] == ["one"]
        for name in ("moved", "large", "none"):
            with pytest.raises(KeysUnavailable):
                await KeySet(f"{address}/{name}").find("one")


def test_key_sets_come_over_https() -> None:
    """
    Whoever could change a key set on its way could be anybody.
    """
    with pytest.raises(ValueError, match="not an https address"):
        KeySet("http://issuer.example.org/jwks")
    KeySet("http://127.0.0.1:8080/jwks")
