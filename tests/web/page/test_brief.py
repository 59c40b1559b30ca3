"""How much of a large value a page shows, and where the rest is."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from refold import Artifact, Content, Ctx, Part, Transition, flow_skill, step
from refold.testing import FakeEngine
from refold.web.page.brief import DEEPEST, LONGEST, MEMBER, NOTE, SHORTEST, brief
from refold.web.page.forms import FIELD_CHARS, MEMBERS, fields_of_value, unlisted
from refold.web.page.templates import data
from tests.web.page.conftest import Open
from tests.web.page.test_inbox import approval

ROWS: dict[str, JsonValue] = {f"row {n}": {"name": f"name {n}", "tags": ["a", {"n": n}]} for n in range(5_000)}

values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=30) | st.just("long" * SHORTEST),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=40,
)


@flow_skill(id="large")
class Large:
    """Holds much: in its message, its state, its result and at its gate, where it may be changed."""

    @step(start=True)
    async def keep(self, ctx: Ctx, content: Content) -> Transition:
        ctx.hand_over(Artifact.from_data("rows", ROWS))
        ctx.hand_over(Artifact(name="pieces", parts=tuple(Part(text=f"piece {n}") for n in range(500))))
        await ctx.approve("gate", "Right?", show={"rows": ROWS}, editable=("rows",))
        return ctx.complete("done")


@given(value=values, room=st.integers(1, 2_000))
def test_the_beginning_of_a_value_is_as_long_as_there_is_room(value: JsonValue, room: int) -> None:
    """
    What fits is shown as it is. Of what does not, each member that is shown is that of the value, and all that are
    missing and all texts that are cut are counted.
    """
    some = brief(value, room)

    assert some.whole == (some.value == value)
    assert MEMBER * members(some.value) <= room + MEMBER
    assert members(some.value) + some.left <= members(value)
    assert len(json.dumps(some.value, indent=2, ensure_ascii=False)) <= 6 * room + 2 * SHORTEST
    assert some.cut == cuts(some.value, value)


def members(value: Any) -> int:
    """How many fields and items are in a value, at any depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(1 + members(one) for one in inner)


def cuts(some: Any, whole: Any) -> int:
    """How many texts of a value, without some members, are cut; nothing else in it is another than in the whole."""
    if isinstance(some, dict):
        return sum(cuts(one, whole[key]) for key, one in some.items())
    if isinstance(some, list):
        return sum(cuts(one, other) for one, other in zip(some, whole, strict=False))
    if some == whole:
        return 0
    assert some.startswith(whole[: SHORTEST - NOTE])
    assert some.endswith(f"… (cut here; {len(whole):,} characters in all)")
    return 1


class Watched(dict[str, Any]):
    """An object that knows how many of its members were looked at."""

    looked = 0

    def items(self) -> Any:
        """Its members, counted."""
        for one in super().items():
            self.looked += 1
            yield one


def test_the_work_depends_on_what_is_shown() -> None:
    """
    Of a million members those that are shown are looked at; a value that goes deep is cut there.
    """
    large = Watched(dict.fromkeys(map(str, range(1_000_000)), "x"))
    deep: JsonValue = "x"
    for _ in range(900):
        deep = [deep]

    some = brief(large)
    assert large.looked <= LONGEST // MEMBER
    assert len(some.value) + some.left == 1_000_000
    assert brief(deep).left == 1
    assert json.dumps(brief(deep).value) == "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)
    assert len(data({"a": "x" * 10_000_000, "b": ["y" * 10_000_000] * 9})) < LONGEST + 100


def test_what_is_decided_on_hides_nothing_as_reasoning() -> None:
    """
    The state and receipts are shown without a model's reasoning; what looks like some in a gate's data is shown.
    """
    value: JsonValue = {"aside": [{"thinking": "pay Eve", "amount_cents": 999}]}

    assert brief(value).value == value
    assert brief(value, reasoning=False).value == {"aside": [{"thinking": "hidden; --reasoning shows it"}]}


async def test_a_large_value_is_shown_in_part_and_leads_to_the_whole(open_page: Open, engine: FakeEngine) -> None:
    """
    In the inbox, at the gate and on the task's pages; each says what it lacks, and has a link to all of it.
    """
    engine.skills["large"] = FakeEngine([Large]).skills["large"]
    await engine.start("large", Content.from_data(ROWS), task_id="l1")
    ada = await open_page(loopback="ada", skills=[Large])
    gate = (await engine.record("l1")).waits[0].gate

    for path in ("/", "/task/l1", f"/gate/l1?gate={gate}", "/content/l1"):
        page = (await ada.get(path)).text
        assert len(page) < 500_000, path
        (most, link), *_ = re.findall(
            r"([\d,]+) more fields and items of it are not shown here\. <a href=\"([^\"]+)", page
        )
        assert int(most.replace(",", "")) > 4_000, path
        assert "row 4999" in (await ada.get(link.replace("&amp;", "&"))).text, path
    content = (await ada.get("/content/l1")).text
    assert "400 more parts are not shown" in content
    assert 'href="/artifact/l1?name=rows' in content

    past = (await ada.get("/at/l1?seq=1")).text
    assert len(past) < 500_000
    assert "cut here; it lacks" in past
    assert 'href="/state/l1?seq=1">All of it as JSON' in past
    now = await engine.at("l1", 1)
    assert json.loads((await ada.get("/state/l1?seq=1")).text) == now.state
    for none in ("/state/l1?seq=9", "/state/none?seq=1"):
        assert (await ada.get(none)).status_code == 404


BODY = "a" * 50_000 + "<the end>"
ASIDE: dict[str, JsonValue] = {"aside": [{"thinking": "x", "pay": "Mallory"}]}


@flow_skill(id="shows")
class Shows:
    """Shows at a gate what it is told."""

    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("gate", "Right?", show=content.data)
        return ctx.complete("done")


def pieces(show: JsonValue) -> list[str]:
    """What a page shows of a value: texts and names as they are, lists as JSON."""
    if isinstance(show, dict):
        return [*show, *(piece for one in show.values() for piece in pieces(one))]
    return [show if isinstance(show, str) else json.dumps(show, ensure_ascii=False, indent=2)]


@pytest.mark.parametrize(
    ("show", "says"),
    [
        pytest.param({"body": BODY}, "", id="a text that fits at the gate"),
        pytest.param([BODY], "", id="in a list"),
        pytest.param(BODY, "", id="alone"),
        pytest.param({"k" * 150: "x"}, "", id="a key"),
        pytest.param({"body": BODY * 3}, "Texts that are cut: 1. ", id="a text that is too long"),
        pytest.param([BODY * 3], "Texts that are cut: 1. ", id="too long in a list"),
        pytest.param({"body": ["x" * 20] * 2_000}, "", id="a list that fits"),
        pytest.param(["\n" * 20_000], "", id="a text that is longer as JSON"),
        pytest.param({"body": "x" * 99_900, "more": ASIDE}, "more fields and items", id="behind the room"),
        pytest.param({"k" * 200_000: "x"}, "1 more fields and items", id="a key that is too long"),
    ],
)
async def test_whatever_a_gate_does_not_show_is_behind_its_link(
    open_page: Open, engine: FakeEngine, show: JsonValue, says: str
) -> None:
    """
    What fits is shown as it is, whatever its form. Else a link leads to all of it, also what looks like reasoning.
    """
    engine.skills["shows"] = FakeEngine([Shows]).skills["shows"]
    await engine.start("shows", Content.from_data(show), task_id="s1")
    ada = await open_page(loopback="ada", skills=[Shows])
    wait = (await engine.record("s1")).waits[0]

    for path in (f"/gate/s1?gate={wait.gate}", "/task/s1"):
        page = html.unescape((await ada.get(path)).text)
        links = re.findall(r"<p class=\"quiet\">([^<]*)<a href=\"([^\"]+)\">All of it<", page)
        assert bool(links) == bool(says)
        assert ("cut here" in page) == ("cut" in says)
        for said, link in links:
            assert says in said
            assert (await ada.get(link)).json() == show
        assert links or all(one in page for one in pieces(show))
    await ada.send("/decide", **approval("s1", wait))
    assert (await ada.get(f"/show/s1?gate={wait.gate}")).status_code == 404


async def test_who_may_not_see_what_tasks_hold_sees_no_state(open_page: Open, engine: FakeEngine) -> None:
    """
    As any other page of what a task holds.
    """
    await engine.start("quiz", Content.from_text("go"), task_id="q1", owner="olga")
    nora = await open_page(key="key-of-nora", see_all=("nora",), no_payloads=("nora",))
    eve = await open_page(key="key-of-eve")

    assert (await nora.get("/state/q1?seq=1")).status_code == 403
    assert (await eve.get("/state/q1?seq=1")).status_code == 404


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        pytest.param(ROWS, MEMBERS, id="many members"),
        pytest.param(
            {"a": "x", "b": "x" * (FIELD_CHARS + 1), "c": ["x"] * FIELD_CHARS, "d": ["x" * FIELD_CHARS]},
            1,
            id="long members",
        ),
        pytest.param(["x"] * FIELD_CHARS, 0, id="a long list"),
    ],
)
def test_a_form_to_change_what_is_shown_is_no_longer_than_a_person_can_use(value: JsonValue, fields: int) -> None:
    """
    What has no field stays as it is, and the form says how much that is.
    """
    show: dict[str, JsonValue] = {"value": value}

    made = fields_of_value(show, ("value",))

    assert len(made) == fields
    assert unlisted(show, ("value",), made) == (len(value) if isinstance(value, dict) else 1) - fields
