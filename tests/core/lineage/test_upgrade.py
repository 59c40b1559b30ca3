"""Saved state of an older version is brought up to date, one version at a time."""

from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from refold import Cmd, Content, Ctx, Event, LlmResult, SkillError, Step, Transition, flow_skill, skill_of, table
from refold.core.fold.snapshot import Snapshot
from refold.core.lineage.upgrade import upgraded
from tests.core.byhand import START, ByHand


class State(BaseModel):
    kind: str = ""
    seen: list[int] = []


def renumber(version: int, state: Any) -> Any:
    return {**state, "seen": [*state.get("seen", []), version]}


def skill(version: int, upgrade: Any = renumber) -> Any:
    @flow_skill(id="versioned", version=version, upgrade=upgrade)
    class Versioned:
        @staticmethod
        def initial() -> State:
            return State()

        def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
            if isinstance(event, LlmResult):
                return Transition.complete().message(str(state.seen))
            return Transition.to(state).cmd(Cmd.llm("a"))

    return Versioned


def saved(version: int, state: JsonValue) -> Snapshot:
    return Snapshot(task_id="T", skill="versioned", at=START, state=state, skill_version=version)


def test_every_version_in_between_is_passed() -> None:
    """
    `upgrade` is called once for each version, oldest first; the snapshot then is of today's.
    """
    task = upgraded(skill_of(skill(4)), saved(1, {"kind": "x"}))

    assert (task.state, task.skill_version) == ({"kind": "x", "seen": [1, 2, 3]}, 4)


def test_a_task_goes_on_with_its_new_state() -> None:
    """
    What was pending stays pending, and the new code meets its result.
    """
    task = ByHand(skill(1))
    task.say()
    task.skill = skill_of(skill(3))
    task.task = upgraded(task.skill, task.task)
    task.give("a", "x")

    assert task.said == ["[1, 2]"]


def test_nothing_happens_to_a_task_of_today() -> None:
    """
    Same version, same snapshot; a task that has no state yet is only marked.
    """
    today = saved(2, {"kind": "x"})

    assert upgraded(skill_of(skill(2)), today) is today
    assert upgraded(skill_of(skill(3)), saved(1, None)) == saved(3, None)


def breaks(version: int, state: Any) -> Any:
    return state["missing"]


@pytest.mark.parametrize(
    ("version", "upgrade", "message"),
    [
        (3, renumber, "was saved by version 3 of skill 'versioned'; this worker runs version 2: deploy the newer code"),
        (1, None, "was saved by version 1 of skill 'versioned', which is now 2 and has no `upgrade`: give flow_skill("),
        (1, breaks, "`upgrade` of skill 'versioned' failed on its state of version 1: KeyError: 'missing'"),
    ],
)
def test_a_state_that_cannot_be_brought_up_is_an_error(version: int, upgrade: Any, message: str) -> None:
    """
    Newer than the code, no way up, or a way that fails: which one, and what to do.
    """
    with pytest.raises(SkillError) as caught:
        upgraded(skill_of(skill(2, upgrade)), saved(version, {"kind": "x"}))

    assert "task 'T'" in str(caught.value)
    assert message in str(caught.value)


def test_steps_are_upgraded_by_name_and_arguments() -> None:
    """
    `upgrade` gets the step that the task is in, or that receives the answer, and its arguments; nothing of refold's.
    """

    async def first(ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("q", "?", topic=content.text)

    async def first_2(ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("q", "?", topics=[content.text])

    def answered_1(ctx: Ctx, content: Content, topic: str) -> Transition:
        return ctx.complete(topic)

    def answered_2(ctx: Ctx, content: Content, topics: list[str]) -> Transition:
        return ctx.complete(f"{topics}, {content.text}")

    def upgrade(version: int, state: Any) -> Any:
        assert state == {"step": "answered", "args": {"topic": "tides"}}
        return {"step": "answered", "args": {"topics": [state["args"]["topic"]]}}

    begin = Step("begin", first).start()
    task = ByHand(table("versioned", begin, Step("answered", answered_1).resume_from("begin")))
    task.say("tides")
    resumes = Step("answered", answered_2).resume_from("begin")
    task.skill = table("versioned", Step("begin", first_2).start(), resumes, version=2, upgrade=upgrade)
    before = task.task.model_dump_json()
    old, task.task = task.task, upgraded(task.skill, task.task)
    task.say("yes")

    assert task.said[-1] == "['tides'], yes"
    assert old.model_dump_json() == before


@pytest.mark.parametrize("returned", [None, "x", {"step": "answered"}, {"args": {}, "step": "answered", "awaits": []}])
def test_what_no_step_can_begin_with_is_an_error(returned: Any) -> None:
    """
    The message says what an upgrade of steps returns.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("q", "?")

    def answered(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()

    steps = (Step("begin", begin).start(), Step("answered", answered).resume_from("begin"))
    task = ByHand(table("versioned", *steps))
    task.say()

    with pytest.raises(SkillError, match=r'it returns \{"step": name, "args"|failed on its state of version 1'):
        upgraded(table("versioned", *steps, version=2, upgrade=lambda version, state: returned), task.task)


def test_a_recovered_task_is_brought_up_first() -> None:
    """
    A failed run that was begun by version 1 goes on with version 2.
    """
    task = ByHand(skill(1))
    task.say()
    task.cancel()
    task.base = task.base.model_copy(update={"skill_version": 1})

    new = task.recovered(author=skill(2))

    assert new.task.skill_version == 2
    new.give("a", "x")
    assert new.said == ["[]"]
