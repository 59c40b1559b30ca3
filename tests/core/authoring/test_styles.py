"""A skill is the same skill in each style: the same journal for the same events, byte for byte."""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

from refold import (
    Artifact,
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Ctx,
    Failure,
    RetryPolicy,
    Step,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    table,
)
from refold.core.authoring.skill import Live
from refold.core.commands import Effect
from refold.core.events import RESULT_TYPES, Event
from refold.core.fold.apply import advance, planned
from refold.core.fold.snapshot import Snapshot
from refold.testing import histories, play, reply
from refold.testing.play import START
from refold.testing.strategies import Happening
from refold.testing.turns import Turn
from tests.sweeps import examples
from workflows.research_loop import ResearchLoop
from workflows.research_loop_steps import ResearchLoopSteps
from workflows.research_loop_table import RESEARCH_LOOP_TABLE

THREE_STYLES = [ResearchLoop, ResearchLoopSteps, RESEARCH_LOOP_TABLE]
PROFILE = settings(max_examples=examples(100))


def journal(skill: Any, history: Sequence[Happening], *, cut: bool = False) -> list[str]:
    """The entries that a history gives; cut through JSON before each event, if asked."""
    compiled = skill_of(skill)
    snapshot, live, entries = planned(compiled, "T", START), Live(), []
    for happening in history:
        if cut:
            snapshot, live = Snapshot.model_validate_json(snapshot.model_dump_json()), Live()
        snapshot, entry = advance(compiled, snapshot, happening.event, happening.at, live=live)
        entries.append(entry.model_dump_json())
    return entries


# --- the research loop


@pytest.mark.parametrize("cut", [False, True], ids=["live", "cut"])
def test_the_research_loops_are_one(cut: bool) -> None:
    """
    One revision and one question: three styles, one journal, three calls of each model.
    """
    script: list[str | Turn] = [
        "tides",
        reply("research", "d1"),
        reply("critique", {"decision": "NeedsRevision", "text": "Longer."}),
        reply("research", "d2"),
        reply("critique", {"decision": "NeedsHumanInput", "text": "For whom?"}),
        "For children.",
        reply("research", "d3"),
        reply("critique", {"decision": "Approved"}),
    ]
    stories = [play(skill, script, cut=cut) for skill in THREE_STYLES]

    assert len({story.journal() for story in stories}) == 1
    assert stories[0].artifacts == {"final.txt": "d3"}
    asked = [command.id for command in stories[0].asked]
    assert (asked.count("research"), asked.count("critique")) == (3, 3)


@PROFILE
@given(history=histories(ResearchLoop, honest=True))
def test_the_research_loops_are_one_whatever_happens(history: list[Happening]) -> None:
    """
    Failures, retries, cancels, garbage: the three styles take them alike, live and cut at each event.
    """
    first = journal(ResearchLoop, history)

    for skill in THREE_STYLES:
        assert journal(skill, history) == first
        assert journal(skill, history, cut=True) == first


# --- machines that Hypothesis makes up


DONE, FAILED = -1, -2


@dataclass(frozen=True)
class Node:
    """What is asked for on entering: a question, or commands; and where to go, by what comes back."""

    targets: tuple[int, ...]
    slot: str = ""
    commands: tuple[Effect, ...] = ()


Machine = tuple[Node, ...]


class Work(BaseModel):
    """What every style carries along."""

    log: list[JsonValue] = []
    rounds: int = 0


def commands_of(kinds: list[str], ids: list[str]) -> tuple[Effect, ...]:
    make: dict[str, Callable[[str], Effect]] = {
        "llm": lambda id: Cmd.llm(id, "Say.", id),
        "chat": lambda id: Cmd.chat(id, ["Say.", id], thread=id, instructions="Be brief.", tools=["look"]),
        "tool": lambda id: Cmd.tool(id, "look", args={"id": id}, retry=RetryPolicy(max_retries=2, base=3)),
        "sleep": lambda id: Cmd.sleep(id, 5),
        "skill": lambda id: Cmd.skill(id, "hello", "Ada"),
        "activity": lambda id: Cmd.activity(id, "old_activity", 1),
        "workflow": lambda id: Cmd.workflow(id, "OldWorkflow"),
    }
    return tuple(make[kind](id) for kind, id in zip(kinds, ids, strict=False))


def nodes(size: int) -> st.SearchStrategy[Node]:
    targets = st.lists(st.integers(FAILED, size - 1), min_size=1, max_size=3).map(tuple)
    kinds = st.lists(
        st.sampled_from(["llm", "chat", "tool", "sleep", "skill", "activity", "workflow"]), min_size=1, max_size=3
    )
    commands = st.builds(commands_of, kinds, st.permutations(["a", "b", "c"]))
    asks = st.builds(Node, targets=targets, slot=st.sampled_from(["q", "r"]))
    return st.builds(Node, targets=targets, commands=commands) | asks


machines: st.SearchStrategy[Machine] = st.integers(1, 4).flatmap(
    lambda size: st.lists(nodes(size), min_size=size, max_size=size).map(tuple)
)


def target_of(node: Node, work: Work, results: list[JsonValue], ctx: Ctx) -> int:
    """Where to go on from a node, with what came back written into the work."""
    work.log.append([ctx.now.isoformat(), len(ctx.thread("a")), *results])
    work.rounds += 1
    return DONE if work.rounds == 8 else node.targets[len(json.dumps(results)) % len(node.targets)]


def ending(target: int, work: Work) -> Transition:
    if target == FAILED:
        return Transition.fail(f"after {work.rounds}")
    return Transition.complete().message("Done.").artifact(Artifact.from_data("log", {"log": work.log}))


def heard(content: Content) -> JsonValue:
    return content.model_dump(mode="json")


class At(BaseModel):
    """Where the reducer is, and what has come back so far."""

    node: int = 0
    work: Work = Work()
    values: dict[str, JsonValue] = {}
    failures: dict[str, tuple[str, Failure]] = {}


def as_reducer(machine: Machine) -> type:
    def enter(number: int, work: Work) -> Transition:
        if number < 0:
            return ending(number, work)
        node, state = machine[number], At(node=number, work=work)
        if node.slot:
            return Transition.await_input(node.slot, f"At {number}?", state).message(f"At {number}.")
        transition = Transition.to(state).message(f"At {number}.")
        for command in node.commands:
            transition = transition.cmd(command)
        return transition

    @flow_skill(id="machine", retry=RetryPolicy(max_retries=1))
    class Reducer:
        started = False

        @staticmethod
        def initial() -> At:
            return At(node=DONE)

        def on_event(self, state: At, event: Event, ctx: Ctx) -> Transition:
            if state.node == DONE:
                return enter(0, state.work)
            node = machine[state.node]
            ids = [command.id for command in node.commands]
            match event:
                case UserMessage(content=content) if node.slot:
                    return enter(target_of(node, state.work, [heard(content)], ctx), state.work)
                case CommandFailed(id=id, invocation_id=invocation_id, failure=failure) if id in ids:
                    state.failures[id] = (invocation_id, failure)
                case _ if isinstance(event, RESULT_TYPES) and event.id in ids:
                    state.values[event.id] = event.value
                case _:
                    return Transition.ignore(state)
            if len(state.values) + len(state.failures) < len(ids):
                return Transition.to(state)
            for id in ids:
                if id in state.failures:
                    raise CommandError(id, *state.failures[id])
            return enter(target_of(node, state.work, [state.values[id] for id in ids], ctx), state.work)

    return Reducer


def as_table(machine: Machine) -> Any:
    def enter(number: int, work: Work) -> Transition:
        if number < 0:
            return ending(number, work)
        transition = Transition.goto(f"n{number}", work=work).message(f"At {number}.")
        for command in machine[number].commands:
            transition = transition.cmd(command)
        return transition

    def begin(content: Content) -> Transition:
        return enter(0, Work())

    def asks(number: int) -> list[Step]:
        node = machine[number]

        def ask(ctx: Ctx, work: Work) -> Transition:
            return ctx.await_input(node.slot, f"At {number}?", work=work)

        def answered(ctx: Ctx, content: Content, work: Work) -> Transition:
            return enter(target_of(node, work, [heard(content)], ctx), work)

        return [Step(f"n{number}", ask), Step(f"n{number}_answered", answered).resume_from(f"n{number}")]

    def fed(number: int) -> Step:
        node = machine[number]
        ids = [command.id for command in node.commands]

        def step(ctx: Ctx, work: Work, **results: Any) -> Transition:
            return enter(target_of(node, work, [results[id] for id in ids], ctx), work)

        # A parameter for each command's result, as an author writes it.
        step.__annotations__ = {"ctx": Ctx, "work": Work, **dict.fromkeys(ids, Any)}
        kind = inspect.Parameter.KEYWORD_ONLY
        params = [inspect.Parameter(name, kind, annotation=hint) for name, hint in step.__annotations__.items()]
        step.__signature__ = inspect.Signature(params)  # type: ignore[attr-defined]  # what inspect looks for
        return Step(f"n{number}", step)

    steps = [one for n, node in enumerate(machine) for one in (asks(n) if node.slot else [fed(n)])]
    return table("machine", Step("begin", begin).start(), *steps, retry=RetryPolicy(max_retries=1))


def as_awaiting_steps(machine: Machine) -> Any:
    def call(ctx: Ctx, command: Effect) -> Any:
        match command.kind:
            case "llm":
                return ctx.llm(command.id, "Say.", command.id)
            case "chat":
                said = ["Say.", command.id]
                return ctx.chat(command.id, said, thread=command.id, instructions="Be brief.", tools=["look"])
            case "tool":
                return ctx.tool("look", {"id": command.id}, id=command.id, retry=RetryPolicy(max_retries=2, base=3))
            case "sleep":
                return ctx.sleep(5, id=command.id)
            case "skill":
                return ctx.skill(command.id, "hello", "Ada")
            case "activity":
                return ctx.activity(command.id, "old_activity", 1)
            case "workflow":
                return ctx.workflow(command.id, "OldWorkflow")
            case "notify":
                raise AssertionError("no skill asks for this")

    async def walk(ctx: Ctx, work: Work, number: int) -> Transition:
        if number < 0:
            return ending(number, work)
        node = machine[number]
        ctx.say(f"At {number}.")
        if node.slot:
            results: list[Any] = [heard(await ctx.ask(node.slot, f"At {number}?"))]
        else:
            results = list(await ctx.gather(*(call(ctx, command) for command in node.commands)))
        data = [one.model_dump(mode="json") if isinstance(one, BaseModel) else one for one in results]
        return ctx.goto("walk", work=work, number=target_of(node, work, data, ctx))

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("walk", work=Work(), number=0)

    return table("machine", Step("begin", begin).start(), Step("walk", walk), retry=RetryPolicy(max_retries=1))


@PROFILE
@given(machine=machines, data=st.data())
def test_made_up_machines_are_one_in_every_style(machine: Machine, data: st.DataObject) -> None:
    """
    Any small machine, as a reducer, as a table and as awaiting steps, gives one journal for any events.
    """
    reducer = as_reducer(machine)
    history = data.draw(histories(reducer, honest=True))
    first = journal(reducer, history)

    for skill in (reducer, as_table(machine), as_awaiting_steps(machine)):
        assert journal(skill, history) == first
        assert journal(skill, history, cut=True) == first
