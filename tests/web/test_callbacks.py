"""A callback's address over HTTP: it answers its question once, and everybody else gets a plain answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx2
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.applications import Starlette

from refold import Content, Ctx, DefinitionError, SkillError, Status
from refold.a2a import a2a_app
from refold.callbacks import address
from refold.callbacks.address import Forged, settings
from refold.core.authoring.context import Moment
from refold.core.commands import CALLBACK
from refold.core.fold.apply import advance
from refold.core.fold.delivery import ASKS_ONCE
from refold.core.fold.questions import CALL_BETWEEN, CALL_IN_TIME
from refold.core.fold.snapshot import EARLY_LIMIT
from refold.engine import NotConnected, Taken
from refold.testing import FakeEngine, play, user
from refold.testing.callbacks import SETTINGS
from refold.testing.fake_engine import running
from refold.web.callbacks import callback_routes
from refold.web.traced import TracedRequests
from tests.temporal.callback_skills import (
    TOOLS,
    Checkout,
    CheckoutByHand,
    DoubleCheckout,
    ImpatientCheckout,
    LateCheckout,
    handed,
)

PAID: dict[str, Any] = {"amount_cents": 5}


@pytest.fixture
async def engine() -> FakeEngine:
    """A checkout waits for the payment."""
    engine = FakeEngine([Checkout, LateCheckout, ImpatientCheckout, DoubleCheckout, CheckoutByHand], tools=TOOLS)
    await engine.start("checkout", Content.from_text("go"), task_id="c1")
    return engine


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the gateway's route."""
    app = Starlette(routes=callback_routes(engine, SETTINGS, lambda: engine.clock.now))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:9000") as client:
        yield client


async def post(http: httpx2.AsyncClient, url: str, body: Any = PAID) -> tuple[int, str]:
    answer = await http.post(url, json=body)
    said = answer.json()
    return answer.status_code, said.get("error", said.get("status"))


async def test_a_call_answers_the_question_once(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    The second caller is told so, whatever it sends; the body is no message of the user.
    """
    waits = (await engine.look("c1")).waiting_for[0]
    first, again, other = [await post(http, handed["c1"], body) for body in (PAID, PAID, {"amount_cents": 7})]

    assert (waits.slot, waits.since is not None, waits.callback is not None) == ("paid", True, True)
    assert first == (200, "taken")
    assert again == other == (409, "this address was answered before, or what waited for it has ended")
    view = await engine.look("c1")
    assert view.status is Status.COMPLETED
    assert [message.text for message in view.messages] == ["go", "the provider says that it is paid", "paid 5"]


async def test_of_two_callers_at_once_one_is_taken(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    The other one is refused.
    """
    answers = await asyncio.gather(*(post(http, handed["c1"], {"amount_cents": n}) for n in range(2)))

    assert sorted(code for code, _ in answers) == [200, 409]
    taken = answers[0][0] != 200
    assert (await engine.look("c1")).messages[-1].text == f"paid {int(taken)}"


async def test_nobody_else_can_answer(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    A changed address, another key's, one written otherwise, and messages to the task that name the question.
    """
    url = handed["c1"]
    said, _, signature = address.token_of(url).partition(".")
    other = address.CallbackSettings(url=SETTINGS.url, keys=("another key altogether",)).make(
        "c1", "c1/1.1", datetime.now(UTC)
    )
    longer = said[:-1] + chr(ord(said[-1]) + 1)
    for forged in (
        f"{said}.{signature[:-2]}xx",
        f"{longer}.{signature}",
        f"{said}=.{signature}",
        f"{said}.{signature}=",
        said,
        f"{said}.",
        "x",
        "é",
        "x" * 5_000,
        address.token_of(other.url),
    ):
        assert await post(http, f"/callbacks/{forged}") == (404, "nothing here has this address")
    for slot in (None, "paid", "c1/1.1", "refold.callback:guess"):
        with pytest.raises(Exception, match=r"waits for a call to its own address|waits for no message"):
            await engine.send("c1", Content.from_data(PAID), slot=slot)
    assert (await engine.look("c1")).status is Status.INPUT_REQUIRED


@pytest.mark.parametrize(
    ("body", "kind", "status", "why"),
    [
        (b'{"amount_cents": "much"}', "application/json", 422, "must fit Payment: amount_cents"),
        (b"paid", "text/plain", 422, "must fit Payment"),
        (b"", "", 422, "amount_cents: Field required"),
        (b"{", "application/json", 400, "cannot be read"),
        (b'{"a": 1, "a": 2}', "application/json", 400, "cannot be read: the key 'a' is given twice in one object"),
        pytest.param(b"[" * 200_000, "application/json", 400, "cannot be read", id="deep"),
        (b'{"amount_cents": NaN}', "application/json", 400, "NaN is not in JSON"),
        (b'{"amount_cents": -1e999}', "application/json", 400, "-1e999 is out of a number's range"),
        (b'{"note": "\\ud800"}', "application/json", 400, "half of a surrogate pair"),
        (b"null", "application/json", 400, "null is no data; send an object, or no body"),
        (b"\xff", "text/plain", 400, "cannot be read"),
        (b"amount_cents=5", "application/x-www-form-urlencoded", 415, "send JSON"),
        (b"x" * 300_000, "text/plain", 413, "at most 262144 bytes"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused(
    engine: FakeEngine, http: httpx2.AsyncClient, body: bytes, kind: str, status: int, why: str
) -> None:
    """
    And the question waits on, for a call that does.
    """
    refused = await http.post(handed["c1"], content=body, headers={"Content-Type": kind})
    taken = await post(http, handed["c1"])

    assert refused.status_code == status
    assert why in refused.json()["error"]
    assert taken == (200, "taken")


@pytest.mark.parametrize("lost", ["send", "look"])
async def test_a_caller_is_told_to_call_again_when_the_task_cannot_be_reached(
    engine: FakeEngine, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """
    Also where the server goes away between a body that does not fit and the look at what would.
    """

    async def away(*_: Any, **__: Any) -> None:
        raise NotConnected("the server is away")

    with monkeypatch.context() as outage:
        outage.setattr(engine, lost, away)
        answer = await http.post(handed["c1"], json={"amount_cents": "much"})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert await post(http, handed["c1"]) == (200, "taken")


async def test_a_call_that_was_taken_is_not_to_be_made_again(
    engine: FakeEngine, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server goes away once the task has taken the call: the caller reads that it was taken.
    """
    send = engine.send

    async def left(*words: Any, **how: Any) -> None:
        await send(*words, **how)
        raise Taken("the task has taken the message")

    with monkeypatch.context() as outage:
        outage.setattr(engine, "send", left)
        first = await post(http, handed["c1"])

    assert first == (200, "taken")
    assert (await post(http, handed["c1"]))[0] == 409
    assert (await engine.look("c1")).status is Status.COMPLETED


async def test_a_call_to_an_address_that_an_open_question_has_once_more_was_made_before(
    engine: FakeEngine, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No correction of its body would help. A task of an earlier release may have such a question.
    """
    monkeypatch.setattr(running, "advance", partial(advance, patched=lambda patch: patch != ASKS_ONCE))
    await engine.start("double_checkout", Content.from_text("go"), task_id="c2")
    answers = [await post(http, handed["c2"]) for _ in range(2)]

    assert [wait.slot for wait in (await engine.look("c2")).waiting_for] == ["more"]
    assert answers == [(200, "taken"), (409, "this address was answered before, or what waited for it has ended")]


async def test_a_second_question_with_an_address_fails_its_task_at_once(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    Its author reads what to do.
    """
    await engine.start("double_checkout", Content.from_text("go"), task_id="c2")
    answers = [await post(http, handed["c2"]) for _ in range(2)]

    assert [code for code, _ in answers] == [200, 409]
    assert (await engine.look("c2")).reason == (
        "question 'more' has the address of a callback that was answered before; an address answers one question: "
        "make one for each, with `ctx.callback` or `Cmd.callback`"
    )


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS"])
async def test_only_a_post_calls(engine: FakeEngine, method: str) -> None:
    """
    A link that somebody opens answers nothing, nor does the question of a browser whether it may post.
    """
    app = a2a_app(engine, [Checkout], callbacks=SETTINGS, now=lambda: engine.clock.now)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:9000") as http:
        got = await http.request(method, handed["c1"])

    assert (got.status_code, got.headers.get("allow")) == (405, "POST")


async def test_a_trace_has_no_address(engine: FakeEngine) -> None:
    """
    Whoever reads the spans could otherwise answer the question.
    """
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = TracedRequests(Starlette(routes=callback_routes(engine, SETTINGS)), provider.get_tracer("t"))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:9000") as client:
        await client.post("/callbacks/secret", json=PAID)
        await client.post("/message:send", json=PAID)

    assert [(span.name, (span.attributes or {})["url.path"]) for span in spans.get_finished_spans()] == [
        ("POST /callbacks/…", "/callbacks/…"),
        ("POST /message:send", "/message:send"),
    ]


async def test_an_address_expires(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    The caller is told when; the skill goes on without the answer.
    """
    await engine.advance(3_601)

    status, said = await post(http, handed["c1"])
    assert (status, said[:23]) == (410, "this address expired at")
    assert (await engine.look("c1")).messages[-1].text == "no payment: timeout"


async def test_a_gateway_of_a_test_has_the_clock_of_its_engine(engine: FakeEngine) -> None:
    """
    As the page on callbacks shows it.
    """
    app = a2a_app(engine, [Checkout], callbacks=SETTINGS, now=lambda: engine.clock.now)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:9000") as http:
        assert await post(http, handed["c1"]) == (200, "taken")
        await engine.advance(3_601)
        assert (await post(http, handed["c1"]))[0] == 410


async def test_a_canceled_task_takes_no_call(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    The caller learns no more than that it came too late.
    """
    await engine.cancel("c1")

    assert (await post(http, handed["c1"]))[0] == 409
    unknown = SETTINGS.make("nobody", "nobody/1.1", engine.clock.now + timedelta(hours=1))
    assert (await post(http, unknown.url))[0] == 409


async def test_a_call_before_the_question_is_kept(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    While the task asks a person something else; and it is the only one.
    """
    await engine.start("late_checkout", Content.from_text("go"), task_id="c2")
    early = await post(http, handed["c2"])
    second = await post(http, handed["c2"])
    view = await engine.send("c2", Content.from_text("Ada"))

    assert (early[0], second[0]) == (200, 409)
    assert view.messages[-1].text == "Ada paid 5"


async def test_a_call_in_time_answers_a_question_that_is_asked_too_late(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    The address has expired by then; its caller was told that the call was taken.
    """
    await engine.start("late_checkout", Content.from_text("go"), task_id="c2")
    assert await post(http, handed["c2"]) == (200, "taken")
    await engine.advance(3_700)
    view = await engine.send("c2", Content.from_text("Ada"))

    assert view.messages[-1].text == "Ada paid 5"
    *_, answered = [entry async for entry in engine.journal("c2")]
    assert answered.patches == {CALL_IN_TIME: True}


async def test_a_call_between_a_questions_deadline_and_its_alarm_answers_it(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    The address is valid: its caller is not told to correct a call that is right, and one that is wrong is refused.
    """
    await engine.start("impatient_checkout", Content.from_text("go"), task_id="c2")
    engine.clock.now += timedelta(seconds=61)  # and no worker has heard of it
    calls = [await post(http, handed["c2"], body) for body in ({"amount": 5}, PAID, PAID)]

    assert [code for code, _ in calls] == [422, 200, 409]
    assert "amount_cents: Field required" in calls[0][1]
    assert (await engine.look("c2")).messages[-1].text == "paid 5"
    *_, answered = [entry async for entry in engine.journal("c2")]
    assert answered.patches == {CALL_BETWEEN: True, CALL_IN_TIME: True}


async def test_a_call_after_a_questions_alarm_is_kept_for_the_next_one(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    With the same address.
    """
    await engine.start("impatient_checkout", Content.from_text("go"), task_id="c2")
    await engine.advance(61)
    assert await post(http, handed["c2"]) == (200, "taken")
    view = await engine.send("c2", Content.from_text("yes"))

    assert view.messages[-1].text == "paid 5"


async def test_a_call_that_came_before_and_does_not_fit_leaves_its_address(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    Nobody could tell its caller what would fit; the corrected call answers the question.
    """
    await engine.start("late_checkout", Content.from_text("go"), task_id="c2")
    early = await post(http, handed["c2"], {"amount": 5})
    await engine.send("c2", Content.from_text("Ada"))

    calls = [await post(http, handed["c2"], body) for body in ({"amount": 5}, PAID, PAID)]

    assert early == (200, "taken")
    assert [code for code, _ in calls] == [422, 200, 409]
    assert "amount_cents: Field required" in calls[0][1]
    assert (await engine.look("c2")).messages[-1].text == "Ada paid 5"


async def test_a_call_to_a_task_that_holds_no_more_messages_is_to_be_made_again(
    engine: FakeEngine, http: httpx2.AsyncClient
) -> None:
    """
    The task has not taken it, and takes it once it asks for it.
    """
    await engine.start("late_checkout", Content.from_text("go"), task_id="c2")
    for number in range(EARLY_LIMIT):
        await engine.send("c2", Content.from_text("?"), slot=f"{CALLBACK}:{number}", early=True)

    early = await http.post(handed["c2"], json=PAID)
    await engine.send("c2", Content.from_text("Ada"))
    again = [await post(http, handed["c2"]) for _ in range(2)]

    assert (early.status_code, early.headers["retry-after"]) == (503, "5")
    assert [code for code, _ in again] == [200, 409]
    assert (await engine.look("c2")).messages[-1].text == "Ada paid 5"


async def test_a_replaced_key_leaves_addresses_valid(engine: FakeEngine) -> None:
    """
    For as long as the gateway knows the old one; without it, they are nobody's.
    """
    new, old = "a new key of the tests", SETTINGS.keys[0]
    token = address.token_of(handed["c1"])

    assert address.CallbackSettings(keys=(new, old)).read(token).task_id == "c1"
    with pytest.raises(Forged):
        address.CallbackSettings(keys=(new,)).read(token)
    with pytest.raises(Forged):
        address.CallbackSettings().read(token)


def test_a_reducer_waits_as_steps_do() -> None:
    """
    `Cmd.callback`, then `Cmd.ask_user`; a script answers by the question's name.
    """
    steps = play(Checkout, ["go", user(PAID, slot="paid")], tools=TOOLS)
    reducer = play(CheckoutByHand, ["go", user(PAID, slot="paid")])

    assert steps.messages[-1].text == reducer.messages[-1].text == "paid 5"


@pytest.mark.parametrize(
    ("until", "read"),
    [
        (datetime(2026, 1, 1, 0, 0, 1, 900_000, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)),
        (datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(microsecond=0, tzinfo=UTC)),
    ],
)
def test_an_address_does_not_expire_before_its_question(until: datetime, read: datetime) -> None:
    """
    It has whole seconds; its question ends within the last one.
    """
    made = SETTINGS.make("t", "t/1.1", until)

    assert made.until == until
    assert SETTINGS.read(address.token_of(made.url)).until == read


@pytest.mark.parametrize("expires_s", [0, -1, 1e11, float("nan"), float("inf"), None, "soon"])
def test_an_address_must_expire(expires_s: Any) -> None:
    """
    At a time to come, which is checked where it is written.
    """
    ctx = Ctx(Moment(task_id="t", seq=1, at=datetime.now(UTC)))
    with pytest.raises(SkillError, match=r"after more than 0 and at most 3153600000 seconds \(a hundred years\), not"):
        _ = ctx.callback("paid", expires_s=expires_s)


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"REFOLD_CALLBACK_URL": "agents.example"}, "others reach a gateway at https://HOST"),
        ({"REFOLD_CALLBACK_URL": "https://a.example?x=1"}, "others reach a gateway"),
        ({"REFOLD_CALLBACK_URL": "https://a.example?"}, "at https://HOST or https://HOST/PATH, without"),
        ({"REFOLD_CALLBACK_URL": "https://a.example/x#"}, "or a blank, not at"),
        ({"REFOLD_CALLBACK_URL": "https://a.example/x y"}, "or a blank, not at"),
        ({"REFOLD_CALLBACK_URL": "https://a.ex\tample"}, "or a blank, not at"),
        ({"REFOLD_CALLBACK_URL": "https://a.example\\x"}, "or a blank, not at"),
        ({"REFOLD_CALLBACK_URL": "https://[::1"}, "others reach a gateway"),
        ({"REFOLD_CALLBACK_URL": "https://a.example:https"}, "others reach a gateway"),
        ({"REFOLD_CALLBACK_KEY": "short"}, "16 characters at least, and one has 5"),
    ],
)
def test_a_wrong_setting_is_named(environment: dict[str, str], why: str) -> None:
    """
    With what was expected, and without the key.
    """
    with pytest.raises(DefinitionError, match=why) as refused:
        settings(environment)
    assert "short" not in str(refused.value)


def test_missing_settings_are_named() -> None:
    """
    Both, with what they are.
    """
    assert address.missing(settings({})) == (
        "no callback can be made here: set REFOLD_CALLBACK_URL: the address at which others reach the gateway, such as "
        "https://agents.example; set REFOLD_CALLBACK_KEY: a secret of 16 characters or more, which gateways have, too"
    )
    given = {"REFOLD_CALLBACK_URL": "https://a.example/x/", "REFOLD_CALLBACK_KEY": "k" * 16 + ", " + "l" * 20}
    assert address.missing(settings(given)) == ""
    made = settings(given).make("t", "t/1.1", datetime.now(UTC))
    assert made.url.startswith("https://a.example/x/callbacks/")
    assert json.loads(made.model_dump_json())["digest"] == made.digest
