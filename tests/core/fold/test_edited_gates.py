"""Whoever grants may change what is granted, where the gate lets them: the grant is then for the changed thing."""

from typing import Any

import pytest

from refold import Ctx, DecisionMade, GatePolicy, Transition
from refold.testing import ScriptError, approve, check_laws, deny, passes, play, refused
from tests.core.small import BOTH, one_step, reason_of
from tests.sweeps import examples


def pays(policy: GatePolicy | None = None) -> Any:
    async def begin(ctx: Ctx) -> Transition:
        decision = await ctx.approve(
            "pay", "Pay?", show={"to": "A1", "amount": 50}, policy=policy, editable=["amount", "note"]
        )
        return ctx.complete(f"{decision.approver}: {decision.shown}")

    return one_step(begin)


@BOTH
def test_a_grant_may_change_what_is_granted(cut: bool) -> None:
    """
    The skill is told what was granted, and the digest is of that.
    """
    story = play(pays(), "go", approve("pay", by="Ann", changes={"amount": 40, "note": "as agreed"}), cut=cut)
    granted = next(one for one in story.entries if isinstance(one.event, DecisionMade))

    assert story.said[-1] == "Ann: {'to': 'A1', 'amount': 40, 'note': 'as agreed'}"
    assert granted.note == "pay: Ann changed amount, note"


def test_what_is_not_changed_needs_no_telling() -> None:
    """
    A plain grant is for what was shown, and says nothing else.
    """
    assert play(pays(), "go", approve("pay", by="Ann")).said[-1] == "Ann: None"


def test_a_change_voids_earlier_grants() -> None:
    """
    With two needed, a change begins anew; who granted the old thing may grant the changed one, and the old digest is
    refused.
    """
    two = GatePolicy(approvers=("Ann", "Bob"), needed=2)
    before = play(pays(two), "go", unfinished=True).view.waiting_for[0]
    story = play(
        pays(two),
        "go",
        approve("pay", by="Ann"),
        approve("pay", by="Bob", changes={"amount": 40}),
        refused(approve("pay", by="Ann", digest=before.digest), because="the gate shows"),
        approve("pay", by="Ann"),
    )

    assert before.editable == ("amount", "note")
    assert story.said[-1] == "Ann: {'to': 'A1', 'amount': 40}"


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        pytest.param(
            approve("pay", changes={"to": "B2"}), "to cannot be changed at gate 'pay'; what can: amount", id="to"
        ),
        pytest.param(approve("nothing", changes={"to": "B2"}), "no gate 'nothing' is open", id="no gate"),
    ],
)
def test_only_what_the_gate_names_can_be_changed(turn: Any, said: str) -> None:
    """
    Everything else stays as the skill has shown it.
    """
    play(pays(), "go", refused(turn, because=said), approve("pay"))


def test_a_denial_changes_nothing() -> None:
    """
    Changes come with a grant alone.
    """
    denial = deny("pay").__class__(slot="pay", approved=False, by="Ann", changes={"amount": 1}, vouched_by="key")
    play(pays(), "go", refused(denial, because="a denial changes nothing"), approve("pay"))


def test_only_an_object_is_edited() -> None:
    """
    Keys of what is no object are a mistake of the skill's author.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.approve("pay", "Pay?", show=50, editable=["amount"])
        return ctx.complete()

    assert "names keys, but what it shows is no object" in reason_of(begin)


def test_a_late_grant_changes_nothing() -> None:
    """
    After the timeout a grant is for what was shown.
    """
    with pytest.raises(ScriptError, match="it can change nothing any more"):
        play(pays(), "go", passes(1801), approve("pay", changes={"amount": 1}))


def test_the_laws_hold() -> None:
    """
    Whatever is granted and changed, in whatever order.
    """
    check_laws(pays(GatePolicy(needed=2, approvers=("Ann", "Bob"))), max_examples=examples(40))
