"""What was decided, over all tasks."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import pytest

from refold import Content, InputRejected
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import NoWorker
from refold.testing import FakeEngine
from tests.web.page.conftest import Browser, Open
from tests.web.page.skills import SKILLS
from tests.web.page.test_inbox import order


class Counted(FakeEngine):
    """Notes which journals are read, and from where on; of those of `silent` and `refuses` none can be."""

    def __init__(self) -> None:
        super().__init__(SKILLS)
        self.read: list[tuple[str, int]] = []
        self.silent: set[str] = set()
        self.refuses: set[str] = set()

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """As noted."""
        self.read.append((task_id, after))
        async for entry in super().journal(task_id, after=after):
            yield entry

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """As noted."""
        if task_id in self.silent:
            raise NoWorker("no worker answers")
        if task_id in self.refuses:
            raise InputRejected("what was asked cannot be read: it was written with key 'b', which is not here")
        self.read.append((task_id, 0))
        async for one in super().past(task_id):
            yield one

    def purge(self, task_id: str) -> None:
        """Forget a task, so that its id is free."""
        del self._tasks[task_id]


@pytest.fixture
def engine() -> Counted:
    """Tasks in memory."""
    return Counted()


def rows(page: str) -> list[str]:
    """The rows of the table, as text."""
    body = page.partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in found]


async def test_who_decided_what_when_and_why(engine: Counted, ada: Browser) -> None:
    """
    Newest first, over all tasks, with the comment; by a person, and by a skill. The inbox leads there.
    """
    for number, (who, approved, why) in enumerate((("bob", False, "too dear"), ("ada", True, ""))):
        await order(engine, f"o{number}")
        await engine.advance(60)
        await engine.decide(f"o{number}", approved=approved, approver=who, comment=why)
    await engine.start("guarded", Content.from_text("Pay?"), task_id="g1")
    await engine.advance(60)
    await engine.decide("g1", approved=True, approver="cleo", vouched_by="desk")
    assert 'href="/decisions"' in (await ada.get("/")).text

    page = (await ada.get("/decisions")).text
    seen = rows(page)
    assert [row.split(" UTC ")[1] for row in seen[1:]] == [
        "ada approved purchase o1 order",
        "bob denied purchase o0 order too dear",
    ]
    assert seen[0].endswith("cleo vouched for by desk approved pay g1 guarded")
    assert 'href="/gate/o0?gate=o0%2F1.1"' in page
    assert "the 3 tasks that changed last" in page
    assert len(rows((await ada.get("/decisions?person=bob")).text)) == 1
    assert len(rows((await ada.get("/decisions?skill=order")).text)) == 2
    assert rows((await ada.get("/decisions?skill=order&person=cleo")).text) == []


async def test_a_journal_is_read_once(engine: Counted, ada: Browser) -> None:
    """
    The second look reads nothing of an ended task, nor of one that is at work; and of one that waits the last known
    entry and what is new: a grant that closes no gate, too.
    """
    await engine.start("charge", Content.from_text("7"), task_id="c1")
    await order(engine, "o1")
    await engine.decide("o1", approved=True, approver="bob")
    await engine.start("guarded", Content.from_text("Pay?"), task_id="g1")
    assert len(rows((await ada.get("/decisions")).text)) == 1
    assert sorted(engine.read) == [("c1", 0), ("g1", 0), ("o1", 0)]
    engine.read.clear()
    await engine.decide("g1", approved=True, approver="cleo", vouched_by="desk")

    assert len(rows((await ada.get("/decisions")).text)) == 2
    assert engine.read == [("g1", 0)]
    engine.read.clear()
    await engine.reply("c1", "charge", "charged")
    await ada.get("/decisions")
    assert sorted(engine.read) == [("c1", 0), ("g1", 1)]


@pytest.mark.parametrize("ended", [True, False])
async def test_a_task_whose_id_is_used_again_shows_its_own_decisions(
    engine: Counted, ada: Browser, open_page: Open, ended: bool
) -> None:
    """
    The page no longer shows decisions of the purged task, nor does its owner see those of the new task.
    """
    eve, wanted = await open_page(key="key-of-eve"), Content.from_data({"item": "tea", "amount_cents": 1})
    await engine.start("order", wanted, task_id="o1", owner="eve")
    if ended:
        await engine.decide("o1", approved=True, approver="bob")
    before = [len(rows((await browser.get("/decisions")).text)) for browser in (ada, eve)]
    engine.purge("o1")
    await engine.advance(3600)
    await engine.start("order", wanted, task_id="o1", owner="olga")
    await engine.decide("o1", approved=True, approver="cleo")

    [row] = rows((await ada.get("/decisions")).text)
    assert before == [ended, ended]
    assert row.endswith("cleo approved purchase o1 order")
    assert rows((await eve.get("/decisions")).text) == []


async def test_one_page_looks_through_so_many_tasks(
    engine: Counted, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where few of many tasks were decided in, a page says how far it has looked, and leads on; none is left out.
    """
    monkeypatch.setattr("refold.web.page.lists.history.ENOUGH_S", 600)
    for number in range(230):
        await engine.start("ask", Content.from_text("x"), task_id=f"a{number:03}")
    for number in range(3):
        await engine.advance(60)
        await order(engine, f"o{number}")
        await engine.decide(f"o{number}", approved=True, approver="bob")
    engine.silent = {"a007"}

    path, read, seen, silent = "/decisions", [], [], 0
    while path:
        page = (await ada.get(path)).text
        seen += rows(page)
        read += re.findall(r"from the (\d+) task", page)
        silent += "1 could not be read now" in page
        more = re.search(r'href="([^"]*)">Look in older tasks<', page)
        path = more[1].replace("&amp;", "&") if more else ""

    assert read == ["100", "100", "33"]
    assert len(seen) == 3
    assert silent == 1


async def test_a_journal_that_a_worker_refuses_hides_no_others(engine: Counted, ada: Browser) -> None:
    """
    A worker that lacks the key of whoever asks refuses the question: that task is counted as not read, as where no
    worker answers, and the decisions of the others are there.
    """
    for id in ("o1", "o2"):
        await order(engine, id)
        await engine.decide(id, approved=True, approver="bob")
    engine.refuses = {"o2"}

    page = await ada.get("/decisions")

    assert (page.status_code, len(rows(page.text)), "1 could not be read now" in page.text) == (200, 1, True)


async def test_a_page_takes_so_long_and_no_longer(
    engine: Counted, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where no worker answers, each journal takes seconds: the page shows what it has by then, and leads on.
    """
    monkeypatch.setattr("refold.web.page.lists.history.ENOUGH_S", 0)
    for number in range(25):
        await engine.start("ask", Content.from_text("x"), task_id=f"a{number:03}")

    page = (await ada.get("/decisions")).text

    assert "from the 10 tasks" in page
    assert "Look in older tasks" in page


async def test_people_see_their_own_tasks_decisions_and_their_own(engine: Counted, open_page: Open) -> None:
    """
    Not what others decided in tasks of others; and without payloads no comment.
    """
    await order(engine, "o1")  # olga's
    await engine.decide("o1", approved=True, approver="bob", comment="a secret")
    await engine.start("order", Content.from_data({"item": "tea", "amount_cents": 1}), task_id="o2", owner="bob")
    await engine.decide("o2", approved=True, approver="rita")
    bob, eve = await open_page(key="key-of-bob"), await open_page(key="key-of-eve")
    nora = await open_page(key="key-of-nora", see_all=("nora",), no_payloads=("nora",))

    page = (await bob.get("/decisions")).text
    assert sorted(row.split(" UTC ")[1] for row in rows(page)) == [
        "bob approved purchase o1 order a secret",
        "rita approved purchase o2 order",
    ]
    assert '"/task/o2"' in page
    assert '"/task/o1"' not in page
    assert rows((await eve.get("/decisions")).text) == []
    assert len(rows((await nora.get("/decisions")).text)) == 2
    assert "a secret" not in (await nora.get("/decisions")).text
