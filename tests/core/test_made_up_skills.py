"""The laws hold for skills that are made up: garbage in every place, states and arguments of every JSON-able type."""

from dataclasses import is_dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, create_model

from refold import (
    Cmd,
    Content,
    Ctx,
    DefinitionError,
    Event,
    Status,
    Step,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    table,
)
from refold.testing import check_history
from refold.testing.laws import check_lineage
from refold.testing.strategies import Happening, lineages
from tests.core.byhand import ByHand
from tests.core.made_up import Kind, kinds, skills
from tests.sweeps import LONG_S, THOROUGH, examples

ANY = settings(max_examples=examples(75), suppress_health_check=list(HealthCheck))
# Ten thousand where there is time; CI has less.
MANY = settings(ANY, max_examples=10_000 if THOROUGH else 1_000)
# What a made-up skill leaves behind: coroutines that it never awaits.
LEFT_BEHIND = pytest.mark.filterwarnings(
    "ignore:coroutine:RuntimeWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def keeps_the_laws(data: st.DataObject) -> None:
    skill = data.draw(skills())
    check_lineage(skill, data.draw(lineages(skill, max_events=8)))


@LEFT_BEHIND
@pytest.mark.usefixtures("collected")
@ANY
@given(data=st.data())
def test_no_garbage_breaks_a_law(data: st.DataObject) -> None:
    """
    Whatever a skill returns, awaits, forgets or raises: no event raises, and the task can be read, ended and recovered.
    """
    keeps_the_laws(data)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@LEFT_BEHIND
@pytest.mark.usefixtures("collected")
@MANY
@given(data=st.data())
def test_no_garbage_of_ten_thousand_skills_breaks_a_law(data: st.DataObject) -> None:
    """
    The same, many times.
    """
    keeps_the_laws(data)


# --- states and arguments


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all through; texts, numbers and sequences may change their type."""
    if any(isinstance(one, kind) and isinstance(other, kind) for kind in (str, int | float)):
        return bool(one == other)
    sequences = isinstance(one, list | tuple) and isinstance(other, list | tuple)
    if type(one) is not type(other) and not sequences:
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if sequences:
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) or isinstance(one, BaseModel):
        return same(dict(vars(one)), dict(vars(other)))
    return bool(one == other)


def in_steps(kind: Any, values: list[Any], seen: list[Any]) -> Any:
    """Hands the values from step to step, and keeps what it is given."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("work", value=values[0])

    async def work(ctx: Ctx, value: Any) -> Transition:
        seen.append(value)
        await ctx.tool("t")
        return ctx.await_input("q", "?", value=values[1])

    async def answered(ctx: Ctx, content: Content, value: Any) -> Transition:
        seen.append(value)
        return ctx.complete()

    for step in (work, answered):
        step.__annotations__["value"] = kind
    steps = Step("begin", begin).start(), Step("work", work), Step("answered", answered).resume_from("work")
    return table("hands_on", *steps)


def in_reducer(kind: Any, values: list[Any], seen: list[Any]) -> Any:
    """Keeps the values in its state, one after the other."""
    State = create_model("State", value=(kind, ...))

    class Keeps:
        @staticmethod
        def initial() -> Any:
            return State(value=values[0])

        def on_event(self, state: Any, event: Event, ctx: Ctx) -> Transition:
            seen.append(state.value)
            if isinstance(event, UserMessage) and event.slot is None:
                return Transition.to(State(value=values[1])).cmd(Cmd.tool("t", "t"))
            return Transition.await_input("q", "?") if isinstance(event, ToolResult) else Transition.complete()

    Keeps.on_event.__annotations__["state"] = State
    return flow_skill(id="keeps")(Keeps)


def is_kept(style: Any, data: st.DataObject) -> None:
    kind: Kind = data.draw(kinds)
    # As pydantic holds them: it takes True for a Literal[1], with or without JSON.
    values = [TypeAdapter(kind[0]).validate_python(data.draw(kind[1])) for _ in range(2)]
    seen: list[Any] = []
    try:
        skill = style(kind[0], values, seen)
    except DefinitionError as error:
        if "reads back" not in str(error):
            raise
        return  # the first state would read back changed: found before any task
    task = ByHand(skill, cut=True)
    task.say()
    if task.task.pending:
        task.give("t")
        task.say("go on")

    if task.status is Status.COMPLETED:
        assert all(any(same(value, one) for one in seen) for value in values)
    else:
        assert "value" in task.reason
    check_history(skill, [Happening(entry.event, entry.at) for entry in task.journal])


STYLES = pytest.mark.parametrize("style", [in_steps, in_reducer])


@STYLES
@ANY
@given(data=st.data())
def test_a_value_of_any_type_is_kept_as_it_is(style: Any, data: st.DataObject) -> None:
    """
    Between steps, and in a reducer's state: dates, decimals, enums, unions in any order, nested as they like. What JSON
    cannot tell apart fails the task with the name of the value.
    """
    is_kept(style, data)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@STYLES
@MANY
@given(data=st.data())
def test_ten_thousand_values_of_any_type_are_kept_as_they_are(style: Any, data: st.DataObject) -> None:
    """
    The same, many times.
    """
    is_kept(style, data)
