"""The list of tasks, and the skills."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from starlette.types import Message

from refold import Content, Status, TaskState
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.engine import TaskFilter, TaskView
from refold.static.diagram.layout import drawn
from refold.testing import FakeEngine
from refold.web.page import Access, page_app
from refold.web.page.lists import listing
from refold.web.page.lists.saved import FILTERS
from tests.web.page.conftest import HOST, SAME, Browser, Open
from tests.web.page.skills import SKILLS
from tests.web.page.test_inbox import order


def listed(page: str) -> list[str]:
    """The tasks on a page of the list, in order."""
    return re.findall(r'<a href="/task/([^"]+)" dir="auto">', page)


async def test_filters_stand_in_the_address(engine: FakeEngine, ada: Browser) -> None:
    """
    Each filter alone and together; the counts follow them; an unknown word is not found.
    """
    await order(engine, "o1")
    await engine.advance(7200)
    await order(engine, "o2")
    await engine.decide("o2", approved=True, approver="bob")
    await engine.start("ask", Content.from_text("x"), task_id="a1", owner="dora")

    assert listed((await ada.get("/tasks")).text)[-1] == "o1"
    assert listed((await ada.get("/tasks?skill=ask")).text) == ["a1"]
    assert listed((await ada.get("/tasks?lifecycle=done")).text) == ["o2"]
    assert listed((await ada.get("/tasks?owner=olga&text=o1")).text) == ["o1"]
    assert "Done <strong>1</strong>" not in (await ada.get("/tasks?text=o1")).text
    assert listed((await ada.get("/tasks?text=1")).text) == []
    page = (await ada.get("/tasks?skill=order")).text
    assert "Done <strong>1</strong>" in page
    assert '<option value="paused">Waits for people</option>' in page
    assert "No task fits" in (await ada.get("/tasks?text=zzz")).text
    assert listed((await ada.get("/tasks?skill=as%00k")).text) == ["a1"]
    for wrong in ("lifecycle=sleeping", "age=century"):
        assert (await ada.get(f"/tasks?{wrong}")).status_code == 404


async def test_a_text_anywhere_in_ids_is_looked_for_page_by_page(
    engine: FakeEngine, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Without regard to case, in so many tasks at a time; the page says in how many, and leads to the older ones.
    """
    monkeypatch.setattr(listing, "SCANNED", 30)
    monkeypatch.setattr(listing, "AT_ONCE", 10)
    for number in range(50):
        await engine.start("quiz", Content.from_text("x"), task_id=f"Quiz-{number:02}")
        await engine.advance(1)
    newest = (await ada.get("/tasks?text=uiz-1&anywhere=yes")).text
    assert listed(newest) == []
    assert "No task fits so far" in newest
    assert "in the ids of 30 tasks" in newest
    following = re.search(r'href="([^"]*)">Look through older tasks<', newest)
    assert following is not None
    older = (await ada.get(html.unescape(following[1]))).text

    assert listed(older) == [f"Quiz-{number}" for number in range(19, 9, -1)]
    assert "There are no older ones" in older
    assert "in the ids of all 0 tasks." in (await ada.get("/tasks?text=x&anywhere=yes&skill=none")).text


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59.999999+00:00", "0001-01-01T00:00:00+23:59", "2026-01-01", "x", ""])
async def test_a_place_that_cannot_be_begins_the_list_anew(engine: FakeEngine, ada: Browser, at: str) -> None:
    """
    At the ends of the calendar, without a zone, or no time at all.
    """
    await order(engine, "o1")

    assert listed((await ada.get("/tasks", params={"after": f"{at} o0"})).text) == ["o1"]


@pytest.mark.parametrize("many", [49, 50, 51, 100, 120])
async def test_pages_follow_one_another(engine: FakeEngine, ada: Browser, many: int) -> None:
    """
    Each task once, on as many pages as it takes: a full last page is the last. Later pages lead back to the first.
    """
    for number in range(many):
        await engine.start("ask", Content.from_text("x"), task_id=f"a{number:03}")
    path, pages = "/tasks?skill=ask", list[list[str]]()
    while path:
        page = (await ada.get(path)).text
        assert ("To the newest" in page) is bool(pages)
        pages.append(listed(page))
        more = re.search(r'href="([^"]*)">More<', page)
        path = html.unescape(more[1]) if more else ""

    assert sorted(one for page in pages for one in page) == [f"a{number:03}" for number in range(many)]
    assert [len(one) for one in pages] == [50] * (many // 50) + [many % 50] * (many % 50 > 0)


async def test_what_lies_behind_the_last_task_leads_back(engine: FakeEngine, ada: Browser) -> None:
    """
    Where the tasks of a later page are gone by now, it does not say that no task fits.
    """
    await order(engine, "o1")

    page = (await ada.get("/tasks", params={"skill": "order", "after": "2000-01-01T00:00:00+00:00 a"})).text

    assert "No older task fits" in page
    assert '<a class="button" href="/tasks?skill=order">To the newest</a>' in page


async def test_several_tasks_are_changed_after_a_question(engine: FakeEngine, ada: Browser) -> None:
    """
    It asks with the list of them, then says of each how it went.
    """
    await order(engine, "o1")
    await order(engine, "o2")
    await engine.decide("o2", approved=True, approver="bob")

    asks = await ada.send("/bulk", task=["o1", "o2", "o1"], to="cancel")
    assert "Cancel 2 tasks?" in asks.text
    assert (await engine.look("o1")).status is Status.INPUT_REQUIRED
    done = (await ada.send("/bulk", task=["o1", "o2", "nope"], to="cancel", sure="yes")).text
    assert re.findall(r"(\d of 3)</span> <a href=\"/task/([^\"]+)\"", done) == [
        ("1 of 3", "o1"),
        ("2 of 3", "o2"),
        ("3 of 3", "nope"),
    ]
    assert "1 of 3 done" in done
    assert "no task" in done
    assert done.count("</html>") == 1
    assert (await engine.look("o1")).status is Status.CANCELED
    assert (await ada.send("/bulk", to="cancel")).status_code == 409
    assert (await ada.send("/bulk", task="o1", to="explode")).status_code == 400


async def test_all_that_fit_the_filters_are_changed(engine: FakeEngine, ada: Browser) -> None:
    """
    Over all pages of the list, those with which it can be done; the question names each, and says if there are more.
    """
    for number in range(120):
        await engine.start("ask", Content.from_text("x"), task_id=f"a{number:03}")
    await engine.cancel("a007")
    await order(engine, "o1")
    assert 'action="/bulk?skill=ask"' in (await ada.get("/tasks?skill=ask")).text

    asks = await ada.send("/bulk?skill=ask", all="yes", to="cancel", task="o1")
    assert "Cancel 119 tasks?" in asks.text
    assert "And 69 more" in asks.text
    chosen = re.findall(r'name="task" value="([^"]+)"', asks.text)
    assert {"a007", "o1"}.isdisjoint(chosen)
    done = await ada.send("/bulk", task=chosen, to="cancel", sure="yes")

    assert "119 of 119 done" in done.text
    assert (await engine.look("o1")).status is Status.INPUT_REQUIRED
    assert (await ada.send("/bulk?skill=ask", all="yes", to="cancel")).status_code == 409
    assert (await ada.send("/bulk?lifecycle=sleeping", all="yes", to="cancel")).status_code == 404


class Slow(FakeEngine):
    """Cancels a task once `going` is set, and sets `over` when it has canceled `many`."""

    def __init__(self, many: int) -> None:
        super().__init__(SKILLS)
        self.going, self.over = asyncio.Event(), asyncio.Event()
        self.many = many

    async def cancel(self, task_id: str, *, reason: str = "", by: str | None = None) -> TaskView:
        """As said."""
        if task_id == "bug":
            raise ZeroDivisionError
        await self.going.wait()
        view = await super().cancel(task_id, reason=reason)
        self.many -= 1
        if not self.many:
            self.over.set()
        return view


async def test_what_was_begun_goes_on_when_the_page_is_closed() -> None:
    """
    The page grows as tasks are done with. Somebody closes it before the first is: all are done nevertheless.
    """
    engine = Slow(25)
    ids = [f"a{number:02}" for number in range(25)]
    for task_id in ids:
        await engine.start("ask", Content.from_text("x"), task_id=task_id)
    sent, shown = list[bytes](), asyncio.Event()
    form = [("to", "cancel"), ("sure", "yes"), *(("task", one) for one in ids)]
    came: list[Message] = [{"type": "http.request", "body": urlencode(form).encode(), "more_body": False}]

    async def receive() -> Message:
        if came:
            return came.pop()
        await shown.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if b"Cancel 25 tasks" in sent[-1]:
            shown.set()

    headers = {**SAME, "Host": "127.0.0.1", "Content-Type": "application/x-www-form-urlencoded"}
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/bulk", "root_path": "", "query_string": b""}
    scope |= {"client": ("127.0.0.1", 1)} | {
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    }
    async with asyncio.timeout(10):
        await page_app(engine, Access(loopback="ada"))(scope, receive, send)
        assert b"1 of 25" not in b"".join(sent)
        engine.going.set()
        await engine.over.wait()

    assert await engine.count(TaskFilter(lifecycle=TaskState.PAUSED)) == 0


async def test_a_bug_leaves_the_rest_as_they_are() -> None:
    """
    The page says so, and ends as a page does.
    """
    engine = Slow(3)
    for task_id in ("bug", "a1", "a2"):
        await engine.start("ask", Content.from_text("x"), task_id=task_id)
    transport = httpx2.ASGITransport(app=page_app(engine, Access(loopback="ada")))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as http:
        form = {"task": ["bug", "a1", "a2"], "to": "cancel", "sure": "yes"}
        page = (await Browser(http).send("/bulk", **form)).text

    assert "0 of 3 done" in page
    assert "3 stay as they are" in page
    assert page.endswith("</html>")


async def test_filters_are_saved_under_a_name(ada: Browser) -> None:
    """
    In the browser alone: they lead to the same address, are replaced by the same name, and go when they are removed.
    """
    saved = await ada.send("/views", name="Late <b>teas</b>", skill="order", age="day", after="x", unknown="y")
    assert saved.headers["location"] == "/tasks?skill=order&age=day"
    page = (await ada.get("/tasks")).text
    assert '<a href="/tasks?skill=order&amp;age=day" dir="auto">Late &lt;b&gt;teas&lt;/b&gt;</a>' in page
    await ada.send("/views", name="Late <b>teas</b>", skill="ask")
    await ada.send("/views", name="All failed", lifecycle="failed")
    page = (await ada.get("/tasks")).text
    assert re.findall(r'<li><a href="(/tasks[^"]*)"', page)[:2] == ["/tasks?skill=ask", "/tasks?lifecycle=failed"]

    await ada.send("/views", remove="Late <b>teas</b>")
    assert "Late &lt;b&gt;teas&lt;/b&gt;” is removed" in (await ada.get("/tasks")).text
    assert "Late &lt;b" not in (await ada.get("/tasks")).text
    for wrong in ("", " ", "x" * 61, "a\x00b"):
        assert (await ada.send("/views", name=wrong, skill="ask")).status_code == 409
    assert (await ada.send("/views", name="long", text="x" * 4_000)).status_code == 409
    assert "All failed" in (await ada.get("/tasks")).text
    await ada.send("/signin", name="bob")
    assert "All failed" not in (await ada.get("/tasks")).text


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        pytest.param({"skill": "ask"}, ["old-ask"], id="skill"),
        pytest.param({"lifecycle": "failed"}, ["old-order"], id="lifecycle"),
        pytest.param({"owner": "dora & Söhne+"}, ["old-ask"], id="owner"),
        pytest.param({"age": "hour"}, ["new-order"], id="age"),
        pytest.param({"text": "old"}, ["old-ask", "old-order"], id="text"),
        pytest.param({"text": "order", "anywhere": "yes"}, ["new-order", "old-order"], id="anywhere"),
        pytest.param(
            {
                "skill": "order",
                "lifecycle": "paused",
                "owner": "olga",
                "age": "day",
                "text": "order",
                "anywhere": "yes",
            },
            ["new-order"],
            id="all",
        ),
    ],
)
async def test_a_view_holds_each_filter(
    engine: FakeEngine, ada: Browser, given: dict[str, str], fits: list[str]
) -> None:
    """
    Saved by the form that the page shows, opened by its link, from any page of the list, and removed by its button.
    """
    engine.clock.now = datetime.now(UTC) - timedelta(hours=2)  # the page counts ages from now
    await order(engine, "old-order")
    await engine.cancel("old-order")
    await engine.start("ask", Content.from_text("x"), task_id="old-ask", owner="dora & Söhne+")
    await engine.advance(7200)
    await order(engine, "new-order")

    shown = (await ada.get("/tasks", params=given)).text
    assert sorted(listed(shown)) == fits
    await ada.send("/views", **fields_of(shown, "Save these filters"), name="Mine")
    everything = (await ada.get("/tasks")).text
    link = re.search(r'<a href="([^"]+)" dir="auto">Mine</a>', everything)
    assert link is not None
    opened = (await ada.get(html.unescape(link[1]))).text
    assert sorted(listed(opened)) == fits
    assert fields_of(opened, "Save these filters") == {name: given.get(name, "") for name in FILTERS}

    gone = await ada.send("/views", **fields_of(opened, '<form class="saved"'), remove="Mine")
    assert sorted(listed((await ada.get(gone.headers["location"])).text)) == fits
    assert ">Mine</a>" not in (await ada.get("/tasks")).text


def fields_of(page: str, after: str) -> dict[str, str]:
    """The hidden fields of the first form after a text."""
    form = page.partition(after)[2].partition("</form>")[0]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in found}


async def test_a_saved_view_is_read_with_care(ada: Browser, open_page: Open) -> None:
    """
    A cookie that somebody wrote by hand is none, or filters; who only reads may save one.
    """
    for wrong in ("x", "e30=", "W10=", "bnVsbA==", base64.b64encode(b"[" * 100_000).decode()[:8_000]):
        ada.http.cookies.set("refold_views", wrong, domain="127.0.0.1", path="/")
        assert (await ada.get("/tasks")).status_code == 200
    odd = json.dumps({"of": "ada", "views": {"a": {"skill": ["<script>"], "x": "1"}}}).encode()
    ada.http.cookies.set("refold_views", base64.urlsafe_b64encode(odd).decode(), domain="127.0.0.1", path="/")
    page = (await ada.get("/tasks")).text.partition("</head>")[2]
    assert "/tasks?skill=%5B%27%3Cscript%3E" in page
    assert "<script>" not in page
    rita = await open_page(key="key-of-rita", read_only=("rita",))
    assert (await rita.send("/views", name="mine", skill="order")).status_code == 303
    assert (await rita.http.post("/views", data={"name": "x"}, headers={"Sec-Fetch-Site": "none"})).status_code == 403


async def test_a_skill_is_started_by_a_form(engine: FakeEngine, ada: Browser) -> None:
    """
    The form has a field for each of the schema; what does not fit comes back with what was typed.
    """
    page = (await ada.get("/skills/order")).text
    assert "What to buy." in page
    assert '<option value="&#34;blue&#34;"' in page
    form = {'f:["item"]': "tea & milk", 'f:["urgent"]': "true", 'f:["tags"]': '["a"]', 'f:["color"]': '"blue"'}

    wrong = await ada.send("/skills/order", **form, **{'f:["amount_cents"]': "-5"})
    assert wrong.status_code == 409
    assert "amount_cents" in wrong.text
    assert 'value="tea &amp; milk"' in wrong.text
    good = await ada.send("/skills/order", **form, **{'f:["amount_cents"]': "5"}, id="mine")

    assert good.headers["location"] == "/task/mine"
    record = await engine.record("mine")
    sent = {"item": "tea & milk", "amount_cents": 5, "urgent": True, "tags": ["a"], "color": "blue"}
    assert record.messages[0].content.data == sent
    assert (await ada.send("/skills/order", **form, **{'f:["amount_cents"]': "5"}, id="mine")).status_code == 409
    assert (await ada.send("/skills/ask", text=" ")).status_code == 409
    assert (await ada.send("/skills/ask", text="hello")).status_code == 303


async def test_a_form_starts_one_task(engine: FakeEngine, ada: Browser) -> None:
    """
    Sent twice, by a second click or after going back, it leads to the task that it has started, also under an id that
    the person gave; a new form starts another one.
    """
    once = re.search(r'name="once" value="([0-9a-f]+)"', (await ada.get("/skills/ask")).text)
    assert once is not None

    first = await ada.send("/skills/ask", text="hello", once=once[1])
    second = await ada.send("/skills/ask", text="hello", once=once[1])

    assert first.headers["location"] == second.headers["location"] == f"/task/ask-{once[1]}"
    assert "This form has started this task already" in (await ada.get(second.headers["location"])).text
    assert len(await engine.find(TaskFilter())) == 1
    sent = [await ada.send("/skills/ask", text="hello", id="mine", once="0000000a") for _ in range(2)]
    assert [one.headers["location"] for one in sent] == ["/task/mine"] * 2
    assert (await ada.send("/skills/ask", text="hello", id="mine", once="0000000b")).status_code == 409
    assert once[0] not in (await ada.get("/skills/ask")).text
    assert (await ada.send("/skills/ask", text="hello", once="../x")).status_code == 303


async def test_a_task_that_no_worker_has_begun_is_said_to_wait(engine: FakeEngine, ada: Browser) -> None:
    """
    Its start is not told as if it had taken place.
    """
    engine.worker = False

    sent = await ada.send("/skills/ask", text="hello", id="a1")

    assert "begins once a worker takes it" in (await ada.get(sent.headers["location"])).text


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill_id(skill_of(skill)))
async def test_each_skill_is_drawn(engine: FakeEngine, ada: Browser, skill: Any) -> None:
    """
    Every state is drawn once, within the picture, and no two overlap.
    """
    found = FakeEngine([skill]).skills
    ((name, compiled),) = found.items()
    picture = drawn(compiled)

    assert picture.boxes
    for box in picture.boxes:
        assert box.x >= 0
        assert box.x + box.width <= picture.width
        assert box.y + box.height <= picture.height
    for number, one in enumerate(picture.boxes):
        for other in picture.boxes[:number]:
            beside = one.x + one.width <= other.x or other.x + other.width <= one.x
            above = one.y + one.height <= other.y or other.y + other.height <= one.y
            assert beside or above
    page = (await ada.get(f"/skills/{name}")).text
    assert page.count('<g class="step">') == sum(box.kind == "step" for box in picture.boxes)


async def test_the_graph_shows_where_a_task_is(engine: FakeEngine, ada: Browser) -> None:
    """
    The step that the task is at is marked; a task that there is not is not found.
    """
    await order(engine, "o1")
    link = "/skills/order?task=o1#graph"
    assert link in (await ada.get("/task/o1")).text

    page = (await ada.get(link)).text

    assert page.count('class="step here"') == 1
    assert 'is at <strong dir="auto">ask</strong>' in page
    assert (await ada.get("/skills/order?task=none")).status_code == 404
