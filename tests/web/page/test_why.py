"""Why a task waits, since when and until when, for each kind of waiting; what is at work; and what nobody is shown."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from urllib.parse import quote

import pytest
from pydantic import BaseModel

from refold import Content, Ctx, GatePolicy, Part, RetryPolicy, Transition, flow_skill, step, tool
from refold.callbacks.address import CallbackSettings, without_addresses
from refold.core.fold.journal import Entry
from refold.core.retry_policy import Failure, FailureKind
from refold.engine import EngineError, PendingView, TaskView
from refold.testing import Clock, FakeEngine
from refold.web.page.streams import task_news
from refold.web.page.task.why import why
from tests.web.page.conftest import Browser
from tests.web.page.test_hostile import BIDI

UNKNOWN = Failure(kind=FailureKind.UNKNOWN, type="lost", message="nobody knows")
DOWN = Failure(kind=FailureKind.TRANSIENT, type="down", message="the bank is down")


class Payment(BaseModel):
    """What a call brings."""

    cents: int


@tool(effect="at_most_once", timeout_s=5)
async def check_out(notify: str) -> str:
    """Sends an order."""
    return f"sent to {notify}"


@tool(effect="read_only", timeout_s=5)
async def count() -> str:
    """Counts."""
    return "40"


@flow_skill(id="waits", retry=RetryPolicy(max_retries=1, base=60))
class Waits:
    """Waits for what it is told."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        match content.text:
            case "gate":
                policy = GatePolicy(needed=2, timeout_s=600)
                await ctx.gather(ctx.approve("pay", "Pay?", show={"cents": 5}, policy=policy), ctx.tool(count))
            case "question":
                await ctx.ask("who", "Who?", timeout_s=900)
            case "timer":
                await ctx.sleep(3600)
            case "call":
                paid = await ctx.callback("paid", expires_s=3600)
                await ctx.tool(check_out, notify=paid.url)
                ctx.say(f"call {paid.url}")
                await ctx.ask("paid", "Says when it is paid.", expect=Payment, callback=paid)
            case "part":
                await ctx.skill("part", "waits", "question", timeout_s=7200)
            case "lost part":
                await ctx.skill("part", "waits", "tool")
            case "queue":
                await ctx.tool(count, queue="gpu")
            case "model":
                await ctx.llm("draft", "Write.", "the address")
            case "edit":
                paid = await ctx.callback("paid", expires_s=3600)
                show = {"arguments": {"notify": paid.url, "cents": 5}}
                await ctx.approve("order", "Order?", show=show, editable=("arguments",))
            case _:
                await ctx.tool(count)
        return ctx.complete("done")


@flow_skill(id="blocks", retry=RetryPolicy(max_retries=0, on_exhausted="block", probe_s=60))
class Blocks:
    """Is blocked while its dependency is down."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(count))


@pytest.fixture
def engine() -> FakeEngine:
    """Tasks in memory, at 9 o'clock."""
    return FakeEngine([Waits, Blocks], now=Clock().now.replace(hour=9, minute=0, second=0, microsecond=0))


async def said(ada: Browser, task_id: str) -> list[str]:
    """What the page says of why a task waits, with times by the minute."""
    page = (await ada.get(f"/head/{task_id}")).text
    found = re.findall(r"<li>(.*?)</li>", page, re.DOTALL)
    texts = [html.unescape(re.sub(r"<[^>]+>", "", one)).strip() for one in found]
    return [re.sub(r"\d{4}-\d\d-\d\d (\d\d:\d\d):\d\d UTC", r"\1", one) for one in texts]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("gate", ["it waits for an approval: pay, 0 of 2 given, since 09:00, until 09:10",
                  "tool count begins when the task goes on, since 09:00"]),
        ("question", ["it waits for an answer: who, since 09:00, until 09:15"]),
        ("timer", ["it sleeps: sleep, since 09:00, until 10:00"]),
        ("tool", ["tool count is being performed, since 09:00"]),
        ("queue", ["tool count was sent to task queue gpu, since 09:00"]),
        ("part", ["it waits for an answer: who, in its part w/1.1, since 09:00, until 09:15",
                  "it waits for its part w/1.1, since 09:00, until 11:00"]),
    ],
)  # fmt: skip
async def test_each_kind_of_waiting_says_since_and_until_when(
    engine: FakeEngine, ada: Browser, kind: str, expected: list[str]
) -> None:
    """
    People, timers, tools, queues and parts; and what begins only when the task goes on is not said to be performed.
    """
    await engine.start("waits", Content.from_text(kind), task_id="w")
    await engine.advance(120)

    assert await said(ada, "w") == expected
    assert ("Waits for people" in (await ada.get("/task/w")).text) == (kind in ("gate", "question", "part"))


async def test_a_failed_call_says_when_it_failed_and_when_it_comes_again(engine: FakeEngine, ada: Browser) -> None:
    """
    Backing off, then at its next attempt, then blocked: each since its own moment.
    """
    await engine.start("waits", Content.from_text("tool"), task_id="w")
    await engine.advance(60)
    await engine.fail("w", "count", DOWN)
    assert await said(ada, "w") == [
        "tool count failed, and waits for attempt 2, since 09:01, until 09:02the bank is down"
    ]
    await engine.advance(60)
    assert await said(ada, "w") == ["tool count is being performed, attempt 2, since 09:02the bank is down"]
    await engine.advance(60)
    await engine.fail("w", "count", UNKNOWN)
    assert [one.removesuffix("nobody knows") for one in await said(ada, "w")] == [
        "tool count is blocked until an operator resolves it, since 09:03"
    ]
    assert "<span>since <time" in (await ada.get("/waits/w")).text


async def test_a_blocked_call_is_blocked_since_it_failed_first(engine: FakeEngine, ada: Browser) -> None:
    """
    Asking the dependency again in vain moves the time of the next try, not that since when it is blocked.
    """
    await engine.start("blocks", Content.from_text("x"), task_id="b")
    await engine.fail("b", "count", DOWN)
    await engine.advance(60)
    await engine.fail("b", "count", DOWN)
    await engine.advance(5)
    await engine.send("b", Content.from_text("and?"), early=True)

    (told,) = await said(ada, "b")
    assert told.startswith("tool count is blocked, and waits to ask its dependency again, since 09:00, until 09:03")
    assert "T09:00:00" in (await ada.get("/waits/b")).text.partition("tried again")[0].rpartition("since")[2]


async def test_a_part_that_is_blocked_is_named(engine: FakeEngine, ada: Browser) -> None:
    """
    A task that waits for its part says what the part is blocked on.
    """
    await engine.start("waits", Content.from_text("lost part"), task_id="w")
    await engine.fail("w/1.1", "count", UNKNOWN)

    assert [one.removesuffix("nobody knows") for one in await said(ada, "w")] == [
        "it waits for its part w/1.1, since 09:00",
        "tool count is blocked until an operator resolves it, in its part w/1.1",
    ]


async def test_a_task_that_has_not_begun_waits_since_it_was_started(engine: FakeEngine, ada: Browser) -> None:
    """
    A held one, and one that begins later.
    """
    await engine.start("waits", Content.from_text("tool"), task_id="h", hold=True)
    await engine.start("waits", Content.from_text("tool"), task_id="l", start_delay=timedelta(hours=1))

    for task_id, note in (("h", "it is held"), ("l", "it begins at")):
        assert await said(ada, task_id) == ["it has not begun, since 09:00"]
        assert note in (await ada.get(f"/task/{task_id}")).text


async def test_what_was_asked_for_long_ago_is_read_one_by_one() -> None:
    """
    A command older than the newest entries costs one look each, for a few; where nothing can be read, none.
    """
    engine = FakeEngine([Waits])
    await engine.start("waits", Content.from_text("timer"), task_id="w")
    record, view = await engine.record("w"), await engine.look("w")
    entries = [entry async for entry in engine.journal("w")]
    later = entries[0].model_copy(update={"seq": 900, "at": record.at + timedelta(days=2)})

    assert [one.since for one in await why(engine, record, view, [later])] == [entries[0].at]
    assert [one.since for one in await why(engine, record, view, [])] == [None]
    foreign = view.model_copy(update={"pending": (PendingView(invocation_id="x/1.1", command="tool t", attempt=1),)})
    odd = view.model_copy(update={"pending": (PendingView(invocation_id="w/x", command="tool t", attempt=1),)})
    for one in (foreign, odd):
        assert [found.since for found in await why(engine, record, one, [later])] == [None]


async def test_a_call_is_awaited_and_its_address_is_shown_nowhere(engine: FakeEngine, ada: Browser) -> None:
    """
    Whoever has the address may answer, so no page, no raw data and no stream has it; that a call is awaited is said.
    """
    await engine.start("waits", Content.from_text("call"), task_id="w")
    await engine.reply("w", "check_out", json.dumps({"notify": address_in(await engine.look("w"))}))
    address = address_in(await engine.look("w"))
    token = address.rpartition("/")[2]

    assert await said(ada, "w") == [
        "it waits for a call to the address that it has given away: paid, since 09:00, until 10:00"
    ]
    page = (await ada.get("/task/w")).text
    assert "Waits for a call" in page
    assert '<span class="kind callback">Call</span>' in page
    assert 'action="/answer"' not in page
    paths = [
        "/",
        "/task/w",
        "/story/w",
        "/calls/w",
        "/content/w",
        "/gate/w?gate=w/3.1",
        "/raw/w",
        "/raw/w?what=journal",
    ]
    for path in (*paths, *(f"/at/w?seq={seq}" for seq in (1, 2, 3))):
        text = (await ada.get(path)).text
        assert token not in text, path
        assert token[:60] not in text, path
    assert "/callbacks/[secret]" in (await ada.get("/content/w")).text


async def test_no_link_leads_to_an_address(engine: FakeEngine, ada: Browser) -> None:
    """
    A message may hold one as its URL: it is shown without its secret, and is no link; any other URL is one.
    """
    address, other = TESTED.make("w", "w/1.1", Clock().now).url, f"https://example.org/{'x' * 900}"
    await engine.start("waits", Content(parts=(Part(url=address), Part(url=other))), task_id="w")

    page = (await ada.get("/content/w")).text

    assert address.rpartition("/")[2] not in page
    assert f'href="{other}"' in page


async def test_an_address_that_may_be_edited_has_no_field(engine: FakeEngine, ada: Browser) -> None:
    """
    The form has the other fields of the gate; a change to them leaves the address as it is.
    """
    await engine.start("waits", Content.from_text("edit"), task_id="w")
    (wait,) = (await engine.record("w")).waits
    page = (await ada.get("/task/w")).text
    token = address_in(await engine.look("w")).rpartition("/")[2]
    assert "Cents" in page
    assert token[:60] not in page

    form = {"task": "w", "gate": wait.gate, "digest": wait.ask.digest, "decision": "change"}  # type: ignore[union-attr]
    answer = await ada.send("/decide", **form, **{'f:["arguments", "cents"]': "7"})
    assert answer.status_code == 303

    entry = [one async for one in engine.journal("w")][-1]
    assert entry.event.changes["arguments"]["cents"] == 7  # type: ignore[union-attr, index, call-overload]
    assert entry.event.changes["arguments"]["notify"].endswith(token)  # type: ignore[union-attr, index, call-overload]


def address_in(view: TaskView) -> str:
    """The address that a task of the tests has made."""
    return TESTED.make(view.task_id, f"{view.task_id}/1.1", Clock().now.replace(hour=10, minute=0, second=0)).url


TESTED = CallbackSettings(url="http://127.0.0.1:9000", keys=("the key of refold.testing",))


@pytest.mark.parametrize("task_id", ["a", "Z9", "\\", "é", "x" * 200, "0/1.1"])
def test_no_form_of_an_address_is_left_in_a_text(task_id: str) -> None:
    """
    Whole, in JSON, cut, twice in a row, or a parameter of another address; and what only looks like one stays.
    """
    url = TESTED.make(task_id, f"{task_id}/1.1", Clock().now).url
    token = url.rpartition("/")[2]
    within = f"https://pay.example/?to={quote(url, safe='')}"
    others = (f"refold.callback:{token}", within, quote(within), f"https%3a%2f%2f{token}")
    for text in (url, json.dumps({"url": url}), f"({url}),{url}", url[:-10], *others):
        assert token[:-23] not in without_addresses(text)
        assert len(without_addresses(text, "•")) == len(text)
    for text in ("WyI", "Wyoming.", "a" * 500, "https://x.example/callbacks/none", f"x{token}"[:20]):
        assert without_addresses(text) == text


@pytest.mark.parametrize("size", [1, 7, 100, 1_000])
async def test_an_address_that_a_model_writes_piece_by_piece_is_not_heard(engine: FakeEngine, size: int) -> None:
    """
    However it is cut, no more than the half of its signature is told before it is known for what it is.
    """
    await engine.start("waits", Content.from_text("model"), task_id="w", stream=True)
    url = TESTED.make("w", "w/1.1", Clock().now).url
    text = f"Pay at {url}, please."
    heard: list[str] = []

    async def listen() -> None:
        async with aclosing(task_news(engine, "w", 1, text=True)) as news:
            heard.extend([str(one[1]["text"]) async for one in news if one[0] == "text"])  # type: ignore[index, call-overload]

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0)
    for start in range(0, len(text), size):
        engine.write("w", "draft", text[start : start + size])
    await engine.reply("w", "draft", text)
    await asyncio.wait_for(listening, 5)

    told = "".join(heard)
    assert len(told) == len(text)
    assert told.endswith("•, please.")
    assert url[:-23] not in told


async def test_a_tools_progress_is_heard_and_kept_nowhere(engine: FakeEngine, ada: Browser) -> None:
    """
    As text, without what hides or turns text; whoever may not see payloads hears that something changed, and no more.
    """
    await engine.start("waits", Content.from_text("tool"), task_id="w", stream=True)
    heard: dict[bool, list[object]] = {True: [], False: []}

    async def listen(*, text: bool) -> None:
        async with aclosing(task_news(engine, "w", 1, text=text)) as news:
            heard[text].extend([one async for one in news])

    listening = [asyncio.create_task(listen(text=text)) for text in heard]
    await asyncio.sleep(0)
    engine.report("w", "count", f"<b>40</b> {BIDI}")
    engine.report("w", "count", {"done": 40, "of": 100})
    await asyncio.sleep(0)
    await engine.reply("w", "count", "40")
    await asyncio.wait_for(asyncio.gather(*listening), 5)

    told = [one[1]["said"] for one in heard[True] if one[0] == "progress"]  # type: ignore[index]
    assert told == ["<b>40</b> [U+202E][U+2066]evil", '{"done": 40, "of": 100}']
    assert "progress" not in [one[0] for one in heard[False]]  # type: ignore[index]
    assert "[U+202E]" not in (await ada.get("/story/w")).text


async def test_a_story_that_cannot_be_read_is_said_on_the_tasks_page(
    engine: FakeEngine, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The rest of the page is there: how the task stands, what it waits for, and the gate.
    """
    await engine.start("waits", Content.from_text("gate"), task_id="w")

    (newer,) = [one async for one in engine.journal("w")]

    async def unread(task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        if after > 9:
            yield newer
        raise EngineError(f"entries up to 9 of task {task_id!r} cannot be read: no codec")

    monkeypatch.setattr(engine, "journal", unread)

    answer = await ada.get("/task/w")
    assert answer.status_code == 200
    assert "The story cannot be read now: entries up to 9" in answer.text
    assert "it waits for an approval: pay, 0 of 2 given" in answer.text
    assert '<article class="card gate"' in answer.text
