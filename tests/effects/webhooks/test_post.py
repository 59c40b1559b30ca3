"""Posting one update to a webhook."""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import AsyncIterator

import pytest
from standardwebhooks import Webhook as Signer
from standardwebhooks import WebhookVerificationError
from starlette.responses import Response

from refold.core.errors import DefinitionError, InputRejected
from refold.effects.webhooks import post as webhooks
from refold.effects.webhooks import resolving, ssrf, turns
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.resolving import Names
from refold.effects.webhooks.ssrf import Screen
from refold.engine import NotConnected
from refold.webhooks import Webhook
from tests.effects.webhooks.slow_names import SlowNames
from tests.services.receiver import Receiver
from tests.waiting import a_moment

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
URL_SAFE = "whsec_" + base64.urlsafe_b64encode(b"\xff" * 3 + b"0" * 30).decode()
"""A decoder that passes over unknown letters makes another key of it, long enough."""
LETTERS = re.escape("24 to 64 bytes as base64, with the letters `+` and `/`, not `-` and `_`")
OTHER = "whsec_" + base64.b64encode(b"fedcba9876543210fedcba9876543210").decode()
BODY = '{"statusUpdate":{"taskId":"t","text":"grün"}}'.encode()


@pytest.fixture
async def poster() -> AsyncIterator[Poster]:
    poster = Poster(Screen.from_env(loopback=True), [SECRET, OTHER])
    yield poster
    await poster.aclose()


async def test_a_post_says_who_it_is_for_and_is_signed(poster: Poster) -> None:
    """
    The token and the authorization that were asked for, and a signature by each of the operator's secrets.
    """
    with Receiver() as receiver:
        hook = Webhook(id="w", url=receiver.url, token="tok", scheme="Bearer", credentials="cred")
        answer = await poster.post(hook, id="t/3-1", body=BODY)

    (post,) = receiver.posts
    assert answer.kind == "taken"
    assert post.body == BODY
    assert post.headers["x-a2a-notification-token"] == "tok"
    assert post.headers["authorization"] == "Bearer cred"
    assert post.headers["webhook-id"] == "t/3-1"
    assert post.headers["content-type"] == "application/json"
    for secret in (SECRET, OTHER):
        assert Signer(secret).verify(post.body, post.headers) == post.json
    with pytest.raises(WebhookVerificationError):
        Signer(SECRET).verify(post.body.replace(b"t", b"u"), post.headers)


@pytest.mark.parametrize("padding", ["", "="])
async def test_a_receiver_may_bring_its_own_secret(poster: Poster, padding: str) -> None:
    """
    It signs alone, and is not sent; padded or not.
    """
    own = "whsec_" + base64.b64encode(os.urandom(32)).decode().rstrip("=") + padding
    with Receiver() as receiver:
        hook = Webhook(id="w", url=receiver.url, scheme="StandardWebhooks", credentials=own)
        await poster.check(hook)
        await poster.post(hook, id="t/1-1", body=BODY)

    (post,) = receiver.posts
    assert "authorization" not in post.headers
    assert own not in str(post.headers)
    Signer(own.rstrip("=") + "=").verify(post.body, post.headers)
    with pytest.raises(WebhookVerificationError):
        Signer(SECRET).verify(post.body, post.headers)


async def test_without_a_secret_nothing_is_signed() -> None:
    """
    The id is there all the same, to tell a repetition by.
    """
    poster = Poster(Screen.from_env(loopback=True))
    with Receiver() as receiver:
        await poster.post(Webhook(id="w", url=receiver.url), id="t/1-1", body=BODY)
    await poster.aclose()

    assert receiver.posts[0].headers["webhook-id"] == "t/1-1"
    assert "webhook-signature" not in receiver.posts[0].headers


@pytest.mark.parametrize(
    ("status", "headers", "kind", "wait_s"),
    [
        (200, {}, "taken", None),
        (299, {}, "taken", None),
        (302, {"location": "http://127.0.0.1:1/"}, "later", None),
        (404, {}, "later", None),
        (410, {}, "gone", None),
        (429, {"retry-after": "7"}, "later", 7.0),
        (503, {"retry-after": "999999999"}, "later", 86_400.0),
    ],
)
async def test_what_an_answer_means(
    status: int, headers: dict[str, str], kind: str, wait_s: float | None, poster: Poster
) -> None:
    """
    2xx is taken, 410 ends the webhook, all else is tried later.
    """
    with Receiver(lambda _: Response(status_code=status, headers=headers)) as receiver:
        answer = await poster.post(Webhook(id="w", url=f"{receiver.url}?key=secret"), id="t/1-1", body=BODY)

    assert (answer.kind, answer.wait_s) == (kind, wait_s)
    assert len(receiver.posts) == 1
    assert str(status) in answer.why
    assert "secret" not in answer.why


async def test_no_receiver_gets_anothers_cookies(poster: Poster) -> None:
    """
    All webhooks share the client, and a cookie that one receiver sets may be meant for the hosts of all.
    """
    with Receiver(lambda _: Response(headers={"set-cookie": "session=theirs; Path=/"})) as receiver:
        for id in ("t/1", "t/2"):
            await poster.post(Webhook(id="w", url=receiver.url), id=id, body=BODY)

    assert [post.headers.get("cookie") for post in receiver.posts] == [None, None]


async def test_a_large_answer_is_not_read(poster: Poster) -> None:
    """
    A receiver cannot fill the gateway's memory.
    """
    with Receiver(lambda _: Response(b"x" * 50_000_000)) as receiver:
        answer = await poster.post(Webhook(id="w", url=receiver.url), id="t/1-1", body=BODY)

    assert answer.kind == "taken"


@pytest.mark.parametrize("ends", [True, False], ids=["breaks-off", "never-ends"])
async def test_an_update_is_taken_once_its_status_is_there(
    poster: Poster, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """
    Whatever comes of the answer's body: the same update would be posted again until the webhook is given up.
    """
    monkeypatch.setattr(webhooks, "ANSWER_S", 0.05)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(BODY)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
        if not ends:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        found = await poster.post(Webhook(id="w", url=url), id="t/1", body=BODY)
        await poster.aclose()

    assert found.kind == "taken"


async def test_nobody_there_is_later(poster: Poster) -> None:
    """
    No connection, no name, an address that may not be reached: later, and said without the path.
    """
    with Receiver() as receiver:
        url = receiver.url
    for unreachable in (url, "http://no-such-host.invalid/hook", "http://10.0.0.1/hook"):
        answer = await poster.post(Webhook(id="w", url=unreachable), id="t/1-1", body=BODY)
        assert answer.kind == "later"
        assert "hook" not in answer.why


async def test_a_slow_receiver_has_a_limit(poster: Poster, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One that says nothing is left, and tried later.
    """
    monkeypatch.setattr(webhooks, "PATIENCE_S", 0.05)
    with Receiver(slow=True) as receiver:
        answer = await poster.post(Webhook(id="w", url=receiver.url), id="t/1-1", body=BODY)

    assert answer.kind == "later"


async def test_a_host_that_never_answers_leaves_room_for_others(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It gets its share of posts at once, and no more; another one is posted to meanwhile.
    """
    monkeypatch.setattr(turns, "AT_ONCE_PER_HOST", 2)
    with Receiver(slow=True) as slow, Receiver() as quick:
        hook = Webhook(id="w", url=slow.url)
        waiting = [asyncio.create_task(poster.post(hook, id=f"t/{n}", body=BODY)) for n in range(5)]
        await slow.until(lambda receiver: len(receiver.posts) == 2)
        named = quick.url.replace("127.0.0.1", "localhost")
        assert (await poster.post(Webhook(id="w", url=named), id="t/1", body=BODY)).kind == "taken"
        assert len(slow.posts) == 2
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_hosts_that_never_answer_are_no_failure_of_others(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    They have all places, and a receiver that waits for one is posted to when one is free, however long that took.
    """
    monkeypatch.setattr(turns, "AT_ONCE", 2)
    monkeypatch.setattr(webhooks, "PATIENCE_S", 0.2)
    with Receiver(slow=True) as slow, Receiver() as quick:
        names = [slow.url.replace("127.0.0.1", f"{name}.localhost") for name in "abcdef"]
        posts = [poster.post(Webhook(id="w", url=url), id="t/1", body=BODY) for url in (*names, quick.url)]
        *others, answer = await asyncio.gather(*posts)

    assert {other.kind for other in others} == {"later"}
    assert answer.kind == "taken"


async def test_names_that_resolve_slowly_are_no_failure_of_others(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However many names one caller has chosen, a receiver of another domain is posted to at once.
    """
    names = SlowNames(monkeypatch)
    with Receiver() as quick:
        slow = [Webhook(id="w", url=f"http://slow-{n}.one.example/") for n in range(100)]
        posts = [asyncio.create_task(poster.post(hook, id="t/1", body=BODY)) for hook in slow]
        try:
            await asyncio.to_thread(names.until, 8)
            monkeypatch.setattr(webhooks, "PATIENCE_S", 5)
            hook = Webhook(id="w", url=quick.url.replace("127.0.0.1", "quick.example"))
            answer = await poster.post(hook, id="t/1", body=BODY)
        finally:
            for post in posts:
                post.cancel()
            await asyncio.gather(*posts, return_exceptions=True)
            names.answer()

    assert answer.kind == "taken", answer.why


async def test_the_wait_for_the_names_turn_is_not_the_receivers(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A post's time does not run meanwhile. Without a turn nothing is sent, and the next post may have one.
    """
    server, names = SlowNames(monkeypatch), Names(1, per_domain=1)
    monkeypatch.setattr(ssrf, "_connected", names)
    monkeypatch.setattr(webhooks, "PATIENCE_S", 1)
    monkeypatch.setattr(resolving, "TURN_S", 1.5)
    with Receiver() as quick:
        hook = Webhook(id="w", url=quick.url.replace("127.0.0.1", "quick.example"))
        slow = asyncio.create_task(names.resolved("slow.example", 80))
        await asyncio.to_thread(server.until, 1)
        unsent = await poster.post(hook, id="t/1", body=BODY)
        monkeypatch.setattr(webhooks, "PATIENCE_S", 15)
        server.answer()
        await slow
        answer = await poster.post(hook, id="t/1", body=BODY)

    assert (unsent.kind, answer.kind) == ("unsent", "taken"), answer.why
    assert len(quick.posts) == 1


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_webhook_that_changed_while_its_post_waited_gets_none(
    poster: Poster, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """
    Posts to a slow host wait for one another, perhaps for minutes; a webhook may be deleted in that time.
    """
    monkeypatch.setattr(turns, "AT_ONCE_PER_HOST", 1)

    async def still() -> bool:
        return wanted

    with Receiver() as receiver:
        hook = Webhook(id="w", url=receiver.url)
        posts = poster.post(hook, id="t/1", body=BODY), poster.post(hook, id="t/2", body=BODY, wanted=still)
        answers = await asyncio.gather(*posts)

    assert [answer.kind for answer in answers] == ["taken", "taken" if wanted else "unsent"]
    assert len(receiver.posts) == 1 + wanted


@pytest.mark.parametrize("wanted", [False, True])
async def test_a_webhook_that_changed_while_its_post_connected_gets_none(poster: Poster, wanted: bool) -> None:
    """
    To connect may take seconds. Whether the webhook is still wanted is asked once more when there is a connection; not
    where one was there already.
    """
    connected, asked = asyncio.Event(), list[bool]()
    sent = bytearray()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        while piece := await reader.read(10_000):
            sent.extend(piece)
            if BODY in piece:
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async def still() -> bool:
        await connected.wait()
        asked.append(wanted)
        return wanted

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        hook = Webhook(id="w", url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook")
        answers = [(await poster.post(hook, id=f"t/{n}", body=BODY, wanted=still)).kind for n in range(2)]
        await poster.aclose()

    assert answers == ["taken" if wanted else "unsent"] * 2
    assert asked == ([True] if wanted else [False] * 2)
    assert sent.count(BODY) == (2 if wanted else 0)
    assert wanted or not sent


@pytest.mark.parametrize("away", [False, True])
async def test_the_time_of_the_last_question_is_not_the_receivers(
    poster: Poster, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """
    Temporal may say late whether the webhook is still wanted, or not at all: the receiver has the same time to answer,
    and an error of Temporal's is no failure of the receiver.
    """
    monkeypatch.setattr(webhooks, "PATIENCE_S", 1.0)
    clock = asyncio.get_running_loop().time

    async def still() -> bool:
        until = clock() + webhooks.PATIENCE_S
        while clock() <= until:
            await a_moment()
        if away:
            raise NotConnected("no server answers")
        return True

    with Receiver() as receiver:
        hook = Webhook(id="w", url=receiver.url)
        if away:
            with pytest.raises(NotConnected):
                await poster.post(hook, id="t/1", body=BODY, wanted=still)
        else:
            assert (await poster.post(hook, id="t/1", body=BODY, wanted=still)).kind == "taken"

    assert len(receiver.posts) == (not away)


async def test_a_receiver_that_is_silent_after_the_last_question_fails(
    poster: Poster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The limit of the post goes on where it stood before the question.
    """
    monkeypatch.setattr(webhooks, "PATIENCE_S", 0.2)

    async def still() -> bool:
        return True

    with Receiver(slow=True) as receiver:
        hook = Webhook(id="w", url=receiver.url)
        async with asyncio.timeout(10):
            answer = await poster.post(hook, id="t/1", body=BODY, wanted=still)

    assert answer.kind == "later"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""},
        {"url": "http://10.0.0.1/"},
        {"url": "http://user:hidden@93.184.216.34/"},
        {"token": "hidden\r\nX-Other: 1"},
        {"token": "hidden" * 1_000},
        {"credentials": "hidden ü", "scheme": "Bearer"},
        {"credentials": "hidden", "scheme": "Bearer it"},
        {"credentials": "hidden", "scheme": "StandardWebhooks"},
        {"id": "x" * 257},
    ],
)
async def test_what_cannot_be_used_is_refused(wrong: dict[str, str], poster: Poster) -> None:
    """
    At once, without its secrets in the message.
    """
    hook = Webhook(**{"id": "w", "url": "https://93.184.216.34/", **wrong})

    with pytest.raises(InputRejected) as refused:
        await poster.check(hook)
    assert "hidden" not in str(refused.value)


def test_a_webhook_keeps_its_secrets_to_itself() -> None:
    """
    Its representation, which logs and errors show, has none of them.
    """
    hook = Webhook(id="w", url="https://h.example/hidden", token="hidden", scheme="hidden", credentials="hidden")

    assert "hidden" not in repr(hook)
    assert "hidden" not in str(hook)


@pytest.mark.parametrize("secret", ["hidden", "whsec_", "whsec_hidden", SECRET + " hidden", URL_SAFE])
def test_a_secret_that_is_none_is_an_error(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Said when the process starts, and not what it was.
    """
    monkeypatch.setenv(webhooks.SECRET_ENV, secret)

    with pytest.raises(DefinitionError, match=LETTERS) as wrong:
        Poster.from_env()
    assert "hidden" not in str(wrong.value)


async def test_a_secret_of_a_webhook_that_is_none_is_refused_with_its_letters(poster: Poster) -> None:
    """
    So that whoever has one with the letters of URLs knows what to replace.
    """
    hook = Webhook(id="w", url="https://93.184.216.34/", scheme="StandardWebhooks", credentials=URL_SAFE)

    with pytest.raises(InputRejected, match=LETTERS):
        await poster.check(hook)


@pytest.mark.parametrize("scheme", ["StandardWebhook", "Standard-Webhooks", "Bearer"])
async def test_a_secret_to_sign_with_is_not_sent_because_its_scheme_is_misspelt(scheme: str, poster: Poster) -> None:
    """
    Each post would carry it in plain text, and be signed with another one or none.
    """
    own = "whsec_" + base64.b64encode(os.urandom(32)).decode()
    hook = Webhook(id="w", url="https://93.184.216.34/", scheme=scheme, credentials=own)

    with pytest.raises(InputRejected, match=f"their scheme is StandardWebhooks, not '{scheme}'") as refused:
        await poster.check(hook)
    assert own not in str(refused.value)
