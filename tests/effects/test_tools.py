"""Tools: checked when they are registered, checked when they are called, run as their policy says."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError

from refold import DefinitionError, tool
from refold.core.commands import CallTool
from refold.core.retry_policy import FailureKind
from refold.effects import Invocation, as_current, current
from refold.effects.activities import Effects
from refold.effects.http.client import HttpClient
from refold.effects.http.keys import wire_key
from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.receipts import Finished, InProgress, ReceiptState
from refold.effects.threads import Threads
from refold.effects.tools import WAITED_S, tools_of
from tests.effects.conftest import INVOCATION, TASK, Bench, failure_in


class Order(BaseModel):
    """What is ordered."""

    article: str = Field(alias="Article")
    price: Decimal = Decimal("1.50")


@tool(effect="read_only")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="idempotent")
async def place(order: Order, on: date, json: Annotated[str, Field(description="a field's name")] = "") -> Order:
    assert isinstance(order, Order)
    assert on == date(2026, 1, 2)
    return order


@tool(effect="read_only", name="who")
def who_sync() -> dict[str, Any]:
    call = current()
    thread = threading.current_thread().name
    return {"id": call.invocation_id, "key": call.idempotency_key, "task": call.task_id, "thread": thread[:11]}


@tool(effect="read_only")
async def who_async() -> str:
    return current().invocation_id


@tool(effect="read_only")
def nothing() -> None: ...


@tool(effect="read_only")
def undeclared(x: str):  # type: ignore[no-untyped-def]
    return {"x": x}


@tool(effect="read_only")
def liar() -> int:
    return "seven"  # type: ignore[return-value]


@tool(effect="read_only")
def opaque() -> object:
    return object()


@tool(effect="read_only")
def bare() -> list[Order]:
    return [Order.model_construct(article="A1", price="much")]  # type: ignore[arg-type] # a mistake that pydantic allows


@tool(effect="read_only")
def raw() -> bytes:
    return b"\xff"


@tool(effect="at_least_once", timeout_s=0.01)
async def slow() -> None:
    await asyncio.Event().wait()


async def call(function: Callable[..., Any], key: str | None = None, *, attempt: int = 1, **args: Any) -> Any:
    (name,) = tools_of([function])
    async with Effects([function]) as effects:
        return await Bench(effects).tool(CallTool(id="t", name=name, args=args, key=key), attempt=attempt)


@pytest.mark.parametrize(
    ("function", "args", "result"),
    [
        (add, {"a": 1}, 3),
        (add, {"a": 1, "b": 1}, 2),
        (
            place,
            {"order": {"Article": "tea"}, "on": "2026-01-02", "json": "x"},
            {"Article": "tea", "price": "1.50"},
        ),
        (nothing, {}, None),
        (undeclared, {"x": "y"}, {"x": "y"}),
        (who_async, {}, INVOCATION),
    ],
)
async def test_a_tool_is_called_with_typed_values(function: Any, args: dict[str, Any], result: Any) -> None:
    """
    JSON in, the declared types inside, JSON out.
    """
    assert await call(function, **args) == result


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "a: Field required; its arguments are: a, b"),
        ({"a": 1, "c": 2}, "c: Extra inputs are not permitted"),
        ({"a": "one"}, "a: Input should be a valid integer"),
        ({"a": "12"}, "a: Input should be a valid integer"),
        ({"a": True}, "a: Input should be a valid integer"),
        ({"a": 12.5}, "a: Input should be a valid integer"),
    ],
)
async def test_wrong_arguments(args: dict[str, Any], said: str) -> None:
    """
    The failure names the arguments, and the tool is not called.
    """
    with pytest.raises(ApplicationError) as caught:
        await call(add, **args)

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "arguments")
    assert said in failure.message


@pytest.mark.parametrize("declared", [Any, dict, dict[str, Any], dict[str, float], None])
def test_a_number_that_json_does_not_have_is_kept_by_its_name(declared: Any) -> None:
    """
    Whatever type is declared, or none.
    """

    def measure() -> Any:
        return None

    measure.__annotations__ = {} if declared is None else {"return": declared}
    made = tools_of([tool(effect="read_only")(measure)])["measure"]

    assert made.as_json({"mean": float("nan"), "most": float("inf")}) == {"mean": "NaN", "most": "Infinity"}


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (liar, "'liar' returned a value of type str, which cannot be written as int: expected `int`, got str;"),
        (opaque, "'opaque' returned a value of type object, .* as object: Unable to serialize unknown type:"),
        (bare, r"of type list, .* as list\[.*Order\]: price: expected `decimal`;"),
        (raw, "as bytes: bytes that are no UTF-8; keep them as `pydantic.Base64Bytes`;"),
    ],
)
async def test_a_result_that_is_not_what_was_declared(function: Any, named: str) -> None:
    """
    A tool that breaks its own declaration fails, once, and the failure says where.
    """
    with pytest.raises(ApplicationError, match=named) as caught:
        await call(function)

    assert failure_in(caught.value).type == "result"


async def test_a_tool_knows_who_asks() -> None:
    """
    Invocation, task and key are the same on every try; a plain `def` learns them in its own thread.
    """
    told = await call(who_sync)
    business = await call(who_sync, key="refund:A1")

    assert told == {
        "id": INVOCATION,
        "task": TASK,
        "thread": "refold-tool",
        "key": wire_key(namespace="ns", tool="who", key=INVOCATION),
    }
    assert business["key"] == wire_key(namespace="ns", tool="who", key="refund:A1")


async def test_outside_a_tool_there_is_nobody() -> None:
    """
    The error says how to serve a call in a test.
    """
    with pytest.raises(RuntimeError, match="as_current"):
        current()

    async with Effects() as effects:
        invocation = Invocation(
            task_id="t", invocation_id="t/1.1", idempotency_key="k", attempt=1, http=effects.open.http
        )
        with as_current(invocation):
            assert current().invocation_id == "t/1.1"


async def test_a_tool_has_its_own_time_limit() -> None:
    """
    Taking too long is a reason to try later.
    """
    with pytest.raises(ApplicationError) as caught:
        await call(slow)

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.TRANSIENT, "timeout")
    assert failure.message.startswith("tool 'slow' did not end within its own timeout_s of 0.01 s; ")


async def test_a_timeout_inside_a_tool_is_not_its_time_limit() -> None:
    """
    As of a receiver that does not answer: the tool's own limit is not blamed.
    """

    @tool(effect="read_only")
    async def impatient() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(ApplicationError) as caught:
        await call(impatient)

    assert (failure_in(caught.value).type, failure_in(caught.value).message) == ("timeout", "no answer in time")


# --- cancellation


async def test_cancellation_reaches_an_async_tool() -> None:
    """
    It is cancelled at its await, and the cancellation leaves as one.
    """
    begun, seen = asyncio.Event(), []

    @tool(effect="at_most_once")
    async def wait() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with Effects([wait]) as effects:
        bench = Bench(effects)
        running = asyncio.create_task(bench.tool(CallTool(id="t", name="wait")))
        await begun.wait()
        bench.environment.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert seen == ["cancelled"]


@pytest.mark.parametrize("finishes", [True, False])
async def test_cancellation_reaches_a_sync_tool(finishes: bool) -> None:
    """
    It sees the flag. What it had done by then is the truth: a result counts, and anything else is a cancellation.
    """
    begun = threading.Event()

    @tool(effect="at_most_once")
    def wait() -> str:
        begun.set()
        assert current().stop.wait(60)
        assert current().cancelled
        if finishes:
            return "done after all"
        raise RuntimeError("stopped half way")

    async with Effects([wait]) as effects:
        bench = Bench(effects)
        running = asyncio.create_task(bench.tool(CallTool(id="t", name="wait")))
        await asyncio.to_thread(begun.wait)
        bench.environment.cancel()
        if finishes:
            assert await running == "done after all"
        else:
            with pytest.raises(asyncio.CancelledError):
                await running


async def test_a_sync_tool_that_takes_too_long_is_left_to_itself() -> None:
    """
    It is told to stop, and the task hears of the timeout at once.
    """
    stopped = threading.Event()

    @tool(effect="read_only", timeout_s=0.01)
    def endless() -> None:
        current().stop.wait(60)
        stopped.set()

    with pytest.raises(ApplicationError) as caught:
        await call(endless)

    assert failure_in(caught.value).type == "timeout"
    assert "tool 'endless' did not end within its own timeout_s of 0.01 s" in failure_in(caught.value).message
    assert await asyncio.to_thread(stopped.wait, 60)


@asynccontextmanager
async def full_house(*tools: Callable[..., Any]) -> AsyncIterator[tuple[Bench, threading.Event]]:
    """A worker whose only thread is busy until the event is set; then it is free once the block ends."""
    busy, go_on = threading.Event(), threading.Event()

    @tool(effect="read_only")
    def occupy() -> None:
        busy.set()
        assert go_on.wait(60)

    async with Effects([occupy, *tools], threads=1) as effects:
        occupied = asyncio.create_task(Bench(effects).tool(CallTool(id="o", name="occupy"), task_id="another"))
        await asyncio.to_thread(busy.wait)
        try:
            yield Bench(effects), go_on
        finally:
            go_on.set()
            await occupied


def paying(effect: str, timeout_s: float = 600.0) -> tuple[Callable[..., Any], list[int]]:
    """A tool that pays in a thread, and its calls so far."""
    paid: list[int] = []

    @tool(effect=effect, timeout_s=timeout_s)
    def pay() -> str:
        paid.append(current().fence)
        return "paid"

    return pay, paid


PAY = CallTool(id="p", name="pay")


@pytest.mark.parametrize(
    "why",
    [
        pytest.param(ActivityCancellationDetails(cancel_requested=True), id="unwanted"),
        pytest.param(ActivityCancellationDetails(worker_shutdown=True), id="leaving"),
        pytest.param(ActivityCancellationDetails(not_found=True, timed_out=True), id="timed-out"),
    ],
)
@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_a_call_that_waits_for_a_thread_never_begins_once_it_is_canceled(
    effect: str, why: ActivityCancellationDetails
) -> None:
    """
    It is withdrawn at once, its receipt is released, and a later call performs the effect as if this one never was.
    """
    pay, paid = paying(effect)
    async with full_house(pay) as (bench, go_on):
        waiting = asyncio.create_task(bench.tool(PAY))
        while not bench.waits_for_a_thread:  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0)
        bench.environment.cancel(cancellation_details=why)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()

        assert await bench.tool(PAY) == "paid"

    assert len(paid) == 1


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_a_call_that_is_canceled_while_it_asks_whether_it_is_wanted_never_begins(
    effect: str, ledger_file: Path
) -> None:
    """
    The server may answer late, or not at all: the cancellation that came meanwhile is the newer word.
    """
    pay, paid = paying(effect)
    threads, busy, go_on = Threads(1, "test"), threading.Event(), threading.Event()
    asking, answer = asyncio.Event(), asyncio.Event()

    def occupy() -> bool:
        busy.set()
        return go_on.wait(60)

    async def wanted() -> bool:
        asking.set()
        await answer.wait()
        return True

    async with HttpClient() as http:
        with Ledger(str(ledger_file)) as ledger:
            call = Invocation(task_id=TASK, invocation_id=INVOCATION, idempotency_key="k", attempt=1, http=http)
            occupied = threads.submit(occupy)
            await asyncio.to_thread(busy.wait)
            waiting = asyncio.create_task(tools_of([pay])["pay"].call(PAY, call, threads, ledger, wanted=wanted))
            while not threads.waiting:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0)
            await asyncio.sleep(2 * WAITED_S)
            go_on.set()
            await asking.wait()
            waiting.cancel()
            while not call.cancelled:  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0)
            answer.set()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            receipt = ledger.look("k")

    assert occupied.result()
    assert paid == []
    assert (receipt and receipt.state) == (ReceiptState.RELEASED if effect == "at_most_once" else None)


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_the_time_limit_begins_with_the_tool(effect: str) -> None:
    """
    A wait for a thread that is longer than the limit is no timeout, and the effect is performed once.
    """
    pay, paid = paying(effect, timeout_s=1.0)
    async with full_house(pay) as (bench, go_on):
        waiting = asyncio.create_task(bench.tool(PAY))
        await asyncio.wait([waiting], timeout=1.1)
        assert not waiting.done()
        go_on.set()
        assert await waiting == "paid"

    assert len(paid) == 1


async def test_what_waits_for_a_thread_when_the_worker_is_closed_never_begins() -> None:
    """
    The thread that becomes free takes no more calls.
    """
    threads, begun, go_on = Threads(1, "test"), threading.Event(), threading.Event()

    def occupy() -> str:
        begun.set()
        assert go_on.wait(60)
        return "done"

    running, waiting = threads.submit(occupy), threads.submit(lambda: "begun")
    begun.wait()
    threads.close()
    go_on.set()

    assert running.result(60) == "done"
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(occupy)


def no_thread(_: threading.Thread) -> None:
    """In place of `Thread.start`, where the system has no more of them."""
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_a_call_for_which_no_thread_starts_never_begins(effect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is refused, so it must not run later either, beside the retry; and its receipt is released.
    """
    pay, paid = paying(effect)
    async with Effects([pay]) as effects:
        bench = Bench(effects)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(ApplicationError) as caught:
                await bench.tool(PAY)
        assert failure_in(caught.value).type == "not_begun"

        assert await bench.tool(PAY) == "paid"
        assert len(paid) == 1


def test_a_call_for_which_no_other_thread_starts_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A host at its limit of threads goes on with those that it has.
    """
    threads, go_on = Threads(2, "test"), threading.Event()
    first = threads.submit(lambda: go_on.wait(60))
    monkeypatch.setattr(threading.Thread, "start", no_thread)

    second = threads.submit(lambda: "done")
    go_on.set()

    assert first.result(60)
    assert second.result(60) == "done"


@pytest.mark.parametrize("effect", ["idempotent", "at_most_once"])
async def test_a_tool_in_a_thread_does_not_hold_up_a_worker_that_is_being_stopped(
    effect: str, ledger_file: Path
) -> None:
    """
    Its thread is left to itself; its lease is kept, so that no other worker begins, and its receipt says what came.
    """
    begun, go_on = threading.Event(), threading.Event()

    @tool(effect=effect)
    def pay() -> str:
        begun.set()
        assert go_on.wait(60)
        return "paid"

    async with Effects([pay]) as effects:
        bench = Bench(effects)
        running = asyncio.create_task(bench.tool(PAY))
        await asyncio.to_thread(begun.wait)
        bench.environment.cancel(cancellation_details=ActivityCancellationDetails(worker_shutdown=True))
        with pytest.raises(asyncio.CancelledError):
            await running
    if effect == "at_most_once":
        key = wire_key(namespace="ns", tool="pay", key=INVOCATION)
        asked = Ledger(str(ledger_file))
        assert isinstance(asked.begin(asked.ask(key, "pay", {})), InProgress)
        go_on.set()
        while not isinstance(told := asked.begin(asked.ask(key, "pay", {})), Finished):
            threading.Event().wait(0.005)
        assert told.value == "paid"
    go_on.set()


async def test_a_cancellation_of_its_own_making_is_a_failure() -> None:
    """
    A tool that cancels itself is not taken for a task that was canceled.
    """

    @tool(effect="read_only")
    async def confused() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ApplicationError) as caught:
        await call(confused)

    assert failure_in(caught.value).type == "CancelledError"


class Abort(BaseException):
    """What a library raises to get past `except Exception`."""


@pytest.mark.parametrize("effect", ["read_only", "at_most_once"])
@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize("error", [SystemExit(2), Abort("x"), StopIteration()], ids=["exit", "abort", "stop"])
async def test_a_tool_cannot_end_its_worker(effect: str, in_thread: bool, error: BaseException) -> None:
    """
    A tool that calls a program's `main()`, or `next()` without a match, has failed at once, and the worker goes on.
    """

    @tool(effect=effect, timeout_s=60)
    def leave() -> None:
        raise error

    @tool(effect=effect, timeout_s=60)
    async def leave_async() -> None:
        raise error

    with pytest.raises(ApplicationError) as caught:
        await call(leave if in_thread else leave_async)

    failure = failure_in(caught.value)
    assert failure.kind is (FailureKind.PERMANENT if effect == "read_only" else FailureKind.UNKNOWN)
    assert type(error).__name__ in failure.message


async def test_a_tool_under_a_plain_decorator_is_awaited() -> None:
    """
    The decorator is a plain `def`, so that only its result shows that the tool is an `async def`.
    """

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inner(**args: Any) -> Any:
            return function(**args)

        return inner

    @tool(effect="at_most_once")
    @logged
    async def who(a: int) -> str:
        await asyncio.sleep(0)
        return f"{a} {current().invocation_id}"

    @tool(effect="read_only", timeout_s=0.01)
    @logged
    async def slow_one() -> None:
        await asyncio.Event().wait()

    assert await call(who, a=1) == f"1 {INVOCATION}"
    with pytest.raises(ApplicationError) as caught:
        await call(slow_one)
    assert failure_in(caught.value).type == "timeout"


# --- registration


def plain(a: int) -> int:
    return a


@tool(effect="read_only", name="add")
def another_add(a: int) -> int:
    return a


@tool(effect="read_only")
def strange(a: threading.Lock) -> None: ...


@tool(effect="read_only")
def called_back(a: Callable[[int], int]) -> None: ...


@tool(effect="read_only")
def described(item: str = Field(description="what is sold")) -> None: ...


@tool(effect="read_only")
def counted(item: Annotated[int, Field(default=3, ge=0)]) -> None: ...


class Renamed(BaseModel):
    size: int = Field(default=0, serialization_alias="Size")


@tool(effect="read_only")
def renames() -> list[Renamed]:
    return [Renamed(size=3)]


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ([renames], "in the type of its result, the field 'size' is written as 'Size' and not read under that name"),
        ([described], r"write `item: Annotated\[TYPE, Field\(description=...\)\]`, and a default after it"),
        ([counted], "parameter 'item' has a Field as its default, or a default in its Field"),
        ([plain], "'read_only', 'idempotent', 'at_least_once', 'at_most_once'"),
        ([add, another_add], "two tools have this name"),
        ([strange], "none that JSON can bring"),
        ([called_back], "none that JSON can bring: Cannot generate a JsonSchema"),
    ],
)
def test_a_tool_that_cannot_be_registered(functions: list[Any], said: str) -> None:
    """
    Found when the worker is made, before any task runs.
    """
    with pytest.raises(DefinitionError, match=said):
        Effects(functions)


def test_the_same_tool_twice_is_one() -> None:
    """
    Two lists may name one tool.
    """
    assert list(tools_of([add, add])) == ["add"]


def test_a_tool_has_a_schema_for_models() -> None:
    """
    Parameters by their own names, even those that a model's field could not have.
    """
    schema = tools_of([place])["place"].json_schema

    assert list(schema["properties"]) == ["order", "on", "json"]
    assert schema["required"] == ["order", "on"]
    assert schema["properties"]["json"]["description"] == "a field's name"
    assert schema["additionalProperties"] is False
