"""The schedules: when each is due, what it has started, and forms that ask first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from refold import Content
from refold.core.errors import InputRejected
from refold.engine import Listed, ScheduleNotFound, ScheduleView, TaskFilter
from refold.testing import FakeEngine
from tests.web.page.conftest import Open
from tests.web.page.test_hostile import TEXTS, Read

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


class Kept:
    """Schedules in memory; each start is a task of the engine."""

    def __init__(self, engine: FakeEngine, *views: ScheduleView) -> None:
        self.engine = engine
        self.views = {view.id: view for view in views}
        self.by: dict[str, str] = {}

    async def list(self) -> AsyncIterator[ScheduleView]:
        for view in self.views.values():
            yield view.model_copy(update={"owner": None, "input": "", "overlap": "", "running": ()})

    async def look(self, id: str) -> ScheduleView:
        if id not in self.views:
            raise ScheduleNotFound(id)
        return self.views[id]

    async def runs(self, id: str, *, limit: int = 20) -> Sequence[Listed]:
        found = await self.engine.find(TaskFilter(), limit=100)
        return [one for one in found if self.by.get(one.task_id) == id][:limit]

    async def of(self, task_id: str) -> str | None:
        return self.by.get(task_id)

    async def pause(self, id: str, note: str = "paused") -> ScheduleView:
        return self._set(await self.look(id), paused=True, note=note)

    async def resume(self, id: str, note: str = "resumed") -> ScheduleView:
        return self._set(await self.look(id), paused=False, note=note)

    def _set(self, view: ScheduleView, **fields: object) -> ScheduleView:
        self.views[view.id] = view.model_copy(update=fields)
        return self.views[view.id]

    async def run_now(self, id: str) -> str:
        view = await self.look(id)
        if view.running:
            raise InputRejected(f"schedule {id!r} has started no task now: {view.running[0]} is open")
        task = await self.engine.start(view.skill, Content.from_text("go"), task_id=f"{id}-1", owner=view.owner)
        self.by[task.task_id] = id
        self._set(view, running=(task.task_id,), last=task.task_id, started=1)
        return task.task_id


def seen(id: str = "morning", **more: object) -> ScheduleView:
    """A schedule."""
    times = tuple(NOON + timedelta(days=day) for day in range(3))
    told = {"times": "cron 0 12 * * *", "next": times, "overlap": "skip", "started": 0, "input": "<b>go</b>", **more}
    return ScheduleView.model_validate({"id": id, "skill": "ask", **told})


async def test_schedules_are_listed_with_when_they_are_due(engine: FakeEngine, open_page: Open) -> None:
    """
    Each with the next time, or that it is paused; one page for each, with the coming times and its tasks.
    """
    kept = Kept(engine, seen(), seen("odd/id é", paused=True, note="on <i>holiday</i>"))
    ada = await open_page(loopback="ada", schedules=kept)

    page = (await ada.get("/schedules")).text
    assert '<a href="/schedules" aria-current="page">' in page
    assert "2026-01-05 12:00:00 UTC" in page
    assert 'href="/schedules/odd%2Fid%20%C3%A9"' in page
    one = (await ada.get("/schedules/morning")).text
    assert one.count("<time") == 3
    assert "a start is left out" in one
    assert "&lt;b&gt;go&lt;/b&gt;" in one
    assert "It has started none yet" in one
    other = (await ada.get("/schedules/odd%2Fid%20%C3%A9")).text
    assert "on &lt;i&gt;holiday&lt;/i&gt;" in other
    assert "not before it is resumed" in other
    for missing in ("/schedules/none", "/schedules/morning?to=explode", "/schedules/morning?to=delete"):
        assert (await ada.get(missing)).status_code == 404


@pytest.mark.parametrize(
    ("waiting", "said"),
    [
        (0, "4 started, 3 left out as a task was open, 2 missed as the server was down</dd>"),
        (1, "server was down, 1 more waits for an open task</dd>"),
        (2, ", 2 more wait for an open task</dd>"),
    ],
)
async def test_a_schedule_says_what_became_of_its_starts(
    engine: FakeEngine, open_page: Open, waiting: int, said: str
) -> None:
    """
    Those that wait, too: with the overlap `queue-all` each of them will be a task.
    """
    kept = Kept(engine, seen(overlap="queue-all", started=4, skipped=3, missed=2, waiting=waiting))
    ada = await open_page(loopback="ada", schedules=kept)

    assert said in (await ada.get("/schedules/morning")).text


async def test_a_schedule_changes_only_after_a_question(engine: FakeEngine, open_page: Open) -> None:
    """
    A page asks and changes nothing; the form pauses, resumes, or starts a task, in the person's name.
    """
    kept = Kept(engine, seen())
    ada = await open_page(loopback="ada", schedules=kept)

    for action, asks in (("pause", "Pause the schedule?"), ("run", "Start a task of the schedule now?")):
        assert asks in (await ada.get(f"/schedules/morning?to={action}")).text
    assert not kept.views["morning"].paused
    sent = await ada.send("/schedules/morning", to="pause")
    assert (sent.status_code, sent.headers["location"]) == (303, "/schedules/morning")
    assert (kept.views["morning"].paused, kept.views["morning"].note) == (True, "paused by ada")
    assert "although the schedule is paused" in (await ada.get("/schedules/morning?to=run")).text
    await ada.send("/schedules/morning", to="resume", note=" back again ")
    assert (kept.views["morning"].paused, kept.views["morning"].note) == (False, "back again")
    started = await ada.send("/schedules/morning", to="run")
    assert started.headers["location"] == "/task/morning-1"
    again = await ada.send("/schedules/morning", to="run")
    assert (again.status_code, "morning-1 is open" in again.text) == (409, True)
    assert (await ada.send("/schedules/morning", to="delete")).status_code == 400
    assert (await ada.send("/schedules/none", to="pause")).status_code == 404
    forged = await ada.http.post("/schedules/morning", data={"to": "pause"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (forged.status_code, kept.views["morning"].paused) == (403, False)


async def test_a_task_leads_to_the_schedule_that_started_it(engine: FakeEngine, open_page: Open) -> None:
    """
    Also after its page was refreshed in part; a task that people started names none.
    """
    kept = Kept(engine, seen())
    await kept.run_now("morning")
    await engine.start("ask", Content.from_text("x"), task_id="a1")
    ada = await open_page(loopback="ada", schedules=kept)

    for path in ("/task/morning-1", "/head/morning-1"):
        assert 'started by schedule <a href="/schedules/morning">' in (await ada.get(path)).text
    assert "started by schedule" not in (await ada.get("/task/a1")).text
    assert 'href="/task/morning-1"' in (await ada.get("/schedules/morning")).text


async def test_people_see_the_schedules_of_their_own_tasks(engine: FakeEngine, open_page: Open) -> None:
    """
    Another one's is not there, to look at as to change; a reader has no buttons, and no form of theirs counts.
    """
    kept = Kept(engine, seen(owner="ada"), seen("bobs", owner="bob"))
    ada, rita = (
        await open_page(key="key-of-ada", schedules=kept),
        await open_page(key="key-of-rita", schedules=kept, see_all=("*",), read_only=("rita",)),
    )
    nora = await open_page(key="key-of-nora", schedules=kept, see_all=("*",), no_payloads=("nora",))

    assert "bobs" not in (await ada.get("/schedules")).text
    assert "morning" in (await ada.get("/schedules")).text
    there, missing = await ada.get("/schedules/bobs"), await ada.get("/schedules/nope")
    assert (there.status_code, there.text.replace("bobs", "nope")) == (404, missing.text)
    assert (await ada.send("/schedules/bobs", to="pause")).status_code == 404
    assert "?to=pause" not in (await rita.get("/schedules/bobs")).text
    assert (await rita.send("/schedules/bobs", to="pause")).status_code == 403
    assert not kept.views["bobs"].paused
    assert "go&lt;" not in (await nora.get("/schedules/bobs")).text


async def test_many_schedules_have_several_pages(engine: FakeEngine, open_page: Open) -> None:
    """
    Each leads on: a person whose schedules come later is not told that there are none.
    """
    others = [seen(f"s{number}", owner="bob") for number in range(200)]
    ada = await open_page(key="key-of-ada", schedules=Kept(engine, *others, seen("hers", owner="ada")))

    first = (await ada.get("/schedules")).text

    assert "None of the schedules 1 to 200 is yours." in first
    assert 'href="/schedules?after=200">Show more' in first
    second = (await ada.get("/schedules?after=200")).text
    assert ("hers" in second, "Show more" in second) == (True, False)


async def test_where_nothing_starts_by_the_clock_there_are_no_schedules(open_page: Open) -> None:
    """
    No link, and an address that says so.
    """
    ada = await open_page(loopback="ada")

    assert "/schedules" not in (await ada.get("/")).text
    for path in ("/schedules", "/schedules/x"):
        assert (await ada.get(path)).status_code == 404


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_hostile_schedules_do_nothing(engine: FakeEngine, open_page: Open, text: str) -> None:
    """
    Ids, notes, inputs and names of tasks may come from Temporal's own tools, and hold anything.
    """
    odd = seen(text[:300], note=text, input=text, running=(text[:300],), last=text[:300], times=text, overlap=text)
    kept = Kept(engine, odd, seen())
    ada = await open_page(loopback="ada", schedules=kept)

    pages = [(await ada.get(path)).text for path in ("/schedules", "/schedules/morning")]
    pages += [(await ada.get("/schedules/" + "".join(f"%{byte:02x}" for byte in odd.id.encode()))).text]
    await ada.send("/schedules/morning", to="pause", note=text[:500_000])
    pages.append((await ada.get("/schedules/morning")).text)

    assert len(kept.views["morning"].note) <= 2_000
    for page in pages:
        assert len(page) < 100_000
        for tag, attrs in Read(page).tags:
            assert tag not in ("img", "style", "iframe", "h4")
            assert not any(name.startswith("on") for name in attrs)
        assert not set(page) & set("\u202e\u2066\x1b\x00\x07")
