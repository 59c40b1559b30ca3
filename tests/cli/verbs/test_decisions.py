"""`refold inbox`, `approve`, `deny`, `resolve` and `recover`."""

from __future__ import annotations

import asyncio

import pytest

from client import approve
from refold import Content, Ctx, Failure, FailureKind, GatePolicy, Transition, flow_skill, step
from refold.testing import FakeEngine
from tests.cli.conftest import Shell
from tests.gated import Payment


@flow_skill(id="charging")
class Charging:
    """Charges by a tool whose outcome nobody knows."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(f"charged: {await ctx.tool('charge')}")


UNKNOWN = Failure(kind=FailureKind.UNKNOWN, type="outcome_unknown", message="nobody knows")


@pytest.fixture
def paying() -> Shell:
    """A payment of 50 waits for ada or bob."""
    engine = FakeEngine([Payment])
    asyncio.run(engine.start("payment", Content.from_text("50"), task_id="p1"))
    return Shell(engine)


@pytest.fixture
def charging() -> Shell:
    """A charge is blocked, for nobody knows whether it took place."""
    engine = FakeEngine([Charging], answers={"charge": UNKNOWN})
    asyncio.run(engine.start("charging", Content.from_text("go"), task_id="c1"))
    return Shell(engine)


def test_the_inbox_shows_what_is_decided_on(paying: Shell) -> None:
    """
    Task, gate, what is shown, who may decide and the digest, for people and for programs.
    """
    told = paying("inbox").out
    (line,) = paying("inbox", "--json").lines

    assert all(word in told for word in ("p1", "pay (approval)", '{"cents": 50}', "ada, bob", line["digest"]))
    assert (line["task_id"], line["slot"], line["show"], line["approvers"]) == (
        "p1",
        "pay",
        {"cents": 50},
        ["ada", "bob"],
    )
    assert paying("inbox", "--for", "eve", "--json").out == ""


@flow_skill(id="pairing")
class Pairing:
    """Asks two people beside the owner; with a text, they may change it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(needed=2, second_person=True, allow_unsigned=True)
        editable = ["text"] if content.text else []
        await ctx.approve("both", "Go?", show={"text": content.text}, editable=editable, policy=policy)
        return ctx.complete()


@pytest.mark.parametrize(("text", "again"), [("", []), ("as is", ["t1"])], ids=["as it is", "with changes"])
def test_the_inbox_of_a_person_has_what_they_may_decide(text: str, again: list[str]) -> None:
    """
    Not what they own or started where a second person decides; nor what they granted, unless they may change it.
    """
    engine = FakeEngine([Pairing])
    asyncio.run(engine.start("pairing", Content.from_text(text), task_id="t1", owner="eve", started_by="dan"))
    shell = Shell(engine)

    def listed(name: str) -> list[object]:
        return [line["task_id"] for line in shell("inbox", "--for", name, "--json").lines]

    assert [listed(name) for name in ("eve", "dan", "ada")] == [[], [], ["t1"]]
    assert "2 of anybody but eve, dan; until" in shell("inbox").out
    shell("approve", "t1", "--as", "ada")
    assert [listed(name) for name in ("eve", "dan", "ada", "bob")] == [[], [], again, ["t1"]]


def test_a_grant_and_who_may_give_it(paying: Shell) -> None:
    """
    Somebody who is not on the list is refused, and the way out is said; somebody who is lets the task go on.
    """
    refused = paying("approve", "p1", "--as", "eve")
    granted = paying("approve", "p1", "pay", "--as", "ada", "-m", "fine", "--json")

    assert refused.exit == 2
    assert "eve may not decide here; those who may: ada, bob" in refused.err
    assert (granted.exit, granted.json["status"]) == (0, "completed")


def test_a_denial_fails_the_task(paying: Shell) -> None:
    """
    The reason says who denied it, and why.
    """
    denied = paying("deny", "p1", "--as", "bob", "-m", "too much", "--json").json

    assert (denied["status"], denied["reason"]) == ("failed", "approval_denied by bob: too much")


@pytest.mark.parametrize("verb", [("approve",), ("deny",), ("approve", "guidance")])
def test_a_decision_on_a_question_says_how_it_is_answered(refold: Shell, verb: tuple[str, ...]) -> None:
    """
    The whole command, since a question takes no decision.
    """
    refold.start("research_loop", "Tides", "t1")

    refused = refold(verb[0], "t1", *verb[1:], "--as", "ada")

    assert refused.exit == 2
    assert refused.err.endswith("; it asks a question instead: `refold answer t1 TEXT`\n")


@pytest.mark.parametrize("digest", [pytest.param("0" * 32, id="stale"), pytest.param(" ", id="blank")])
def test_another_digest_is_refused(digest: str, paying: Shell) -> None:
    """
    A decision is for what was shown, and for nothing else.
    """
    done = paying("approve", "p1", "--as", "ada", "--digest", digest)

    assert done.exit == 2
    assert "look again" in done.err


@flow_skill(id="two")
class Two:
    """Two gates open together."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(on_denied="continue")
        asked = [ctx.approve(name, "Send it?", show={"to": name}, policy=policy) for name in ("ann", "bea")]
        return ctx.complete(" ".join(one.decision for one in await ctx.gather(*asked)))


def test_several_gates_are_decided_together() -> None:
    """
    By their names, each with its digest; all of them, or none.
    """
    engine = FakeEngine([Two])
    waits = asyncio.run(engine.start("two", Content.from_text("go"), task_id="t1")).waiting_for
    first, second = (str(one.digest) for one in waits)
    shell = Shell(engine)

    swapped = shell("approve", "t1", "ann", "bea", "--digest", second, "--digest", first, "--as", "ada")
    assert swapped.exit == 2
    assert "none of the 2 decisions was taken" in swapped.err
    assert "several gates of task 't1' are open" in shell("approve", "t1").err
    assert "one --digest for each gate" in shell("deny", "t1", "ann", "bea", "--digest", first).err
    assert "data of one gate" in shell("approve", "t1", "ann", "bea", "--set", "to=1").err

    done = shell("deny", "t1", "ann", "bea", "--digest", first, "--digest", second, "-m", "no", "--json")
    assert (done.exit, done.json["messages"][-1]["text"]) == (0, "denied denied")


def test_a_blocked_command_is_resolved_with_its_outcome(charging: Shell) -> None:
    """
    `show` says that it is blocked; an outcome lets the task go on.
    """
    assert charging("show", "c1", "--json").json["pending"][0]["blocked"] is True
    assert charging("resolve", "c1").exit == 2
    assert charging("resolve", "c1", "--outcome", "not JSON").exit == 2

    resolved = charging("resolve", "c1", "--outcome", '"yes"', "--as", "ops", "--json").json

    assert (resolved["status"], resolved["messages"][-1]["text"]) == ("completed", "charged: yes")


def test_a_denied_task_recovers_to_its_gate(paying: Shell) -> None:
    """
    The new task asks again; the old one stays as it ended.
    """
    paying("deny", "p1", "--as", "bob")

    recovered = paying("recover", "p1", "--json").json

    assert (recovered["status"], recovered["recovered_from"]) == ("input-required", "p1")
    assert paying("show", "p1", "--json").json["status"] == "failed"


def test_a_recovered_gate_is_decided_at_the_new_task(paying: Shell) -> None:
    """
    It has the id that it had; whoever decides names the task that waits.
    """
    paying("deny", "p1", "--as", "bob")
    paying("recover", "p1")

    granted = paying("approve", "p1.r1", "--as", "ada")

    assert (granted.exit, granted.out) == (0, "p1.r1  completed\n  paid, says ada\n")


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        pytest.param((), None, id="the task's own"),
        pytest.param(("--task-queue", "canary"), "canary", id="another"),
        pytest.param(("--task-queue", "ambient"), "ambient", id="the setting's, by name"),
    ],
)
def test_the_task_queue_of_a_task_made_from_another(
    words: tuple[str, ...], asked: str | None, paying: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Only an option asks for another queue than the old task's; a setting says where new tasks go.
    """
    monkeypatch.setenv("REFOLD_TASK_QUEUE", "ambient")

    paying("fork", "p1", "--at", "1", *words)

    assert paying.server is not None
    assert paying.server.asked_queue == asked


def test_a_branch_is_dry_unless_it_is_live(charging: Shell) -> None:
    """
    The card of each task names the other one.
    """
    dry = charging("fork", "c1", "--at", "1")
    live = charging("fork", "c1", "--at", "1", "--live", "--id", "other")

    assert dry.exit == 0
    assert dry.out.startswith("c1.f1  failed\n")
    assert "dry run: tool 'charge' was not performed" in dry.out
    assert "working" in live.out
    assert (
        "went on as  c1.f1  forked from entry 1\n            other  forked from entry 1\n" in charging("show", "c1").out
    )
    assert "forked from c1  entry 1  (dry: no effect takes place)\n" in charging("show", "c1.f1").out
    assert charging("show", "other", "--json").json["forked_from"] == {"task_id": "c1", "seq": 1, "live": True}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("c1", "--at", "9"), "not 9; `refold journal c1` lists its entries", id="no such entry"),
        pytest.param(("nobody", "--at", "1"), "no task 'nobody'", id="no such task"),
        pytest.param(("c1", "--at", "1", "--id", "c1"), "'c1'", id="an id that is taken"),
        pytest.param(("c1",), "--at", id="no entry named"),
    ],
)
def test_a_branch_that_cannot_be(charging: Shell, words: tuple[str, ...], said: str) -> None:
    """
    The call was wrong, and nothing is started.
    """
    refused = charging("fork", *words)

    assert refused.exit == 2
    assert said in refused.err


async def test_the_script_decides(capsys: pytest.CaptureFixture[str]) -> None:
    """
    `client/approve.py` grants and denies.
    """
    engine = FakeEngine([Payment])
    await engine.start("payment", Content.from_text("50"), task_id="p1")

    await approve.main("p1", "ada", engine=engine)

    assert capsys.readouterr().out == "p1  completed\n"
