"""The page in a real browser, over a real `refold dev`: what a person does, with and without JavaScript.

Every page that a test opens is watched: a message on the console, a refused resource or an error in a script fails it.
With `REFOLD_PICTURES=FOLDER` the pictures of docs/page.md are written there.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from time import time
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Locator, Page, Route, ViewportSize, async_playwright, expect
from pydantic import JsonValue

from refold import Content, Status
from refold.core.errors import InputRejected
from refold.core.gates import DecisionMade
from refold.engine import Engine, EngineError
from refold.temporal import connect
from tests.services import chromium
from tests.services.serving import free_port

ROOT = Path(__file__).parents[3]
AXE = ROOT / "tests" / "a2a" / "js" / "node_modules" / "axe-core" / "axe.min.js"
SOON_MS = 20_000
"""How long a busy machine may take, in milliseconds; Playwright waits for 5 s by itself."""

expect.set_options(timeout=SOON_MS)

PHONE: ViewportSize = {"width": 390, "height": 844}
HALF: ViewportSize = {"width": 640, "height": 400}
"""What a window of 1280 by 800 shows at 200 %."""

KEY = "a-key-of-ada-0123456789"

TEA: dict[str, JsonValue] = {"item": "tea for the kitchen", "amount_cents": 1999}

pytestmark = pytest.mark.server


class Dev:
    """A running `refold dev`, with what it said when it was ready."""

    def __init__(self, folder: Path) -> None:
        names = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "REFOLD_A2A"))}
        self.stderr = (folder / "stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "refold.cli", "dev", "tests.web.page.skills", "workflows.hello", "--json",
             "--recovery", "fast-recovery", "--a2a-port", str(free_port()), "--model", "scripted:demo"],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=self.stderr,
            env={**names, "REFOLD_APPROVER": "ada", "REFOLD_SCRIPTED_DELAY": "2"},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (folder / "stderr").read_text()
        self.up: dict[str, Any] = json.loads(line)

    def close(self) -> None:
        """Stop it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=100)
        self.stderr.close()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One for all tests."""
    folder = tmp_path_factory.mktemp("dev")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_STORAGE", str(folder))  # the tests read what the workers write
        running = Dev(folder)
        yield running
        running.close()


@pytest.fixture(scope="module")
async def engine(dev: Dev) -> Engine:
    """The same tasks, past the page."""
    return await connect(address=dev.up["address"])


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The browser."""
    environment: dict[str, Any] = chromium.environment()
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=chromium.binary(), env=environment, args=["--no-sandbox"]
        )
        yield running
        await running.close()


Open = Callable[..., Awaitable[Page]]


@pytest.fixture
async def opened(browser: Browser, dev: Dev) -> AsyncIterator[Open]:
    """Opens a path of the page in a browser of its own: `await opened("tasks", name="bob", java_script_enabled=False)`.

    At the end no page may have written a line on its console, but for a request that the server refused. With `silent`
    no line at all is allowed. With `late` a line of htmx's about a timeout is allowed, too.
    """
    said: list[str] = []
    async with AsyncExitStack() as stack:

        async def open_(
            path: str = "", *, name: str = "", silent: bool = False, late: bool = False, **context: Any
        ) -> Page:
            def hear(text: str) -> None:
                # A browser itself writes such a line where a server is away, or answers that something was refused.
                refused = text.startswith("Failed to load resource") and not silent
                if not (refused or (late and text.startswith("htmx: htmx:error: timeout"))):
                    said.append(text)

            own = await browser.new_context(**{"base_url": dev.up["page"], **context})
            stack.push_async_callback(own.close)
            page = await own.new_page()
            page.set_default_timeout(SOON_MS)
            page.on("console", lambda message: hear(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            if name:
                await page.goto("signin")
                await page.get_by_label("Your name").fill(name)
                await page.get_by_role("button", name="Continue").click()
            await page.goto(path)
            return page

        yield open_
    assert said == []


@pytest.fixture
def keyed(dev: Dev, tmp_path: Path) -> Iterator[str]:
    """The page of another gateway to the same tasks, where ada signs in with a key."""
    names = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "REFOLD_"))}
    given = {"REFOLD_A2A_API_KEYS": f"ada={KEY}", "REFOLD_PAGE_SEE_ALL": "ada", "TEMPORAL_ADDRESS": dev.up["address"]}
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "refold.cli", "serve", "tests.web.page.skills", "--page", "--port", "0", "--json"],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=stderr,
            env={**names, "REFOLD_STORAGE": os.environ["REFOLD_STORAGE"], **given},
        )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "stderr").read_text()
        yield json.loads(line)["page"]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


async def order(engine: Engine, task_id: str, skill: str = "order") -> None:
    """A task that waits for an approval."""
    content = Content.from_data(dict(TEA)) if skill == "order" else Content.from_text("go")
    await engine.start(skill, content, task_id=task_id)


async def decisions(engine: Engine, task_id: str) -> list[DecisionMade]:
    """What was decided in a task."""
    events = [entry.event async for entry in engine.journal(task_id)]
    return [event for event in events if isinstance(event, DecisionMade)]


def card(page: Page, task_id: str) -> Any:
    """A task's card in the inbox."""
    return page.locator("article", has=page.get_by_role("link", name=task_id, exact=True))


async def gone(page: Page, task_id: str) -> None:
    """Wait until a task is no longer in the inbox."""
    await expect(card(page, task_id)).to_have_count(0)


async def picture(page: Page | Locator, name: str) -> None:
    """Keep a picture of a page, or of a part of one, if they are wanted."""
    if folder := os.environ.get("REFOLD_PICTURES"):
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def accessible(page: Page) -> None:
    """Nothing that axe knows keeps anybody from using the page."""
    await page.evaluate(AXE.read_text())
    found = await page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa', 'wcag22aa', 'best-practice']})")
    wrong = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
    assert wrong == [], page.url


async def fits(page: Page) -> None:
    """Nothing is wider than the window."""
    wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0, page.url


async def test_a_gate_appears_by_itself_and_is_approved(opened: Open, engine: Engine) -> None:
    """
    An open inbox shows what comes; one click approves it in the person's name; the task then tells what happened.
    """
    page = await opened()
    await expect(page.get_by_role("heading", name="Waits for you")).to_be_visible()
    await order(engine, "live-1")
    await expect(card(page, "live-1")).to_be_visible()
    await picture(page, "inbox")

    await card(page, "live-1").get_by_role("button", name="Approve", exact=True).click()

    await expect(page.get_by_role("status").filter(has_text="You approved")).to_be_visible()
    await gone(page, "live-1")
    assert [one.approver for one in await decisions(engine, "live-1")] == ["ada"]
    await page.goto("task/live-1")
    await expect(page.get_by_text("bought, says ada", exact=False).first).to_be_visible()


async def test_what_comes_before_the_stream_is_open_is_shown(opened: Open, engine: Engine) -> None:
    """
    A gate that opens after the inbox was made and before its event stream begins, which takes time, is not missed.
    """
    slow, other = await opened("skills"), await opened()
    going = asyncio.Event()

    async def wait(route: Route) -> None:
        await going.wait()
        await route.continue_()

    await slow.route(re.compile(r"/live(\?|$)"), wait)
    await slow.goto("")
    await order(engine, "gap-1")
    await expect(card(other, "gap-1")).to_be_visible()
    await expect(card(slow, "gap-1")).to_have_count(0)
    going.set()

    await expect(card(slow, "gap-1")).to_be_visible()
    await engine.cancel("gap-1")


async def test_what_somebody_types_is_not_lost(opened: Open, engine: Engine) -> None:
    """
    While a form is being filled in, news is announced, and the form stays as it is; then its changes are granted.
    """
    await order(engine, "edit-1")
    page = await opened()
    mine = card(page, "edit-1")
    await mine.get_by_text("Change it, then approve").click()
    await mine.get_by_label("Amount cents").fill("450")
    await picture(page, "change")
    await order(engine, "edit-2")
    await expect(page.get_by_role("link", name="Something has changed. Show it")).to_be_visible()
    await expect(mine.get_by_label("Amount cents")).to_have_value("450")

    await mine.get_by_role("button", name="Approve with these changes").click()

    await expect(page.get_by_role("status").filter(has_text="with your changes")).to_be_visible()
    assert [one.changes for one in await decisions(engine, "edit-1")] == [
        {"arguments": {"amount_cents": 450, "urgent": False}}
    ]
    await engine.cancel("edit-2")


async def test_what_somebody_begins_to_type_meanwhile_is_not_lost(opened: Open, engine: Engine) -> None:
    """
    A form that is opened while the news is on its way stays as it is, and the news is announced.
    """
    await order(engine, "begun-1")
    page = await opened()
    mine = card(page, "begun-1")
    await expect(mine).to_be_visible()
    asked, going = asyncio.Event(), asyncio.Event()

    async def wait(route: Route) -> None:
        asked.set()
        await going.wait()
        await route.continue_()

    await page.route(lambda url: "/live" not in url, wait)
    await order(engine, "begun-2")
    await asked.wait()
    await mine.get_by_text("Change it, then approve").click()
    going.set()

    await expect(page.get_by_role("link", name="Something has changed. Show it")).to_be_visible()
    await mine.get_by_label("Amount cents").fill("450")
    await expect(mine.get_by_label("Amount cents")).to_have_value("450")
    for task_id in ("begun-1", "begun-2"):
        await engine.cancel(task_id)


async def test_what_somebody_is_about_to_press_stays_in_its_place(opened: Open, engine: Engine) -> None:
    """
    While the pointer is on a button, or a key would press it, news is announced and moves nothing; it is shown
    afterwards, also if the pointer left the window, and what is open stays open. A comment that only the browser knows
    of, as after a reload, is kept.
    """
    await order(engine, "press-1")
    await order(engine, "theirs-1", "beside")
    page = await opened()
    approve = card(page, "press-1").get_by_role("button", name="Approve", exact=True)
    note = page.get_by_role("link", name="Something has changed. Show it")
    others = page.get_by_text(re.compile(r"Waits for others"))
    await others.click()
    await others.blur()
    await approve.hover()
    before = await approve.bounding_box()
    await order(engine, "press-2")
    await expect(note).to_be_visible()
    assert await approve.bounding_box() == before
    await expect(card(page, "press-2")).to_have_count(0)

    await page.mouse.move(0, 0)
    await expect(card(page, "press-2")).to_be_visible()
    await expect(note).to_be_hidden()
    await expect(page.locator(".others article").first).to_be_visible()

    await approve.hover()
    await order(engine, "press-5")
    await expect(note).to_be_visible()
    # Playwright's mouse cannot leave the window: it moves over the page's edge instead.
    await page.evaluate("document.documentElement.dispatchEvent(new PointerEvent('pointerleave'))")
    await expect(card(page, "press-5")).to_be_visible()

    await page.mouse.move(0, 0)
    await approve.focus()
    await order(engine, "press-3")
    await expect(note).to_be_visible()
    await expect(approve).to_be_focused()
    await approve.blur()
    await expect(card(page, "press-3")).to_be_visible()

    comment = card(page, "press-1").get_by_label("Comment").first
    await comment.evaluate("(field) => { field.value = 'half of a senten'; }")
    await order(engine, "press-4")
    await expect(note).to_be_visible()
    await expect(comment).to_have_value("half of a senten")
    for task_id in ("press-1", "press-2", "press-3", "press-4", "press-5", "theirs-1"):
        await engine.cancel(task_id)


class Way:
    """A way to a page that can forget its event streams: it then carries nothing more of them, and tells nobody, as a
    router does, or a laptop that slept.
    """

    def __init__(self, page: str) -> None:
        self._there = urlsplit(page)
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._ends: list[asyncio.StreamWriter] = []
        self.streams: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for end in self._ends:
            end.close()

    @property
    def page(self) -> str:
        """The page's address, this way."""
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._there.path}"

    def forget(self) -> None:
        """Carry nothing more of the streams that are open."""
        self._forgotten.update(self.streams)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection(self._there.hostname, self._there.port)
        self._ends += [writer, onward]

        async def carry(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while some := await one.read(65536):
                    if other is onward and b"/live" in some.partition(b"\r\n")[0]:
                        self.streams.append(writer)
                    if writer not in self._forgotten:
                        other.write(some)
            if writer not in self._forgotten:
                other.close()

        await asyncio.gather(carry(reader, onward), carry(there, writer))


async def test_a_connection_that_died_in_silence_is_made_anew(opened: Open, engine: Engine, dev: Dev) -> None:
    """
    No end of it ever comes, as after the laptop slept: after a minute without a sign of life the page says that it
    connects again, and then shows what came meanwhile.
    """
    other = await opened()
    async with Way(dev.up["page"]) as way:
        page = await opened("skills", late=True, base_url=way.page)
        await page.clock.install()
        async with page.expect_response(re.compile(r"/live(\?|$)")):
            await page.goto("")
        going = asyncio.Event()

        async def wait(route: Route) -> None:
            await going.wait()
            await route.continue_()

        await page.route("**", wait)  # also what the page fetches for what it was told before
        way.forget()
        await order(engine, "silent-1")
        await expect(card(other, "silent-1")).to_be_visible()
        await expect(card(page, "silent-1")).to_have_count(0)
        await page.clock.fast_forward("01:10")
        await expect(page.get_by_text("Connecting again")).to_be_visible()
        going.set()

        await expect(card(page, "silent-1")).to_be_visible()
        await expect(page.get_by_text("Connecting again")).to_be_hidden()
        await page.close()
    await engine.cancel("silent-1")


async def fetching_head(opened: Open, engine: Engine, task_id: str) -> tuple[Page, asyncio.Event]:
    """The page of a new task, whose head it fetches; the answer is that of now, and comes once the event is set."""
    await order(engine, task_id)
    page = await opened("skills")
    await page.clock.install()
    await page.goto(f"task/{task_id}")
    made, going = asyncio.Event(), asyncio.Event()

    async def wait(route: Route) -> None:
        answer = await route.fetch()
        made.set()
        await going.wait()
        await route.fulfill(response=answer)

    await page.route(re.compile(f"/head/{task_id}"), wait, times=1)
    await page.evaluate("() => { htmx.trigger(document.getElementById('head'), 'changed'); }")
    await made.wait()
    return page, going


async def test_a_change_while_a_part_is_fetched_is_shown(opened: Open, engine: Engine) -> None:
    """
    A task ends while the page fetches its head, which comes as it was before: the page then shows the end by itself.
    """
    page, going = await fetching_head(opened, engine, "late-1")
    await engine.decide("late-1", approved=True, approver="bob")
    await expect(page.locator("body:not([data-live])")).to_have_count(1)  # the page has been told of the end
    await page.clock.run_for(200)  # its own timer, of 120 ms, came first
    going.set()

    await expect(page.locator("#head .state")).to_have_text("Done")


async def test_a_change_before_a_part_is_replaced_is_shown(opened: Open, engine: Engine) -> None:
    """
    The page hears of a change while its head is fetched, and has the head before it asks for the change.
    """
    page, going = await fetching_head(opened, engine, "late-2")
    head = await page.query_selector("#head")
    assert head is not None
    await page.clock.pause_at(time() + 2)
    await page.evaluate("() => document.dispatchEvent(new Event('htmx:error'))")  # then the page looks for changes
    await page.clock.run_for(3_050)
    going.set()
    await head.wait_for_element_state("hidden")
    async with page.expect_request(re.compile(r"/head/late-2")):
        await page.clock.run_for(1_000)
    await engine.cancel("late-2")


async def test_a_time_of_yesterday_has_its_date(opened: Open, engine: Engine) -> None:
    """
    A page that stays open beyond midnight, while nothing happens, does not show the times of yesterday as of today.
    """
    await order(engine, "night-1")
    page = await opened("skills")
    await page.clock.install()
    await page.goto("task/night-1")
    since = page.locator("#e1 time")
    await expect(since).to_have_text(re.compile(r"^\d?\d:\d\d:\d\d"))

    await page.clock.fast_forward("24:00:00")

    await expect(since).to_have_text(re.compile(r"\b20\d\d\b"))
    await engine.cancel("night-1")


async def test_two_people_race(opened: Open, engine: Engine) -> None:
    """
    Both press at once: one decision is made, and the other person reads who made it.
    """
    await order(engine, "race-1")
    ada, bob = await opened(name="ada"), await opened(name="bob")
    buttons = [
        card(ada, "race-1").get_by_role("button", name="Approve", exact=True),
        card(bob, "race-1").get_by_role("button", name="Deny", exact=True),
    ]
    for button in buttons:
        await expect(button).to_be_visible()

    await asyncio.gather(*(button.click() for button in buttons))

    told = [await page.locator("main").inner_text() for page in (ada, bob)]
    assert sum("Nothing happened" in one for one in told) == 1, told
    assert len(await decisions(engine, "race-1")) == 1


async def test_gates_are_decided_together(opened: Open, engine: Engine) -> None:
    """
    One button for both gates of a task; or one form, on the task's page and without scripts, that grants at one gate
    and denies at the other.
    """
    await order(engine, "both-1", "two")
    await order(engine, "both-2", "two")
    page = await opened()
    together = page.locator("section.together", has=page.get_by_role("link", name="both-1").first)

    await together.get_by_role("button", name="Approve all 2").click()

    await expect(page.get_by_role("status").filter(has_text="first, second")).to_be_visible()
    assert [one.decision for one in await decisions(engine, "both-1")] == ["approved", "approved"]

    plain = await opened("task/both-2", java_script_enabled=False, viewport={"width": 1280, "height": 1400})
    first, second = plain.locator("article.gate", has_text="first"), plain.locator("article.gate", has_text="second")
    await first.get_by_label("Approve").check()
    await second.get_by_label("Deny").check()
    await second.get_by_label("Comment").fill("not him")
    await picture(plain.locator("section.together"), "together")
    await plain.get_by_role("button", name="Send these decisions").click()

    await expect(plain.get_by_role("status")).to_have_text("Approved: first. Denied: second.")
    assert [one.comment for one in await decisions(engine, "both-2")] == ["", "not him"]


async def test_an_open_inbox_hears_of_one_of_several_gates(opened: Open, engine: Engine) -> None:
    """
    The task waits on as before, so the list of tasks says nothing of it; the page on which it was decided does.
    """
    await order(engine, "part-1", "two")
    page, other = await opened(name="ada"), await opened("task/part-1", name="bob")
    await expect(page.get_by_text("2 approvals of one task.")).to_be_visible()

    await other.locator("article.gate", has_text="first").get_by_label("Approve").check()
    await other.get_by_role("button", name="Send these decisions").click()

    await expect(card(page, "part-1")).to_have_count(1)
    await engine.cancel("part-1")


CALLS = """Write to both, and charge.
-> mail(to="grace@example.org", text="hi"), mail(to="alan@example.org", text="bye"), charge(amount_cents=1999)
-> All is done."""


async def test_an_agents_calls_of_one_turn_are_decided_in_one_form(opened: Open, engine: Engine) -> None:
    """
    Each with its own answer; the Enter key sends what was chosen, and never the same decision for all of them; one that
    is changed goes by itself.
    """
    await engine.start("mailer", Content.from_text(CALLS), task_id="turn-1")
    page = await opened(viewport=PHONE)
    together = page.locator("section.together", has=page.get_by_role("link", name="turn-1").first)
    cards = together.locator("article.gate")
    await expect(cards).to_have_count(3)
    await expect(cards.nth(1).locator("header")).to_contain_text("mail.2")

    await cards.nth(0).get_by_label("Approve").focus()
    await page.keyboard.press("Space")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Approved: mail. turn-1")
    assert [one.gate for one in await decisions(engine, "turn-1")] == ["turn-1/2.1"]

    await expect(cards).to_have_count(2)
    charge = cards.filter(has_text="charge")
    await charge.get_by_text("Change it, then approve").click()
    await expect(charge.get_by_label("Result")).to_have_value("")
    await charge.get_by_label("Amount cents").fill("500")
    await charge.get_by_role("button", name="Approve with these changes").click()
    await expect(page.get_by_role("status").filter(has_text="with your changes")).to_be_visible()
    mine = card(page, "turn-1")
    await mine.get_by_label("Comment").first.fill("not him")
    await mine.get_by_role("button", name="Deny").click()

    await expect(page.get_by_role("status").filter(has_text="You denied “mail.2”")).to_be_visible()
    async for _ in engine.watch("turn-1", follow=True):
        pass
    view = await engine.look("turn-1")
    assert view.messages[-1].text == "All is done."
    assert [(one.gate, one.approved, one.comment) for one in await decisions(engine, "turn-1")] == [
        ("turn-1/2.1", True, ""),
        ("turn-1/2.3", True, ""),
        ("turn-1/2.2", False, "not him"),
    ]


async def test_the_story_comes_as_it_happens(opened: Open, engine: Engine) -> None:
    """
    A model's text is read while it is written; entries follow without a reload; the end is shown.
    """
    page = await opened("skills/hello")
    await page.get_by_label("What it begins with").fill("I am Grace")
    await page.get_by_label("Its id").fill("story-1")
    await page.get_by_role("button", name="Start").click()

    await expect(page.locator(".writing").first).to_be_visible()
    await expect(page.locator("#head .state")).to_have_text("Done")
    await expect(page.locator(".entry")).to_have_count((await engine.look("story-1")).seq)
    await expect(page.locator(".writing")).to_have_count(0)
    await expect(page.get_by_role("heading", name="Result")).to_be_visible()
    await picture(page, "task")


async def test_a_tools_progress_is_shown_while_it_runs(opened: Open, engine: Engine) -> None:
    """
    The newest report in place of the one before; the result replaces it, and nothing of it is kept.
    """
    await engine.start("counts", Content.from_text("go"), task_id="count-1")
    page = await opened("task/count-1")

    report = page.locator(".writing")
    await expect(report).to_have_text(re.compile(r"^count_shelves: shelf \d+ of 10$"))
    await expect(page.locator("#head .state")).to_have_text("Done")
    await expect(report).to_have_count(0)
    await expect(page.get_by_text("shelf")).to_have_count(0)


async def test_time_travel_and_what_if(opened: Open, engine: Engine) -> None:
    """
    The slider leads to any entry; a branch stands beside what happened.
    """
    await order(engine, "past-1", "again")
    for _ in range(2):
        await engine.decide("past-1", approved=True, approver="bob")
    await order(engine, "past-2")
    await engine.decide("past-2", approved=True, approver="bob")
    page = await opened("at/past-1")
    await page.get_by_label("Entry", exact=True).focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_text("2 of 3")).to_be_visible()
    await expect(page).to_have_url(re.compile(r"/at/past-1\?seq=2$"))
    await picture(page, "past")
    await page.get_by_role("button", name="Branch off from entry 2").click()

    await expect(page.get_by_role("heading", name="Side by side")).to_be_visible()
    await accessible(page)
    await page.goto("skills/order?task=past-2")
    await expect(page.locator(".move.taken")).to_have_count(3)
    await picture(page, "way")


async def test_a_recovered_task_that_fails_again_is_told_of(opened: Open, engine: Engine) -> None:
    """
    One that would fail before it could go on is not recovered, and can be later; one that fails at once shows that.
    """
    for task_id, skill in (("bad-1", "charge"), ("bad-2", "letter")):
        await engine.start(skill, Content.from_text("much"), task_id=task_id)
        async for _ in engine.watch(task_id, follow=True):
            pass
    page = await opened("ask/bad-1?to=recover")
    await page.get_by_role("button", name="Recover").click()
    await expect(page.get_by_role("heading", name="Not recovered")).to_be_visible()
    await expect(page.get_by_role("alert")).to_contain_text("would end again at once")
    await page.get_by_role("link", name="To the task").click()
    await expect(page.get_by_text("recovered as")).to_have_count(0)
    await expect(page.get_by_role("link", name="Recover")).to_be_visible()

    await page.goto("ask/bad-2?to=recover")
    await page.get_by_role("button", name="Recover").click()
    await expect(page.get_by_role("heading", name="bad-2.r1")).to_be_visible()
    await expect(page.get_by_role("status")).to_contain_text("was started to go on for bad-2")
    await expect(page.locator("#head .state")).to_have_text("Failed")
    await expect(page.get_by_role("link", name="Recover")).to_be_visible()


async def test_without_javascript_everything_is_there(opened: Open, engine: Engine) -> None:
    """
    Start, answer, approve, cancel, travel: by links and forms alone.
    """
    page = await opened("skills/ask", java_script_enabled=False)
    await page.get_by_label("What it begins with").fill("go")
    await page.get_by_label("Its id").fill("plain-1")
    await page.get_by_role("button", name="Start").click()
    await page.goto("")
    await card(page, "plain-1").get_by_label("Your answer").fill("Grace")
    await card(page, "plain-1").get_by_role("button", name="Send the answer").click()
    await expect(page.get_by_role("status")).to_contain_text("was taken")
    await card(page, "plain-1").get_by_label("City").fill("Rome")
    await card(page, "plain-1").get_by_label("Nights").fill("2")
    await card(page, "plain-1").get_by_role("button", name="Send the answer").click()
    await page.goto("at/plain-1?seq=1")
    await page.get_by_role("link", name="Later").click()
    await expect(page.get_by_text("2 of 3")).to_be_visible()
    assert (await engine.look("plain-1")).messages[-1].text == "Grace goes to Rome for 2 nights"

    await order(engine, "plain-2")
    await page.goto("task/plain-2")
    await page.get_by_role("link", name="Cancel the task").click()
    await page.get_by_role("button", name="Cancel the task").click()
    await expect(page.locator("#head .state")).to_have_text("Canceled")


async def test_many_are_canceled_by_a_saved_view(opened: Open, engine: Engine) -> None:
    """
    Without JavaScript: filters are saved under a name; all that fit are canceled, and the page that grows says how.
    """
    for number in range(12):
        await engine.start("quiz", Content.from_text("go"), task_id=f"many-{number}")
    page = await opened("tasks?skill=quiz&text=many", java_script_enabled=False)
    await page.get_by_text("Save these filters").click()
    await page.get_by_label("Under the name").fill("The many")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_contain_text("Saved as “The many”")
    await page.goto("tasks")
    await page.get_by_role("link", name="The many").click()
    await expect(page.locator(".tasks tbody tr")).to_have_count(12)
    await page.get_by_label("All that fit the filters").check()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("heading", name="Cancel 12 tasks?")).to_be_visible()

    await page.get_by_role("button", name="Do it").click()

    await expect(page.get_by_role("status")).to_have_text("12 of 12 done.")
    assert {(await engine.look(f"many-{number}")).status for number in range(12)} == {Status.CANCELED}


async def test_a_form_of_somebody_else_is_sent_only_when_asked_again(opened: Open, engine: Engine) -> None:
    """
    A page that ada opened, in a browser where somebody calls themselves bob since: nothing is decided in bob's name
    before bob has read that.
    """
    await order(engine, "tab-1")
    first = await opened(name="ada")
    second = await first.context.new_page()
    await second.goto("signin")
    await second.get_by_label("Your name").fill("bob")
    await second.get_by_role("button", name="Continue").click()
    await expect(second.locator(".who")).to_contain_text("You are bob")

    await order(engine, "tab-2")
    await expect(first.get_by_text("Something has changed.")).to_be_visible()  # and what is there stays ada's
    await card(first, "tab-1").get_by_label("Comment").first.fill("it is tea")
    await card(first, "tab-1").get_by_role("button", name="Approve", exact=True).click()
    await expect(first.get_by_role("alert")).to_contain_text("opened by ada, and you are bob now")
    assert await decisions(engine, "tab-1") == []
    await first.get_by_role("button", name="Send it again").click()

    await expect(first.get_by_role("status").filter(has_text="You approved")).to_be_visible()
    assert [(one.approver, one.comment) for one in await decisions(engine, "tab-1")] == [("bob", "it is tea")]


async def test_the_last_page_of_the_list_back_and_forward(opened: Open, engine: Engine) -> None:
    """
    More than one page of tasks: the last says that it is the last; going back and forward shows the same tasks again.
    """
    await asyncio.gather(*(engine.start("charge", Content.from_text("5"), task_id=f"leaf-{n:02}") for n in range(51)))
    page = await opened("tasks?text=leaf")
    rows, more = page.locator(".tasks tbody tr"), page.get_by_role("link", name="More")
    await expect(page.locator(".counts")).to_have_text("Done 51")
    await expect(more).to_be_visible()
    first = await rows.locator("td a").all_inner_texts()

    await more.click()
    await expect(rows).to_have_count(1)
    await expect(more).to_have_count(0)
    (last,) = await rows.locator("td a").all_inner_texts()
    assert sorted([*first, last]) == [f"leaf-{n:02}" for n in range(51)]
    for way, shown in ((page.go_back, first), (page.go_forward, [last]), (page.go_back, first)):
        await way()
        await expect(rows).to_have_count(len(shown))
        assert await rows.locator("td a").all_inner_texts() == shown
    await page.go_forward()
    await page.get_by_role("link", name="To the newest").click()
    await expect(rows).to_have_count(50)


async def test_signing_in_leaves_nothing_on_the_console(opened: Open, keyed: str) -> None:
    """
    By name; by key, after a wrong one, and to the page that was asked for. The way back leads past all of that.
    """
    page = await opened("signin", silent=True)
    await page.get_by_label("Your name").fill("bob")
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".who")).to_contain_text("You are bob")

    page = await opened("skills", silent=True, base_url=keyed)
    for key in ("not-a-key-of-anybody", KEY):
        await page.get_by_label("Your key or token").fill(key)
        await page.get_by_role("button", name="Sign in").click()
        if key != KEY:
            await expect(page.get_by_role("alert")).to_contain_text("nobody has this key or token")
    await expect(page.get_by_role("heading", name="Skills")).to_be_visible()
    await page.go_back()
    await expect(page.get_by_label("Your key or token")).to_be_visible()
    await page.goto("")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("status")).to_have_text("You are signed out.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everybody_can_use_it(opened: Open, engine: Engine, scheme: str) -> None:
    """
    Each page passes axe's rules; on a phone, and at 200 %, nothing is wider than the window; keys alone decide.
    """
    await order(engine, f"all-{scheme}")
    await order(engine, f"both-{scheme}", "two")
    page = await opened(color_scheme=scheme)
    pages = ["", f"task/all-{scheme}", f"task/both-{scheme}", f"at/all-{scheme}", "tasks"]
    if scheme == "light":  # the others have no colours of their own
        pages += [f"calls/all-{scheme}", f"content/all-{scheme}", f"ask/all-{scheme}?to=cancel"]
        pages += [
            "skills",
            f"skills/order?task=all-{scheme}",
            "skills/order?recent=5",
            "schedules",
            "signin",
            "nope",
            "decisions",
            "tasks?skill=order",
        ]
    for path in pages:
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto(path)
        await accessible(page)
        for size in (PHONE, HALF):
            await page.set_viewport_size(size)
            await fits(page)
    await page.set_viewport_size(PHONE)
    await page.goto("")
    await picture(page, f"phone-{scheme}")
    comment = card(page, f"all-{scheme}").get_by_label("Comment").first
    await comment.focus()
    await page.keyboard.type("by keys")
    await page.keyboard.press("Tab")
    await expect(card(page, f"all-{scheme}").get_by_role("button", name="Approve", exact=True)).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").filter(has_text="You approved")).to_be_visible()
    assert [one.comment for one in await decisions(engine, f"all-{scheme}")] == ["by keys"]


@pytest.mark.fault
async def test_a_page_outlives_worker_and_gateway(opened: Open, engine: Engine, dev: Dev) -> None:
    """
    Both are killed while the page is open: it goes on by itself, a decision is made once, and a person keeps the name
    that they chose.
    """
    await order(engine, "kill-1")
    page = await opened("task/kill-1", name="bob")
    await expect(page.get_by_role("button", name="Approve", exact=True)).to_be_visible()

    os.kill(dev.up["worker_pid"], signal.SIGKILL)
    os.kill(dev.up["gateway_pid"], signal.SIGKILL)
    for _ in range(300):
        if await decided(engine, "kill-1"):
            break
        await asyncio.sleep(0.2)  # the worker is being started again

    await expect(page.locator("#head .state")).to_have_text("Done", timeout=60_000)
    await page.reload()
    await expect(page.locator(".who")).to_contain_text("You are bob")


async def decided(engine: Engine, task_id: str) -> bool:
    """Approve past the page; whether it was taken."""
    try:
        await engine.decide(task_id, approved=True, approver="bob")
    except InputRejected:
        return True
    except EngineError:
        return False
    return True
