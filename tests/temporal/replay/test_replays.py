"""Recorded histories replayed by changed code: what is found, where, and what is left in peace."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from refold.temporal.replay.divergence import Divergence
from refold.temporal.replay.sources import files_in, read_histories
from tests.records import replaying
from tests.temporal.replay.changed import changed, each, forget, recorded
from workflows import hello, refund

REFUND = "workflows.refund"
ORDER = "        order = await ctx.tool(find_order, order_id=refund.order_id)\n"


@pytest.fixture(scope="module")
async def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The values that the histories refer to, journals too: a replay by the tests of records writes them."""
    folder = tmp_path_factory.mktemp("values")
    await replaying.Replaying(folder).replay(*(replaying.read(path)[0] for path in replaying.HISTORIES.glob("*.gz")))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of changed modules."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    forget(before)


AT_START = partial(Divergence, entry=1, event="user_message", step="validate")
AT_POLICY = partial(Divergence, entry=3, event="llm_result 'policy'", step="policy")
IN_GATE = partial(AT_POLICY, command="gate 'approval'")
AT_DECISION = partial(Divergence, entry=4, event="decision_made 'refund/3.1'", step="gate")
AT_END = partial(Divergence, entry=6, event="tool_result 'send_mail'", step="notify")
ASKED = "Refund 1999 cents for order A1{} The model says: -"
SAID = "We have refunded 19.99 for order A1. Reference: P1."

CHANGES = {
    "text": (
        ("? The model says", ". The model says"),
        IN_GATE(field="message.parts[0].text", recorded=f'"{ASKED.format("?")}"', now=f'"{ASKED.format(".")}"'),
    ),
    "policy": (
        ("second_person=refund.amount_cents > LIMIT_CENTS", "timeout_s=60"),
        IN_GATE(field="policy", recorded="nothing", now='{"timeout_s": 60.0}'),
    ),
    "argument": (
        ("amount_cents=refund.amount_cents, key=key", "amount_cents=refund.amount_cents + 1, key=key"),
        AT_DECISION(command="tool 'pay_refund'", field="args.amount_cents", recorded="1999", now="2000"),
    ),
    "renamed-field": (
        ('"customer": order.customer', '"client": order.customer'),
        IN_GATE(field="show.customer", recorded='"a1@example.org"', now="nothing"),
    ),
    "another-type": (
        ("show={**refund.model_dump(),", 'show={**refund.model_dump(), "amount_cents": float(refund.amount_cents),'),
        IN_GATE(field="show.amount_cents", recorded="1999", now="1999.0"),
    ),
    "new-step-between": (
        ("expect=Advice)", 'expect=Advice)\n        await ctx.tool(find_order, order_id="again")'),
        AT_POLICY(recorded="gate 'approval'", now="tool 'find_order'"),
    ),
    "removed-step": (
        (ORDER, '        order = Order(order_id="A1", customer="a1@example.org", paid_cents=50_000)\n'),
        AT_START(recorded="tool 'find_order'", now="model call 'policy'"),
    ),
    "order": (
        (ORDER, '        await ctx.llm("first", "?")\n' + ORDER),
        AT_START(recorded="tool 'find_order'", now="model call 'first'"),
    ),
    "last-words": (
        ("return ctx.complete(text)", 'return ctx.complete("Done: " + text)'),
        AT_END(field="messages[0].parts[0].text", recorded=f'"{SAID}"', now=f'"Done: {SAID}"'),
    ),
    "another-end": (
        ("return ctx.complete(text)", 'return ctx.fail("no")'),
        AT_END(recorded="that the task completes", now="that the task fails: no"),
    ),
}


@pytest.mark.parametrize(("change", "found"), CHANGES.values(), ids=CHANGES)
async def test_a_change_is_found(change: tuple[str, str], found: Divergence, values: Path, here: Path) -> None:
    """
    The first difference of an ended task is named by entry, event, step, command and field, with both values.
    """
    (one,) = await each([recorded("refund")], changed(here, REFUND, change), values=values)

    assert one.divergence == found


async def test_another_order_of_fields_is_found(values: Path, here: Path) -> None:
    """
    The digest of a journal sees it, so an open task would refuse such code.
    """
    first, second = '"customer": order.customer', '"recommendation": advice.recommendation'
    other = changed(here, REFUND, (f"{first}, {second}", f"{second}, {first}"))
    (one,) = await each([recorded("refund")], other, values=values)

    assert one.divergence is not None
    assert one.divergence.where == "entry 3 (llm_result 'policy') in 'policy': gate 'approval'"
    assert one.divergence.recorded.index("customer") < one.divergence.recorded.index("recommendation")
    assert one.divergence.now.index("recommendation") < one.divergence.now.index("customer")


NEW_SKILL = """\
@flow_skill(id="other")
class Other:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete("")


OtherWorkflow = workflow_for(Other)
RefundSkillWorkflow"""
BEGIN = "refund: Refund) -> Transition:\n"
CALL = "        order = await ctx.tool("


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('"""Refunds an order', '"""Gives money back', id="docstring-of-the-skill"),
        pytest.param(f"{BEGIN}{CALL}", f'{BEGIN}        """New."""\n\n{CALL}', id="docstring-of-a-step"),
        pytest.param(CALL, f"        # Why.\n\n{CALL}\n            ", id="formatting"),
        pytest.param("RefundSkillWorkflow", NEW_SKILL, id="new-skill"),
    ],
)
async def test_what_changes_nothing_is_left_in_peace(old: str, new: str, values: Path, here: Path) -> None:
    """
    Another docstring or formatting and a new skill beside it are no differences.
    """
    (one,) = await each([recorded("refund")], changed(here, REFUND, (old, new)), values=values)

    assert (one.divergence, one.problem, one.compared) == (None, "", "entries")


def until(name: str, kind: str, number: int = 1) -> WorkflowHistory:
    """A recorded history as a task has it that waits: up to the end of the workflow task before an event of a kind."""
    events, types = recorded(name).events, EventType.Name
    at = [place for place, event in enumerate(events) if types(event.event_type) == f"EVENT_TYPE_{kind}"][number - 1]
    before = [place for place in range(at) if types(events[place].event_type) == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"]
    later = (place for place in range(before[-1] + 1, len(events)) if types(events[place].event_type) in NEXT)
    return WorkflowHistory(name, events[: next(later)])


NEXT = {"EVENT_TYPE_WORKFLOW_TASK_SCHEDULED", "EVENT_TYPE_ACTIVITY_TASK_STARTED"}


AT_GATE = "entry 3 (llm_result 'policy') in 'policy': "
DECIDED = "entry 4 (decision_made 'refund/3.1') in 'gate': "
AWAITS = "        return ctx.await_approval(\n"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        pytest.param(
            "amount_cents=refund.amount_cents, key=key",
            "amount_cents=refund.amount_cents + 1, key=key",
            f"{DECIDED}tool 'pay_refund', args.amount_cents: recorded 1999, now 2000",
            id="argument",
        ),
        pytest.param(
            "        paid = await",
            '        await ctx.tool(find_order, order_id="again")\n        paid = await',
            f"{DECIDED}recorded tool 'pay_refund' (refund/4.1), now tool 'find_order'",
            id="new-step-between",
        ),
        pytest.param(
            AWAITS,
            f"        if refund:\n            return ctx.complete('')\n{AWAITS}",
            f"{AT_GATE}recorded a change of the task's lifecycle, now the task completes",
            id="end-instead-of-a-gate",
        ),
        pytest.param(
            "second_person=refund.amount_cents > LIMIT_CENTS",
            "timeout_s=60",
            f"{AT_GATE}timer timeout of approval, seconds: recorded 1800.0, now 60.0",
            id="time",
        ),
        pytest.param(
            "        key = f",
            "        import time\n\n        time.time()\n        key = f",
            f"{DECIDED}recorded a change of the task's lifecycle, now the task fails: bug: Restricted",
            id="impure",
        ),
    ],
)
async def test_a_change_under_an_open_task_is_found(old: str, new: str, found: str, values: Path, here: Path) -> None:
    """
    A task that has not ended left no journal: its commands are compared, with their arguments and times.
    """
    task = until("refund", "ACTIVITY_TASK_SCHEDULED", 3)
    (one,) = await each([task], changed(here, REFUND, (old, new)), values=values)

    assert str(one.divergence).startswith(found)
    assert one.compared == "commands"


async def test_what_comes_after_the_record_may_change(values: Path, here: Path) -> None:
    """
    A task that waits at its gate has not come to the steps behind it.
    """
    later = ("paid.payment_id, amount_cents=paid", 'paid.payment_id + "!", amount_cents=paid')
    more = ("        key = f", '        await ctx.tool(find_order, order_id="again")\n        key = f')
    (one,) = await each([until("refund", "ACTIVITY_TASK_SCHEDULED", 3)], changed(here, REFUND, later), values=values)
    (other,) = await each([until("refund", "TIMER_STARTED")], changed(here, REFUND, more), values=values)

    assert one.same, one
    assert other.same, other


async def test_a_run_that_went_on_is_compared_with_what_the_next_one_was_given(values: Path, here: Path) -> None:
    """
    The journal of a run that continued is in the start of the next one.
    """
    runs = [recorded(f"chat_in_runs.run{number}") for number in range(1, 11)]
    served = "tests.records.served"
    same = await each(runs, changed(here, served), values=values)
    found = await each(runs, changed(here, served, ("You help with the weather. ", "You help. ")), values=values)

    assert {(one.same, one.compared) for one in same} == {(True, "entries")}
    assert [one.divergence is not None for one in found].count(True) > 1


async def test_a_tools_docstring_is_what_a_model_reads(values: Path, here: Path) -> None:
    """
    The description of a tool that a model is offered is looked up by the worker, and no part of the record.
    """
    module = changed(here, "tests.records.served", ("The weather in a city.", "What the weather is like."))
    found = await each([recorded(f"chat_in_runs.run{number}") for number in (1, 2, 3)], module, values=values)

    assert [str(one.divergence) for one in found if not one.same] == []


async def test_a_state_that_the_code_cannot_read(values: Path, here: Path) -> None:
    """
    A run that goes on from a saved state: a parameter that was renamed is named, though no entry holds it.
    """
    run = recorded("chat_in_runs.run3")
    waiting = WorkflowHistory(run.workflow_id, run.events[:5])
    renamed = (
        ("say=[content.text]", "words=[content.text]"),
        ("ctx: Ctx, say: list[str | ToolReturn]", "ctx: Ctx, words: list[str | ToolReturn]"),
        ('ctx.chat("model", say,', 'ctx.chat("model", words,'),
        ("say=returns", "words=returns"),
    )
    same = await each([waiting], changed(here, "tests.records.served"), values=values)
    found = await each([waiting], changed(here, "tests.records.served", *renamed), values=values)

    assert [one.same for one in same] == [True]
    assert "has no parameter 'say', which the task has saved; it takes words" in str(found[0].divergence)


async def test_what_cannot_be_replayed_is_named(tmp_path: Path, values: Path, here: Path) -> None:
    """
    A skill that is not there, and a value that is not there, are no differences.
    """
    module = changed(here, REFUND, ('id="refund"', 'id="refunds"'))
    (unknown,) = await each([recorded("refund")], module, values=values)
    changed_text = changed(here, REFUND, ("? The model says", ". The model says"))
    (missing,) = await each([recorded("refund")], changed_text, values=tmp_path)

    assert unknown.problem == "the code at hand has no skill 'refund'; it has refunds"
    assert missing.divergence is None
    assert "is not in the folder" in missing.problem


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file here that can be opened and not read")
def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """
    Nobody can tell whether it holds histories, so it is one of the files, and stops no other.
    """
    (tmp_path / "a.jsonl").symlink_to("/proc/self/mem")
    (tmp_path / "b.jsonl").write_text('{"header":{}}\n')
    (tmp_path / "c.jsonl").write_text('{"header":{}}\n{"history":{}}\n')

    assert [one.name for one in files_in([tmp_path])] == ["a.jsonl", "c.jsonl"]
    with pytest.raises(ValueError, match=r"^cannot be read: "):
        read_histories(tmp_path / "a.jsonl")


async def test_a_task_whose_time_has_not_come_has_nothing_to_replay(values: Path) -> None:
    """
    The history of a delayed task holds its start alone, and that the task was terminated, if it was.
    """
    paid = recorded("refund")
    ended = HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED)
    histories = [WorkflowHistory("refund", [paid.events[0], *more]) for more in ([], [ended])]
    found = await each([*histories, paid], refund, values=values)

    assert all(one.same for one in found), found
    assert [one.entries > 0 for one in sorted(found, key=lambda one: one.entries)] == [False, False, True]


def test_a_replay_stores_nothing(tmp_path: Path) -> None:
    """
    Today's code may write another journal: it stays out of the storage of the running tasks.
    """
    (one,) = asyncio.run(each([recorded("hello")], hello, values=tmp_path))

    assert one.same
    assert list(tmp_path.iterdir()) == []


async def test_every_recorded_history_replays(values: Path) -> None:
    """
    No history of an older release of refold differs, and none but those whose journal is another one has no journal.
    """
    histories = [replaying.read(path)[0] for path in sorted(replaying.HISTORIES.glob("*.json.gz"))]
    found = await each(histories, *replaying.SKILLS, values=values)

    assert [str(one.divergence) for one in found if one.divergence is not None] == []
    # Their segments hold fields of snapshots that those releases did not write, so that they are stored elsewhere.
    assert {one.task_id for one in found if one.problem} <= OTHER_SEGMENTS


OTHER_SEGMENTS = {
    "bug",
    "fails-after-retries.recovered",
    "forks.dry",
    "forks.live",
    "gates",
    "refund_late.recovered",
    "sleeps_through_runs",
}
