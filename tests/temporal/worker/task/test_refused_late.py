"""What an update is refused for once it is in history: a replay refuses the same, whatever is taken by now."""

from __future__ import annotations

import pytest
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.converter import PayloadConverter

from refold import Content, Ctx, Step, Transition, table
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK
from refold.core.events import UserMessage
from refold.core.fold.questions import CALL_BETWEEN, CALL_IN_TIME, FITS_STEP
from refold.core.fold.refusal import CALLS_APART, FULL
from refold.core.fold.snapshot import EARLY_LIMIT, Snapshot
from refold.engine.together import MOST
from refold.temporal import workflow_for
from refold.temporal.data.wire import REFUSED_LATE, TaskStart
from refold.temporal.worker.task.handlers import LARGEST_REFUSED
from tests.core.byhand import ByHand, at, message
from tests.records.skills import Interview
from tests.temporal.worker.activated import Activated, updated

LONG = "x" * LARGEST_REFUSED


async def begin(ctx: Ctx) -> Transition:
    return ctx.await_input("answer", "Well?")


async def end(ctx: Ctx, answer: int | None) -> Transition:
    return ctx.complete(str(answer))


Asks = table("asks_for_number", Step("begin", begin).start(), Step("end", end).resume_from("begin"))
WORKFLOWS = {"interview": workflow_for(Interview), "asks_for_number": workflow_for(Asks)}


def told(task: Snapshot, *said: UserMessage, replaying: bool) -> list[WorkflowCommand]:
    """What comes of an update that is too large to be refused before it is in history; of others, after the replay."""
    run = Activated(WORKFLOWS[task.skill], task.task_id)
    begin = run.initialized(TaskStart(snapshot=task).model_dump(mode="json"))
    assert not run.activated(3, begin, replaying=replaying).HasField("failed")
    commands: list[WorkflowCommand] = []
    for number, one in enumerate(said):
        update = updated("message", None)
        sent = PayloadConverter.default.to_payload(one.model_dump(mode="json", exclude={"kind"}))
        update.do_update.input[0].CopyFrom(sent)
        done = run.activated(6 + 3 * number, update, replaying=replaying and not number)
        commands = list(done.successful.commands)
    return commands


def markers(commands: list[WorkflowCommand]) -> list[str]:
    return [one.set_patch_marker.patch_id for one in commands if one.HasField("set_patch_marker")]


def refused_as(commands: list[WorkflowCommand]) -> tuple[str, str]:
    """Why the update was refused, and as what; empty if it was taken."""
    for one in commands:
        if one.update_response.HasField("rejected"):
            found = one.update_response.rejected
            return found.message, found.application_failure_info.type
    return "", ""


def full(early: int = EARLY_LIMIT) -> Snapshot:
    """A task that thinks, and holds so many messages that came before their question."""
    task = ByHand(Interview)
    task.feed(message(), second=0)
    for _ in range(early):
        task.feed(message("Ada", early=True, slot="never"), second=0)
    return task.task


def call(text: str = LONG) -> UserMessage:
    return message(text, early=True, slot=f"{CALLBACK}T")


async def test_a_call_that_an_earlier_release_refused_for_want_of_room_is_refused_on_replay() -> None:
    """
    History has a refused update and no marker: an entry of the call would shift the ids of all that follows.
    """
    commands = told(full(), call(), replaying=True)

    assert (refused_as(commands), markers(commands)) == ((FULL, REFUSED_LATE), [])


async def test_the_next_call_to_such_a_task_is_refused_before_it_is_in_history() -> None:
    """
    Its sender is not told that it was taken.
    """
    commands = told(full(), call(), call("paid"), replaying=True)

    assert refused_as(commands) == (FULL, "InputRejected")


async def test_a_call_that_has_room_of_its_own_is_taken_with_one_marker() -> None:
    commands = told(full(), call(), replaying=False)

    assert (refused_as(commands), markers(commands)) == (("", ""), [CALLS_APART])


@pytest.mark.parametrize(
    ("early", "said", "why"),
    [
        pytest.param(EARLY_LIMIT, message(LONG, early=True, slot="never"), FULL, id="another message"),
        pytest.param(EARLY_LIMIT - 1, call(), "", id="room for all"),
    ],
)
async def test_no_marker_is_written_where_earlier_releases_say_the_same(
    early: int, said: UserMessage, why: str
) -> None:
    commands = told(full(early), said, replaying=False)

    assert (refused_as(commands)[0], markers(commands)) == (why, [])


async def test_what_the_task_was_answered_before_counts() -> None:
    """
    The task is asked once: as it refused the first call, it refuses the next one.
    """
    commands = told(full().changed({"patches": {CALLS_APART: False}}), call(), replaying=False)

    assert (refused_as(commands)[0], markers(commands)) == (FULL, [])


async def called(ctx: Ctx) -> Transition:
    address = await ctx.callback("address")
    await ctx.ask("paid", "?", callback=address)
    return ctx.complete()


Called = table("called", Step("begin", called).start())
WORKFLOWS["called"] = workflow_for(Called)


@pytest.mark.parametrize("replaying", [False, True])
async def test_a_call_after_the_deadline_of_its_question_is_refused_in_a_replay_alone(*, replaying: bool) -> None:
    """
    An earlier release refused it, before the alarm; now it answers the question.
    """
    task = ByHand(Called)
    task.feed(message(), second=0)
    until = at(1).isoformat()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until}, second=0)

    commands = told(task.task, call(), replaying=replaying)

    late = ("question 'paid' timed out at 2026-01-01 00:00:01", REFUSED_LATE)
    assert refused_as(commands) == (late if replaying else ("", ""))
    assert markers(commands) == ([] if replaying else [CALL_BETWEEN, CALL_IN_TIME])


@pytest.mark.parametrize("replaying", [False, True])
async def test_a_reply_that_its_step_cannot_take_is_refused_late_in_every_task(*, replaying: bool) -> None:
    """
    Also in a task that took such a reply when it came in time. Earlier releases asked for no patch here.
    """
    task = ByHand(Asks)
    task.feed(message(), second=0)
    took = task.task.changed({"patches": {FITS_STEP: False}})

    commands = told(took, message(LONG), replaying=replaying)

    why, kind = refused_as(commands)
    assert why.startswith("the reply to 'answer' must fit")
    assert (kind, markers(commands)) == (REFUSED_LATE, [])


async def test_more_decisions_than_a_task_can_judge_in_time_are_refused_before_history_has_them() -> None:
    """
    Two thousand took the SDK's two seconds and more, and the server sends an update again to the next attempt.
    """
    run = Activated(WORKFLOWS["interview"], "i")
    run.begin(TaskStart(message=UserMessage(content=Content.from_text("go"))).model_dump(mode="json"))
    one = {"gate": "i/1.1", "approver": "ada", "decision": "approved", "digest": "0" * 32}

    update = updated("decide", *[one] * (MOST + 1))
    assert "201 decisions came together" in refused_as(list(run.activated(6, update).successful.commands))[0]
