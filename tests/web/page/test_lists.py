"""The list of tasks, and the skills."""

from __future__ import annotations

import re

import pytest

from refold import Content, Status
from refold.static.diagram.svg import drawn
from refold.testing import FakeEngine
from tests.web.page.conftest import Browser
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
    assert listed((await ada.get("/tasks?owner=olga&text=O1")).text) == ["o1"]
    page = (await ada.get("/tasks?skill=order")).text
    assert "done <strong>1</strong>" in page
    assert "No task fits" in (await ada.get("/tasks?text=zzz")).text
    for wrong in ("lifecycle=sleeping", "age=century"):
        assert (await ada.get(f"/tasks?{wrong}")).status_code == 404


async def test_pages_follow_one_another(engine: FakeEngine, ada: Browser) -> None:
    """
    120 tasks are three pages, each task once.
    """
    for number in range(120):
        await engine.start("ask", Content.from_text("x"), task_id=f"a{number:03}")
    path, seen = "/tasks", []
    while path:
        page = (await ada.get(path)).text
        seen += listed(page)
        more = re.search(r'href="([^"]*)">More<', page)
        path = more[1].replace("&amp;", "&") if more else ""

    assert sorted(seen) == [f"a{number:03}" for number in range(120)]


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
    assert "1 of 3 done" in done
    assert "no task" in done
    assert (await engine.look("o1")).status is Status.CANCELED
    assert (await ada.send("/bulk", to="cancel")).status_code == 409
    assert (await ada.send("/bulk", task="o1", to="explode")).status_code == 400


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


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.__name__)
async def test_each_skill_is_drawn(engine: FakeEngine, ada: Browser, skill: type) -> None:
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
