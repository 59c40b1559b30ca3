"""The ways that tasks took through their skill, in its graph and counted over the newest tasks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Literal

import pytest
from pydantic import BaseModel

from refold import Content, Ctx, Event, Transition, UserMessage, flow_skill, step
from refold.core.authoring.define import skill_of
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import TaskFilter
from refold.static.diagram.layout import BEGIN, FINISH, drawn
from refold.testing import FakeEngine
from refold.web.page.skills import ways
from refold.web.page.skills.ways import Ways, way_of
from tests.web.page.conftest import Browser, Open
from tests.web.page.skills import Charges


@flow_skill(id="loops")
class Loops:
    """Goes where a message says."""

    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("where", "Where to?")

    @step(resume_from="ask")
    async def met(self, ctx: Ctx, content: Content) -> Transition:
        target = content.text
        return ctx.complete("over") if target == "end" else ctx.goto(target, content=content)

    @step
    async def aside(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("ask", content=content)


class Open_(BaseModel):
    """A state whose `kind` differs from its class's name."""

    kind: Literal["open"] = "open"


class Shut(BaseModel):
    """The other one."""

    kind: Literal["shut"] = "shut"


@flow_skill(id="door")
class Door:
    """Shuts at the second message."""

    @staticmethod
    def initial() -> Open_:
        return Open_()

    def on_event(self, state: Open_ | Shut, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Open_(), UserMessage(content=content) if content.text == "shut":
                return Transition.await_input("next", "And now?", Shut())
            case Open_(), UserMessage():
                return Transition.await_input("next", "And now?", Open_())
            case _:
                return Transition.complete(Shut())


def ways_in(page: str) -> dict[str, str]:
    """The moves of a page's graph in words, with what is written at them."""
    words = page[page.index("The same in words") :]
    return dict(re.findall(r"<li>([^<:]+?)(?:: ([^<]*))?</li>", words))


async def walked(engine: FakeEngine, task_id: str, *said: str) -> None:
    """A task of `Loops` that went this way."""
    await engine.start("loops", Content.from_text("go"), task_id=task_id)
    for text in said:
        await engine.send(task_id, Content.from_text(text))


@pytest.fixture
def engine() -> FakeEngine:
    """Tasks in memory, of these skills, too."""
    return FakeEngine([Loops, Door, Charges])


async def test_a_task_shows_the_way_it_came(engine: FakeEngine, open_page: Open) -> None:
    """
    Each move with how often it was taken, also one that the code does not name; where it is; each place's entry.
    """
    await walked(engine, "w1", "ask", "aside", "ask")
    ada = await open_page(loopback="ada", skills=[Loops])

    page = (await ada.get("/skills/loops?task=w1")).text

    assert ways_in(page) == {
        "(start) → ask": "1×; message",
        "ask → met": "3×; answer to where",
        "met → (end)": "completed",
        "met → ask": "2×",
        "met → aside": "1×",
        "aside → ask": "1×; goto",
    }
    assert page.count('class="move taken"') == 5
    assert page.count('class="step here"') == 1
    assert 'is at <strong dir="auto">ask</strong>' in page
    assert '<span dir="auto">aside</span>, <a href="/at/w1?seq=3">entry 3</a>' in page
    await engine.send("w1", Content.from_text("end"))
    ended = (await ada.get("/skills/loops?task=w1")).text
    assert "has ended" in ended
    assert ways_in(ended)["met → (end)"] == "1×; completed"


async def test_moves_are_counted_over_the_newest_tasks(engine: FakeEngine, open_page: Open) -> None:
    """
    All that the person may see, open or ended; the moves that none took are listed; ended tasks are folded once.
    """
    await walked(engine, "w1", "end")
    await walked(engine, "w2", "ask", "end")
    await engine.start("loops", Content.from_text("go"), task_id="hers", owner="eve")
    ada = await open_page(loopback="ada", skills=[Loops])
    eve = await open_page(key="key-of-eve", skills=[Loops])

    assert "Which moves did the newest tasks take?" in (await ada.get("/skills/loops")).text
    page = (await ada.get("/skills/loops?recent=20")).text

    assert "over the newest 3 tasks" in page
    assert "No task took:</p><ul><li>aside → ask: goto</li></ul>" in page
    assert ways_in(page)["met → (end)"] == "2×; completed"
    assert ways_in((await eve.get("/skills/loops?recent=20")).text)["(start) → ask"] == "1×; message"
    assert (await ada.get("/skills/loops?recent=1")).text.count("over the newest 1 task.") == 1
    for odd in ("0", "-1", "x", "999999999999", "1e3"):
        assert (await ada.get("/skills/loops", params={"recent": odd})).status_code == 200


async def test_what_ended_is_folded_once(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The ways of ended tasks are kept, up to a number; those of open ones are computed anew.
    """
    for number in range(3):
        await walked(engine, f"w{number}", "end")
    await walked(engine, "open")
    skill, kept = skill_of(Loops), Ways()
    tasks = await engine.find(TaskFilter(skill="loops"), limit=10)

    first = await kept.counted(engine, skill, tasks)
    monkeypatch.setattr(ways, "KEPT", 2)
    read: list[str] = []
    past = engine.past

    def counted_past(task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        read.append(task_id)
        return past(task_id)

    monkeypatch.setattr(engine, "past", counted_past)
    second = await kept.counted(engine, skill, tasks)

    assert first == second
    assert first.moves == Counter({(BEGIN, "ask"): 4, ("ask", "met"): 3, ("met", FINISH): 3})
    assert (read, len(kept)) == (["open"], 3)
    await walked(engine, "w3", "end")
    await kept.counted(engine, skill, await engine.find(TaskFilter(skill="loops"), limit=10))
    assert len(kept) == 3  # one came, one went


async def test_a_reducers_states_are_those_of_the_graph(engine: FakeEngine, open_page: Open) -> None:
    """
    A state that is called otherwise by its `kind` is marked in the graph, under its class's name.
    """
    await engine.start("door", Content.from_text("x"), task_id="d1")
    await engine.send("d1", Content.from_text("shut"))
    ada = await open_page(loopback="ada", skills=[Door])

    page = (await ada.get("/skills/door?task=d1")).text

    assert 'is at <strong dir="auto">shut</strong>' in page
    assert re.search(r'class="step here"><rect[^>]*/><text[^>]*>Shut', page)
    assert ways_in(page)["Open_ → Shut"].startswith("1×")
    assert "shut → " not in page


async def test_a_long_task_shows_the_way_of_its_newest_entries(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A request folds a bounded number of entries, however long the task is; the rest of the way is not made up.
    """
    monkeypatch.setattr(ways, "MOST_ENTRIES", 4)
    await walked(engine, "w1", *["ask"] * 9)

    way = await way_of(engine, skill_of(Loops), await engine.look("w1"))

    assert [one.name for one in way.places] == ["ask", *["met", "ask"] * 4]
    assert way.places[0].seq == 6
    assert (BEGIN, "ask") not in way.moves


async def test_the_way_of_a_task_that_goes_on_for_another_begins_where_it_does(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A recovered task and a fork begin in the middle, at the place where the other task was.
    """
    await engine.start("charge", Content.from_text("7"), task_id="c1")
    await engine.fail("c1", "charge", "the bank says no")
    monkeypatch.setattr(ways, "MOST_ENTRIES", 1)  # it has two entries of its own numbers before it
    recovered = await engine.recover("c1")

    way = await way_of(engine, skill_of(Charges), recovered)

    assert [one.name for one in way.places] == ["pay"]
    assert way.moves == Counter()
    assert not way.begun


async def test_a_way_that_todays_code_would_not_take_is_not_shown(engine: FakeEngine, open_page: Open) -> None:
    """
    Where the skill's code has changed since, the page says so, and counts the task with none.
    """

    @flow_skill(id="loops")
    class Changed(Loops):
        """Ends at once."""

        @step(start=True)
        async def ask(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete("at once")

    await walked(engine, "w1", "ask", "end")
    await walked(engine, "w2", "ask")
    ada = await open_page(loopback="ada", skills=[Changed])

    for task_id in ("w1", "w2"):
        page = (await ada.get(f"/skills/loops?task={task_id}")).text
        assert "is not shown" in page, task_id
        assert 'class="move taken"' not in page
    assert "2 more cannot be followed now" in (await ada.get("/skills/loops?recent=9")).text


async def test_a_task_of_another_skill_has_no_place_in_a_graph(engine: FakeEngine, open_page: Open) -> None:
    """
    Its id is refused with the names of both skills; so is one that there is not.
    """
    await walked(engine, "w1")
    ada = await open_page(loopback="ada", skills=[Loops, Door])

    wrong = await ada.get("/skills/door?task=w1")
    assert wrong.status_code == 404
    assert "is one of skill" in wrong.text
    assert (await ada.get("/skills/door?task=none")).status_code == 404


async def test_a_task_that_has_not_begun_has_no_way(engine: FakeEngine, open_page: Open) -> None:
    """
    A held task is nowhere.
    """
    await engine.start("loops", Content.from_text("go"), task_id="h1", hold=True)
    ada = await open_page(loopback="ada", skills=[Loops])

    assert "has not begun" in (await ada.get("/skills/loops?task=h1")).text
    assert (await ada.get("/skills/loops?recent=5")).status_code == 200


async def test_moves_fit_into_the_picture(ada: Browser, engine: FakeEngine) -> None:
    """
    The count is the first line at a move, and the picture is as wide as it needs.
    """
    plain = drawn(skill_of(Loops))
    counted = drawn(skill_of(Loops), {("met", "aside"): 1_000_000, (BEGIN, "ask"): 1})

    assert len(counted.arrows) == len(plain.arrows) + 1
    assert {one.labels[0] for one in counted.arrows if one.taken} == {"1000000×", "1×"}
    for one in counted.arrows:
        assert one.x + 7 * max(map(len, one.labels), default=0) <= counted.width
