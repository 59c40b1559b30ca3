"""The tutorial's table of mistakes quotes what is really said."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from refold import Ctx, DefinitionError, Event, SkillError, Transition, flow_skill, step, tool
from refold.testing import play
from tests.docs.pages import ROOT

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()


@tool(effect="read_only")
def look_up(name: str) -> str:
    """Finds it."""
    return name


def never_awaited() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            name = ctx.ask("name", "Who?")
            return ctx.complete(f"Hello {name}")

    return play(Greets, "go").reason


def called_directly() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.complete(look_up("x"))

    return play(Greets, "go").reason


def without_effect() -> str:
    @tool()
    def pay(amount_cents: int) -> None: ...

    return repr(pay)


def to_nowhere() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.goto("gret")

    return play(Greets, "go").reason


def met_by_nobody() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.await_input("name", "Who?")

    return play(Greets, "go").reason


def not_returned() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> None:
            ctx.complete()

    return play(Greets, "go").reason


def misspelt() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.goto("greet", nam=1)

        @step
        async def greet(self, ctx: Ctx, name: str) -> Transition:
            return ctx.complete(name)

    return play(Greets, "go").reason


def ignored() -> str:
    @flow_skill()
    class Greets:
        @staticmethod
        def initial() -> str:
            return "start"

        def on_event(self, state: str, event: Event, ctx: Ctx) -> Transition:
            return Transition.ignore(state)

    return play(Greets, "go").reason


def a_bug() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.complete(str(1 / 0))

    return play(Greets, "go").reason


def unchecked_reply() -> str:
    @flow_skill()
    class Greets:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            numbers = await ctx.ask("numbers", "Which?", expect=list[int])
            return ctx.complete(str(numbers))

    return play(Greets, "go").reason


@pytest.mark.parametrize(
    ("mistake", "row"),
    [
        pytest.param(never_awaited, "ctx.ask(", id="never awaited"),
        pytest.param(called_directly, "look_up(", id="called directly"),
        pytest.param(without_effect, "@tool", id="without effect"),
        pytest.param(to_nowhere, 'ctx.goto("gret")', id="to nowhere"),
        pytest.param(met_by_nobody, "ctx.await_input(", id="met by nobody"),
        pytest.param(not_returned, "ctx.complete()", id="not returned"),
        pytest.param(misspelt, "nam=1", id="misspelt"),
        pytest.param(ignored, "a reducer without", id="ignored"),
        pytest.param(a_bug, "1 / 0", id="a bug"),
        pytest.param(unchecked_reply, "expect=list[int]", id="unchecked reply"),
    ],
)
def test_a_mistake_reads_as_the_table_says(mistake: Callable[[], str], row: str) -> None:
    """
    Each quotation in the right column is part of what is really said.
    """
    try:
        said = mistake()
    except (DefinitionError, SkillError) as error:
        said = str(error)
    (found,) = [line for line in TUTORIAL.splitlines() if line.startswith("| ") and row in line.split(" | ")[0]]
    quoted = [one.strip() for one in re.findall(r"`([^`]+)`", found.split(" | ")[1])]

    assert quoted
    assert [one for one in quoted if one not in said] == []
