"""What the graph of a skill shows."""

import ast
import re
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from refold import (
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Contract,
    Ctx,
    DecisionMade,
    Event,
    GatePolicy,
    LlmResult,
    Step,
    TimerFired,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
    tool,
)
from refold.core.authoring.skill import Skill, skill_id
from refold.static import graph, parts_of
from refold.static.diagram.graph import RESERVED
from refold.static.diagram.wording import condition
from worker import SKILLS
from workflows.hello import Hello
from workflows.order_desk import OrderDesk
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
        ("[*]", "Start", "start"),
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
        ("begin", "research", "goto"),
        ("research", "critique", "goto"),
        ("critique", "[*]", "completed [Approved]"),
        ("critique", "research", "goto [NeedsRevision]"),
        ("critique", "guided", "answer to guidance [NeedsHumanInput]"),
        ("guided", "research", "goto"),
    }
    assert "    critique : llm critique\n" in text


def test_a_table_shows_the_commands_that_feed_its_steps() -> None:
    """
    A goto made by a helper is found, with its commands.
    """
    _, edges = read(graph(RESEARCH_LOOP_TABLE))

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "draft", "goto / llm research"),
        ("draft", "judge", "goto / llm critique"),
        ("judge", "[*]", "completed [Approved]"),
        ("judge", "draft", "goto [NeedsRevision] / llm research"),
        ("judge", "guided", "answer to guidance [NeedsHumanInput]"),
        ("guided", "draft", "goto / llm research"),
    }


def test_an_interruption_leads_to_the_step_that_receives_the_message() -> None:
    """
    Beside the gotos, which keep their own label.
    """

    async def work(ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(60, id="rest")
        return ctx.complete()

    async def steer(ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("work", content=content)

    steered = table("steered", Step("work", work).start().on_interrupt("steer"), Step("steer", steer))
    _, edges = read(graph(skill_of(steered)))

    assert edges == {
        ("[*]", "work", "message"),
        ("work", "steer", "message"),
        ("steer", "work", "goto"),
        ("work", "[*]", "completed"),
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
        ("begin", "[*]", "rejected [not content.text]"),
        ("begin", "[*]", "failed [ValueError]"),
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
        ("[*]", "Idle", "start"),
        ("any state", "Busy", "message / tool charge, sleep nap"),
        ("Busy", "Busy", "llm a or timer nap"),
        ("any state", "[*]", "llm a or timer nap / failed"),
    }


class Fan:
    """A reducer that puts its transition together, and writes a new state over the old one."""

    @staticmethod
    def initial() -> Idle:
        return Idle()

    def on_event(self, state: Idle | Busy, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(content=content):
                t = Transition.to(Busy())
                for question in content.text.split():
                    t = t.cmd(Cmd.llm("research", question))
                if content.text:
                    t = t.cmd(Cmd.tool("pay", charge))
                return t
            case LlmResult(id="research"):
                busy = Busy()
                t = Transition.to(busy)
                while busy.round < 3:
                    busy = busy.model_copy(update={"round": busy.round + 1})
                    t = t.cmd(Cmd.sleep("nap", 1)) if busy.round else self.again(busy)
                return t
            case TimerFired(id="nap"):
                t = Transition.to(Idle()) if ctx.task_id else Transition.complete("Done")
                return t.cmd(Cmd.sleep("nap", 2))
            case _:
                return self.again(state)

    def again(self, state: Idle | Busy) -> Transition:
        if state.kind == "idle":
            return self.again(state)
        return Transition.fail("no")


def test_a_transition_put_together_in_a_variable_is_one_move() -> None:
    """
    It asks for all that may be chained to it. What other branches assign to the same variable is not drawn here.
    """
    _, edges = read(graph(skill_of(Fan)))

    assert edges == {
        ("[*]", "Idle", "start"),
        ("any state", "Busy", "message / llm research, tool charge"),
        ("any state", "Busy", "llm research / sleep nap"),
        ("any state", "[*]", "llm research / sleep nap, failed"),
        ("any state", "Idle", "timer nap / sleep nap"),
        ("any state", "[*]", "timer nap / sleep nap, completed"),
        ("any state", "[*]", "failed"),
    }


Named = TypeAliasType("Named", Idle | Annotated[Busy, "under way"])


class Aliased:
    """A reducer whose state is a type alias, as `type Named = Idle | Busy` makes one."""

    @staticmethod
    def initial() -> Idle:
        return Idle()

    def on_event(self, state: Named, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Idle(), UserMessage():
                return Transition.to(Busy())
            case Busy(), UserMessage():
                return Transition.complete("Done")
            case _:
                return Transition.ignore(state)


def test_the_states_of_an_alias_are_those_it_stands_for() -> None:
    """
    The diagram has the same states as the running skill, however its annotation is written.
    """
    nodes, edges = read(graph(skill_of(Aliased)))

    assert set(nodes) == {"[*]", "Idle", "Busy"}
    assert edges == {
        ("[*]", "Idle", "start"),
        ("Idle", "Busy", "message"),
        ("Busy", "[*]", "message / completed"),
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
        ("load", "think", "move to thinking"),
        ("think", "act", "move to acting"),
        ("think", "observe", "move to observing"),
        ("act", "observe", "move to observing"),
        ("observe", "think", "move to thinking"),
        ("observe", "[*]", "move to finished / completed"),
        ("think", "handle_error", "failure"),
        ("act", "handle_error", "failure"),
        ("observe", "handle_error", "failure"),
        ("handle_error", "[*]", "failed"),
    }
    assert (
        "    act : in acting\n    act : reads session_id, iteration, thought\n    act : writes lifecycle, action"
        in text
    )


class Note(BaseModel, frozen=True):
    text: str = ""
    answer: str = ""


class Noted:
    """Steps under a contract without moves."""

    @step(start=True, writes=("text", "answer"))
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        if not content.text:
            return ctx.complete("nothing said").patch(answer="none")
        return ctx.goto("reply").patch(text=content.text)

    @step(reads=("text",), writes=("answer",))
    async def reply(self, ctx: Ctx, note: Note) -> Transition:
        return ctx.complete("Done").patch(answer=note.text)


def test_a_transition_that_carries_a_patch_is_drawn() -> None:
    """
    Under a contract without moves, the transitions alone say where a step goes, when, and how the task ends.
    """
    noted = flow_skill(id="noted", contract=Contract(state=Note, begins=lambda content, ctx: Note()))(Noted)
    _, edges = read(graph(skill_of(noted)))

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "[*]", "completed [not content.text]"),
        ("begin", "reply", "goto"),
        ("reply", "[*]", "completed"),
    }


class Gated:
    """Steps with a gate at their end, a gate on their way, and a failure that they catch."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.await_approval("plan", "Begin?", show=content.text)

    @step(resume_from="begin")
    async def pay(self, ctx: Ctx, decision: DecisionMade) -> Transition:
        try:
            await ctx.tool(charge, amount=1)
        except CommandError:
            return ctx.goto("ask", why="no money")
        return ctx.complete()

    @step
    async def ask(self, ctx: Ctx, why: str) -> Transition:
        policy = GatePolicy(on_denied="continue", timeout_s=None)
        return ctx.await_approval("again", why, policy=policy, why=why)

    @step(resume_from="ask")
    async def told(self, ctx: Ctx, decision: DecisionMade, why: str) -> Transition:
        made = await ctx.approve("last", why, policy=PATIENT)
        if decision.approved and made.approved:
            return ctx.goto("ask", why=why)
        return ctx.await_approval("late", why, policy=GatePolicy(needed=len(why), on_timeout="continue"))

    @step(resume_from="told")
    async def nobody(self, ctx: Ctx, decision: DecisionMade | None) -> Transition:
        policy = GatePolicy(on_denied="continue", on_timeout="continue")
        await ctx.approve("caught", "Sure?", policy=policy)
        return ctx.fail("no")


PATIENT = GatePolicy(timeout_s=None)


def test_a_gate_shows_grant_denial_and_timeout() -> None:
    """
    By the policy: a denial or a timeout ends the task, or goes on to the step that receives the decision; where a step
    awaits the gate on its way, its code goes on. A gate may have no timeout.
    """
    text = graph(skill_of(Gated))
    _, edges = read(text)

    assert edges == {
        ("[*]", "begin", "message"),
        ("begin", "pay", "plan approved"),
        ("begin", "[*]", "plan denied"),
        ("begin", "[*]", "plan timeout"),
        ("pay", "ask", "tool charge failed"),
        ("pay", "[*]", "completed"),
        ("ask", "told", "again approved"),
        ("ask", "told", "again denied"),
        ("told", "[*]", "last denied"),
        ("told", "ask", "goto [decision.approved and made.approved]"),
        ("told", "nobody", "late approved"),
        ("told", "[*]", "late denied"),
        ("told", "nobody", "late timeout"),
        ("nobody", "[*]", "failed"),
    }
    assert "    told : gate last\n" in text


class Watched:
    """A reducer with a gate, and a failure that it meets."""

    @staticmethod
    def initial() -> Idle:
        return Idle()

    def on_event(self, state: Idle | Busy, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Idle(), UserMessage():
                return Transition.await_approval("go", "Go?", Busy(), policy=GatePolicy(on_denied="continue"))
            case Busy(), DecisionMade(decision="denied"):
                return Transition.reject("denied")
            case Busy(), DecisionMade(slot="go"):
                return Transition.to(state).cmd(Cmd.llm("plan", "Plan."))
            case Busy(), CommandFailed(id="plan"):
                return Transition.fail("no plan")
            case _:
                return Transition.ignore(state)


def test_a_reducers_gates_and_failures_are_labelled() -> None:
    """
    What the gate's policy ends by itself, and what the reducer makes of decisions and failures.
    """
    _, edges = read(graph(skill_of(Watched)))

    assert edges == {
        ("[*]", "Idle", "start"),
        ("Idle", "Busy", "message / gate go"),
        ("Busy", "[*]", "go timeout"),
        ("Busy", "[*]", "denied / rejected"),
        ("Busy", "Busy", "go decision / llm plan"),
        ("Busy", "[*]", "plan failed / failed"),
    }


def test_an_agent_shows_its_tools_and_their_gates() -> None:
    """
    They stand in the step that calls them. A denial is the model's to read; a gate that nobody passes ends the task.
    """
    text = graph(OrderDesk)
    _, edges = read(text)

    assert re.findall(r"^    tools : (.*)$", text, re.MULTILINE) == [
        "tool find_order",
        "tool look_up_route",
        "tool pay_refund",
        "gate pay_refund",
        "tool send_mail",
    ]
    assert ("tools", "[*]", "pay_refund timeout") in edges
    assert "pay_refund denied" not in text


@pytest.mark.parametrize("skill", parts_of(SKILLS).skills.values(), ids=skill_id)
def test_every_edge_of_a_shipped_skill_says_what_leads_there(skill: Skill) -> None:
    """
    And each way to an end says how it ends.
    """
    _, edges = read(graph(skill))

    assert [edge for edge in edges if not edge[2]] == []
    ends = re.compile(r"\b(completed|failed|rejected|denied|timeout)\b")
    assert [label for _, target, label in edges if target == "[*]" and not ends.search(label)] == []


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("order.cents > LIMIT", "order.cents above LIMIT"),
        ("not reply.tool_calls", "not reply.tool_calls"),
        ("a <= b and self.round != 2", "a at most b and round is not 2"),
        ("await self._is_called_off(ctx, state)", "is called off"),
        ("kind == 'late' or kind in OTHERS", "kind is late or kind in OTHERS"),
        ("x" * 61, ""),
    ],
)
def test_a_condition_is_said_in_words(test: str, words: str) -> None:
    """
    Without the signs that Mermaid does not take; a long one is left out.
    """
    assert condition(ast.parse(test, mode="eval").body) == words
