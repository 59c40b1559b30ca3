"""Coverage counts what was taken; and the recorded journals take all that is declared."""

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from refold import Cmd, Content, Ctx, RetryPolicy, Status, Step, Transition, table
from refold.agent import AfterInvocation, Agent, BeforeInvocation
from refold.core.authoring.skill import skill_id
from refold.core.chat import Reply
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.testing import Coverage, FakeEngine, cancel, coverage, play, reply
from tests.core.byhand import ByHand, busy, unknown
from tests.records import tapes
from tests.records.skills import Juggles
from workflows.hello import Hello

SHIPPED = ["careful_desk", "forty_steps", "hello", "order_desk", "planner", "react", "refund",
           "research_loop", "research_loop_steps", "research_loop_table"]  # fmt: skip
HOOKED = ["edge 'begin' -> 'answer'", "edge 'answer' -> 'model'", "edge 'heard' -> 'answer'"]
STEERED = ["edge 'steered' -> 'answer'", "edge 'steered' -> 'model'"]
MET = ["edge 'model' -> 'steered'", "edge 'answer' -> 'steered'"]
HEARD = ["edge 'heard' -> 'model'", *STEERED, "edge 'answer' -> 'heard'"]
ONE_TURN = ["step 'heard'", "step 'steered'", *HOOKED, *HEARD, *MET]
PLANNED = [way.replace("'model'", "'plan'") for way in ONE_TURN if way != MET[0]]
NOT_FOR_ALL = {
    "order_desk": ONE_TURN,
    "planner": ONE_TURN,
    "careful_desk": [*PLANNED[:3], "edge 'tools' -> 'check'", *PLANNED[3:]],
}
"""Ways of the agent's loop that an agent with one turn and without hooks does not have, which nobody interrupts, or
whose model always answers before the last pass."""


@pytest.fixture(scope="module")
def recorded() -> Coverage:
    """What all recorded journals take."""
    with coverage() as seen:
        for path in tapes.JOURNALS.glob("*.jsonl"):
            tape, lines = tapes.read(path)
            entries = [Entry.model_validate_json(entry) for entry in tapes.entries_of(lines)]
            fold(tape.compiled, Snapshot.model_validate_json(tape.planned), entries)
    return seen


def skills_of(module: str) -> Iterator[Any]:
    """The skills of a file of `workflows/`."""
    found = vars(importlib.import_module(f"workflows.{module}"))
    yield from (value.skill for value in found.values() if isinstance(getattr(value, "type_name", None), str))


@pytest.mark.parametrize("module", SHIPPED)
def test_the_recorded_journals_take_every_way_of_a_shipped_skill(module: str, recorded: Coverage) -> None:
    """
    A step, a state or an edge between steps that is declared and left untaken is named.
    """
    skills = list(skills_of(module))

    assert skills
    assert [way for skill in skills for way in recorded.untaken(skill)] == NOT_FOR_ALL.get(module, [])


def test_every_file_of_workflows_is_counted() -> None:
    """
    A new one that declares a workflow is in the list.
    """
    files = (tapes.JOURNALS.parents[2] / "workflows").glob("*.py")

    assert sorted(file.stem for file in files if "workflow_for(" in file.read_text()) == SHIPPED


def test_every_move_of_the_lifecycle_is_made(recorded: Coverage, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By the recorded journals; the two that only a bug in the core makes, by such a bug.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.tool("a"), ctx.tool("b"))
        return ctx.complete()

    def broken(*args: Any) -> None:
        raise RuntimeError("a bug in the core")

    assert recorded.untaken_moves() == [
        "blocked -> failed by fatal_error",
        "retrying -> failed by fatal_error",
    ]
    with coverage() as seen:
        for failure in (unknown(), busy()):
            task = ByHand(table("breaks", Step("begin", begin).start()))
            task.say()
            task.fail("a", failure)
            with monkeypatch.context() as patch:
                patch.setattr("refold.core.fold.apply.settle", broken)
                task.give("b")
            assert (task.status, task.reason) == (Status.FAILED, "bug: RuntimeError: a bug in the core")
    assert not set(recorded.untaken_moves()) & set(seen.untaken_moves())


def test_every_way_of_the_agents_loop_is_taken() -> None:
    """
    A hook calls the first message off, and the second; another one goes on after the answer; messages interrupt it.
    """

    def stop(event: BeforeInvocation) -> None:
        event.cancel = "not now" if "stop" in repr(event.say) else False

    def go_on(event: AfterInvocation) -> None:
        event.resume = "Be sure." if event.reply.text == "Maybe." else None

    desk = Agent("desk", instructions="Help.", tools=[], turns=None, plugins=[stop, go_on])
    with coverage() as seen:
        answers = {"model": ["Maybe.", "Yes."]}
        play(desk, "stop", "go", "stop", cancel(), answers=answers)
        play(desk, "go", unfinished=True)
        task = ByHand(desk)
        task.say("go")
        for said in ("on", "stop", "stop"):
            task.say(said, early="interrupt")
        task.give("model", Reply(text="Yes."))
        task.say("stop", early="interrupt")
        task.give("model", Reply(text="Yes."))

    assert seen.untaken(desk) == ["step 'tools'", "edge 'model' -> 'tools'", "edge 'tools' -> 'model'"]


# --- how it counts


def test_states_of_a_reducer_are_counted() -> None:
    """
    By their `kind`; the first one too.
    """
    with coverage() as seen:
        play(Juggles, "go", reply("a", 1), reply("b", "x"), unfinished=True)

    assert seen.untaken(Juggles) == ["step 'asking'", "step 'resting'"]


def test_a_step_that_is_left_out_is_named() -> None:
    """
    With the edges to it, and those that another step's results lead over.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        if content.text == "fed":
            return ctx.goto("fed").cmd(Cmd.tool("value", "value"))
        return ctx.goto("left") if content.text == "left" else ctx.goto("fed", value=1)

    async def fed(ctx: Ctx, value: int) -> Transition:
        return ctx.complete(str(value))

    async def left(ctx: Ctx) -> Transition:
        return ctx.goto("begin", content=Content.from_text("again"))

    skill = table("leaves", Step("begin", begin).start(), Step("fed", fed), Step("left", left))
    with coverage() as outer, coverage() as seen:
        play(skill, "fed", reply("value", 2))

    assert seen.edges[skill_id(skill)] == {("begin", "fed")}
    assert seen.untaken(skill) == ["step 'left'", "edge 'begin' -> 'left'", "edge 'left' -> 'begin'"]
    assert outer.untaken(skill) == seen.untaken(skill)
    with coverage() as none:
        pass
    assert len(none.untaken(skill)) == 6


async def test_tasks_of_an_engine_are_counted() -> None:
    """
    What ends with the block is counted no more.
    """
    with coverage() as seen:
        await FakeEngine([Hello], answers={"greeting": "Hi."}).start("hello", Content.from_text("Ada"))
    await FakeEngine([Juggles]).start("juggles", Content.from_text("go"))

    assert seen.untaken(Hello) == []
    assert json.dumps(sorted(seen.places)) == '["hello"]'


def test_what_is_left_of_the_failure_table_is_named() -> None:
    """
    With the action that was not seen.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.llm("write", retry=RetryPolicy(max_retries=0)))

    task = ByHand(table("fails", Step("begin", begin).start()))
    task.say()
    with coverage() as seen:
        task.fail("write", busy())

    assert seen.cells == {("running", "skill", "exhausted")}
    assert "running skill exhausted -> deliver" not in seen.untaken_cells()
    assert "running skill permanent -> deliver" in seen.untaken_cells()
