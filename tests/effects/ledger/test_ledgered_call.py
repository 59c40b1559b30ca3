"""Effects that must not be repeated: what the ledger, the tool and its probe say, and what the task hears."""

from __future__ import annotations

import asyncio
import smtplib
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import httpx
import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue, model_serializer
from structlog.testing import capture_logs
from temporalio.activity import ActivityCancellationDetails
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from refold import Cmd, DefinitionError, tool
from refold.core.commands import CallTool, Undoes, result_hash
from refold.core.fold.snapshot import Given
from refold.core.retry_policy import LEFT, Failure, FailureKind
from refold.effects import Done, Never, NotDone, TryLater, Unknown, current, resources
from refold.effects.activities import Effects
from refold.effects.failures.classify import surely_not_done
from refold.effects.failures.verdicts import OTHERS_S
from refold.effects.http.keys import wire_key
from refold.effects.http.sending import keyed
from refold.effects.invocation import Invocation, Sent, as_current
from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.ledgered_call import ASKED_AGAIN_S
from refold.effects.ledger.mark import mark_in, marked
from refold.effects.ledger.receipts import Begun, LedgerReceipt, ReceiptState
from refold.effects.ledger.store import store_of
from refold.effects.short.outcomes import Outcomes
from refold.temporal.data.payloads import data_converter
from tests.effects.conftest import INVOCATION, TASK, Bench, failure_in
from tests.services.payments import Moved, PaymentGateway

KEY = wire_key(namespace="ns", tool="charge", key=INVOCATION)
ONE_KEY = wire_key(namespace="ns", tool="charge", key="A")
"""That of the calls with the key `A`."""
CARGO: dict[str, JsonValue] = {"order": "A1", "cents": 500}
TRANSIENT, PERMANENT, UNKNOWN = FailureKind


@pytest.fixture
def gateway() -> Iterator[PaymentGateway]:
    with PaymentGateway() as server:
        yield server


@pytest.fixture
def careless() -> Iterator[PaymentGateway]:
    """A gateway that ignores keys."""
    with PaymentGateway(honours_keys=False) as server:
        yield server


Beside: TypeAlias = Callable[..., None]


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Beside:
    """Sets which workers the server names that have polled lately."""

    def named(*workers: str) -> None:
        async def workers_beside() -> set[str]:
            return set(workers)

        monkeypatch.setattr(resources, "workers_beside", workers_beside)

    return named


def charging(gateway: PaymentGateway, probe: Callable[[str], Any] | None = None) -> Callable[..., Any]:
    """A tool that charges a card."""

    @tool(effect="at_most_once", probe=probe)
    async def charge(order: str, cents: int) -> dict[str, Any]:
        answer = await current().http.post(f"{gateway.address}/charges", json={"order": order, "cents": cents})
        answer.raise_for_status()
        charged: dict[str, Any] = answer.json()
        return charged

    return charge


def looking(gateway: PaymentGateway) -> Callable[[str], Any]:
    """A probe that asks the gateway."""

    async def charged(key: str) -> Done | NotDone:
        answer = await current().http.get(f"{gateway.address}/entries", params={"key": key})
        found = answer.json()
        return Done(found[0]) if found else NotDone()

    return charged


def failing(error: BaseException, probe: Callable[[str], Any] | None = None) -> tuple[Callable[..., Any], list[int]]:
    """A tool that fails, and its calls so far."""
    calls: list[int] = []

    @tool(effect="at_most_once", probe=probe)
    async def charge(order: str = "", cents: int = 0) -> dict[str, str] | None:
        calls.append(current().fence)
        raise error

    return charge, calls


@asynccontextmanager
async def at_work(*tools: Callable[..., Any], ledger: Ledger | None = None) -> AsyncIterator[Bench]:
    async with Effects(tools, ledger=ledger) as effects:
        yield Bench(effects)


async def ask(bench: Bench, *, args: dict[str, JsonValue] | None = None, key: str | None = None, **more: Any) -> Any:
    return await bench.tool(CallTool(id="c", name="charge", args=CARGO if args is None else args, key=key), **more)


async def failed(bench: Bench, **more: Any) -> Failure:
    with pytest.raises(ApplicationError) as caught:
        await ask(bench, **more)
    return failure_in(caught.value)


def receipt(ledger_file: Path, key: str = KEY) -> LedgerReceipt:
    found = Ledger(str(ledger_file)).look(key)
    assert found is not None
    return found


def until_done(ledger_file: Path) -> None:
    while receipt(ledger_file).state is not ReceiptState.DONE:
        threading.Event().wait(0.005)


def left_behind(
    ledger_file: Path,
    args: dict[str, JsonValue] | None = None,
    *,
    silent_for: float = 1000.0,
    lease_s: float | None = None,
    key: str = KEY,
) -> None:
    """Another worker began the effect, and has fallen silent."""
    then = Ledger(store_of(str(ledger_file), clock=lambda: time.time() - silent_for), lease_s=lease_s)
    told = then.begin(then.ask(key, "charge", CARGO if args is None else args, task_id="T0"))
    assert isinstance(told, Begun)


# --- once


async def test_a_second_call_gets_the_first_ones_result(gateway: PaymentGateway) -> None:
    """
    A later try, another worker, another task with the same business key: the stored result, no request.
    """
    charge = charging(gateway)
    async with at_work(charge) as bench:
        first = await ask(bench)
        again = await ask(bench, attempt=2)
    async with at_work(charge) as bench:
        elsewhere = await ask(bench)

    assert first == again == elsewhere
    assert [entry.id for entry in gateway.entries] == ["charges-1"]
    assert gateway.keys == [KEY]


async def test_an_effect_that_is_not_performed_is_logged(gateway: PaymentGateway) -> None:
    """
    With the task that performed it: an id may be used again, after the server has lost or deleted its first task.
    """
    async with at_work(charging(gateway)) as bench:
        with capture_logs() as logs:
            await ask(bench)
            await ask(bench)

    [found] = [log for log in logs if log["event"] == "receipt_found"]
    assert (found["tool"], found["invocation_id"], found["by"]) == ("charge", INVOCATION, TASK)


async def test_callers_at_the_same_moment(gateway: PaymentGateway) -> None:
    """
    Ten tasks, two workers, one business key: one charge, and one result for all.
    """
    charge = charging(gateway)
    async with at_work(charge) as one, at_work(charge) as other:
        results = await asyncio.gather(*(ask(bench, key="A1") for bench in [one, other] * 5))

    assert len(gateway.entries) == 1
    assert all(result == results[0] for result in results)


async def test_other_arguments(gateway: PaymentGateway) -> None:
    """
    The same key for something else is a mistake, and says both fingerprints.
    """
    async with at_work(charging(gateway)) as bench:
        await ask(bench)
        failure = await failed(bench, args={"order": "A1", "cents": 501})

    assert (failure.kind, failure.type) == (PERMANENT, "key_reused")
    assert isinstance(failure.details, dict)
    assert str(failure.details["known"])[:16] in failure.message
    assert str(failure.details["given"])[:16] in failure.message
    assert len(gateway.entries) == 1


async def test_other_arguments_while_the_effect_is_under_way() -> None:
    """
    They are refused at once, by the process that performs the effect, too: waiting would not make them the same.
    """
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="at_most_once")
    async def charge(cents: int) -> str:
        begun.set()
        await go_on.wait()
        return "paid"

    async with at_work(charge) as bench:
        running = asyncio.create_task(ask(bench, args={"cents": 500}))
        await begun.wait()
        async with asyncio.timeout(30):
            failure = await failed(bench, args={"cents": 501})
        go_on.set()
        assert await running == "paid"

    assert (failure.kind, failure.type) == (PERMANENT, "key_reused")


async def test_an_outcome_for_other_arguments_is_not_written_down(ledger_file: Path) -> None:
    """
    It is the outcome of another effect, so the receipt of the first one stays as it is.
    """
    charge, _ = failing(RuntimeError("lost"))
    async with at_work(charge) as bench:
        assert (await failed(bench)).kind is UNKNOWN
        failure = await failed(bench, args={"order": "A1", "cents": 501}, given=Given(outcome={"id": "c9"}))

    assert (failure.kind, failure.type) == (PERMANENT, "key_reused")
    assert receipt(ledger_file).state is ReceiptState.UNKNOWN


async def test_compensate_keeps_receipts_too() -> None:
    """
    What can be undone must not be done twice either.
    """
    calls: list[int] = []

    @tool(effect="idempotent")
    async def refund(order: str) -> None: ...

    @tool(effect="compensate", undo=refund)
    async def charge(order: str) -> int:
        calls.append(1)
        return 7

    asked = Cmd.tool("c", charge, order="A1")
    async with at_work(charge, refund) as bench:
        assert await bench.tool(asked) == 7
        assert await bench.tool(asked, attempt=2) == 7

    assert calls == [1]


@pytest.mark.parametrize("begun", [True, False])
async def test_a_tool_that_is_undone_is_called_by_its_function(ledger_file: Path, begun: bool) -> None:
    """
    A command that names it by a string cannot say how: it is refused before anything has happened, also where another
    command has begun an effect of its key.
    """
    if begun:
        left_behind(ledger_file, {"order": "A1"})

    @tool(effect="idempotent")
    async def refund(order: str) -> None: ...

    @tool(effect="compensate", undo=refund)
    async def charge(order: str) -> int:
        raise AssertionError("it was called")

    async with at_work(charge, refund) as bench:
        failure = await failed(bench, args={"order": "A1"})

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "no_undo")
    assert "call it by its function, `ctx.tool(charge, ...)`" in failure.message


async def test_what_was_undone_is_performed_again_under_another_key(gateway: PaymentGateway) -> None:
    """
    Another task with the same business key pays, once, though the gateway knows the first key.
    """

    @tool(effect="idempotent")
    async def refund(result: dict[str, JsonValue]) -> None: ...

    @tool(effect="compensate", undo=refund, probe=looking(gateway))
    async def charge(order: str, cents: int) -> dict[str, JsonValue]:
        answer = await current().http.post(f"{gateway.address}/charges", json={"order": order, "cents": cents})
        answer.raise_for_status()
        return cast("dict[str, JsonValue]", answer.json())

    asked = Cmd.tool("c", charge, CARGO, key="order-1")
    async with at_work(charge, refund) as bench:
        paid = await bench.tool(asked)
        undoes = Undoes(tool="charge", invocation_id="T/1.1", key="order-1", result=result_hash(paid))
        await bench.tool(CallTool(id="u", name="refund", args={"result": paid}, undoes=undoes))
        again = await bench.tool(asked, task_id="T9")
        assert await bench.tool(asked, task_id="T10") == again

    assert [entry.id for entry in gateway.entries] == ["charges-1", "charges-2"]
    assert again["id"] == "charges-2"


async def test_what_a_person_says_is_what_the_next_caller_gets() -> None:
    """
    The tool is not run. Where a receipt knows better, it counts.
    """
    charge, calls = failing(RuntimeError("lost"))
    asked = Cmd.tool("c", charge, CARGO, key="order-1")
    async with at_work(charge) as bench:
        assert (await failed(bench, key="order-1")).kind is FailureKind.UNKNOWN
        assert await bench.tool(asked, given=Given(outcome={"id": "c9"})) == {"id": "c9"}
        assert await bench.tool(asked, task_id="T9") == {"id": "c9"}
        assert await bench.tool(asked, given=Given(outcome={"id": "no"})) == {"id": "c9"}

    assert calls == [1]


async def test_an_outcome_that_the_tool_cannot_have_is_not_written_down() -> None:
    """
    On a receipt it would stand for good: whoever gave it by mistake is asked again.
    """
    charge, _ = failing(RuntimeError("lost"))
    asked = Cmd.tool("c", charge, CARGO, key="order-1")
    async with at_work(charge) as bench:
        assert (await failed(bench, key="order-1")).kind is FailureKind.UNKNOWN
        with pytest.raises(ApplicationError) as unfit:
            await bench.tool(asked, given=Given(outcome=17))
        assert await bench.tool(asked, given=Given(outcome={"id": "c9"})) == {"id": "c9"}

    assert "the outcome that was given cannot be one of the tool" in str(unfit.value)


# --- after a failure


@pytest.mark.parametrize(
    ("error", "kind", "type", "state"),
    [
        (TryLater("x", unsent=True), TRANSIENT, "try_later", ReceiptState.RELEASED),
        (httpx.ConnectError("x"), TRANSIENT, "connection", ReceiptState.RELEASED),
        (ConnectionRefusedError(), TRANSIENT, "connection", ReceiptState.RELEASED),
        (Never("x"), PERMANENT, "never", ReceiptState.RELEASED),
        (TryLater("x"), UNKNOWN, "outcome_unknown", ReceiptState.UNKNOWN),
        (httpx.ReadTimeout("x"), UNKNOWN, "outcome_unknown", ReceiptState.UNKNOWN),
        (ConnectionResetError(), UNKNOWN, "outcome_unknown", ReceiptState.UNKNOWN),
        (KeyError("a bug"), UNKNOWN, "outcome_unknown", ReceiptState.UNKNOWN),
        (asyncio.CancelledError(), UNKNOWN, "outcome_unknown", ReceiptState.UNKNOWN),
    ],
)
async def test_what_a_failure_leaves_behind(
    ledger_file: Path, error: BaseException, kind: FailureKind, type: str, state: ReceiptState
) -> None:
    """
    Released only where nothing can have happened; then, and only then, the next try calls the tool again.
    """
    charge, calls = failing(error)
    async with at_work(charge) as bench:
        failure = await failed(bench)
        await failed(bench)

    assert (failure.kind, failure.type) == (kind, type)
    assert receipt(ledger_file).state is state
    assert calls == ([1, 2] if state is ReceiptState.RELEASED else [1])


def answered(status: int, method: str = "POST") -> httpx.HTTPStatusError:
    request = httpx.Request(method, "http://gateway/charges")
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("error", "sent", "expected"),
    [
        (answered(422), [], True),
        (answered(403), [422], True),
        (answered(429), [429], True),
        (answered(408), [408], False),
        (answered(409), [409], False),
        (answered(503), [503], False),
        (answered(500), [], False),
        (answered(404, "GET"), [201], False),
        (answered(404, "GET"), [], False),
        (answered(422), [201, 422], False),
        (answered(422), [None, 422], False),
        (httpx.ConnectError("x"), [], True),
        (httpx.ConnectError("x"), [422], True),
        (httpx.ConnectError("x"), [201], False),
        (httpx.ConnectError("x"), [None], False),
        (httpx.ReadTimeout("x"), [None], False),
        (httpx.RemoteProtocolError("x"), [200], False),
        (smtplib.SMTPRecipientsRefused({}), [], True),
        (smtplib.SMTPServerDisconnected("x"), [], False),
        (Never("x"), [201], True),
    ],
)
def test_when_nothing_has_happened(error: Exception, sent: list[int | None], expected: bool) -> None:
    """
    A refusal, or no connection, and nothing else on the way; the author's own word always.
    """
    assert surely_not_done(error, [Sent(method="POST", status=status) for status in sent]) is expected


class Bank:
    """Performs requests, or only refuses them, and counts the writes that it performed.

    A request's header `as` says how it ends: a status, `refused` (no connection) or `silent` (performed, no answer).
    """

    def __init__(self) -> None:
        self.booked = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        how = request.headers["as"]
        if how == "refused":
            raise httpx2.ConnectError("x", request=request)
        self.booked += request.method == "POST" and how not in ("307", "401", "422")
        if how == "silent":
            raise httpx2.ReadTimeout("x", request=request)
        return httpx2.Response(int(how), headers={"Location": "/there"})


sendings = st.tuples(
    st.sampled_from(["POST", "GET"]),
    # The same request may be sent again.
    st.lists(st.sampled_from(["refused", "silent", "200", "307", "401", "422", "503"]), min_size=1, max_size=3),
)


async def error_of(sendings: list[tuple[str, list[str]]], http: httpx2.AsyncClient, wrapped: bool) -> Exception | None:
    """The error of the last request of a tool that does not mind the errors before it."""
    error: Exception | None = None
    for method, ends in sendings:
        request = http.build_request(method, "http://bank/payments")
        for end in ends:
            request.headers["as"] = end
            error = None
            try:
                (await http.send(request)).raise_for_status()
            except httpx2.HTTPError as found:
                error = found
    if error is not None and wrapped:  # as an SDK does
        known, error = error, RuntimeError("the SDK's own")
        error.__cause__ = known
    return error


@given(sendings=st.lists(sendings, min_size=1, max_size=3), wrapped=st.booleans())
@example(sendings=[("POST", ["silent"]), ("GET", ["refused"])], wrapped=False)
@example(sendings=[("POST", ["silent"]), ("POST", ["refused"])], wrapped=True)
@example(sendings=[("POST", ["silent", "refused"])], wrapped=False)
@example(sendings=[("POST", ["503", "422"])], wrapped=False)
@example(sendings=[("POST", ["401", "silent"]), ("GET", ["refused"])], wrapped=False)
async def test_what_counts_as_not_done_is_not_done(sendings: list[tuple[str, list[str]]], wrapped: bool) -> None:
    """
    Whatever a tool sends by the worker's client, and however often: no write that the receiver performed is repeated.
    """
    bank = Bank()
    call = Invocation(task_id="T", invocation_id="T/1.1", idempotency_key="k", attempt=1, http=cast(Any, None))
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(bank)) as http:
        keyed(http)
        with as_current(call):
            error = await error_of(sendings, http, wrapped)

    if error is not None and surely_not_done(error, call.sent or []):
        assert bank.booked == 0


@pytest.mark.parametrize(
    ("sendings", "expected"),
    [
        ([("POST", ["refused"])], True),
        ([("POST", ["422"]), ("POST", ["refused"])], True),
        ([("POST", ["422"]), ("GET", ["refused"])], True),
        ([("GET", ["silent"]), ("POST", ["refused"])], True),
        ([("POST", ["307", "422"])], True),
        ([("POST", ["401", "refused"])], True),
        ([("POST", ["silent"]), ("GET", ["refused"])], False),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
async def test_the_request_that_was_not_sent_is_known(
    sendings: list[tuple[str, list[str]]], expected: bool, wrapped: bool
) -> None:
    """
    Where only refused and unsent requests were on the way, the task may repeat the call; SDKs may wrap the error.
    """
    call = Invocation(task_id="T", invocation_id="T/1.1", idempotency_key="k", attempt=1, http=cast(Any, None))
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(Bank())) as http:
        keyed(http)
        with as_current(call):
            error = await error_of(sendings, http, wrapped)

    assert error is not None
    refused = sendings[-1][1][-1] != "refused"
    # A status is read from the error itself, not from what it was raised from.
    assert surely_not_done(error, call.sent or []) is (expected and not (refused and wrapped))


async def test_what_a_tool_leaves_under_way_sends_nothing_once_it_counts_as_not_done(gateway: PaymentGateway) -> None:
    """
    `asyncio.gather` goes on with the others when one fails: what they send then would be done twice.
    """
    left: list[asyncio.Task[Any]] = []
    refused = asyncio.Event()

    @tool(effect="at_most_once")
    async def charge(order: str, cents: int) -> None:
        async def pay() -> None:
            await refused.wait()
            await current().http.post(f"{gateway.address}/charges", json={"order": order, "cents": cents})

        left.append(asyncio.create_task(pay()))
        raise Never("sold out") if len(left) == 1 else TryLater("busy", unsent=True)

    async with at_work(charge) as bench:
        failures = [(await failed(bench)).kind for _ in range(2)]
        refused.set()
        ends = await asyncio.gather(*left, return_exceptions=True)

    assert failures == [PERMANENT, TRANSIENT]
    assert [type(end) for end in ends] == [RuntimeError] * 2
    assert gateway.entries == []


async def test_a_payment_that_got_no_answer_is_not_repeated_when_the_look_fails(ledger_file: Path) -> None:
    """
    The gateway booked the payment and went down before it answered: the tool looks, finds no connection, and the
    receipt says that nobody knows.
    """
    bank = Bank()

    @tool(effect="at_most_once")
    async def charge() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(bank)) as http:
            keyed(http)
            try:
                await http.post("http://bank/payments", headers={"as": "silent"})
            except httpx2.TimeoutException:
                await http.get("http://bank/payments", headers={"as": "refused"})

    async with at_work(charge) as bench:
        assert (await failed(bench, args={})).type == "outcome_unknown"
        assert (await failed(bench, args={}, attempt=2)).type == "outcome_unknown"

    assert receipt(ledger_file).state is ReceiptState.UNKNOWN
    assert bank.booked == 1


async def test_a_result_that_cannot_be_written(ledger_file: Path) -> None:
    """
    The effect took place, but what it gave is lost: a person decides.
    """

    @tool(effect="at_most_once")
    async def charge() -> int:
        return "seven"  # type: ignore[return-value]

    async with at_work(charge) as bench:
        failure = await failed(bench, args={})

    assert failure.type == "outcome_unknown"
    assert "returned a value of type str" in failure.message
    assert receipt(ledger_file).state is ReceiptState.UNKNOWN


class Stubborn(BaseModel):
    """A value that cannot be written."""

    @model_serializer
    def refuse(self) -> str:
        raise KeyError("no")


async def test_a_result_whose_own_code_fails(ledger_file: Path) -> None:
    """
    Whatever goes wrong after the effect: the receipt says that nobody knows, and the key is not held for ever.
    """

    @tool(effect="at_most_once")
    async def charge() -> Stubborn:
        return Stubborn()

    async with at_work(charge) as bench:
        assert (await failed(bench, args={})).kind is UNKNOWN
        assert (await failed(bench, args={})).kind is UNKNOWN

    assert receipt(ledger_file).state is ReceiptState.UNKNOWN


class Unprintable(Exception):
    """Its text needs an attribute that nobody has set."""

    def __str__(self) -> str:
        return str(self.code)  # type: ignore[attr-defined]


async def test_an_exception_whose_own_code_fails(ledger_file: Path) -> None:
    """
    Whatever class a tool raises: the receipt says that nobody knows, and the key is not held for ever.
    """
    charge, calls = failing(Unprintable())

    async with at_work(charge) as bench:
        assert (await failed(bench, args={})).type == "outcome_unknown"
        assert (await failed(bench, args={})).type == "outcome_unknown"

    assert receipt(ledger_file).state is ReceiptState.UNKNOWN
    assert calls == [1]


async def test_wrong_arguments_begin_nothing(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    They are refused, and no receipt is written.
    """
    async with at_work(charging(gateway)) as bench:
        assert (await failed(bench, args={})).type == "arguments"

    assert Ledger(str(ledger_file)).look(KEY) is None


@pytest.mark.parametrize("done", [True, False])
async def test_what_was_done_before_a_tools_arguments_changed_is_known(ledger_file: Path, done: bool) -> None:
    """
    A worker that was lost may have made the call, before a deployment gave the tool other arguments: its receipt says
    so, and the arguments that fit no more do not count as a sign that nothing was done.
    """

    @tool(effect="at_most_once")
    async def charge(order: str, euros: int) -> str:
        raise AssertionError("it was called")

    left_behind(ledger_file)
    if done:
        Ledger(str(ledger_file)).finish(KEY, 1, "charged")
    async with at_work(charge) as bench:
        if done:
            assert await ask(bench, attempt=2) == "charged"
        else:
            doubt = await failed(bench, attempt=2)
            assert (doubt.kind, doubt.type) == (UNKNOWN, "outcome_unknown")
            refused = await failed(bench, attempt=2, decided=1)
            assert (refused.kind, refused.type) == (PERMANENT, "arguments")
            assert receipt(ledger_file).state is ReceiptState.RELEASED
        assert (await failed(bench, args={"order": "A1"})).type == "arguments", "it is another call"


@pytest.mark.parametrize("then", ["begun", "released", "never", "with other arguments"])
async def test_what_may_have_been_done_before_a_tool_was_removed_is_in_doubt(ledger_file: Path, then: str) -> None:
    """
    A worker that was lost may have made the call, before a deployment removed the tool: a skill that is told that there
    is no such tool takes the effect for one that has not taken place.
    """
    if then != "never":
        left_behind(ledger_file, {"order": "A2"} if then == "with other arguments" else None, key=ONE_KEY)
    if then == "released":
        Ledger(str(ledger_file)).release(ONE_KEY, 1, "no card")
    may_be_done = then == "begun"
    async with at_work() as bench:
        found = await removed(bench, key="A")
        given = await removed(bench, key="A", given=Given(outcome="charged"))

    assert (found.type, found.kind) == ("unknown_tool", UNKNOWN if may_be_done else PERMANENT)
    assert ("may have called it" in found.message) is may_be_done
    assert given.kind is PERMANENT, "a person has said what came of it"


@pytest.mark.parametrize("given", [None, Given(outcome="nothing")])
async def test_what_was_done_before_a_tool_was_removed_is_known(ledger_file: Path, given: Given | None) -> None:
    """
    Its receipt has the result, also where middleware that this worker lacks has changed the arguments.
    """
    left_behind(ledger_file, {"order": "A1, for ada"})
    Ledger(str(ledger_file)).finish(KEY, 1, "charged")
    async with at_work() as bench:
        assert await call_removed(bench, given=given) == "charged"


async def test_what_was_done_within_a_workflow_task_before_a_tool_was_removed_is_known(ledger_file: Path) -> None:
    """
    It is brought from the record, as it is where the tool is there; what is not recorded goes over.
    """
    left_behind(ledger_file)
    Ledger(str(ledger_file)).finish(KEY, 1, [1, 2])
    with Ledger(str(ledger_file)) as ledger:
        async with at_work(ledger=ledger) as bench:
            id = await bench.effects.ledger_id()
            assert await call_removed(bench, ledger=id) == [1, 2]
            info, sent = bench.environment.info, bench.environment.payload_converter.to_payloads([CHARGE])[0].data
            of = (info.activity_type, sent, info.namespace, info.workflow_run_id or "", TASK, INVOCATION)
            Outcomes(ledger).record(Outcomes(ledger).asked(*of), "charged")
            assert await call_removed(bench, ledger=id) == "charged"
            bench.environment.info = replace(info, is_local=True)
            assert (await call_removed(bench, ledger=id))[1] == "charged"
            bench.environment.info = replace(info, is_local=True, activity_id="another")
            with pytest.raises(ApplicationError) as caught:
                await call_removed(bench, ledger=id)
            assert caught.value.type in LEFT


@pytest.mark.parametrize("decided", [True, 1])
async def test_a_removed_tools_call_that_may_be_repeated_fails(ledger_file: Path, decided: int | bool) -> None:
    """
    Once a person has decided that the effect may be performed again, it is in doubt no more: the skill hears that there
    is no such tool, instead of the person, who would be asked for ever.
    """
    left_behind(ledger_file)
    async with at_work() as bench:
        again = [await removed(bench, decided=decided), await removed(bench)]

    assert [one.kind for one in again] == [PERMANENT, PERMANENT]
    assert receipt(ledger_file).state is ReceiptState.RELEASED


async def test_a_removed_tools_call_that_is_under_way_is_not_given_up(ledger_file: Path) -> None:
    """
    Another worker has the tool, and performs the effect: what was decided is not about this attempt.
    """
    left_behind(ledger_file, silent_for=0.0)
    async with at_work() as bench:
        assert (await removed(bench, decided=True)).kind is UNKNOWN

    assert receipt(ledger_file).state is ReceiptState.EXECUTING


async def test_a_ledger_that_cannot_be_is_no_reason_to_hide_that_there_is_no_tool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    A worker whose tools need no ledger starts whatever the setting is.
    """
    monkeypatch.setenv("REFOLD_LEDGER", "mysql://ledger")
    async with at_work() as bench:
        failure = await removed(bench)

    assert (failure.type, failure.kind) == ("unknown_tool", PERMANENT)


CHARGE = CallTool(id="c", name="charge", args=CARGO)


async def call_removed(
    bench: Bench,
    *,
    key: str | None = None,
    decided: int | bool = 0,
    given: Given | None = None,
    ledger: str | None = None,
) -> Any:
    """What a call comes to of a tool that the worker does not have."""
    env = bench.environment
    env.info = replace(env.info, activity_type="tool.charge")
    env.payload_converter = data_converter().payload_converter
    args: list[Any] = [CHARGE.model_copy(update={"key": key}), decided, given]
    sent = env.payload_converter.to_payloads([*args, *([] if ledger is None else [None, ledger])])
    return await env.run(bench.effects.activities[-1], [RawValue(payload) for payload in sent])


async def removed(bench: Bench, **more: Any) -> Failure:
    """How such a call fails."""
    with pytest.raises(ApplicationError) as caught:
        await call_removed(bench, **more)
    return failure_in(caught.value, left=True)


# --- probes


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_probe_cannot_end_its_worker(in_thread: bool) -> None:
    """
    A probe that calls a program's `main()` cannot tell, as one that raises any other exception.
    """

    def left(key: str) -> Done:
        raise SystemExit(2)

    async def left_async(key: str) -> Done:
        raise SystemExit(2)

    charge, _ = failing(RuntimeError("lost"), left if in_thread else left_async)
    async with at_work(charge) as bench:
        failure = await failed(bench)

    assert failure.type == "outcome_unknown"
    assert "its probe failed: RuntimeError: it raised SystemExit(2)" in failure.message


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize("died", [True, False])
async def test_a_probe_that_cancels_itself_cannot_tell(ledger_file: Path, in_thread: bool, died: bool) -> None:
    """
    As one whose client has given up a request for all who waited for it: the task wants the call as before, and no
    failure says that nothing was done.
    """

    def gave_up(key: str) -> Done:
        raise asyncio.CancelledError

    async def gave_up_async(key: str) -> Done:
        request: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        request.cancel()
        return await request

    if died:
        left_behind(ledger_file)
    charge, calls = failing(RuntimeError("lost"), gave_up if in_thread else gave_up_async)
    async with at_work(charge) as bench:
        failure = await failed(bench)

    assert (failure.kind, failure.type) == (UNKNOWN, "outcome_unknown")
    assert "its probe failed: " in failure.message
    assert receipt(ledger_file).state is ReceiptState.UNKNOWN
    assert calls == ([] if died else [1])


@pytest.mark.parametrize("honours", [True, False])
async def test_an_answer_that_is_lost(gateway: PaymentGateway, careless: PaymentGateway, honours: bool) -> None:
    """
    The gateway performs and cuts the connection: the probe finds the charge, whether the gateway knows keys or not.
    """
    asked = gateway if honours else careless
    asked.lose(1)
    async with at_work(charging(asked, looking(asked))) as bench:
        result = await ask(bench)
        again = await ask(bench, attempt=2)

    assert [entry.order for entry in asked.entries] == ["A1"]
    assert result == again
    assert result["id"] == "charges-1"


async def test_an_answer_that_is_lost_without_a_probe(careless: PaymentGateway) -> None:
    """
    Nobody can tell, so a person is asked, and the tool is not called again.
    """
    careless.lose(1)
    async with at_work(charging(careless)) as bench:
        failure = await failed(bench)
        again = await failed(bench, attempt=2)

    assert failure.kind is again.kind is UNKNOWN
    assert "the tool has no probe" in failure.message
    assert failure.details == {"fence": 1, "key": KEY, "cause": "connection"}
    assert len(careless.entries) == 1


async def test_with_idempotent_such_a_gateway_charges_twice(careless: PaymentGateway, gateway: PaymentGateway) -> None:
    """
    The limit of keys: they help only with a receiver that knows them.
    """
    for asked in (careless, gateway):
        asked.lose(1)

        @tool(effect="idempotent")
        async def charge(order: str, cents: int, asked: str = asked.address) -> None:
            await current().http.post(f"{asked}/charges", json={"order": order, "cents": cents})

        async with at_work(charge) as bench:
            assert (await failed(bench)).kind is TRANSIENT
            await ask(bench)

    assert len(careless.entries) == 2
    assert len(gateway.entries) == 1


async def test_a_gateway_that_is_down_for_a_moment(gateway: PaymentGateway) -> None:
    """
    After a 503 the probe says that nothing happened: the task tries later, and that try performs.
    """
    gateway.fail(503, retry_after="7")
    async with at_work(charging(gateway, looking(gateway))) as bench:
        failure = await failed(bench)
        await ask(bench)

    assert (failure.kind, failure.type, failure.retry_after) == (TRANSIENT, "http_503", 7)
    assert len(gateway.entries) == 1


@pytest.mark.parametrize("performed", [True, False])
async def test_a_worker_that_died(ledger_file: Path, gateway: PaymentGateway, performed: bool) -> None:
    """
    Between effect and receipt, or before the effect: the probe settles it, and there is one charge.
    """
    left_behind(ledger_file)
    if performed:
        gateway.entries.append(Moved(id="charges-1", kind="charges", key=KEY, order="A1", cents=500))
    async with at_work(charging(gateway, looking(gateway))) as bench:
        result = await ask(bench, attempt=2)

    assert len(gateway.entries) == 1
    assert result["key"] == KEY
    assert receipt(ledger_file).fence == (1 if performed else 2)


@pytest.mark.parametrize("known", [False, True], ids=["no receipt", "released"])
@pytest.mark.parametrize(
    ("looks", "performed", "entries"),
    [(True, True, 1), (True, False, 1), (False, False, 0)],
    ids=["found", "not found", "no probe"],
)
async def test_an_effect_that_another_ledger_may_know(
    ledger_file: Path, gateway: PaymentGateway, beside: Beside, looks: bool, performed: bool, entries: int, known: bool
) -> None:
    """
    A worker with another ledger may have made the first attempt, or the one after the effect was released here: the
    probe settles it. Without a probe nothing is repeated, and the task asks for a while, since that worker may answer.
    """
    if known:
        before = Ledger(str(ledger_file))
        before.begin(before.ask(KEY, "charge", CARGO))
        before.release(KEY, 1)
    beside("4711@there~0dd0dd")
    if performed:
        gateway.entries.append(Moved(id="charges-1", kind="charges", key=KEY, order="A1", cents=500))
    async with at_work(charging(gateway, looking(gateway) if looks else None)) as bench:
        if looks:
            assert (await ask(bench, attempt=2))["key"] == KEY
        else:
            failures = [await failed(bench, attempt=attempt) for attempt in (2, 1)]
            assert [(one.kind, one.type, one.again_s) for one in failures] == [
                (UNKNOWN, "outcome_unknown", OTHERS_S)
            ] * 2
            assert "a worker with another ledger, such as 4711@there~0dd0dd" in failures[1].message

    assert len(gateway.entries) == entries


@pytest.mark.parametrize(
    ("looks", "performed"), [(True, True), (True, False), (False, False)], ids=["found", "not found", "no probe"]
)
async def test_an_effect_that_a_person_repeats_once_its_receipt_is_gone(
    gateway: PaymentGateway, looks: bool, performed: bool
) -> None:
    """
    As after a move to a new ledger: the attempt that the person means was made, so the probe is asked before it is
    repeated. Without a probe the person's decision counts.
    """
    if performed:
        gateway.entries.append(Moved(id="charges-1", kind="charges", key=KEY, order="A1", cents=500))
    asked = []

    def look(key: str) -> Any:
        asked.append(key)
        return looking(gateway)(key)

    async with at_work(charging(gateway, look if looks else None)) as bench:
        assert (await ask(bench, decided=2))["key"] == KEY

    assert (len(gateway.entries), len(asked)) == (1, int(looks))


@pytest.mark.parametrize("attempt", [1, 2])
async def test_an_effect_that_no_other_ledger_can_know(
    ledger_file: Path, gateway: PaymentGateway, beside: Beside, attempt: int
) -> None:
    """
    It is the first attempt; or no worker that may have made the former one has another ledger, or any.
    """
    store = store_of(str(ledger_file))
    store.adopt("0dd0dd" + "0" * 18)
    others = ("4711@there~0dd0dd", marked("4712@here", store.identity()), "4713@without", "4714~alice@laptop")
    beside(*others, *(["4715@there~1dd1dd"] if attempt == 1 else []))

    async with at_work(charging(gateway)) as bench:
        result = await ask(bench, attempt=attempt)

    assert (len(gateway.entries), result["key"]) == (1, KEY)


async def test_an_attempt_that_was_released_here_was_made_nowhere_else(
    ledger_file: Path, gateway: PaymentGateway, beside: Beside
) -> None:
    """
    Where the service refuses the first attempt, nobody is asked about it, whoever else has polled the task queue.
    """
    ledger = Ledger(str(ledger_file))
    ledger.begin(ledger.ask(KEY, "charge", CARGO, invocation_id=INVOCATION))
    ledger.release(KEY, 1)
    beside("4711@there~0dd0dd")

    async with at_work(charging(gateway)) as bench:
        assert (await ask(bench, attempt=2))["key"] == KEY
    assert len(gateway.entries) == 1


async def test_a_ledger_is_asked_once_for_each_mark(
    ledger_file: Path, gateway: PaymentGateway, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However many workers have it: a lost worker leaves many effects, each of which is looked at.
    """
    ledger = Ledger(str(ledger_file))
    own, asked = ledger.store.identity(), list[str]()

    def is_marked(mark: str) -> bool:
        asked.append(mark)
        return True

    monkeypatch.setattr(ledger.store, "is_marked", is_marked)
    beside(*(marked(f"{number}@host", own) for number in range(50)))

    async with at_work(charging(gateway), ledger=ledger) as bench:
        await ask(bench, attempt=2)

    assert asked == [own[:6]]


@pytest.mark.parametrize("by", ["4711@host", "host~", "", "web~0dd0dd"])
def test_the_mark_of_a_ledger(by: str) -> None:
    """
    It is read as it was written, and leaves what the program calls its worker whole: no two have one identity.
    """
    for id in ("0123456789abcdef01234567", "fedcba9876543210fedcba98"):
        identity = marked(by, id)
        assert (identity, mark_in(identity)) == (f"{by}~{id[:6]}", id[:6])


@pytest.mark.parametrize("by", ["4711@host", "host~", "", "web~0dd0d", "web~0dd0dd~"])
def test_an_identity_without_a_mark(by: str) -> None:
    """
    It is of a worker without a ledger, or of an earlier release.
    """
    assert mark_in(by) == ""


def cannot_tell(key: str) -> Unknown:
    return Unknown("the gateway keeps no list")


def broken(key: str) -> Unknown:
    raise ConnectionRefusedError


def talkative(key: str) -> Any:
    return {"done": True}


def unwritable(key: str) -> Done:
    return Done(object())


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (None, "the tool has no probe"),
        (cannot_tell, "the gateway keeps no list"),
        (broken, "its probe failed: the connection failed"),
        (talkative, "its probe answered dict"),
        (unwritable, "its probe failed"),
    ],
)
async def test_a_doubt_that_no_probe_settles(
    ledger_file: Path, gateway: PaymentGateway, probe: Callable[[str], Any] | None, said: str
) -> None:
    """
    A person is asked; the message says since when, for whom, and why the probe was no help.
    """
    left_behind(ledger_file)
    async with at_work(charging(gateway, probe)) as bench:
        failure = await failed(bench)

    assert failure.kind is UNKNOWN
    assert said in failure.message
    assert "fell silent (begun 20" in failure.message
    assert "for task T0" in failure.message
    assert gateway.entries == []


@pytest.mark.parametrize(("performed", "tells"), [(True, True), (False, True), (False, False)])
async def test_a_decision_to_repeat_asks_the_probe_first(
    ledger_file: Path, gateway: PaymentGateway, performed: bool, tells: bool
) -> None:
    """
    What the probe finds counts; where it cannot tell, the person's word does.
    """
    left_behind(ledger_file)
    if performed:
        gateway.entries.append(Moved(id="charges-1", kind="charges", key=KEY, order="A1", cents=500))
    async with at_work(charging(gateway, looking(gateway) if tells else cannot_tell)) as bench:
        result = await ask(bench, decided=1)

    assert (len(gateway.entries), result["key"]) == (1, KEY)
    assert receipt(ledger_file).fence == (1 if performed else 2)


async def test_a_probe_sends_no_key(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    What it asks is none of the effect's requests, though it knows the call.
    """
    seen: list[str] = []

    async def probe(key: str) -> NotDone:
        await current().http.post(f"{gateway.address}/voids", json={"order": "A1", "cents": 0})
        seen.append(current().invocation_id)
        return NotDone()

    left_behind(ledger_file)
    async with at_work(charging(gateway, probe)) as bench:
        await ask(bench)

    assert seen == [INVOCATION]
    assert gateway.keys == [None, KEY]


@pytest.mark.parametrize(
    ("effect", "probe", "said"),
    [
        ("idempotent", cannot_tell, "probe= goes with"),
        ("at_most_once", lambda: None, "must take one argument"),
    ],
)
def test_a_probe_that_cannot_be(effect: str, probe: Any, said: str) -> None:
    """
    Found when the tool is defined.
    """
    with pytest.raises(DefinitionError, match=said):

        @tool(effect=effect, probe=probe)
        async def charge() -> None: ...


# --- a person's decision


async def test_a_person_says_repeat_it(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    The decision is about one try: it is performed again, and a doubt about that one is asked about anew.
    """
    charge = charging(gateway)
    gateway.fail(500, 500, 500)
    async with at_work(charge) as bench:
        assert (await failed(bench)).details == {"fence": 1, "key": KEY, "cause": "http_500"}
        assert (await failed(bench, decided=1)).details == {"fence": 2, "key": KEY, "cause": "http_500"}
        assert (await failed(bench, decided=1, attempt=2)).kind is UNKNOWN
        assert len(gateway.keys) == 2, "the old decision was not taken for a new one"
        assert (await failed(bench, decided=True, attempt=2)).kind is UNKNOWN
        assert len(gateway.keys) == 2, "nor one that says not which try it means, after a worker was lost"
        assert (await failed(bench, decided=True)).details == {"fence": 3, "key": KEY, "cause": "http_500"}
        await ask(bench, decided=3)

    assert len(gateway.entries) == 1
    assert receipt(ledger_file).state is ReceiptState.DONE


async def test_a_decision_to_repeat_counts_where_the_probe_cannot_tell(
    ledger_file: Path, gateway: PaymentGateway
) -> None:
    """
    The person has looked, and the probe is no help: it is performed.
    """
    left_behind(ledger_file)
    async with at_work(charging(gateway, cannot_tell)) as bench:
        result = await ask(bench, decided=True)

    assert (len(gateway.entries), result["key"]) == (1, KEY)
    assert receipt(ledger_file).fence == 2


@pytest.mark.parametrize(("probe", "again"), [(None, False), (cannot_tell, True), (broken, True)])
async def test_a_probe_that_cannot_tell_is_asked_again_before_a_person_is(
    ledger_file: Path, gateway: PaymentGateway, probe: Callable[[str], Any] | None, again: bool
) -> None:
    """
    The failure says for how long the task asks again; without a probe nothing more will be known.
    """
    left_behind(ledger_file)
    async with at_work(charging(gateway, probe)) as bench:
        failure = await failed(bench)

    assert failure.again_s == (ASKED_AGAIN_S if again else 0)


# --- the ledger is not there


async def begun_to_wait(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A call that has found out that the ledger is unavailable."""
    with capture_logs() as logs:
        waiting = asyncio.create_task(call)
        while "ledger_awaited" not in [log["event"] for log in logs]:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0)
    return waiting


async def test_without_a_ledger_nothing_begins(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    The call waits, and performs the effect once the ledger is back.
    """
    missing = Ledger(str(ledger_file.parent / "disk" / "ledger.db"))
    async with at_work(charging(gateway), ledger=missing) as bench:
        waiting = await begun_to_wait(ask(bench))
        assert gateway.keys == []
        (ledger_file.parent / "disk").mkdir()
        await waiting

    assert len(gateway.entries) == 1


async def test_an_outcome_that_a_person_gives_waits_for_the_ledger(ledger_file: Path) -> None:
    """
    Later callers get it from the receipt, so that the task does not go on before it is written.
    """
    charge, calls = failing(RuntimeError("lost"))
    missing = Ledger(str(ledger_file.parent / "disk" / "ledger.db"))
    async with at_work(charge, ledger=missing) as bench:
        waiting = await begun_to_wait(ask(bench, given=Given(outcome={"id": "c9"})))
        (ledger_file.parent / "disk").mkdir()
        assert await waiting == {"id": "c9"}
        assert await ask(bench) == {"id": "c9"}

    assert calls == []


async def test_a_call_that_waits_for_the_ledger_can_be_canceled(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    Nothing was begun, so that nothing is in doubt.
    """
    missing = Ledger(str(ledger_file.parent / "disk" / "ledger.db"))
    async with at_work(charging(gateway), ledger=missing) as bench:
        waiting = await begun_to_wait(ask(bench))
        bench.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert gateway.keys == []


# --- time limits, cancellation, stalls


async def test_a_thread_that_goes_on_after_its_time(ledger_file: Path) -> None:
    """
    The outcome is unknown, also for the next try, which waits; the task asks again, and gets the thread's late result.
    """
    go_on = threading.Event()
    calls: list[int] = []

    @tool(effect="at_most_once", timeout_s=0.05)
    def charge() -> str:
        calls.append(1)
        assert go_on.wait(60)
        return "late"

    async with at_work(charge, ledger=Ledger(str(ledger_file), lease_s=0.2)) as bench:
        failure = await failed(bench, args={})
        waiting = await failed(bench, args={}, attempt=2)
        go_on.set()
        await asyncio.to_thread(until_done, ledger_file)
        assert await ask(bench, args={}, attempt=3) == "late"

    assert (failure.kind, failure.type, failure.again_s) == (UNKNOWN, "outcome_unknown", ASKED_AGAIN_S)
    assert failure.details == {"fence": 1, "key": KEY, "cause": "timeout"}
    assert "did not end within its own timeout_s of 0.05 s" in failure.message
    assert (waiting.kind, waiting.type, waiting.again_s) == (UNKNOWN, "outcome_unknown", ASKED_AGAIN_S)
    assert waiting.details == {"key": KEY, "cause": "in_progress"}
    assert calls == [1]


async def test_the_lease_of_a_lost_worker_is_waited_for(ledger_file: Path) -> None:
    """
    A time limit that is shorter than the lease does not end the wait: the probe is asked, and says what happened.
    """

    async def charged(key: str) -> Done:
        return Done("c1")

    @tool(effect="at_most_once", timeout_s=0.01, probe=charged)
    async def charge() -> str:
        raise AssertionError("it took place already")

    left_behind(ledger_file, {}, silent_for=0, lease_s=0.4)
    async with at_work(charge, ledger=Ledger(str(ledger_file), lease_s=0.4)) as bench:
        assert await ask(bench, args={}) == "c1"


async def test_a_try_that_the_server_gave_up_goes_on(ledger_file: Path) -> None:
    """
    The worker stood still and came back: the effect is not cut short, and the next try gets its result.
    """
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(effect="at_most_once")
    async def charge() -> str:
        begun.set()
        await go_on.wait()
        return "paid"

    async with at_work(charge) as bench:
        stalled = asyncio.create_task(ask(bench, args={}))
        await begun.wait()
        bench.environment.cancel(cancellation_details=ActivityCancellationDetails(not_found=True))
        next_try = asyncio.create_task(ask(bench, args={}, attempt=2))
        await asyncio.sleep(0)
        go_on.set()

        assert await next_try == "paid"
        assert await stalled == "paid"

    assert receipt(ledger_file).fence == 1


async def test_a_cancellation_leaves_a_doubt(ledger_file: Path) -> None:
    """
    Whoever wants the effect later is told that nobody knows; one that was not begun is not in doubt.
    """
    begun = asyncio.Event()

    @tool(effect="at_most_once")
    async def charge() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with at_work(charge) as bench:
        running = asyncio.create_task(ask(bench, args={}))
        await begun.wait()
        bench.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
        with pytest.raises(asyncio.CancelledError):
            await running

        assert receipt(ledger_file).state is ReceiptState.UNKNOWN
        assert (await failed(bench, args={})).kind is UNKNOWN


async def test_a_cancellation_while_waiting(ledger_file: Path, gateway: PaymentGateway) -> None:
    """
    Somebody else performs it: whoever waits for that can be canceled, and leaves no trace.
    """
    left_behind(ledger_file, silent_for=0)
    async with at_work(charging(gateway)) as bench:
        waiting = asyncio.create_task(ask(bench))
        await asyncio.sleep(0.05)
        bench.environment.cancel(cancellation_details=ActivityCancellationDetails(cancel_requested=True))
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert receipt(ledger_file).state is ReceiptState.EXECUTING
    assert gateway.entries == []


class Repeating:
    """Middleware of activity scope that calls its step again, as often as it fails."""

    steps = ("tool",)

    def __init__(self, times: int) -> None:
        self.times = times

    def wrap(self, step: Any) -> Any:
        async def stream(turn: Any, emit: Callable[[Any], None]) -> Any:
            for _ in range(self.times):
                with suppress(Exception):
                    return await step.stream(turn, emit)
            return await step.stream(turn, emit)

        return SimpleNamespace(kind=step.kind, stream=stream)


@asynccontextmanager
async def repeating(tool: Callable[..., Any], times: int = 1) -> AsyncIterator[Bench]:
    async with Effects(
        [tool], middleware={ActivityEnvironment().info.workflow_type or "": [Repeating(times)]}
    ) as effects:
        yield Bench(effects)


async def test_a_call_that_middleware_repeats_has_the_same_key(gateway: PaymentGateway) -> None:
    """
    The receiver recognises an effect whose answer was lost, whoever repeats the call.
    """

    @tool(effect="idempotent")
    async def charge(order: str, cents: int) -> str:
        answer = await current().http.post(f"{gateway.address}/charges", json={"order": order, "cents": cents})
        return str(answer.json()["id"])

    gateway.lose(1)
    async with repeating(charge) as bench:
        assert await ask(bench) == "charges-1"

    assert gateway.keys == [KEY, KEY]
    assert len(gateway.entries) == 1


async def test_a_probe_finds_what_a_call_did_that_middleware_has_repeated(
    gateway: PaymentGateway, ledger_file: Path
) -> None:
    """
    The probe asks for the key of the repeated call, and nothing is charged again.
    """
    gateway.fail(422)
    gateway.lose(1)
    async with repeating(charging(gateway, looking(gateway))) as bench:
        assert (await ask(bench))["id"] == "charges-1"

    assert gateway.keys == [KEY, KEY]
    assert receipt(ledger_file).state is ReceiptState.DONE


async def test_a_person_decides_for_one_repetition(ledger_file: Path) -> None:
    """
    Middleware that calls the tool again does not repeat the effect once more in the person's name.
    """
    left_behind(ledger_file)
    charge, calls = failing(RuntimeError("no answer"))
    async with repeating(charge) as bench:
        assert (await failed(bench, decided=True)).type == "outcome_unknown"

    assert calls == [2]


async def test_a_thread_that_ran_out_of_time_keeps_no_repeated_call_from_beginning() -> None:
    """
    What told the first call to stop does not tell the second one.
    """
    stopped: list[bool] = []

    @tool(effect="idempotent", timeout_s=0.2)
    def charge(order: str, cents: int) -> str:
        stopped.append(current().cancelled)
        if len(stopped) == 1:
            time.sleep(0.4)
        return "charged"

    async with repeating(charge) as bench:
        assert await ask(bench) == "charged"

    assert stopped == [False, False]
