"""A task's pages: its story, its past, what it made, and what people do about it."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from refold import Artifact, Content, Ctx, InputRejected, Part, Status, TaskState, Transition, flow_skill, step
from refold.core.errors import RefoldError
from refold.engine import Listed, News, NoWorker, Place, TaskFilter
from refold.record import TaskRecord
from refold.testing import FakeEngine
from refold.web.page.streams import Bell, OpenStreams, task_news
from refold.web.page.waiting import Waiting
from tests.web.page.conftest import Browser, Open
from tests.web.page.skills import SKILLS
from tests.web.page.test_inbox import TEA, approval, order

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@flow_skill(id="files")
class Files:
    """Hands over one artifact of each kind."""

    @step(start=True)
    async def make(self, ctx: Ctx, content: Content) -> Transition:
        def file(name: str, kind: str, raw: bytes) -> Artifact:
            return Artifact(name=name, parts=(Part(raw=raw, media_type=kind, filename=name),))

        return ctx.complete(
            "done",
            artifacts=[
                Artifact.from_text("note.txt", "<b>hi</b>"),
                Artifact.from_data("sums", {"a": [1, 2]}),
                file("pixel.png", "image/png", PNG),
                file("evil.svg", "image/svg+xml", b"<svg onload='alert(1)'/>"),
                file('a"\r\nX: y/../b.html', "text/html", b"<script>alert(1)</script>"),
                Artifact(name="link", parts=(Part(url="javascript:alert(1)"),)),
                Artifact(name="good", parts=(Part(url="https://example.org/x"),)),
            ],
        )


@flow_skill(id="parent")
class Parent:
    """Has a part that asks."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        done = await ctx.skill("part", "again", "go")
        return ctx.complete(done.text)


async def test_the_story_says_what_happened_and_why_it_waits(engine: FakeEngine, ada: Browser) -> None:
    """
    Each entry, what followed from it, the open gate with its deadline, and a link to any moment.
    """
    await order(engine)

    page = (await ada.get("/task/o1")).text
    assert "Waits for people" in page
    assert "planned → running → paused" in page
    assert "it waits for an approval: purchase</span>, since <time" in page
    assert ", until <time" in page
    assert 'href="/at/o1?seq=1"' in page
    assert "owner olga" in page
    part = (await ada.get("/story/o1?after=0", headers={"HX-Request": "true"})).text
    assert part.lstrip().startswith("<li")
    assert "after=1" in part
    assert "There are no entries here" in (await ada.get("/story/o1?after=99")).text


@pytest.mark.parametrize("older", ["look", "record"])
async def test_a_page_that_was_made_while_its_task_ended_hears_of_the_end(
    engine: FakeEngine, ada: Browser, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    """
    The page is made of several answers, one of which may be of the moment before.
    """
    await order(engine)
    before = await getattr(engine, older)("o1")

    async def asked_earlier(task_id: str) -> object:
        return before

    await engine.cancel("o1")
    monkeypatch.setattr(engine, older, asked_earlier)

    assert f'/live/o1?after={before.seq}"' in (await ada.get("/task/o1")).text


async def test_a_burst_of_entries_comes_in_several_parts(
    engine: FakeEngine, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A part that is full fetches the next one at once; the last one waits until something changes.
    """
    monkeypatch.setattr("refold.web.page.task.pages.ENTRIES", 2)
    await engine.start("quiz", Content.from_text("go"), task_id="q1")
    for answer in ("one", "two"):
        await engine.send("q1", Content.from_text(answer))

    async def part(after: int) -> str:
        return (await ada.get(f"/story/q1?after={after}", headers={"HX-Request": "true"})).text

    assert (await engine.look("q1")).seq == 3
    assert 'after=2&amp;as=ada" hx-trigger="changed, load"' in await part(0)
    assert 'after=3&amp;as=ada" hx-trigger="changed"' in await part(2)
    assert 'after=3&amp;as=ada" hx-trigger="changed"' in await part(3)
    assert 'after=3&amp;as=ada" hx-trigger="changed"' in (await ada.get("/task/q1")).text


async def test_no_part_of_another_persons_page_is_given(engine: FakeEngine, ada: Browser) -> None:
    """
    The page was made for bob, in whose browser somebody is ada since: his parts stay until he loads the page again.
    """
    await engine.start("quiz", Content.from_text("go"), task_id="q1")
    for path in ("/?", "/tasks?", "/head/q1?", "/waits/q1?", "/story/q1?after=0&"):
        theirs, hers = [await ada.get(f"{path}as={name}", headers={"HX-Request": "true"}) for name in ("bob", "ada")]
        assert (theirs.status_code, hers.status_code) == (409, 200)
        assert "opened by bob, and you are ada now: load it again" in theirs.text
        assert (await ada.get(f"{path}as=bob")).status_code == 200  # the whole page, which is hers


async def test_a_tool_call_is_shown_while_it_runs_and_once_it_is_done(engine: FakeEngine, ada: Browser) -> None:
    """
    The task says what is being performed; afterwards the list of calls has the tool, its status and its result.
    """
    await engine.start("charge", Content.from_text("7"), task_id="c1")
    assert "tool charge is being performed" in (await ada.get("/task/c1")).text
    await engine.reply("c1", "charge", "charged 7")

    page = (await ada.get("/calls/c1")).text
    assert "tool charge" in page
    assert "Done" in page
    assert "charged 7" in page
    assert "no model calls" in page
    assert "<h2>Result</h2>" in (await ada.get("/task/c1")).text


async def test_artifacts_are_saved_and_only_images_shown(open_page: Open, engine: FakeEngine) -> None:
    """
    Nothing that a browser might run is served as what it is; a name can add no header.
    """
    engine.skills["files"] = FakeEngine([Files]).skills["files"]
    await engine.start("files", Content.from_text("go"), task_id="f1")
    ada = await open_page(loopback="ada")

    page = (await ada.get("/content/f1")).text
    assert "&lt;b&gt;hi&lt;/b&gt;" in page
    assert 'href="https://example.org/x"' in page
    assert 'href="javascript' not in page
    assert 'src="/artifact/f1?name=pixel.png' in page
    assert 'evil.svg&amp;part=0" alt' not in page
    served = {}
    for artifact in (await engine.record("f1")).artifacts:
        answer = await ada.get("/artifact/f1", params={"name": artifact.name})
        assert "sandbox" in answer.headers["content-security-policy"]
        served[artifact.name] = (answer.headers["content-type"], answer.headers["content-disposition"].split(";")[0])
    image = ("image/png", "inline")
    assert {name: one for name, one in served.items() if one == image} == {"pixel.png": image}
    assert {one for one in served.values() if one != image} == {("application/octet-stream", "attachment")}
    assert (await ada.get("/artifact/f1?name=pixel.png")).content == PNG
    assert json.loads((await ada.get("/artifact/f1?name=sums")).text) == {"a": [1, 2]}
    for wrong in ("/artifact/f1?name=none", "/artifact/f1?name=sums&part=1", "/artifact/f1"):
        assert (await ada.get(wrong)).status_code == 404


@flow_skill(id="named_oddly")
class NamedOddly:
    """Hands over artifacts whose names differ in what nobody sees, and asks for more."""

    @step(start=True)
    async def make(self, ctx: Ctx, content: Content) -> Transition:
        for number, name in enumerate(("a", "a\0", "\0a", "a ", "\u202ea", "a\r\n")):
            ctx.hand_over(Artifact.from_text(name, f"text {number}"))
        await ctx.approve("more", "More?", show={"cents": 5})
        return ctx.complete("done")


async def test_what_a_page_offers_to_save_is_there_under_any_name(open_page: Open, engine: FakeEngine) -> None:
    """
    Each link leads to its own artifact.
    """
    engine.skills["named_oddly"] = FakeEngine([NamedOddly]).skills["named_oddly"]
    await engine.start("named_oddly", Content.from_text("go"), task_id="f1")
    ada = await open_page(loopback="ada")

    links = re.findall(r'href="([^"]*/artifact/[^"]*)">Save', (await ada.get("/content/f1")).text)

    assert [(await ada.get(html.unescape(one))).text for one in links] == [f"text {number}" for number in range(6)]


async def test_what_cannot_be_read_without_a_worker_is_not_said_to_be_gone(open_page: Open, engine: FakeEngine) -> None:
    """
    An artifact that a page has just offered, and a gate's data: whoever asks is told to come back.
    """
    engine.skills["named_oddly"] = FakeEngine([NamedOddly]).skills["named_oddly"]
    await engine.start("named_oddly", Content.from_text("go"), task_id="f1")
    [wait] = (await engine.record("f1")).waits
    ada = await open_page(loopback="ada")
    paths = ("/artifact/f1?name=a", f"/show/f1?gate={wait.gate}")
    assert [(await ada.get(path)).status_code for path in paths] == [200, 200]
    engine.worker = False

    for path in paths:
        answer = await ada.get(path)
        assert (answer.status_code, "no worker answers" in answer.text) == (503, True), path
    page = (await ada.get("/content/f1")).text
    assert "no worker answers" in page
    assert "There are none yet." not in page
    engine.worker = True
    assert (await ada.get("/artifact/f1?name=b")).status_code == 404


async def test_whether_there_are_results_is_said_where_it_is_known(
    open_page: Open, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Of a task that has not begun: none. Of one that Temporal ended from outside, nobody knows.
    """
    await engine.start("order", Content.from_data(dict(TEA)), task_id="later", start_delay=timedelta(hours=1))
    await order(engine)
    record = await engine.record("o1")
    outside = {"status": Status.FAILED, "lifecycle": TaskState.FAILED, "note": "Temporal ended it from outside"}
    ada = await open_page(loopback="ada")

    assert "There are none yet." in (await ada.get("/content/later")).text

    async def recorded(task_id: str) -> TaskRecord:
        return record.changed(outside)

    monkeypatch.setattr(engine, "record", recorded)
    page = (await ada.get("/content/o1")).text
    assert "Not known." in page
    assert "The task handed over none." not in page


async def test_a_part_is_found_in_temporals_own_ui(open_page: Open, engine: FakeEngine) -> None:
    """
    The slash in its id separates nothing in the address.
    """
    engine.skills["parent"] = FakeEngine([Parent]).skills["parent"]
    await engine.start("parent", Content.from_text("go"), task_id="p1")
    ada = await open_page(loopback="ada", ui="http://ui/namespaces/default/workflows")

    assert 'href="http://ui/namespaces/default/workflows/p1%2F1.1"' in (await ada.get("/task/p1%2F1.1")).text


async def test_parts_have_pages_and_their_gates_are_listed_once(open_page: Open, engine: FakeEngine) -> None:
    """
    A part's id has slashes; its gate is in the inbox under the part, and the parent links to it.
    """
    engine.skills["parent"] = FakeEngine([Parent]).skills["parent"]
    await engine.start("parent", Content.from_text("go"), task_id="p1")
    ada = await open_page(loopback="ada")
    (part,) = [one.task_id for one in await engine.find(TaskFilter()) if one.task_id != "p1"]
    assert "/" in part

    inbox, page = (await ada.get("/")).text, (await ada.get("/task/p1")).text
    assert inbox.count("Pay?") == 1
    link = f"/task/{part.replace('/', '%2F')}"
    assert link in page
    assert link in inbox
    assert 'part of <a href="/task/p1">' in (await ada.get(link)).text
    wait = (await engine.record(part)).waits[0]
    sent = await ada.send("/decide", **approval(part, wait), back="task")
    assert (sent.status_code, sent.headers["location"]) == (303, link)


async def test_a_task_is_canceled_recovered_and_begun_only_when_asked_twice(engine: FakeEngine, ada: Browser) -> None:
    """
    A page asks first, and changes nothing; the form that follows does it.
    """
    await order(engine)
    assert "Cancel the task?" in (await ada.get("/ask/o1?to=cancel")).text
    assert (await engine.look("o1")).status is Status.INPUT_REQUIRED
    assert (await ada.send("/act/o1", to="cancel", reason="wrong order")).status_code == 303
    view = await engine.look("o1")
    assert (view.status, "wrong order" in view.reason) == (Status.CANCELED, True)
    again = await ada.send("/act/o1", to="cancel")
    assert again.status_code == 409

    await engine.start("charge", Content.from_text("7"), task_id="c1")
    await engine.fail("c1", "charge", "the bank says no")
    page = (await ada.get("/task/c1")).text
    assert "the bank says no" in page
    assert "/ask/c1?to=recover" in page
    assert (await ada.send("/act/c1", to="recover")).headers["location"] == "/task/c1.r1"
    assert "recovered as" in (await ada.get("/task/c1")).text
    assert (await ada.send("/act/c1", to="recover")).status_code == 409

    await engine.start("charge", Content.from_text("7"), task_id="h1", hold=True)
    assert "/ask/h1?to=release" in (await ada.get("/task/h1")).text
    assert (await ada.send("/act/h1", to="release")).status_code == 303
    assert (await ada.send("/act/h1", to="explode")).status_code == 400
    assert (await ada.get("/ask/h1?to=explode")).status_code == 404


async def test_time_travel_and_forks(engine: FakeEngine, ada: Browser) -> None:
    """
    Any entry has its state and what it changed; a branch is dry unless asked, and stands beside its origin.
    """
    await engine.start("again", Content.from_text("go"), task_id="g1")
    for _ in range(2):
        await engine.decide("g1", approved=True, approver="bob")

    page = (await ada.get("/at/g1?seq=2")).text
    assert "2 of 3" in page
    assert "What this entry changed" in page
    assert "cents" in page
    assert 'href="/at/g1?seq=1"' in page
    assert 'href="/at/g1?seq=3"' in page
    assert "Branch off" not in (await ada.get("/at/g1")).text  # it has ended there
    for odd in ("0", "999", "-1", "x", ""):
        assert (await ada.get("/at/g1", params={"seq": odd})).status_code == 200
    forked = await ada.send("/fork/g1", seq="1")
    assert forked.headers["location"] == "/beside/g1.f1"
    side = (await ada.get("/beside/g1.f1")).text
    assert "The branch is dry" in side
    assert "What happened" in side
    assert "pay approved by bob" in side
    assert (await ada.get("/beside/g1")).status_code == 404
    assert (await ada.send("/fork/g1", seq="3")).status_code == 409
    assert (await ada.send("/fork/g1", seq="x")).status_code == 400
    assert (await ada.send("/fork/g1", seq="1", live="yes")).status_code == 303
    fork = (await engine.look("g1.f2")).forked_from
    assert fork is not None
    assert fork.live


async def test_a_form_makes_one_branch(engine: FakeEngine, ada: Browser) -> None:
    """
    Sent twice it leads to the branch that it has made: effects of a live one take place once. A part has branches, too.
    """
    engine.skills["parent"] = FakeEngine([Parent]).skills["parent"]
    await engine.start("parent", Content.from_text("go"), task_id="p1")
    for path in ("p1", "p1%2F1.1"):
        once = re.search(r'name="once" value="([0-9a-f]+)"', (await ada.get(f"/at/{path}")).text)
        assert once is not None
        assert (await ada.send(f"/fork/{path}", seq="1", live="yes", once=once[1])).status_code == 303

    sent = [await ada.send("/fork/p1", seq="1", live="yes", once="0000000a") for _ in range(2)]

    assert [one.headers["location"] for one in sent] == ["/beside/p1.f0000000a"] * 2
    assert "has branched off this task already" in (await ada.get("/beside/p1.f0000000a")).text
    assert len(await engine.offspring("p1")) == 2
    of_part = [await ada.send("/fork/p1%2F1.1", seq="1", live="yes", once="0000000a") for _ in range(2)]
    assert len({one.headers["location"] for one in of_part}) == 1
    assert "has branched off this task already" in (await ada.get(of_part[0].headers["location"])).text
    assert len(await engine.offspring("p1/1.1")) == 2


async def test_a_task_without_a_past_says_so(engine: FakeEngine, ada: Browser) -> None:
    """
    A held task has no entry yet; each of its pages says what it can.
    """
    await engine.start("order", Content.from_data({"item": "tea", "amount_cents": 1}), task_id="h1", hold=True)

    for path in ("/task/h1", "/story/h1", "/calls/h1", "/content/h1", "/gate/h1", "/raw/h1?what=journal"):
        assert (await ada.get(path)).status_code == 200, path
    assert "there is no past" in (await ada.get("/at/h1")).text


async def test_explain_leads_to_the_entry_that_wrote_a_field(ada: Browser, engine: FakeEngine) -> None:
    """
    A field without a contract is explained by a sentence.
    """
    await order(engine)

    page = await ada.get("/explain/o1?field=item")
    assert page.status_code == 200
    assert "Where <span" in page.text
    assert (await ada.get("/explain/o1")).status_code == 404


async def test_a_page_hears_what_changes(engine: FakeEngine) -> None:
    """
    Entries by number, model text as it is written, the end; nothing of it is repeated.
    """
    await order(engine)
    heard = []

    async def listen() -> None:
        async with aclosing(task_news(engine, "o1", 0, text=True)) as news:
            heard.extend([one async for one in news])

    listening = asyncio.create_task(listen())
    await engine.decide("o1", approved=True, approver="ada")
    await asyncio.wait_for(listening, 5)

    assert heard == [("changed", {"seq": 1}), ("changed", {"seq": 2}), ("ended", {"seq": 2})]


@pytest.mark.parametrize("fault", [NoWorker("no worker answers"), InputRejected("what was asked cannot be read")])
async def test_a_page_waits_for_a_worker_that_can_say_what_changes(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, fault: RefoldError
) -> None:
    """
    No worker is there, or the one that is lacks the key of whoever asks: the stream stays open, and goes on with the
    next one.
    """
    await order(engine)
    monkeypatch.setattr("refold.web.page.streams.SOON_S", 0)
    watch, faults = engine.watch, [fault]

    async def watched(task_id: str, **more: Any) -> AsyncGenerator[News]:
        if faults:
            raise faults.pop()
        async for one in watch(task_id, **more):
            yield one

    monkeypatch.setattr(engine, "watch", watched)

    async with aclosing(task_news(engine, "o1", 0, text=True)) as news:
        assert await asyncio.wait_for(anext(news), 5) == ("changed", {"seq": 1})


async def test_streams_end_with_the_process(engine: FakeEngine) -> None:
    """
    An open stream ends at once when the process stops, and a new one is sent elsewhere.
    """
    await order(engine)
    streams = OpenStreams()
    answer = streams.answer(task_news(engine, "o1", 1, text=True))
    frames = answer.body_iterator.__aiter__()  # type: ignore[attr-defined]  # a stream
    assert await anext(frames) == b"retry: 2000\n\n"
    assert len(streams) == 1

    streams.end()

    assert [frame async for frame in frames] == []
    assert len(streams) == 0
    assert streams.answer(task_news(engine, "o1", 1, text=True)).status_code == 503


async def test_a_stream_without_news_says_that_it_is_alive(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By an event, since a script hears of no comment: a page that hears of none connects again.
    """
    monkeypatch.setattr("refold.web.page.streams.ALIVE_S", 0.01)
    await order(engine)
    streams = OpenStreams()
    answer = streams.answer(task_news(engine, "o1", 1, text=True))
    frames = answer.body_iterator.__aiter__()  # type: ignore[attr-defined]  # a stream

    assert await anext(frames) == b"retry: 2000\n\n"
    assert [await anext(frames) for _ in range(2)] == [b"event: alive\ndata: {}\n\n"] * 2
    streams.end()
    assert [frame async for frame in frames] == []


async def test_the_bell_rings_once_for_all_and_rests_without_listeners(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Two pages cause one look at the list; none causes none.
    """
    monkeypatch.setattr("refold.web.page.streams.SOON_S", 0.01)
    bell, looked, others = Bell(engine), asyncio.Event(), asyncio.all_tasks()
    find = engine.find

    async def counted(*args: object, **more: object) -> object:
        looked.set()
        return await find(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "find", counted)
    one, two = bell.news(), bell.news()
    waiting = [asyncio.ensure_future(anext(one)), asyncio.ensure_future(anext(two))]
    await looked.wait()
    await order(engine)
    assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [("changed", {})] * 2
    before = asyncio.all_tasks() - others
    await one.aclose()
    await two.aclose()
    assert len(before) == 1
    assert await asyncio.wait(before, timeout=5) == (before, set())  # nothing looks any more


class Ahead(FakeEngine):
    """Tasks of which one was moved at a time that has not come yet."""

    future = datetime.now(UTC) + timedelta(hours=1)

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """Those that have moved since, the newest first."""
        found = await super().find(wanted.model_copy(update={"moved_since": None}), after=after, limit=limit)
        shown = [one.model_copy(update={"moved_at": self.future}) if one.task_id == "ahead" else one for one in found]
        return [one for one in shown if wanted.moved_since is None or one.moved_at >= wanted.moved_since]


async def test_a_clock_ahead_holds_up_no_news_of_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A client writes when it starts a task, and its clock may be wrong: an open list and the inbox show what comes after.
    """
    monkeypatch.setattr("refold.web.page.streams.SOON_S", 0.01)
    engine, waiting = Ahead(SKILLS), Waiting()
    engine.clock.advance((datetime.now(UTC) - engine.clock.now).total_seconds())
    await order(engine, "ahead")
    bell, looks = Bell(engine), asyncio.Event()
    find = engine.find

    async def looked(*args: Any, **more: Any) -> Sequence[Listed]:
        found = await find(*args, **more)
        looks.set()
        return found

    monkeypatch.setattr(engine, "find", looked)
    assert [one.task_id for one in await waiting.oldest_first(engine)] == ["ahead"]
    looks.clear()

    async with aclosing(bell.news()) as news:
        rung = asyncio.ensure_future(anext(news))
        await looks.wait()
        await order(engine, "o1")
        assert await asyncio.wait_for(rung, 5) == ("changed", {})
    assert {one.task_id for one in await waiting.oldest_first(engine)} == {"ahead", "o1"}


async def test_what_changed_before_a_page_listens_is_news(engine: FakeEngine) -> None:
    """
    A list that was made at one moment hears of what came between that moment and its stream; another one does not.
    """
    made = engine.clock.now
    await engine.advance(60)
    await order(engine)
    bell = Bell(engine)
    early, late = bell.news(made), bell.news(made + timedelta(hours=1))

    async with aclosing(early), aclosing(late):
        assert await asyncio.wait_for(anext(early), 5) == ("changed", {})
        waiting = asyncio.ensure_future(anext(late))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@flow_skill(id="talks")
class Talks:
    """Asks for a tool after each message, and hands something over."""

    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.ask("more", "And?")
        ctx.hand_over(Artifact.from_text(f"a{ctx.now.timestamp()}-{content.text}", "x" * 100))
        return ctx.goto("ask", content=content)


async def test_a_long_task_has_pages_of_messages_and_calls(
    open_page: Open, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The newest first; each link leads to those before them, until all were seen once.
    """
    monkeypatch.setattr("refold.web.page.task.pages.CALLS", 3)
    monkeypatch.setattr("refold.web.page.task.pages.MESSAGES", 4)
    monkeypatch.setattr("refold.web.page.task.pages.ARTIFACTS", 2)
    engine.skills["talks"] = FakeEngine([Talks]).skills["talks"]
    await engine.start("talks", Content.from_text("message 0"), task_id="t1")
    for number in range(1, 9):
        await engine.advance(1)
        await engine.send("t1", Content.from_text(f"message {number}"))
    ada = await open_page(loopback="ada")

    for under, each in (("content", r'"text" dir="auto">(message \d)<'), ("calls", r'"quiet">(t1/\d+\.\d+)<')):
        path, seen = f"/{under}/t1", list[str]()
        while path:
            page = (await ada.get(path)).text
            seen = re.findall(each, page) + seen
            more = re.search(r'href="([^"]+)">[\d,]+ earlier<', page)
            path = more[1].replace("&amp;", "&") if more else ""
        assert seen == list(dict.fromkeys(seen))
        assert len(seen) == 9
    assert "The newest 2 of 8 are shown" in (await ada.get("/content/t1")).text
    for odd in ("0", "-1", "x", "9" * 5_000):
        assert (await ada.get(f"/content/t1?before={odd}")).status_code == 200
