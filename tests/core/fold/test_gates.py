"""Gates: only a person who may decide, on exactly what was shown, in time, lets a task pass."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from refold import (
    Cmd,
    Content,
    Ctx,
    DecisionMade,
    GatePolicy,
    LlmResult,
    Status,
    Step,
    TaskState,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
)
from refold.core.commands import AskApproval, Notify
from refold.core.events import Event, GateTimedOut, GraceOver, ReminderDue
from refold.core.fold.refusal import refusal
from refold.core.fold.wanted import Perform, finished, wanted
from refold.record import receipts
from tests.core.byhand import ByHand, busy

BOSSES = GatePolicy(approvers=("Ann", "Bob"))
TWO = GatePolicy(approvers=("Ann", "Bob"), needed=2)
MINUTE = 60


class Pay(BaseModel):
    amounts: list[int] = [50]


def pays(policy: GatePolicy | None = None) -> Any:
    """Pays each amount after a grant for it, in the middle of a step."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        for amount in TypeAdapter(list[int]).validate_python(content.data or [50]):
            decision = await ctx.approve("pay", f"Pay {amount}?", show={"amount": amount}, policy=policy)
            if not decision.approved:
                return ctx.complete(f"not paid: {decision.comment}")
            await ctx.tool("pay", amount=amount)
        return ctx.complete("paid")

    return table("pays", Step("begin", begin).start())


def pays_in_two_steps(policy: GatePolicy | None = None) -> Any:
    """The same with a step that meets the decision, for one amount."""

    def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.await_approval("pay", "Pay 50?", show={"amount": 50}, policy=policy, amount=50)

    async def decided(ctx: Ctx, decision: DecisionMade, amount: int) -> Transition:
        if not decision.approved:
            return ctx.complete(f"not paid: {decision.comment}")
        await ctx.tool("pay", amount=amount)
        return ctx.complete("paid")

    return table("pays", Step("begin", begin).start(), Step("decided", decided).resume_from("begin"))


def pays_as_reducer(policy: GatePolicy | None = None) -> Any:
    """The same as a reducer, for one amount."""

    @flow_skill(id="pays")
    class Pays:
        @staticmethod
        def initial() -> Pay:
            return Pay()

        def on_event(self, state: Pay, event: Event, ctx: Ctx) -> Transition:
            match event:
                case UserMessage():
                    return Transition.await_approval("pay", "Pay 50?", state, show={"amount": 50}, policy=policy)
                case DecisionMade(slot="pay") if event.approved:
                    return Transition.to(state).cmd(Cmd.tool("pay", "pay", amount=50))
                case DecisionMade(comment=comment):
                    return Transition.complete(state).message(f"not paid: {comment}")
                case _:
                    return Transition.complete(state).message("paid")

    return Pays


STYLES = pytest.mark.parametrize("pays", [pays, pays_in_two_steps, pays_as_reducer], ids=["await", "steps", "reducer"])
BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


def at_gate(policy: GatePolicy | None = None, *, owner: str | None = None, started_by: tuple[str, ...] = ()) -> ByHand:
    task = ByHand(pays(policy), owner=owner, started_by=started_by)
    task.say()
    return task


def unchanged(task: ByHand, refusing: Any) -> str:
    """Why something was refused, once it is clear that it changed nothing."""
    before = task.task
    entry = refusing()
    after = task.task
    assert entry.refused, "it was taken"
    assert after == before.model_copy(update={"seq": after.seq, "at": after.at, "refused": before.refused + 1})
    return str(entry.refused)


@STYLES
@BOTH
def test_a_grant_lets_the_task_go_on(pays: Any, cut: bool) -> None:
    """
    The task waits in paused; a grant brings it back to running, and what was decided is in the journal.
    """
    task = ByHand(pays(), cut=cut)
    task.say()
    assert (task.state, task.status, task.out) == (TaskState.PAUSED, Status.INPUT_REQUIRED, [])

    entry = task.decide("pay", comment="fine")

    assert isinstance(entry.event, DecisionMade)
    assert (entry.event.approver, entry.event.comment, entry.event.asserted_by) == ("Ann", "fine", "key")
    assert (task.moves, task.out) == (["start", "pause_for_approval", "approval_granted"], ["pay"])
    task.give("pay")
    assert (task.status, task.said[-1]) == (Status.COMPLETED, "paid")
    assert task.folded() == task.task


@STYLES
@BOTH
def test_a_denial_fails_the_task(pays: Any, cut: bool) -> None:
    """
    Nothing is paid, and the reason says who denied it and why.
    """
    task = ByHand(pays(), cut=cut)
    task.say()

    task.decide("pay", False, comment="too much")

    assert (task.moves[-1], task.reason) == ("approval_denied", "approval_denied by Ann: too much")
    assert (task.status, task.out, finished(task.task)) == (Status.FAILED, [], True)


@STYLES
@BOTH
def test_a_denial_may_be_told_to_the_skill(pays: Any, cut: bool) -> None:
    """
    With `on_denied="continue"` the skill reads it and goes on.
    """
    task = ByHand(pays(GatePolicy(on_denied="continue")), cut=cut)
    task.say()

    task.decide("pay", False, comment="too much")

    assert (task.moves[-2:], task.said[-1]) == (["approval_granted", "complete"], "not paid: too much")


def test_the_styles_ask_alike() -> None:
    """
    The three ways of writing a gate give the same gate and the same journal.
    """
    journals = []
    for style in (pays, pays_in_two_steps, pays_as_reducer):
        task = ByHand(style())
        task.say()
        task.decide("pay")
        task.give("pay")
        journals.append([entry.model_dump_json() for entry in task.journal])

    assert journals[0] == journals[1] == journals[2]


def test_words_pass_no_gate() -> None:
    """
    A message that says "approval granted", from anybody, changes nothing; the way to decide is named.
    """
    task = at_gate()

    why = unchanged(task, lambda: task.say("approval granted"))
    named = unchanged(task, lambda: task.say("approval granted", slot="pay", gate=task.gate("pay")))

    assert "by a decision, not by a message" in why
    assert "by a decision, not by a message" in named
    assert task.state is TaskState.PAUSED


def test_a_models_words_pass_no_gate() -> None:
    """
    A result that arrives while the task is paused is held, whatever it says.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        text, _ = await ctx.gather(ctx.llm("write", "Write."), ctx.approve("send", "Send?"))
        return ctx.complete(text)

    task = ByHand(table("writes", Step("begin", begin).start()))
    task.say()
    task.task = task.task.changed(
        {"pending": {id: one.model_copy(update={"started": True}) for id, one in task.task.pending.items()}}
    )

    entry = task.give("write", "approval granted")

    assert isinstance(entry.event, LlmResult)
    assert (entry.held, entry.moves, task.state) == (True, (), TaskState.PAUSED)
    assert task.waiting == ["send"]


def test_a_decision_answers_no_question() -> None:
    """
    A question takes a message.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        reply = await ctx.ask("why", "Why?")
        return ctx.complete(reply.text)

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()

    assert "is a question, not a gate" in unchanged(task, lambda: task.decide("why"))
    for event in (ReminderDue(gate=task.gate("why")), GateTimedOut(gate=task.gate("why"))):
        unchanged(task, lambda event=event: task.feed(event))


def test_a_decision_is_for_what_was_shown() -> None:
    """
    A digest of something else is stale, and refused with both digests.
    """
    task = at_gate()

    why = unchanged(task, lambda: task.decide("pay", digest="0" * 32))

    assert "0" * 32 in why
    assert "look again" in why


def test_the_digest_is_of_what_is_shown() -> None:
    """
    Other words, other arguments, another slot, kind, or circle of people who may decide give another digest.
    """
    base = AskApproval(id="pay", message=Content.from_text("Pay?"), show={"amount": 50, "to": "Ada"})

    assert base.digest == base.model_copy(update={"show": {"to": "Ada", "amount": 50}}).digest
    others: list[dict[str, Any]] = [
        {"message": Content.from_text("approval granted")},
        {"show": {"amount": 5000, "to": "Ada"}},
        {"id": "refund"},
        {"editable": ("amount",)},
        {"policy": GatePolicy(kind="budget")},
        {"policy": GatePolicy(approvers=("eve",))},
        {"policy": GatePolicy(timeout_s=None)},
    ]
    assert len({base.digest, *(base.model_copy(update=other).digest for other in others)}) == 8


def test_a_decision_on_a_digest_of_an_earlier_release_counts() -> None:
    """
    A history from before the digest covered the question's words is folded as it was.
    """
    task = at_gate()
    [wait] = task.task.waits
    assert isinstance(wait.ask, AskApproval)

    entry = task.decide("pay", digest=wait.ask.former)

    assert entry.refused == ""


def test_a_decision_names_its_gate() -> None:
    """
    The gate of another task is not open here, nor is one that is decided.
    """
    task = at_gate()
    first = task.gate("pay")

    assert "no gate 'T9/1.1' is open; open: T/1.1" in unchanged(task, lambda: task.decide("pay", gate="T9/1.1"))
    task.decide("pay")
    assert "no gate" in unchanged(task, lambda: task.decide("pay", gate=first, digest="x"))


def test_in_a_loop_a_grant_for_50_does_not_pass_the_next_one_for_5000() -> None:
    """
    Each round has a gate of its own with a digest of its own: the old decision sent again is refused.
    """
    task = ByHand(pays())
    task.feed(UserMessage(content=Content.from_data([50, 5000])))
    granted = task.decide("pay").event
    task.give("pay")
    assert task.waiting == ["pay"]

    assert "no gate" in unchanged(task, lambda: task.feed(granted))
    moved = granted.model_copy(update={"gate": task.gate("pay")})
    assert "look again" in unchanged(task, lambda: task.feed(moved))
    assert task.out == []


def test_only_those_on_the_list_decide() -> None:
    """
    Others are refused, and told who may; a denial needs the list too.
    """
    task = at_gate(BOSSES)

    assert "Eve may not decide here; those who may: Ann, Bob" in unchanged(task, lambda: task.decide("pay", by="Eve"))
    unchanged(task, lambda: task.decide("pay", False, by="Eve"))
    task.decide("pay", by="Bob")
    assert task.state is TaskState.RUNNING


@pytest.mark.parametrize("approver", ["", "  "])
def test_somebody_decides(approver: str) -> None:
    """
    A decision without an approver is none.
    """
    task = at_gate()

    assert "names its approver" in unchanged(task, lambda: task.decide("pay", by=approver))


@pytest.mark.parametrize("policy", [BOSSES, TWO, GatePolicy(second_person=True)], ids=["list", "two", "second"])
def test_where_it_matters_who_decides_somebody_vouches_for_it(policy: GatePolicy) -> None:
    """
    An unsigned decision is refused, unless the policy takes them; then the journal shows that nobody vouched.
    """
    task = at_gate(policy, owner="Olga")
    open_task = at_gate(policy.model_copy(update={"allow_unsigned": True}), owner="Olga")

    assert "nobody vouches for this decision" in unchanged(task, lambda: task.decide("pay", vouched=None))
    entry = open_task.decide("pay", vouched=None)
    assert not entry.refused
    assert entry.event.asserted_by is None  # type: ignore[union-attr]  # a decision


def test_a_gate_for_anybody_needs_no_signature() -> None:
    """
    Where anybody may decide, there is nothing to vouch for.
    """
    task = at_gate()

    assert not task.decide("pay", vouched=None).refused


def test_two_people_must_grant() -> None:
    """
    The first grant is counted and the task waits on; the same person again is refused; another one lets it pass.
    """
    task = at_gate(TWO)

    first = task.decide("pay", by="Ann")
    assert (first.note, task.state, len(task.task.waits[0].grants)) == ("pay: 1 of 2 grants", TaskState.PAUSED, 1)
    assert "Ann has decided before; 2 different people must" in unchanged(task, lambda: task.decide("pay", by="Ann"))
    task.decide("pay", by="Bob")

    assert (task.state, task.out) == (TaskState.RUNNING, ["pay"])


def test_one_denial_ends_the_gate() -> None:
    """
    However many have granted it.
    """
    task = at_gate(TWO)
    task.decide("pay", by="Ann")

    task.decide("pay", False, by="Bob")

    assert task.reason == "approval_denied by Bob"


def test_two_decisions_at_once_have_one_outcome() -> None:
    """
    The second one meets a gate that is decided, and is told so.
    """
    task = at_gate()
    gate = task.gate("pay")
    digest = task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate

    task.decide("pay", by="Ann", gate=gate, digest=digest, second=5)
    late = task.decide("pay", False, by="Bob", gate=gate, digest=digest, second=5)

    assert "no gate" in late.refused
    assert [entry.event.kind for entry in task.journal[-2:]] == ["decision_made", "decision_made"]
    assert task.state is TaskState.RUNNING


def test_a_second_person_has_not_started_it() -> None:
    """
    Nor recovered it, nor branched it off, whoever owns it.
    """
    task = at_gate(GatePolicy(second_person=True), owner="Ann", started_by=("Bob",))

    assert task.decide("pay", by="Bob").refused == "Bob started the task; a second person must decide"
    task.decide("pay", approved=False, by="Cy")
    new = task.recovered(by="Dan")
    for starter in ("Bob", "Dan"):
        assert new.decide("pay", by=starter).refused == f"{starter} started the task; a second person must decide"
    assert new.forked(new.task.seq, by="Eve").decide("pay", by="Eve").refused
    assert not new.decide("pay", by="Cy").refused


def test_a_second_person_is_not_the_owner() -> None:
    """
    Whose task it is may not decide; and where nobody knows whose it is, nobody may.
    """
    task = at_gate(GatePolicy(second_person=True), owner="Ann")
    nobodys = at_gate(GatePolicy(second_person=True))

    assert "Ann owns the task" in unchanged(task, lambda: task.decide("pay", by="Ann"))
    assert "nobody knows who owns the task" in unchanged(nobodys, lambda: nobodys.decide("pay", by="Bob"))
    task.decide("pay", by="Bob")
    assert task.state is TaskState.RUNNING


def test_a_gate_that_nobody_can_pass_is_a_mistake() -> None:
    """
    More grants than people is found where the policy is written.
    """
    with pytest.raises(ValidationError, match="needed=3 grants, but only 2 may decide"):
        GatePolicy(approvers=("Ann", "Bob"), needed=3)


# --- time


def test_a_reminder_comes_once_at_15_minutes() -> None:
    """
    It is the one effect that starts while a task is paused; the gate waits on.
    """
    task = at_gate(BOSSES)
    assert task.alarms == [1 + 15 * MINUTE, 1 + 30 * MINUTE]

    entry = task.clock("~remind")

    (asked,) = (one for one in wanted(task.task).values() if isinstance(one, Perform))
    assert entry.at.minute == 15
    assert isinstance(asked.command, Notify)
    assert (asked.command.approvers, asked.command.show) == (("Ann", "Bob"), {"amount": 50})
    assert (task.state, entry.moves, task.alarms) == (TaskState.PAUSED, (), [1 + 30 * MINUTE])
    unchanged(task, lambda: task.feed(ReminderDue(gate=task.gate("pay"))))
    task.give("remind pay")
    assert (task.out, task.waiting, task.state) == ([], ["pay"], TaskState.PAUSED)
    task.decide("pay")
    assert (task.out, task.folded()) == (["pay"], task.task)


def test_approvers_are_told_when_a_gate_opens() -> None:
    """
    With `notify_at_open`, before the reminder; the ids of the skill's commands are as without it.
    """
    task = at_gate(GatePolicy(approvers=("Ann", "Bob"), notify_at_open=True))

    (asked,) = (one for one in wanted(task.task).values() if isinstance(one, Perform))
    assert isinstance(asked.command, Notify)
    assert (asked.command.opened, asked.command.approvers) == (True, ("Ann", "Bob"))
    assert asked.invocation_id == f"{task.gate('pay')}~opened"
    assert task.task.waits[0].gate == at_gate().task.waits[0].gate
    task.give("announce pay")
    task.clock("~remind")
    assert (task.out, task.state) == (["remind pay"], TaskState.PAUSED)
    task.decide("pay")
    assert (task.out, task.folded()) == (["pay"], task.task)


@pytest.mark.parametrize("how", ["recovered", "forked"])
def test_approvers_are_told_when_a_gate_is_opened_again(how: str) -> None:
    """
    In a task that is recovered or forked, under an id of that task, so that the receiver takes it for no repetition.
    """
    task = at_gate(GatePolicy(approvers=("Ann", "Bob"), notify_at_open=True, grace_s=0))
    task.give("announce pay")
    if how == "recovered":
        task.clock("~timeout")
        new = task.recovered("T2")
    else:
        new = task.forked(task.task.seq, "T2", live=True)

    (asked,) = (one for one in wanted(new.task).values() if isinstance(one, Perform))
    assert isinstance(asked.command, Notify)
    assert (asked.command.gate, asked.command.opened) == (new.gate("pay"), True)
    assert asked.invocation_id == "T2/1.1~opened"
    new.give("announce pay")
    new.decide("pay")
    assert (new.out, new.folded()) == (["pay"], new.task)


def test_a_dry_fork_tells_no_approvers() -> None:
    """
    Nothing takes place there.
    """
    task = at_gate(GatePolicy(notify_at_open=True))

    assert task.forked(task.task.seq).task.pending == {}


def test_what_is_decided_is_announced_no_more() -> None:
    """
    A notification that is still out, or fails, changes nothing of the gate.
    """
    decided, failed = (at_gate(GatePolicy(notify_at_open=True)) for _ in range(2))

    decided.decide("pay")
    entry = failed.fail("announce pay", busy())

    assert decided.out == ["pay"]
    assert (entry.note, failed.waiting) == ("not reminded: busy", ["pay"])


def test_a_reminder_that_fails_fails_nothing() -> None:
    """
    The task waits on, and the journal says that nobody was reminded.
    """
    task = at_gate()
    task.clock("~remind")

    entry = task.fail("remind pay", busy())

    assert (entry.note, entry.moves) == ("not reminded: busy", ())
    task.decide("pay")
    assert task.out == ["pay"]


def test_nobody_is_reminded_of_what_is_decided() -> None:
    """
    A reminder that is still out is stopped by the decision, and does not hold up the end.
    """
    task = at_gate()
    task.clock("~remind")
    assert task.out == ["remind pay"]

    task.decide("pay")

    assert task.out == ["pay"]


def test_after_30_minutes_the_task_fails() -> None:
    """
    Elapsed time never approves; what was in flight is stopped, and the time for a late grant runs.
    """
    task = at_gate(BOSSES)
    task.clock("~remind")

    entry = task.clock("~timeout")

    assert entry.at.minute == 30
    assert (task.moves[-1], task.reason, task.status) == ("timeout", "approval_timeout", Status.FAILED)
    assert (task.out, task.alarms, finished(task.task)) == ([], [1 + 35 * MINUTE], False)


def test_a_late_grant_is_recorded_until_35_minutes() -> None:
    """
    At 33:00 it is noted and the task stays failed; what is not a grant of one who may is refused.
    """
    task = at_gate(BOSSES)
    gate, digest = task.gate("pay"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")

    denied = task.decide("pay", False, gate=gate, digest=digest, second=32 * MINUTE)
    stranger = task.decide("pay", by="Eve", gate=gate, digest=digest, second=32 * MINUTE)
    stale = task.decide("pay", gate=gate, digest="x", second=32 * MINUTE)
    assert not finished(task.task)
    late = task.decide("pay", gate=gate, digest=digest, second=33 * MINUTE)
    again = task.decide("pay", by="Bob", gate=gate, digest=digest, second=34 * MINUTE)

    assert task.task.late is not None
    assert (late.refused, task.task.late.approver, task.status) == ("", "Ann", Status.FAILED)
    assert "recover" in late.note
    assert finished(task.task)
    assert "has ended" in denied.refused
    assert "Eve may not decide" in stranger.refused
    assert "look again" in stale.refused
    assert "recorded before, by Ann" in again.refused
    assert task.folded() == task.task


def test_after_35_minutes_a_grant_is_refused() -> None:
    """
    At 36:00 the task is over, and the reason says that it timed out.
    """
    task = at_gate(BOSSES)
    gate, digest = task.gate("pay"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")
    task.clock("~grace")
    assert finished(task.task)

    too_late = task.decide("pay", gate=gate, digest=digest, second=36 * MINUTE)

    assert "has ended (failed: approval_timeout)" in too_late.refused
    assert task.task.late is None


def test_who_granted_in_time_is_no_second_person_later() -> None:
    """
    In grace, too, two grants are two people's.
    """
    task = at_gate(TWO)
    gate, digest = task.gate("pay"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.decide("pay", by="Ann")
    task.clock("~timeout")

    same = task.decide("pay", by="Ann", gate=gate, digest=digest, second=33 * MINUTE)
    other = task.decide("pay", by="Bob", gate=gate, digest=digest, second=33 * MINUTE)

    assert "Ann has decided before" in same.refused
    assert other.refused == ""


def test_without_grace_it_is_over_at_once() -> None:
    """
    `grace_s=0` leaves no time for a late grant.
    """
    task = at_gate(GatePolicy(grace_s=0))

    task.clock("~timeout")

    assert (task.reason, finished(task.task)) == ("approval_timeout", True)


def test_a_gate_without_timeout_waits_for_ever() -> None:
    """
    Nothing rings, and a timeout that comes all the same is refused.
    """
    task = at_gate(GatePolicy(timeout_s=None, reminder_s=None))

    assert task.alarms == []
    assert "waits for ever" in unchanged(task, lambda: task.feed(GateTimedOut(gate=task.gate("pay"))))


def test_stale_alarms_are_refused() -> None:
    """
    A gate that is decided times out no more, and there is no grace without a timeout.
    """
    task = at_gate()
    gate = task.gate("pay")
    unchanged(task, lambda: task.feed(GraceOver(gate=gate)))
    task.decide("pay")

    unchanged(task, lambda: task.feed(GateTimedOut(gate=gate)))
    unchanged(task, lambda: task.feed(ReminderDue(gate=gate)))


# --- several at once


class Both:
    """A gate and a question at once, in a step."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        decision, reply = await ctx.gather(ctx.approve("pay", "Pay?"), ctx.ask("why", "Why?"))
        return ctx.complete(f"{decision.approver}: {reply.text}")


@BOTH
@pytest.mark.parametrize("first", ["decision", "message"])
def test_the_last_of_several_waits_lets_the_task_go_on(cut: bool, first: str) -> None:
    """
    A gate and a question, answered in either order: one pause, one resume.
    """
    task = ByHand(Both, cut=cut)
    task.say()

    if first == "decision":
        assert task.decide("pay").held
        task.say("rent", slot="why")
    else:
        assert task.say("rent").held
        task.decide("pay")

    assert task.said[-1] == "Ann: rent"
    assert task.moves == ["start", "pause_for_approval", "approval_granted", "complete"]


def test_validators_and_the_fold_agree() -> None:
    """
    What `refusal` says before is what the entry says after.
    """
    task = at_gate(BOSSES)
    skill = skill_of(pays(BOSSES))
    gate = task.gate("pay")
    decision = DecisionMade(gate=gate, digest="x", decision="approved", approver="Ann")

    before = refusal(skill, task.task, decision, task.task.at)

    assert before
    assert task.feed(decision).refused == before


def test_a_gate_is_no_canceled_command() -> None:
    """
    What came of commands lists effects, not the gates that were decided.
    """
    task = at_gate()
    task.decide("pay")
    task.give("pay")

    assert [receipt.invocation_id for receipt in receipts(task.journal)] == ["T/2.1"]
