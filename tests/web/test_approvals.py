"""Decisions over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from refold import Content, Ctx, DefinitionError, GatePolicy, Status, Transition, flow_skill, step
from refold.a2a import Security, a2a_app
from refold.a2a.security.api_keys import api_keys
from refold.engine import CodecError, EngineError, NotConnected, PayloadTooLarge, StorageError, Taken
from refold.testing import FakeEngine
from refold.web.approvals import approval_app, bearer_keys
from tests.gated import Payment


@flow_skill(id="seconded")
class Seconded:
    """Pays once a second person has said so."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("pay", "Pay this?", policy=GatePolicy(second_person=True, allow_unsigned=True))
        return ctx.complete("paid")


KEYS = {"key-of-ada": "ada", "key-of-eve": "eve", "key-of-the-bot": "bot"}


@pytest.fixture
async def engine() -> FakeEngine:
    """A payment of 50 waits for a decision."""
    engine = FakeEngine([Payment])
    await engine.start("payment", Content.from_text("50"), task_id="p1")
    return engine


@pytest.fixture
async def http(engine: FakeEngine) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the callback."""
    app = approval_app(engine, bearer_keys(KEYS), may_vouch={"bot"})
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://refold") as client:
        yield client


async def post(http: httpx2.AsyncClient, key: str | None, **body: Any) -> httpx2.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return await http.post(
        "/approval-callback", json={"task_id": "p1", "decision": "approved", **body}, headers=headers
    )


async def test_a_grant_lets_the_task_go_on(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    The caller decides in its own name; the answer is the task.
    """
    answer = await post(http, "key-of-ada", comment="fine")

    assert (answer.status_code, answer.json()["status"]) == (200, "completed")
    assert (await engine.look("p1")).messages[-1].text == "paid, says ada"


async def test_a_service_on_the_list_vouches_for_people(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    A chat bot says who pressed the button; the journal says who vouched.
    """
    answer = await post(http, "key-of-the-bot", approver="bob")

    assert answer.status_code == 200
    events = [entry.event async for entry in engine.journal("p1")]
    assert (events[-1].approver, events[-1].asserted_by) == ("bob", "bot")  # type: ignore[union-attr]  # a decision


@pytest.mark.parametrize(
    ("key", "body", "status"),
    [
        pytest.param(None, {}, 401, id="nobody"),
        pytest.param("key-of-nobody", {}, 401, id="an-unknown-key"),
        pytest.param("key-of-ada", {"approver": "bob"}, 403, id="claims-to-be-another"),
        pytest.param("key-of-eve", {}, 403, id="not-on-the-gates-list"),
        pytest.param("key-of-ada", {"task_id": "p2"}, 404, id="no-such-task"),
        pytest.param("key-of-ada", {"digest": "0" * 32}, 409, id="a-stale-digest"),
        pytest.param("key-of-ada", {"gate": "other"}, 409, id="no-such-gate"),
        pytest.param("key-of-ada", {"decision": "maybe"}, 422, id="neither-of-the-two"),
        pytest.param("key-of-ada", {"approve": True}, 422, id="a-misspelt-field"),
        pytest.param("key-of-ada", {"comment": "x" * 70_000}, 413, id="too-large"),
    ],
)
async def test_what_does_not_fit_changes_nothing(
    engine: FakeEngine, http: httpx2.AsyncClient, key: str | None, body: dict[str, Any], status: int
) -> None:
    """
    Each mistake has its status and a sentence; the task still waits.
    """
    answer = await post(http, key, **body)

    assert answer.status_code == status
    assert answer.json()["error"]
    assert (await engine.look("p1")).status is Status.INPUT_REQUIRED


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_what_is_no_number_of_json_is_called_so(
    engine: FakeEngine, http: httpx2.AsyncClient, number: str
) -> None:
    """
    Python writes such a number, and no JSON holds it: the answer names it, and says nothing of a wrong signature.
    """
    body = f'{{"task_id": "p1", "decision": "approved", "changes": {{"cents": {number}}}}}'
    answer = await http.post("/approval-callback", content=body, headers={"Authorization": "Bearer key-of-ada"})

    assert answer.status_code == 422
    assert number in answer.json()["error"]
    assert (await engine.look("p1")).status is Status.INPUT_REQUIRED


@pytest.mark.parametrize("decision", ["approved", "denied"])
async def test_whoever_owns_the_task_is_no_second_person(decision: str) -> None:
    """
    Like anybody else who may not decide at a gate; the answer says why.
    """
    engine = FakeEngine([Seconded])
    await engine.start("seconded", Content.from_text("50"), task_id="p1", owner="ada")
    app = approval_app(engine, bearer_keys(KEYS))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://refold") as http:
        owner = await post(http, "key-of-ada", decision=decision)
        other = await post(http, "key-of-eve")

    assert (owner.status_code, other.status_code) == (403, 200)
    assert owner.json() == {
        "error": "ada may not decide at gate 'pay': a second person decides, not ada, who owns or started the task"
    }


@pytest.mark.parametrize(
    ("security", "says"),
    [
        (Security(), "nobody has a name here: whoever runs this agent can set REFOLD_A2A_API_KEYS or REFOLD_A2A_JWT_"),
        (Security(anonymous="everywhere"), "nobody has a name here"),
        (
            Security(keys=api_keys("ada=0123456789abcdef"), anonymous="everywhere"),
            "say who calls: Authorization: Bearer KEY",
        ),
    ],
    ids=["no-keys", "no-keys-for-everybody", "keys-and-everybody"],
)
async def test_a_caller_without_a_name_decides_nothing(security: Security, says: str) -> None:
    """
    A gateway that knows nobody by name says who can change it, instead of asking for a key that it would not take.
    """
    engine = FakeEngine([Payment])
    await engine.start("payment", Content.from_text("50"), task_id="p1")
    transport = httpx2.ASGITransport(app=a2a_app(engine, [Payment], security=security), client=("127.0.0.1", 5000))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await post(http, None)

    assert answer.status_code == 401
    assert answer.json()["error"].startswith(says)
    assert (await engine.look("p1")).status is Status.INPUT_REQUIRED


async def test_a_second_decision_is_refused(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    Whoever comes second hears that nothing is open any more.
    """
    await post(http, "key-of-ada")

    assert (await post(http, "key-of-ada")).status_code == 409


async def test_when_the_approver_decided_is_in_the_journal(engine: FakeEngine, http: httpx2.AsyncClient) -> None:
    """
    As the caller says it, which may be long before the decision arrives.
    """
    await post(http, "key-of-the-bot", approver="bob", timestamp="2020-02-03T04:05:06Z")

    events = [entry.event async for entry in engine.journal("p1")]
    assert events[-1].said_at == datetime(2020, 2, 3, 4, 5, 6, tzinfo=UTC)  # type: ignore[union-attr]  # a decision


@pytest.mark.parametrize(
    ("fault", "status"),
    [(StorageError("no storage"), 503), (CodecError("no key"), 503), (PayloadTooLarge("too large"), 413)],
)
async def test_a_task_that_cannot_be_read_now_is_said(
    engine: FakeEngine, http: httpx2.AsyncClient, fault: EngineError, status: int
) -> None:
    """
    Whoever calls reads why, and may call again; it is no error of the server's own.
    """
    engine.fault = fault

    answer = await post(http, "key-of-ada")

    assert (answer.status_code, answer.json()) == (status, {"error": str(fault)})


@pytest.mark.parametrize("lost", ["record", "look", "decide_together"])
async def test_a_server_that_is_away_is_told_so(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    """
    At a gateway, too, which first reads whether the caller may see the task: the caller comes again.
    """

    async def away(*_: Any, **__: Any) -> None:
        raise NotConnected("the server is away")

    security = Security(keys=api_keys("ada=0123456789abcdef"), anonymous=None)
    app = a2a_app(engine, [Payment], security=security)
    monkeypatch.setattr(engine, lost, away)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://refold") as http:
        await engine.start("payment", Content.from_text("50"), task_id="p2", owner="ada")
        answer = await post(http, "0123456789abcdef", task_id="p2")

    assert (answer.status_code, answer.json()) == (503, {"error": "the server is away"})


async def test_a_decision_that_was_taken_is_not_called_an_error(
    engine: FakeEngine, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server goes away once the task has taken it, so the answer names the task and says that it is not known how the
    task stands now.
    """
    decide = engine.decide_together

    async def left(*words: Any, **how: Any) -> None:
        await decide(*words, **how)
        raise Taken("the task has taken the decision")

    monkeypatch.setattr(engine, "decide_together", left)
    answer = await post(http, "key-of-ada")

    assert (answer.status_code, answer.json()) == (202, {"task_id": "p1", "note": "the task has taken the decision"})
    assert (await engine.look("p1")).status is Status.COMPLETED


@pytest.mark.parametrize("given", [{"": "bot"}, {"key-of-ada": "ada", "": "bot"}, {"key-of-ada": ""}, {b"key": "bot"}])
def test_a_key_or_a_caller_of_no_characters_is_refused(given: Any) -> None:
    """
    An empty key, as of a variable that is not set, would let in whoever sends none.
    """
    with pytest.raises(DefinitionError, match="each key and each caller is a text of one character or more"):
        bearer_keys(given)
