"""What the graph of a skill shows."""

import re
from typing import Literal

import pytest
from pydantic import BaseModel

from refold import Cmd, Content, Ctx, LlmResult, Step, TimerFired, Transition, UserMessage, skill_of, step, table, tool
from refold.static import graph
from refold.static.graph import RESERVED
from workflows.hello import Hello
from workflows.react import React
from workflows.research_loop import ResearchLoop
from workflows.research_loop_steps import ResearchLoopSteps
from workflows.research_loop_table import RESEARCH_LOOP_TABLE

EDGE = re.compile(r"^    (\[\*\]|\w+) --> (\[\*\]|\w+)(?: : ([^:;\"{}]+))?$")
NODE = re.compile(r'^    state "([^":;]+)" as (\w+)$')
LINE = re.compile(r"^    (\w+) : ([^:;\"{}]+)$")


def read(text: str) -> tuple[dict[str, str], set[tuple[str, str, str]]]:
    """Nodes by id, and edges by name. Fails on any other line, so that the Mermaid is held to a plain subset."""
    head, *lines = text.splitlines()
    assert head == "stateDiagram-v2"
    nodes: dict[str, str] = {"[*]": "[*]"}
    edges = set()
    for line in lines:
        if found := NODE.match(line):
            nodes[found[2]] = found[1]
            assert found[2].lower() not in RESERVED
        elif found := EDGE.match(line):
            edges.add((nodes[found[1]], nodes[found[2]], found[3] or ""))
        else:
            found = LINE.match(line)
            assert found is not None, line
            assert found[1] in nodes
    return nodes, edges


def test_a_reducers_states_and_moves_are_read_from_its_match() -> None:
    """
    Each edge says what came, in which case, and what is asked for; helpers are followed.
    """
    _, edges = read(graph(skill_of(ResearchLoop)))

    assert edges == {
        ("[*]", "Start", ""),
        ("Start", "Researching", "message / llm research"),
        ("Researching", "Critiquing", "llm research / llm critique"),
        ("Critiquing", "Done", "llm critique [Approved]"),
        ("Critiquing", "Researching", "llm critique [NeedsRevision] / llm research"),
        ("Critiquing", "AwaitHuman", "llm critique [NeedsHumanInput] / ask guidance"),
        ("AwaitHuman", "Researching", "message / llm research"),
        ("Done", "[*]", "completed"),
    }


def test_steps_show_what_they_await_and_where_they_go() -> None:
    """
    Awaited calls stand in the step, questions lead to the step that meets the answer.
    """
    text = graph(skill_of(ResearchLoopSteps))
    _, edges = read(text)

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "research", ""),
        ("research", "critique", ""),
        ("critique", "[*]", "[Approved] / completed"),
        ("critique", "research", "[NeedsRevision]"),
        ("critique", "guided", "[NeedsHumanInput] / ask guidance"),
        ("guided", "research", ""),
    }
    assert "    critique : llm critique\n" in text


def test_a_table_shows_the_commands_that_feed_its_steps() -> None:
    """
    A goto made by a helper is found, with its commands.
    """
    _, edges = read(graph(RESEARCH_LOOP_TABLE))

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "draft", "llm research"),
        ("draft", "judge", "llm critique"),
        ("judge", "[*]", "[Approved] / completed"),
        ("judge", "draft", "[NeedsRevision] / llm research"),
        ("judge", "guided", "[NeedsHumanInput] / ask guidance"),
        ("guided", "draft", "llm research"),
    }


def test_the_smallest_skill_has_a_graph() -> None:
    """
    One step, from message to end.
    """
    _, edges = read(graph(skill_of(Hello)))

    assert edges == {("[*]", "greet", "message"), ("greet", "[*]", "completed")}


@tool(effect="idempotent")
def charge(amount: int) -> int:
    return amount


class Manners:
    """A step skill with helpers, several awaits and every ending."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        if not content.text:
            return ctx.reject("nothing said")
        await ctx.gather(ctx.llm("one"), ctx.tool(charge, amount=1))
        await self.pause(ctx)
        try:
            done = ctx.complete()
        except ValueError:
            return ctx.fail("no")
        return done

    async def pause(self, ctx: Ctx) -> None:
        await ctx.sleep(60)
        await ctx.ask("sure", "Sure?")


def test_helpers_endings_and_variables_are_followed() -> None:
    """
    What a helper awaits counts for its step, and a transition in a variable is found.
    """
    text = graph(skill_of(Manners))
    _, edges = read(text)

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "[*]", "rejected"),
        ("begin", "[*]", "failed"),
        ("begin", "[*]", "completed"),
    }
    assert re.findall(r"^    begin : (.*)$", text, re.MULTILINE) == ["llm one", "tool charge", "sleep", "ask sure"]


class Idle(BaseModel):
    kind: Literal["idle"] = "idle"


class Busy(BaseModel):
    kind: Literal["busy"] = "busy"
    round: int = 0


class Nested:
    """A reducer that looks at the event first, and tells states apart by isinstance."""

    @staticmethod
    def initial() -> Idle:
        return Idle()

    def on_event(self, state: Idle | Busy, event: object, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                busy = Busy(round=1)
                return Transition.to(busy).cmd(Cmd.tool("pay", charge)).cmd(Cmd.sleep("nap", 5))
            case LlmResult(id="a") | TimerFired(id="nap"):
                if isinstance(state, Busy):
                    return self.again(state)
                return Transition.fail("too soon")
            case _:
                pass
        return Transition.ignore()

    def again(self, state: Busy) -> Transition:
        return Transition.to(state.model_copy(update={"round": 2}))


def test_other_ways_to_write_a_reducer_are_read() -> None:
    """
    Nested tests narrow the case; where nothing says which state, the edge starts at `any state`.
    """
    _, edges = read(graph(skill_of(Nested)))

    assert edges == {
        ("[*]", "Idle", ""),
        ("any state", "Busy", "message / tool charge, sleep nap"),
        ("Busy", "Busy", "llm a or timer nap"),
        ("any state", "[*]", "llm a or timer nap / failed"),
    }


@pytest.mark.parametrize(
    "name", [*sorted(RESERVED), "a.b", "with-dash", "ünïcode", "2nd", 'quo"te', "semi;colon", "a:b"]
)
def test_any_step_name_gives_valid_mermaid(name: str) -> None:
    """
    Names that mean something to Mermaid, or that it cannot read, get an id of their own.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()

    nodes, edges = read(graph(table("t", Step(name, begin).start())))

    assert len(nodes) == 2
    assert len(edges) == 2


def test_a_contract_shows_its_legal_moves() -> None:
    """
    Each edge is named by the state that it leads to; each step says what it reads and writes.
    """
    text = graph(skill_of(React))
    _, edges = read(text)

    assert edges == {
        ("[*]", "load", "message"),
        ("load", "think", "thinking"),
        ("think", "act", "acting"),
        ("think", "observe", "observing"),
        ("act", "observe", "observing"),
        ("observe", "think", "thinking"),
        ("observe", "[*]", "finished"),
        ("think", "handle_error", "failed"),
        ("act", "handle_error", "failed"),
        ("observe", "handle_error", "failed"),
        ("handle_error", "[*]", "failed"),
    }
    assert (
        "    act : in acting\n    act : reads session_id, iteration, thought\n    act : writes lifecycle, action"
        in text
    )
