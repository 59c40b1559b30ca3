"""The inbox: what waits for a person, and what they send."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel, Field, JsonValue, RootModel, ValidationError

from refold import Content, Ctx, GatePolicy, Status, Transition, flow_skill, step
from refold.core.commands import AskApproval
from refold.core.errors import InputRejected
from refold.core.gates import DecisionMade
from refold.core.retry_policy import Failure, FailureKind
from refold.core.waits import Wait
from refold.engine import (
    CodecError,
    Decision,
    Listed,
    NotConnected,
    PayloadTooLarge,
    Place,
    StorageError,
    Taken,
    TaskFilter,
    TaskView,
)
from refold.record import TaskRecord
from refold.testing import FakeEngine, calls
from refold.web.page import Access, Pages, page_app
from refold.web.page.forms import changes, fields_for, fields_of_value, filled
from tests.web.page.conftest import HOST, Browser, Open
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


async def test_what_was_done_leads_to_its_task(engine: FakeEngine, ada: Browser) -> None:
    """
    The sentence in the inbox names the task, which is not there any more.
    """
    shown = await order(engine)
    await ada.send("/decide", task="o1", gate="o1/1.1", digest=shown, decision="approve")

    inbox = (await ada.get("/")).text

    assert 'role="status">You approved “purchase”. <a href="/task/o1" dir="auto">o1</a></p>' in inbox
    assert "/task/o1" not in (await ada.get("/")).text


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


def test_a_text_that_nobody_touched_is_not_changed() -> None:
    """
    Browsers send the lines of a text with ends of their own; it counts as changed only where it reads otherwise.
    """
    show: dict[str, JsonValue] = {"body": "Dear A,\r\nregards\r\nB", "to": "x\ry", "subject": "Hi"}
    body, to, subject = fields_of_value(show, tuple(show))
    form = {body.name: "Dear A,\nregards\nB", to.name: "x\ny", subject.name: "Hello"}

    assert changes((body, to, subject), form, show) == {"subject": "Hello"}
    assert changes((body,), {body.name: "Dear A,\nbye"}, show) == {"body": "Dear A,\nbye"}


@pytest.mark.parametrize("text", ["x\0y", "x\0y\nz"])
def test_a_text_with_a_null_character_that_nobody_touched_is_not_changed(text: str) -> None:
    """
    HTML has no such character: a browser shows U+FFFD in its place, and sends it back.
    """
    show: dict[str, JsonValue] = {"body": text, "subject": "Hi"}
    body, subject = fields_of_value(show, tuple(show))

    assert changes((body, subject), {body.name: text.replace("\0", "\ufffd"), subject.name: "Bye"}, show) == {
        "subject": "Bye"
    }


class Briefing(BaseModel):
    """A text of several lines, one that has what no browser sends, and some that may be left empty."""

    text: str = "Dear A,\nregards"
    code: str = "a\0b\r"
    hint: str | None = "Call first."
    many: int | None = 3


class Amounts(BaseModel):
    """What can be neither empty nor null."""

    few: int = 3
    share: float = 0.5
    sure: bool = True
    kind: Literal["S", "L"] = "L"
    tags: list[str] = ["a"]
    day: date = date(2026, 1, 31)
    nothing: int | None = None


def test_a_default_that_nobody_touched_is_the_default() -> None:
    """
    Its lines too: a browser sends one line of a field that has one.
    """
    text, code, *more = fields_for(Briefing)
    form = {text.name: "Dear A,\nregards", code.name: "a\ufffdb\n", **{one.name: one.value for one in more}}

    assert Briefing.model_validate(filled(fields_for(Briefing), form)) == Briefing()
    assert Briefing.model_validate(filled(fields_for(Briefing), {})) == Briefing()
    for form in ({one.name: one.value for one in fields_for(Amounts)}, {}):
        assert Amounts.model_validate(filled(fields_for(Amounts), form)) == Amounts()


class Bare(BaseModel):
    """What has no default, and may be null; and what the type makes."""

    size: int | None
    made: list[int] | None = Field(default_factory=lambda: [1])


def test_what_may_be_null_and_must_be_given_is_null_where_it_is_left_empty() -> None:
    """
    It is marked as optional, so a form without it is taken.
    """
    empty = filled(fields_for(Bare), dict.fromkeys((one.name for one in fields_for(Bare)), ""))

    assert Bare.model_validate(empty) == Bare(size=None, made=[1])


def test_a_default_that_somebody_has_removed_does_not_come_back() -> None:
    """
    The text is empty then, or null where that is allowed; what can be neither is asked for.
    """
    emptied = filled(fields_for(Briefing), dict.fromkeys((one.name for one in fields_for(Briefing)), ""))

    assert emptied == {"text": "", "code": "", "hint": None, "many": None}
    for field in fields_for(Amounts)[:-1]:
        with pytest.raises((InputRejected, ValidationError), match=field.label):
            Amounts.model_validate(filled(fields_for(Amounts), {field.name: ""}))


@pytest.mark.parametrize(("typed", "result"), [('"by hand"', "by hand"), ("null", None), (" ", ...)])
async def test_the_result_of_an_agents_call_may_be_given(typed: str, result: object) -> None:
    """
    A key that is not shown can be added, null too; what is left empty is not sent.
    """
    engine = FakeEngine(SKILLS, answers={"model": [calls("charge", amount_cents=5), "Done."]})
    await engine.start("mailer", Content.from_text("go"), task_id="m1")
    gate = await gate_of(engine, "m1")
    transport = httpx2.ASGITransport(app=page_app(engine, Access(loopback="ada")))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as http:
        browser = Browser(http)
        assert "nothing is called" in (await browser.get("/")).text
        form = {**approval("m1", gate), "decision": "change", 'f:["arguments", "amount_cents"]': "6"}
        assert (await browser.send("/decide", **form, **{'f:["result"]': typed})).status_code == 303

    (decision,) = await decisions(engine, "m1")
    added = {} if result is ... else {"result": result}
    assert decision.changes == {"arguments": {"amount_cents": 6}, **added}


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


def each(task_id: str, chosen: Sequence[tuple[Wait, str, str]]) -> dict[str, str | list[str]]:
    """The form that decides at each gate by itself: approve, deny, or nothing; with a comment."""
    form = {**approval(task_id, *(wait for wait, _, _ in chosen)), "decision": "each", "back": "task"}
    for wait, verdict, comment in chosen:
        form |= {f"decision {wait.gate}": verdict, f"comment {wait.gate}": comment}
    return form


async def test_what_is_not_taken_is_shown_again_as_it_was_typed(engine: FakeEngine, ada: Browser) -> None:
    """
    An answer that does not fit, a comment on what has changed: with a sentence, and the form.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    await engine.send("a1", Content.from_text("Grace"))
    wait = await gate_of(engine, "a1")
    form = {"task": "a1", "gate": wait.gate, 'f:["city"]': "Rome & Bari", 'f:["nights"]': "two"}
    answered = await ada.send("/answer", **form)
    assert answered.status_code == 409
    assert "nights: a whole number is expected" in answered.text
    assert 'value="Rome &amp; Bari"' in answered.text
    assert 'value="two"' in answered.text

    await order(engine)
    gate = (await gate_of(engine, "o1")).gate
    stale = {"task": "o1", "gate": gate, "digest": "0" * 32, "decision": "deny", "comment": "too <dear>"}
    changed = (await ada.send("/decide", **stale)).text
    assert "has changed since you opened it" in changed
    assert "too &lt;dear&gt;</textarea>" in changed
    assert digest(await gate_of(engine, "o1")) in changed

    await engine.decide("o1", approved=True, approver="bob")
    late = (await ada.send("/decide", **stale)).text
    assert "bob has approved" in late
    assert 'href="/task/o1">To the task' in late
    assert "<textarea" not in late


@flow_skill(id="pair")
class Pair:
    """A payment that two people grant, and may change."""

    @step(start=True)
    async def pay(self, ctx: Ctx, content: Content) -> Transition:
        policy, show = GatePolicy(needed=2, allow_unsigned=True), {"amount": 100, "note": "x"}
        await ctx.approve("pay", "Pay?", show=show, policy=policy, editable=("amount", "note"))
        return ctx.complete("paid")


def form_to_change(page: str) -> dict[str, str]:
    """What a browser sends of the one form that changes what is granted, if nobody touches it."""
    form = page.partition("<details")[2].partition("</form>")[0]
    inputs = re.findall(r'<input [^>]*name="([^"]*)"[^>]* value="([^"]*)"', form)
    return {html.unescape(name): html.unescape(value) for name, value in inputs} | {"decision": "change"}


async def test_a_form_shown_again_holds_what_somebody_else_changed(
    engine: FakeEngine, ada: Browser, open_page: Open
) -> None:
    """
    Bob changes the amount while ada changes the note: her form, shown again, has his amount and her note, and when she
    sends it once more, his amount stays.
    """
    engine.skills["pair"] = FakeEngine([Pair]).skills["pair"]
    await engine.start("pair", Content.from_text("go"), task_id="p1")
    bob, amount, note = await open_page(loopback="bob"), 'f:["amount"]', 'f:["note"]'
    form = form_to_change((await ada.get("/")).text)
    assert (form[amount], form[note]) == ("100", "x")

    assert (await bob.send("/decide", **{**form, "as": "bob", amount: "50"})).status_code == 303
    stale = await ada.send("/decide", **{**form, note: "y"})

    assert stale.status_code == 409
    shown = form_to_change(stale.text)
    assert (shown[amount], shown[note]) == ("50", "y")
    assert (await ada.send("/decide", **shown)).status_code == 303
    assert [one.changes for one in await decisions(engine, "p1")] == [{"amount": 50}, {"note": "y"}]


async def test_no_comment_is_lost_when_somebody_else_closed_one_of_two_gates(engine: FakeEngine, ada: Browser) -> None:
    """
    The gate that is still open shows its own comment in its form; the comments that no form holds are there to copy.
    """
    await engine.start("two", Content.from_text("go"), task_id="t1")
    first, second = (await engine.record("t1")).waits
    form = each("t1", [(first, "approve", "for <first>"), (second, "deny", "for <second>")])
    await engine.decide("t1", first.gate, approved=True, approver="bob")

    page = (await ada.send("/decide-all", **form, comment="for <both>")).text

    assert "bob has approved “first” already" in page
    assert page.count("for &lt;second&gt;</textarea>") == 1
    for comment in ("first", "both"):
        assert f">for &lt;{comment}&gt;</p>" in page
    assert ">for &lt;second&gt;</p>" not in page


@pytest.mark.parametrize(
    ("fault", "status", "kept"),
    [
        pytest.param(NotConnected("no server answers"), 503, 'name="text" value="Grace', id="no-server"),
        pytest.param(StorageError("the storage is away"), 503, 'name="text" value="Grace', id="no-storage"),
        pytest.param(CodecError("the key is not here"), 503, 'name="text" value="Grace', id="no-key"),
        pytest.param(PayloadTooLarge("the answer is too large"), 413, ">\nGrace", id="too-large"),
        pytest.param(InputRejected("the task has ended"), 409, ">\nGrace", id="refused"),
    ],
)
async def test_no_fault_loses_an_answer(engine: Faster, ada: Browser, fault: Exception, status: int, kept: str) -> None:
    """
    What was typed is on the page that says why it was not taken: to be sent again, or to be changed first.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    engine.between = partial(raising, fault)

    page = await ada.send("/answer", task="a1", gate=(await gate_of(engine, "a1")).gate, text="Grace & Co")

    assert (page.status_code, f"{kept} &amp; Co" in page.text, str(fault) in page.text) == (status, True, True)


async def test_what_was_taken_cannot_be_sent_again(engine: Faster, ada: Browser) -> None:
    """
    The server goes away once the task has taken an answer: the page says so, and leads to the task.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    engine.between = partial(raising, Taken("task a1 has taken the message, which is not to be sent again"))

    page = await ada.send("/answer", task="a1", gate=(await gate_of(engine, "a1")).gate, text="Grace & Co")

    assert (page.status_code, "task a1 has taken the message" in page.text) == (202, True)
    assert 'href="/task/a1">To the task' in page.text
    assert "Send it again" not in page.text


async def raising(fault: Exception) -> None:
    """Whatever is asked fails so."""
    raise fault


async def test_an_answer_that_comes_too_late_is_still_there_to_copy(engine: Faster, ada: Browser) -> None:
    """
    Somebody else has answered the question, or the gate is not the person's to see any more: no form takes the text.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    first = (await gate_of(engine, "a1")).gate
    await engine.send("a1", Content.from_text("bob's"))
    text = await ada.send("/answer", task="a1", gate=first, text="a long <answer>")
    data = await ada.send("/answer", task="a1", gate=first, **{'f:["city"]': "Rome"})

    assert (text.status_code, data.status_code) == (409, 409)
    assert ">a long &lt;answer&gt;</p>" in text.text
    assert ">Rome</p>" in data.text


@pytest.mark.parametrize("path", ["/answer", "/resolve", "/skills/order"])
async def test_data_that_is_nested_too_deeply_is_refused_in_words(engine: FakeEngine, ada: Browser, path: str) -> None:
    """
    It is no bug of the page: the form is there again.
    """
    deep = "[" * 300 + "]" * 300
    forms: dict[str, dict[str, str]] = {
        "/answer": {"task": "l1", 'f:["names"]': deep},
        "/resolve": {"task": "c1", "command": await blocked(engine), "how": "outcome", "outcome": deep},
        "/skills/order": {'f:["item"]': "tea", 'f:["amount_cents"]': "5", 'f:["urgent"]': "false", 'f:["tags"]': deep},
    }
    await engine.start("list", Content.from_text("go"), task_id="l1")
    forms["/answer"]["gate"] = (await gate_of(engine, "l1")).gate

    page = await ada.send(path, **forms[path])

    assert (page.status_code, deep in page.text) == (409, True)


class Silent(FakeEngine):
    """Tasks whose worker may fall silent."""

    note = ""

    async def record(self, task_id: str) -> TaskRecord:
        """What is known without a worker."""
        found = await super().record(task_id)
        return found.model_copy(update={"waits": (), "note": self.note}) if self.note else found


async def test_what_nobody_takes_now_can_be_sent_again() -> None:
    """
    A silent worker is not a question that was answered: what was typed stays on the page, and is taken later.
    """
    engine = Silent(SKILLS)
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    await order(engine)
    asked, gate = await gate_of(engine, "a1"), await gate_of(engine, "o1")
    app = page_app(engine, Access(loopback="ada"), Pages(skills=SKILLS))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as http:
        ada, engine.note = Browser(http), "no worker polls task queue 'refold'"
        inbox = (await ada.get("/")).text
        assert "2 tasks that wait for people cannot be read now" in inbox
        assert "Nothing waits for you" not in inbox
        denied = await ada.send("/decide", **{**approval("o1", gate), "decision": "deny", "comment": "why?"})
        answered = await ada.send("/answer", task="a1", gate=asked.gate, text="Grace <Hopper>")
        for page in (denied, answered):
            assert page.status_code == 503
            assert "no worker polls task queue &#39;refold&#39;" in page.text
        assert await decisions(engine, "o1") == []

        engine.note = ""
        kept = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', answered.text))
        assert (await ada.send("/answer", **{name: html.unescape(value) for name, value in kept.items()})).is_redirect
        assert "Grace <Hopper>" in [one.text for one in (await engine.record("a1")).messages]


async def test_one_form_grants_at_one_gate_and_denies_at_another(engine: FakeEngine, ada: Browser) -> None:
    """
    On the task's page as in the inbox; each decision has its own comment, and what is left open stays open.
    """
    await engine.start("two", Content.from_text("go"), task_id="t1")
    first, second = (await engine.record("t1")).waits
    for path in ("/", "/task/t1", "/waits/t1"):
        page = (await ada.get(path)).text
        assert "Approve all 2" in page
        assert f'name="decision {first.gate}" value="deny"' in page

    nothing = await ada.send("/decide-all", **each("t1", [(first, "", ""), (second, "", "no")]))
    assert nothing.status_code == 409
    assert "you left each of them open" in nothing.text
    wrong = await ada.send("/decide-all", **each("t1", [(first, "approve", ""), (second, "perhaps", "")]))
    assert wrong.status_code == 400
    button = {**each("t1", [(first, "deny", ""), (second, "", "")]), "decision": "approve"}
    assert "you chose to deny one of them" in (await ada.send("/decide-all", **button)).text
    assert await decisions(engine, "t1") == []

    done = await ada.send("/decide-all", **each("t1", [(first, "approve", ""), (second, "deny", "not him")]))
    assert done.headers["location"] == "/task/t1"
    page = (await ada.get("/task/t1")).text
    assert "Approved: first. Denied: second." in page
    assert "first approved by ada" in page
    assert [(one.approved, one.comment) for one in await decisions(engine, "t1")] == [(True, ""), (False, "not him")]

    await engine.start("two", Content.from_text("go"), task_id="t2")
    first, second = (await engine.record("t2")).waits
    await ada.send("/decide-all", **each("t2", [(first, "", ""), (second, "deny", "")]))
    assert [wait.gate for wait in (await engine.record("t2")).waits] == [first.gate]


@flow_skill(id="many")
class Many:
    """Many gates with long names."""

    @step(start=True)
    async def all(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(on_denied="continue")
        await ctx.gather(*(ctx.approve(f"{number} {'ж' * 70}", "Pay?", policy=policy) for number in range(40)))
        return ctx.complete("paid")


async def test_a_long_sentence_about_what_was_done_is_cut_and_not_lost(engine: FakeEngine, ada: Browser) -> None:
    """
    A cookie carries it to the next page, and browsers drop one of more than 4,096 bytes.
    """
    engine.skills["many"] = FakeEngine([Many]).skills["many"]
    await engine.start("many", Content.from_text("go"), task_id="x" * 200)

    done = await ada.send("/decide-all", **approval("x" * 200, *(await engine.record("x" * 200)).waits))

    assert len(done.headers["set-cookie"].partition(";")[0]) < 4_096
    assert f"Approved: 0 {'ж' * 70}" in (await ada.get("/")).text


async def test_a_denial_that_ends_the_task_comes_after_the_grants(engine: FakeEngine, ada: Browser) -> None:
    """
    Whatever stands first in the form; two such denials are one too many, and a sentence says so.
    """
    for task_id in ("f1", "f2"):
        await engine.start("fatal", Content.from_text("go"), task_id=task_id)
    one, other = (await engine.record("f1")).waits
    await ada.send("/decide-all", **each("f1", [(one, "deny", "no"), (other, "approve", "")]))
    assert [made.approved for made in await decisions(engine, "f1")] == [True, False]
    assert (await engine.look("f1")).status is Status.FAILED

    waits = (await engine.record("f2")).waits
    twice = await ada.send("/decide-all", **each("f2", [(wait, "deny", "") for wait in waits]))
    assert twice.status_code == 409
    assert "a denial there ends the task" in twice.text
    assert await decisions(engine, "f2") == []


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


class Counted(RootModel[dict[str, int] | None]):
    """How many of each, or nothing."""


@flow_skill(id="stock")
class Stock:
    """Asks for numbers, or nothing."""

    @step(start=True)
    async def count(self, ctx: Ctx, content: Content) -> Transition:
        found = await ctx.ask("stock", "How many of each?", expect=Counted)
        return ctx.complete(str(found))


async def test_an_empty_form_is_no_answer(engine: FakeEngine, ada: Browser) -> None:
    """
    Where null is allowed the field may be left empty, but nothing is made of that: neither null nor an empty object.
    """
    engine.skills["stock"] = FakeEngine([Stock]).skills["stock"]
    await engine.start("stock", Content.from_text("go"), task_id="s1")
    form = {"task": "s1", "gate": (await gate_of(engine, "s1")).gate}

    empty = await ada.send("/answer", **form, **{"f:[]": " "})

    assert empty.status_code == 409
    assert "no answer" in empty.text
    assert (await engine.look("s1")).status is Status.INPUT_REQUIRED
    assert (await ada.send("/answer", **form, **{"f:[]": "{}"})).status_code == 303


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


async def others(engine: FakeEngine, many: int) -> None:
    """Tasks that wait for bob, each longer than the next."""
    for number in range(many):
        await engine.start("beside", Content.from_text("go"), task_id=f"b{number:02}", owner="dora")
        await engine.send(f"b{number:02}", Content.from_text("now"), slot="when")
        await engine.advance(60)


async def test_what_waits_behind_tasks_of_others_is_not_passed_over(
    engine: FakeEngine, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    One page looks at so many tasks; if none of them waits for the person, it says so and leads on.
    """
    monkeypatch.setattr("refold.web.page.inbox.READ", 20)
    await others(engine, 20)
    await order(engine)
    dora = await open_page(key="key-of-dora", see_all=("dora",))

    first = (await dora.get("/")).text

    assert "None of the 20 tasks that this page looked at waits for you." in first
    assert "Nothing waits for you" not in first
    link = first.split('<a class="button" href="')[-1].split('"')[0].replace("&amp;", "&")
    assert "Buy tea?" in (await dora.get(link)).text


async def test_an_inbox_that_lacks_what_waits_longest_says_so(
    engine: FakeEngine, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    So many tasks are put in order, those that changed last; the list of tasks has all.
    """
    await order(engine)
    await engine.advance(60)
    await others(engine, 5)
    dora = await open_page(key="key-of-dora", see_all=("dora",))
    assert "have waited longest" not in (await dora.get("/")).text

    monkeypatch.setattr("refold.web.page.waiting.WAITING", 5)
    dora = await open_page(key="key-of-dora", see_all=("dora",))
    page = (await dora.get("/")).text

    assert "this list lacks those that have waited longest" in page
    assert "None of the 5 tasks that this page looked at waits for you." in page
    assert 'href="/tasks?lifecycle=paused"' in page


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


class Watched(FakeEngine):
    """Notes since when tasks are looked for."""

    def __init__(self) -> None:
        super().__init__(SKILLS)
        self.since: list[datetime | None] = []

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """The tasks."""
        self.since.append(wanted.moved_since)
        return await super().find(wanted, after=after, limit=limit)


async def test_waiting_tasks_are_kept_and_new_ones_added() -> None:
    """
    The second look asks for what has moved since; it shows what came and what waits anew, and not what was decided.
    """
    engine = Watched()
    await engine.start("again", Content.from_text("go"), task_id="twice")
    await order(engine, "goes")
    app = page_app(engine, Access(loopback="ada"), Pages(skills=SKILLS))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as http:
        assert 'href="/task/goes"' in (await http.get("/")).text
        await engine.advance(60)
        await engine.decide("goes", approved=True, approver="bob")
        await engine.decide("twice", approved=True, approver="bob")
        await order(engine, "comes")
        for _ in range(2):
            page = (await http.get("/")).text
            assert ['href="/task/goes"' in page, 'href="/task/comes"' in page, "900" in page] == [False, True, True]

    assert [since is None for since in engine.since] == [True, False, False]
