"""Decisions at several gates of a task are taken together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel

from refold import Content, Ctx, DecisionMade, GatePolicy, InputRejected, Status, Transition, flow_skill, step
from refold.agent import Concurrent
from refold.core.authoring.define import skill_of
from refold.core.commands import AskApproval, CallTool
from refold.core.events import UserMessage
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.waits import Wait
from refold.engine import Decision, WaitView
from refold.engine.decisions import decision_of
from refold.engine.together import MOST, refused
from refold.testing import FakeEngine, calls
from refold.testing.play import START
from tests.agent.shop import TOOLS, shop

PEOPLE = ("ada", "bob", "cy")


class Gate(BaseModel):
    """How a gate of the task below is kept."""

    needed: int = 1
    on_denied: Literal["fail", "continue"] = "continue"
    approvers: tuple[str, ...] = ()
    timeout_s: float | None = None
    raced: bool = False


class Gates(BaseModel):
    gates: list[Gate]


@flow_skill(id="several", input=Gates)
class Several:
    """Opens its gates together; what was decided is the result. Those that race are one gate of which one counts."""

    @step(start=True)
    async def begin(self, ctx: Ctx, plan: Gates) -> Transition:
        asked: dict[bool, list[Any]] = {True: [], False: []}
        for number, one in enumerate(plan.gates):
            policy = GatePolicy.model_validate({**one.model_dump(exclude={"raced"}), "allow_unsigned": True})
            show = {"cents": number}
            call = ctx.approve(f"g{number}", "Pay?", show=show, policy=policy, editable=("cents",))
            asked[one.raced].append(call)

        async def race() -> str:
            if not asked[True]:
                return ""
            _, won = await ctx.first(*asked[True])
            return f"{won.slot} {won.decision}"

        async def own(call: Any) -> str:
            decided = await call
            return f"{decided.slot} {decided.decision}"

        done = await ctx.parallel(race(), *(own(one) for one in asked[False]))
        return ctx.complete(", ".join(filter(None, done)))


SKILL = skill_of(Several)


def opened(gates: Sequence[Gate]) -> Snapshot:
    """The task, with its gates open."""
    message = UserMessage(content=Content.from_data(Gates(gates=list(gates)).model_dump(mode="json")))
    return advance(SKILL, planned(SKILL, "t", START), message, START)[0]


def at_gate(wait: Wait, decision: str = "approved", by: str = "ada", **more: Any) -> DecisionMade:
    """A decision for what the gate shows."""
    assert isinstance(wait.ask, AskApproval)
    said = {"gate": wait.gate, "digest": wait.ask.digest, "decision": decision, "approver": by, **more}
    return DecisionMade.model_validate(said)


def one_by_one(task: Snapshot, decisions: Sequence[DecisionMade], at: datetime) -> tuple[Snapshot, list[Entry]]:
    """What comes of the decisions, each taken or refused by itself."""
    entries = []
    for one in decisions:
        task, entry = advance(SKILL, task, one, at)
        entries.append(entry)
    return task, entries


def gates() -> st.SearchStrategy[list[Gate]]:
    approvers = st.sampled_from([(), ("ada", "bob"), ("bob", "cy")])
    policy = st.builds(
        Gate,
        needed=st.integers(1, 2),
        on_denied=st.sampled_from(["fail", "continue"]),
        approvers=approvers,
        timeout_s=st.sampled_from([None, 5.0]),
        raced=st.booleans(),
    )
    return st.lists(policy, min_size=1, max_size=4)


ODD: list[dict[str, Any]] = [{}, {}, {}, {"digest": "0" * 32}, {"gate": "t/9.9"}, {"changes": {"cents": 7}}]


@st.composite
def decided(draw: st.DrawFn) -> tuple[Snapshot, list[DecisionMade], datetime]:
    """A task, some of whose gates have a grant, and decisions that may be wrong in every way that there is."""
    task = opened(draw(gates()))
    for wait in draw(st.lists(st.sampled_from(task.waits), max_size=2)):
        task, _ = advance(SKILL, task, at_gate(wait, by=draw(st.sampled_from(PEOPLE))), START)
    known = task.waits or opened([Gate()]).waits
    found = []
    for wait in draw(st.lists(st.sampled_from(known), min_size=1, max_size=5)):
        more: dict[str, Any] = draw(st.sampled_from(ODD))
        word = draw(st.sampled_from(["approved", "approved", "denied"]))
        found.append(at_gate(wait, word, draw(st.sampled_from(PEOPLE)), **more))
    return task, found, START + timedelta(seconds=draw(st.sampled_from([0, 0, 6])))


RACE = opened([Gate(raced=True), Gate(raced=True), Gate()])
LATE = opened([Gate(timeout_s=5), Gate()])
"""Whose first gate takes a late grant, which ends the task, six seconds after the start."""


@given(decided())
@example((RACE, [at_gate(one) for one in RACE.waits], START))
@example((RACE, [at_gate(RACE.waits[2]), at_gate(RACE.waits[0])], START))
@example((LATE, [at_gate(one) for one in LATE.waits], START + timedelta(seconds=6)))
@example((LATE, [at_gate(one) for one in LATE.waits[::-1]], START + timedelta(seconds=6)))
def test_all_or_none(case: tuple[Snapshot, list[DecisionMade], datetime]) -> None:
    """
    What is not refused is taken by the fold, each decision in turn; what the fold would refuse in turn is refused.
    """
    task, decisions, at = case
    found = refused(SKILL, task, decisions, at)
    after, entries = one_by_one(task, decisions, at)

    if found is None:
        assert [entry.refused for entry in entries] == [""] * len(decisions)
        assert [entry.event for entry in entries] == decisions
        assert not any(entry.moves or entry.commands or entry.messages for entry in entries[:-1])
        assert after.seq == task.seq + len(decisions)
    else:
        assert found.event in decisions
        assert found.why
    if any(entry.refused for entry in entries):
        assert found is not None


@given(decided())
def test_a_set_is_refused_for_a_reason(case: tuple[Snapshot, list[DecisionMade], datetime]) -> None:
    """
    Decisions at different gates in time, which the task takes in turn and after each of which it waits on, are taken.
    """
    task, decisions, at = case
    _, entries = one_by_one(task, decisions, at)
    different = len({one.gate for one in decisions}) == len(decisions)
    in_time = at == START
    waits_on = not any(entry.refused for entry in entries) and not any(entry.moves for entry in entries[:-1])
    race = any(wait.ask.raced for wait in task.waits)

    if different and in_time and waits_on and not race:
        assert refused(SKILL, task, decisions, at) is None


def test_the_refused_decision_is_named() -> None:
    """
    By its gate's name and id, with why; a decision that is the only one is refused in the words of the task alone.
    """
    task = opened([Gate(), Gate()])
    first, second = task.waits
    stale = at_gate(second, digest="0" * 32)

    alone = refused(SKILL, task, [stale], START)
    both = refused(SKILL, task, [at_gate(first), stale], START)

    assert alone is not None
    assert both is not None
    assert both.event is stale
    assert both.why == (
        f"none of the 2 decisions was taken, since the one at 'g1' ({second.gate}) cannot be: {alone.why}"
    )


@pytest.mark.parametrize(
    ("plan", "order", "why"),
    [
        pytest.param([Gate(), Gate()], [0, 0], "decided twice", id="one-gate-twice"),
        pytest.param([Gate(on_denied="fail"), Gate()], [0, 1], "ends the task", id="nothing-after-the-end"),
        pytest.param([Gate(raced=True), Gate(raced=True)], [0, 1], "races with others", id="a-race"),
        pytest.param([Gate(timeout_s=5), Gate()], [1, 0], "timed out", id="too-late"),
        pytest.param([Gate(on_denied="fail"), Gate()], [1, 0], "", id="the-end-comes-last"),
        pytest.param([Gate(raced=True), Gate(raced=True), Gate()], [2, 1], "", id="the-race-comes-last"),
    ],
)
def test_what_is_not_decided_together(plan: list[Gate], order: list[int], why: str) -> None:
    """
    Two decisions at one gate, one after the task's end, one at a gate that has lost a race, one that is late.
    """
    task = opened(plan)
    decisions = [at_gate(task.waits[number], "denied") for number in order]

    found = refused(SKILL, task, decisions, START + timedelta(seconds=6))

    assert why in ("" if found is None else found.why)
    assert (found is None) == (not why)


async def test_an_engine_takes_all_or_none() -> None:
    """
    By names or ids, with a comment each; a refusal leaves no trace; parts and their task are decided one at a time.
    """
    engine = FakeEngine([Several])
    plan = Gates(gates=[Gate(), Gate(on_denied="fail"), Gate()])
    await engine.start("several", Content.from_data(plan.model_dump(mode="json")), task_id="t")
    before = await engine.look("t")
    g0, g1, g2 = before.waiting_for
    good = [Decision(gate=g0.gate, approved=True, digest=g0.digest), Decision(gate="g1", approved=True)]

    for wrong, why in [
        ([], "no decision to take"),
        ([*good, Decision(gate="g2", approved=False, digest="0" * 32)], "g2.* look again"),
        ([*good, Decision(gate="g9", approved=True)], "no gate 'g9'"),
        ([Decision(gate="g1", approved=False), good[0]], "ends the task"),
        ([*good, Decision(gate="g2", approved=True, changes={"price": 1})], "price cannot be changed"),
        ([good[0]] * (MOST + 1), f"201 decisions came together, and none was taken; send at most {MOST}"),
    ]:
        with pytest.raises(InputRejected, match=why):
            await engine.decide_together("t", wrong, approver="ada")
        assert await engine.look("t") == before

    last = Decision(gate=g2.gate, approved=False, digest=g2.digest, comment="too dear")
    done = await engine.decide_together("t", [*good, last], approver="ada")
    assert done.status is Status.COMPLETED
    assert done.messages[-1].text == "g0 approved, g1 approved, g2 denied"
    entries = [entry async for entry in engine.journal("t")]
    made = [one.event for one in entries if isinstance(one.event, DecisionMade)]
    assert [(one.gate, one.decision, one.comment) for one in made] == [
        (g0.gate, "approved", ""),
        (g1.gate, "approved", ""),
        (g2.gate, "denied", "too dear"),
    ]


@pytest.mark.parametrize(("given", "taken"), [(None, "now"), ("", ""), ("then", "then")])
def test_only_a_decision_without_a_digest_is_for_what_the_gate_shows_now(given: str | None, taken: str) -> None:
    """
    An empty digest is a digest that no gate has: the task refuses it.
    """
    said = Decision(gate="t/1.1", approved=True, digest=given)

    gate = WaitView(slot="pay", message="", gate="t/1.1", digest="now")

    assert decision_of(said, gate, approver="ada", vouched_by=None).digest == taken


@pytest.mark.parametrize("spelt", [" Zoë", "Zoe\u0308", "Zo\u00eb\u00a0"])
@pytest.mark.parametrize(
    ("field", "said"), [("granted_by", "decided before"), ("excluded", "owns the task"), ("approvers", "")]
)
async def test_a_name_in_another_spelling_is_the_same_person(spelt: str, field: str, said: str) -> None:
    """
    Else one person could grant twice, or be the second one; and somebody who is listed could not decide.
    """
    policies = {
        "granted_by": GatePolicy(needed=2, allow_unsigned=True),
        "excluded": GatePolicy(second_person=True, allow_unsigned=True),
        "approvers": GatePolicy(approvers=("Zoë",), allow_unsigned=True),
    }

    @flow_skill(id="pay")
    class Pay:
        @step(start=True)
        async def ask(self, ctx: Ctx, content: Content) -> Transition:
            await ctx.approve("pay", "Pay?", policy=policies[field])
            return ctx.complete("paid")

    engine = FakeEngine([Pay])
    await engine.start("pay", Content.from_text("Pay."), task_id="p", owner="Zoë" if field == "excluded" else None)
    if field == "granted_by":
        await engine.decide("p", approved=True, approver="Zoë")

    with pytest.raises(InputRejected, match=said) if said else nullcontext():
        view = await engine.decide("p", approved=True, approver=spelt)
        assert view.status is Status.COMPLETED


async def test_the_calls_of_one_turn_of_an_agent_are_decided_together() -> None:
    """
    One is granted, the other denied: the first is made, and the model reads why the second was not.
    """
    turn = [calls("buy", item="tea", count=9), calls("buy", item="milk", count=2)]
    agent = shop(gates="effects", orchestrator=Concurrent())
    engine = FakeEngine([agent], answers={"model": [turn, "Bought."]}, tools=TOOLS)
    tea, milk = (await engine.start("shop", Content.from_text("Buy."), task_id="s")).waiting_for

    yes, no = Decision(gate=tea.gate, approved=True), Decision(gate=milk.gate, approved=False, comment="too much")
    done = await engine.decide_together("s", [yes, no], approver="ada")

    assert done.status is Status.COMPLETED
    commands = [one.command for entry in [entry async for entry in engine.journal("s")] for one in entry.commands]
    assert [one.args for one in commands if isinstance(one, CallTool)] == [{"item": "tea", "count": 9}]


@flow_skill(id="whole")
class Whole:
    """Lets two parts ask, and asks itself."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        plan = Gates(gates=[Gate(), Gate()]).model_dump(mode="json")
        parts = await ctx.gather(ctx.skill("one", Several, plan), ctx.skill("two", Several, plan))
        return ctx.complete("; ".join(part.text for part in parts))


async def test_the_gates_of_one_part_are_decided_together() -> None:
    """
    Through the whole task; gates of two parts are not.
    """
    engine = FakeEngine([Several, Whole])
    view = await engine.start("whole", Content.from_text("go"), task_id="w")
    first, second, third, fourth = [Decision(gate=one.gate, approved=True) for one in view.waiting_for]

    with pytest.raises(InputRejected, match="one task at a time"):
        await engine.decide_together("w", [first, third], approver="ada")
    await engine.decide_together("w", [first, second], approver="ada")
    done = await engine.decide_together("w", [third, fourth], approver="ada")

    assert done.messages[-1].text == "g0 approved, g1 approved; g0 approved, g1 approved"
