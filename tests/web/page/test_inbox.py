"""The inbox: what waits for a person, and what they send."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from pydantic import JsonValue

from refold import Content, Status
from refold.core.commands import AskApproval
from refold.core.gates import DecisionMade
from refold.core.retry_policy import Failure, FailureKind
from refold.core.waits import Wait
from refold.engine import Decision, TaskView
from refold.testing import FakeEngine
from tests.web.page.conftest import Browser, Open
from tests.web.page.skills import SKILLS

TEA: dict[str, JsonValue] = {"item": "tea", "amount_cents": 500}


class Faster(FakeEngine):
    """Tasks to which somebody else may send something between a look at them and what the page sends."""

    between: Callable[[], Awaitable[object]] | None = None

    async def _first(self) -> None:
        if (between := self.between) is not None:
            self.between = None
            await between()

    async def decide_together(self, task_id: str, decisions: Sequence[Decision], **more: Any) -> TaskView:
        """What somebody else sends, then the decisions."""
        await self._first()
        return await super().decide_together(task_id, decisions, **more)

    async def send(self, task_id: str, content: Content, **more: Any) -> TaskView:
        """What somebody else sends, then the message."""
        await self._first()
        return await super().send(task_id, content, **more)


@pytest.fixture
def engine() -> Faster:
    """Tasks in memory."""
    return Faster(SKILLS)


async def order(engine: FakeEngine, task_id: str = "o1") -> str:
    """A task that waits for an approval; returns the gate's digest."""
    await engine.start("order", Content.from_data(dict(TEA)), task_id=task_id, owner="olga")
    return digest(await gate_of(engine, task_id))


async def gate_of(engine: FakeEngine, task_id: str) -> Wait:
    """The oldest question of a task."""
    return (await engine.record(task_id)).waits[0]


def digest(wait: Wait) -> str:
    """What a decision at a gate names."""
    assert isinstance(wait.ask, AskApproval)
    return wait.ask.digest


def approval(task_id: str, *waits: Wait) -> dict[str, str | list[str]]:
    """The form that approves what gates show."""
    form: dict[str, str | list[str]] = {"task": task_id, "decision": "approve"}
    return {**form, "gate": [one.gate for one in waits], "digest": [digest(one) for one in waits]}


async def decisions(engine: FakeEngine, task_id: str) -> list[DecisionMade]:
    """What was decided in a task."""
    events = [entry.event async for entry in engine.journal(task_id)]
    return [event for event in events if isinstance(event, DecisionMade)]


async def test_a_gate_shows_what_is_asked_and_is_approved(engine: FakeEngine, ada: Browser) -> None:
    """
    The headline, the data, who decides; one click approves in the person's name, and the next page says so.
    """
    shown = await order(engine)
    page = (await ada.get("/")).text
    assert "Buy tea?" in page
    assert "It is for the kitchen." in page
    assert "amount_cents" in page
    assert shown in page

    sent = await ada.send("/decide", task="o1", gate="o1/1.1", digest=shown, decision="approve", comment="go ahead")

    assert sent.status_code == 303
    assert "You approved “purchase”." in (await ada.get(sent.headers["location"])).text
    assert "You approved" not in (await ada.get("/")).text  # said once
    (decision,) = await decisions(engine, "o1")
    assert (decision.approver, decision.comment, decision.asserted_by) == ("ada", "go ahead", None)
    assert (await engine.look("o1")).status is Status.COMPLETED
    assert "Nothing waits for you" in (await ada.get("/")).text


async def test_a_denial_carries_its_comment(engine: FakeEngine, ada: Browser) -> None:
    """
    The skill hears why.
    """
    shown = await order(engine)

    await ada.send("/decide", task="o1", gate="o1/1.1", digest=shown, decision="deny", comment="too dear")

    assert (await engine.look("o1")).messages[-1].text == "not bought: too dear"


async def test_arguments_are_changed_and_approved(engine: FakeEngine, ada: Browser) -> None:
    """
    The form holds what the gate declares editable; only what was changed is sent, and what was typed keeps its type.
    """
    shown = await order(engine)
    amount, urgent = 'f:["arguments", "amount_cents"]', 'f:["arguments", "urgent"]'
    assert (
        f'name="{amount}"'.replace('"', "&#34;").replace("name=&#34;", 'name="').removesuffix("&#34;")
        in (await ada.get("/")).text
    )

    fields = {amount: "450", urgent: "true"}
    same = {amount: "500", urgent: "false"}
    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "change"}
    nothing = await ada.send("/decide", **form, **same)
    unread = await ada.send("/decide", **form, **{amount: "many", urgent: "true"})
    assert (nothing.status_code, unread.status_code) == (409, 409)
    assert "nothing was changed" in nothing.text
    assert "a whole number is expected" in unread.text
    assert await decisions(engine, "o1") == []

    assert (await ada.send("/decide", **form, **fields)).status_code == 303
    (decision,) = await decisions(engine, "o1")
    assert decision.changes == {"arguments": {"amount_cents": 450, "urgent": True}}


async def test_a_second_click_and_a_second_person_change_nothing(
    engine: FakeEngine, ada: Browser, open_page: Open
) -> None:
    """
    Each is told in a sentence who decided before; the task has one decision.
    """
    shown = await order(engine)
    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "approve"}
    bob = await open_page(loopback="bob")

    await ada.send("/decide", **form)
    again = await ada.send("/decide", **form)
    late = await bob.send("/decide", **{**form, "decision": "deny"})

    assert again.status_code == late.status_code == 409
    assert "You have approved “purchase” already" in again.text
    assert "ada has approved “purchase” already" in late.text
    assert "nothing happened a second time" in late.text
    assert len(await decisions(engine, "o1")) == 1


async def test_a_stale_digest_decides_nothing(engine: FakeEngine, ada: Browser) -> None:
    """
    Who looks at other data than the gate shows now is asked to look again.
    """
    await order(engine)

    stale = await ada.send("/decide", task="o1", gate="o1/1.1", digest="0" * 32, decision="approve")

    assert stale.status_code == 409
    assert "has changed since you opened it" in stale.text
    assert await decisions(engine, "o1") == []


async def test_gates_of_one_task_are_decided_together_or_not_at_all(engine: FakeEngine, ada: Browser) -> None:
    """
    One button for all; if one of them is closed or shows something else, none is decided.
    """
    await engine.start("two", Content.from_text("go"), task_id="t1")
    waits = (await engine.record("t1")).waits
    assert "Approve all 2" in (await ada.get("/")).text
    form = approval("t1", *waits)

    stale = await ada.send("/decide-all", **{**form, "digest": [digest(waits[0]), "0" * 32]})
    assert stale.status_code == 409
    assert await decisions(engine, "t1") == []

    done = await ada.send("/decide-all", **form, comment="both are fine")
    assert done.status_code == 303
    assert (await engine.look("t1")).messages[-1].text == "approved approved"
    assert [one.comment for one in await decisions(engine, "t1")] == ["both are fine", "both are fine"]


@pytest.mark.parametrize("path", ["/decide-all", "/decide"])
async def test_somebody_else_at_the_very_moment_is_named(engine: Faster, ada: Browser, path: str) -> None:
    """
    One gate of two is decided while the page sends both: none is decided by the page, and a sentence says who did.
    """
    await engine.start("two", Content.from_text("go"), task_id="t1")
    waits = (await engine.record("t1")).waits
    engine.between = partial(FakeEngine.decide, engine, "t1", waits[1].gate, approved=False, approver="bob")

    page = await ada.send(path, **approval("t1", *(waits if path == "/decide-all" else waits[1:])))

    assert page.status_code == 409
    assert "bob has denied “second” already" in page.text
    assert [one.approver for one in await decisions(engine, "t1")] == ["bob"]


async def test_an_answer_reaches_the_question_that_was_shown(engine: Faster, ada: Browser) -> None:
    """
    Somebody else answers, and the task asks again by the same name: the late answer reaches no other question.
    """
    await engine.start("quiz", Content.from_text("go"), task_id="q1")
    first = (await gate_of(engine, "q1")).gate
    engine.between = partial(FakeEngine.send, engine, "q1", Content.from_text("bob's"))

    late = await ada.send("/answer", task="q1", gate=first, text="ada's")
    again = await ada.send("/answer", task="q1", gate=first, text="ada's")
    second = (await gate_of(engine, "q1")).gate
    assert (await ada.send("/answer", task="q1", gate=second, text="ada's")).status_code == 303

    assert (late.status_code, again.status_code) == (409, 409)
    assert "answered already" in late.text
    assert "answered already" in again.text
    assert (await engine.look("q1")).messages[-1].text == "bob's and ada's"


async def test_questions_are_answered_by_text_and_by_a_form(engine: FakeEngine, ada: Browser) -> None:
    """
    A question without a type takes text; one with a type has a field for each of its own. What does not fit is refused,
    and the question stays open. A second answer is not taken.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    first = (await gate_of(engine, "a1")).gate
    assert (await ada.send("/answer", task="a1", gate=first, text=" ")).status_code == 409
    assert (await ada.send("/answer", task="a1", gate=first, text="Grace\nHopper")).status_code == 303
    assert "answered already" in (await ada.send("/answer", task="a1", gate=first, text="Eve")).text

    page = (await ada.get("/")).text
    assert "Where to, and for how long?" in page
    assert "City" in page
    assert 'inputmode="numeric"' in page
    second = (await gate_of(engine, "a1")).gate
    form = {"task": "a1", "gate": second, 'f:["city"]': "Rome"}
    wrong = await ada.send("/answer", **form, **{'f:["nights"]': "two"})
    assert wrong.status_code == 409
    assert "nights: a whole number is expected" in wrong.text
    assert (await ada.send("/answer", **form, **{'f:["nights"]': "2"})).status_code == 303
    assert (await engine.look("a1")).messages[-1].text == "Grace\nHopper goes to Rome for 2 nights"


async def blocked(engine: FakeEngine) -> str:
    """A task with a charge of which nobody knows whether it took place; returns the command's id."""
    await engine.start("charge", Content.from_text("7"), task_id="c1")
    command = (await engine.look("c1")).pending[0]
    lost = Failure(kind=FailureKind.UNKNOWN, type="worker_lost", message="the worker died while it charged")
    await engine.fail("c1", "charge", lost)
    return command.invocation_id


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        pytest.param({"how": "outcome", "outcome": '"charged 7"'}, "charged 7", id="it-took-place"),
        pytest.param({"how": "retry"}, None, id="it-did-not"),
    ],
)
async def test_a_blocked_command_is_resolved(
    engine: FakeEngine, ada: Browser, given: dict[str, str], ends: str | None
) -> None:
    """
    A person says that it took place, and what came of it; or has it done again.
    """
    command = await blocked(engine)
    page = (await ada.get("/")).text
    assert "Blocked" in page
    assert "the worker died while it charged" in page

    bad = await ada.send("/resolve", task="c1", command=command, how="outcome", outcome="charged")
    assert bad.status_code == 409
    assert "JSON is expected" in bad.text
    done = await ada.send("/resolve", task="c1", command=command, **given)

    assert done.status_code == 303
    if ends is None:  # it is being performed again
        assert [one.blocked for one in (await engine.look("c1")).pending] == [False]
        await engine.reply("c1", "charge", "charged once more")
    assert (await engine.look("c1")).messages[-1].text == (ends or "charged once more")


async def test_the_oldest_comes_first_and_pages_follow(engine: FakeEngine, ada: Browser) -> None:
    """
    Fifty gates are three pages, in the order in which they opened.
    """
    for number in range(50):
        await order(engine, f"o{number:02}")
        await engine.advance(1)
    page, seen = (await ada.get("/")).text, []
    for _ in range(3):
        found = [f"o{number:02}" for number in range(50) if f">o{number:02}</a>" in page]
        seen += found
        if "Show what waits for less long" not in page:
            break
        link = page.split('<a class="button" href="')[-1].split('"')[0].replace("&amp;", "&")
        page = (await ada.get(link)).text

    assert seen == [f"o{number:02}" for number in range(50)]


async def test_a_gate_has_an_address_with_its_history(engine: FakeEngine, ada: Browser) -> None:
    """
    It compares what is asked with what an earlier grant saw; after the decision it says who made it.
    """
    await engine.start("again", Content.from_text("go"), task_id="g1")
    gate = await gate_of(engine, "g1")
    await ada.send("/decide", task="g1", gate=gate.gate, digest=digest(gate), decision="approve")
    second = (await gate_of(engine, "g1")).gate

    page = (await ada.get("/gate/g1", params={"gate": second})).text
    assert "Compared with what was granted before" in page
    assert '<pre dir="auto">100</pre>' in page
    assert '<pre dir="auto">900</pre>' in page
    assert "Grace" in page  # in the data, and not in the comparison
    closed = (await ada.get("/gate/g1", params={"gate": gate.gate})).text
    assert "This is closed" in closed
    assert "ada has approved it" in closed


async def test_raw_decisions_are_whole(engine: FakeEngine, ada: Browser) -> None:
    """
    The raw task is what `refold show --json` prints.
    """
    await order(engine)

    assert json.loads((await ada.get("/raw/o1")).text) == (await engine.look("o1")).model_dump(mode="json")
