"""Scripts and the engine in memory know gates, blocked commands, undoing and recovery."""

import pytest

from refold import (
    Content,
    Ctx,
    GatePolicy,
    InputRejected,
    RetryPolicy,
    Status,
    TaskState,
    Transition,
    flow_skill,
    step,
    tool,
)
from refold.engine import Engine
from refold.testing import (
    FakeEngine,
    ScriptError,
    approve,
    deny,
    fails,
    fires,
    passes,
    play,
    refused,
    reply,
    resolve,
    unknown,
)

BOSSES = GatePolicy(approvers=("Ann", "Bob"), second_person=True)


@tool(effect="idempotent")
def refund(cents: int) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> int:
    return cents


@flow_skill(id="shop")
class Shop:
    """Charges, asks, and writes a mail."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        decision = await ctx.approve("send", "Send it?", show={"cents": paid}, policy=BOSSES)
        await ctx.tool("mail")
        return ctx.complete(f"sent for {decision.approver}")


@pytest.mark.parametrize("cut", [False, True])
def test_a_script_decides(cut: bool) -> None:
    """
    What may not be decided is refused, and what may lets the task go on.
    """
    story = play(
        Shop,
        "a book",
        reply("charge", 50),
        refused("approval granted", because="by a decision"),
        refused(approve("send", by="Eve"), because="Eve may not decide"),
        refused(approve("send", by="Ann"), because="Ann owns the task"),
        refused(approve("send", by="Bob", vouched_by=None), because="nobody vouches"),
        refused(approve("send", by="Bob", digest="old"), because="look again"),
        approve("send", by="Bob"),
        reply("mail"),
        owner="Ann",
        cut=cut,
    )

    assert (story.status, story.said[-1]) == (Status.COMPLETED, "sent for Bob")


def test_a_script_denies() -> None:
    """
    The task fails, and what it did is undone by the answers there are.
    """
    story = play(Shop, "a book", deny("send", by="Bob", comment="no"), answers={"refund": 0}, tools=[charge], owner="O")

    assert story.reason == "approval_denied by Bob: no"
    assert story.snapshot.undone == ("T/1.1",)


def test_time_passes_at_a_gate() -> None:
    """
    Reminder, timeout and the end of grace come at their moments; a late grant is taken in between.
    """
    story = play(
        Shop,
        "a book",
        reply("charge", 50),
        passes(33 * 60),
        approve("send", by="Bob"),
        reply("undo charge"),
        owner="Ann",
    )

    kinds = [entry.event.kind for entry in story.entries]
    assert kinds[2:] == ["reminder_due", "notified", "gate_timed_out", "decision_made", "tool_result"]
    assert story.view.late == "Bob"


def test_timers_of_a_gate_fire_by_its_name() -> None:
    """
    In their order: reminder, timeout, the end of grace.
    """
    story = play(Shop, "a book", reply("charge", 50), *[fires("send")] * 3, unfinished=True)

    assert [entry.event.kind for entry in story.entries[2:]] == [
        "reminder_due",
        "notified",
        "gate_timed_out",
        "grace_over",
    ]


def test_a_script_resolves() -> None:
    """
    What is blocked is released by an operator.
    """
    story = play(
        Shop,
        "a book",
        fails("charge", unknown("lost")),
        resolve("charge", outcome=50),
        approve("send", by="Bob"),
        fails("mail", unknown("lost")),
        refused(resolve("charge", retry=True), because="not blocked"),
        resolve(retry=True),
        reply("mail"),
        owner="Ann",
    )

    assert story.status is Status.COMPLETED
    assert story.lifecycle.count(TaskState.BLOCKED) == 2


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (approve("send"), "no gate 'send' is open; tool 'charge' is out"),
        (resolve(retry=True), "nothing is blocked; tool 'charge' is out"),
    ],
)
def test_a_script_that_is_wrong_is_told(turn: object, said: str) -> None:
    """
    It says what is waited for instead.
    """
    with pytest.raises(ScriptError, match=said):
        play(Shop, "a book", turn)  # type: ignore[arg-type]  # any turn


@pytest.mark.parametrize("turn", [3, None, Shop, [["a book"], 3], {"title": "a book"}, RetryPolicy()])
def test_what_is_no_turn_is_told(turn: object) -> None:
    """
    Before anything is played.
    """
    with pytest.raises(ScriptError, match=r"a script has texts, `Content`, turns such as .*; not "):
        play(Shop, turn)  # type: ignore[arg-type]  # any object


def test_what_a_script_forgets_is_named() -> None:
    """
    A gate and a blocked command, with the way on.
    """
    with pytest.raises(ScriptError, match=r"gate 'send' is open: approve\('send'\)"):
        play(Shop, "a book", reply("charge", 50), reply("mail"))
    with pytest.raises(ScriptError, match=r"'charge' is blocked \(lost\): resolve\('charge', ...\)"):
        play(Shop, "a book", fails("charge", unknown("lost")))


# --- the engine in memory


def shop() -> FakeEngine:
    return FakeEngine([Shop], answers={"mail": None, "refund": 0}, tools=[charge])


async def test_the_engine_decides() -> None:
    """
    By the gate's name, its id, or as the only one; refused as any engine refuses.
    """
    engine: Engine = shop()
    view = await engine.start("shop", Content.from_text("a book"), task_id="A", owner="Ann")
    (wait,) = view.waiting_for
    assert (wait.slot, wait.approvers, wait.show) == ("send", ("Ann", "Bob"), {"cents": 50})

    with pytest.raises(InputRejected, match="Ann owns the task"):
        await engine.decide("A", approved=True, approver="Ann", vouched_by="key")
    with pytest.raises(InputRejected, match="nobody vouches"):
        await engine.decide("A", "send", approved=True, approver="Bob")
    with pytest.raises(InputRejected, match="look again"):
        await engine.decide("A", "send", approved=True, approver="Bob", vouched_by="key", digest="old")
    with pytest.raises(InputRejected, match="no gate 'sent' of task 'A' is open"):
        await engine.decide("A", "sent", approved=True, approver="Bob", vouched_by="key")
    view = await engine.decide("A", wait.gate, approved=True, approver="Bob", vouched_by="key")

    assert view.status is Status.COMPLETED


async def test_the_engine_recovers() -> None:
    """
    After a timeout with a late grant: what was undone is done again, and the mail is sent; nobody is asked twice.
    """
    engine = shop()
    await engine.start("shop", Content.from_text("a book"), task_id="A", owner="Ann")
    await engine.advance(1800)
    assert (await engine.look("A")).reason == "approval_timeout"
    view = await engine.decide("A", approved=True, approver="Bob", vouched_by="key")
    assert view.late == "Bob"

    new = await engine.recover("A")

    assert (new.task_id, new.status, new.recovered_from) == ("A.r1", Status.COMPLETED, "A")
    assert (await engine.look("A")).status is Status.FAILED
    entries = [entry async for entry in engine.journal("A.r1")]
    assert entries[0].event.kind == "recovered"
    after = [entry async for entry in engine.journal("A.r1", after=entries[0].seq)]
    assert after == entries[1:]
    assert (await engine.at("A.r1", entries[0].seq)).task_id == "A.r1"
    with pytest.raises(InputRejected, match="has the entries 8 to 10, not 1"):
        await engine.at("A.r1", 1)


async def test_the_engine_refuses_to_recover_what_has_not_failed() -> None:
    """
    In the words of the engine on Temporal.
    """
    engine = shop()
    await engine.start("shop", Content.from_text("a book"), task_id="A", owner="Ann")

    with pytest.raises(InputRejected, match="'A' is input-required; only a task that failed or was canceled recovers"):
        await engine.recover("A")


async def test_the_engine_resolves() -> None:
    """
    A blocked command is performed again, or given an outcome.
    """
    engine = FakeEngine([Shop], answers={"charge": [unknown("lost"), 50], "mail": unknown("lost"), "refund": 0})
    view = await engine.start("shop", Content.from_text("a book"), task_id="A", owner="Ann")
    assert view.lifecycle is TaskState.BLOCKED
    assert view.pending[0].blocked

    view = await engine.resolve("A", retry=True, by="Ops")
    assert view.lifecycle is TaskState.PAUSED
    with pytest.raises(InputRejected, match="no command of the task is blocked"):
        await engine.resolve("A", retry=True)
    await engine.decide("A", approved=True, approver="Bob", vouched_by="key")
    view = await engine.resolve("A", outcome="sent")

    assert view.status is Status.COMPLETED


@flow_skill(id="asks_shop")
class AsksShop:
    """Lets the shop do it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        came = await ctx.skill("shop", Shop, content)
        return ctx.complete(came.text)


async def test_a_gate_of_a_part_is_decided_at_the_whole() -> None:
    """
    The task that asked shows it, and its owner is the part's.
    """
    engine = FakeEngine([Shop, AsksShop], answers={"mail": None, "refund": 0}, tools=[charge])
    view = await engine.start("asks_shop", Content.from_text("a book"), task_id="A", owner="Ann")
    assert view.waiting_for[0].gate == "A/1.1/2.1"

    with pytest.raises(InputRejected, match="Ann owns the task"):
        await engine.decide("A", "send", approved=True, approver="Ann", vouched_by="key")
    view = await engine.decide("A", "send", approved=True, approver="Bob", vouched_by="key")

    assert view.status is Status.COMPLETED
