"""What a skill returns, says and asks for is checked where it does so, and copied."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from refold import (
    Artifact,
    Cmd,
    Content,
    Ctx,
    DecisionMade,
    Failure,
    FailureKind,
    Part,
    Reply,
    SkillError,
    Status,
    Step,
    ToolOffer,
    Transition,
    UserMessage,
    UserSaid,
    flow_skill,
    step,
    table,
    tool,
)
from refold.core.commands import CallChat, CallSkill, CallTool, Notify, Undoes
from refold.core.errors import describe, shown
from refold.core.events import SkillOutcome, SkillResult
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Ending
from tests.core.byhand import ByHand
from tests.core.small import one_step, reason_of

HALF = "\ud83d"
"""Half a surrogate pair: what `json.loads` makes of an answer that was cut off in an emoji."""

ARTIFACT = Artifact.from_text("final.txt", "done")

SLIPS: dict[str, Callable[[Ctx], Any]] = {
    "fail takes the reason": lambda ctx: ctx.fail(None),  # type: ignore[arg-type]
    "fail takes the reason as a text, or an exception, not '  '": lambda ctx: ctx.fail("  "),
    "reject takes the reason": lambda ctx: ctx.reject(3),  # type: ignore[arg-type]
    "artifacts must be a list or tuple": lambda ctx: ctx.complete("ok", ARTIFACT),  # type: ignore[arg-type]
    "an artifact must be an Artifact, not 'x'": lambda ctx: ctx.complete("ok", ["x"]),  # type: ignore[list-item]
    "a message must be text or Content, not {'answer': 1} (dict)": lambda ctx: ctx.complete({"answer": 1}),  # type: ignore[arg-type]
    "a message must be text or Content, not 42 (int)": lambda ctx: ctx.complete(42),  # type: ignore[arg-type]
    "a message must be text or Content, not None": lambda ctx: ctx.say(None),  # type: ignore[arg-type]
    "status takes one line of text": lambda ctx: ctx.status(3),  # type: ignore[arg-type]
    "an artifact must be": lambda ctx: ctx.hand_over("final.txt"),  # type: ignore[arg-type]
    "a message must be text or Content, not [": lambda ctx: ctx.complete().message([42]),  # type: ignore[arg-type]
    "cmd takes a command": lambda ctx: ctx.goto("begin").cmd("draft"),  # type: ignore[arg-type]
    "cmd takes a command, for example": lambda ctx: ctx.goto("begin").cmd([Cmd.llm("a")]),  # type: ignore[arg-type]
    "goto takes a step's name": lambda ctx: ctx.goto(print),  # type: ignore[arg-type]
    "patch takes a StatePatch": lambda ctx: ctx.goto("begin").patch({"a": 1}),  # type: ignore[arg-type]
    "keyword argument 'enters'": lambda ctx: Transition(enters="begin"),  # type: ignore[call-arg]
    "keyword argument 'forgets'": lambda ctx: Transition(forgets=True),  # type: ignore[call-arg]
    "keyword argument 'audit'": lambda ctx: Transition(audit=()),  # type: ignore[call-arg]
    "messages must be a list or tuple": lambda ctx: Transition(messages="hi"),  # type: ignore[arg-type]
    "a message must be text or Content, not 1": lambda ctx: Transition(messages=(1,)),  # type: ignore[arg-type]
    "cmd takes a command, for": lambda ctx: Transition(commands=("draft",)),  # type: ignore[arg-type]
    "ending must be an Ending": lambda ctx: Transition(ending="completed"),  # type: ignore[arg-type]
    "status takes one line": lambda ctx: Transition(progress=3),  # type: ignore[arg-type]
    "command 'a' (str): prompt: Input should be a valid string": lambda ctx: ctx.llm("a", 3),  # type: ignore[call-overload]
    'a prompt is a text, and stands after the name of the call: `llm("draft", ': lambda ctx: ctx.llm("a", 3),  # type: ignore[call-overload]
    "temperature: Extra inputs are not permitted; what the model's provider takes stands in `settings={...}`": (
        lambda ctx: ctx.llm("a", "b", temperature=0)  # type: ignore[call-overload]
    ),
    "command 3 (int): id: Input should be a valid string": lambda ctx: ctx.sleep(1, id=3),  # type: ignore[arg-type]
    "a turn must be text or Content, not 3": lambda ctx: ctx.chat("a", [3]),  # type: ignore[list-item]
    "a turn must be text or Content, not None": lambda ctx: ctx.chat("a", None),  # type: ignore[arg-type]  # a mistake
    "a turn must be text or Content, not {'text': 'hi'} (dict)": lambda ctx: ctx.chat("a", {"text": "hi"}),  # type: ignore[arg-type]  # a mistake
    "tools='look' (str): they are a list; write tools=[...]": lambda ctx: ctx.chat("a", "hi", tools="look"),
    "(set): they are a list; write tools=[...]": lambda ctx: ctx.chat("a", "hi", tools={"look"}),  # type: ignore[arg-type]  # a mistake
    "editable: Input should be a valid tuple": lambda ctx: ctx.approve("a", "?", show={"to": "x"}, editable="to"),
    "arguments of the tool 'pay' are given by name, `name=value`, not 3 (int)": lambda ctx: ctx.tool("pay", 3),  # type: ignore[call-overload]  # a mistake
    "Notify is the task's own": lambda ctx: ctx.goto("begin").cmd(
        Notify(id="n", gate="g", message=Content.from_text("?"))
    ),
    "`undoes` is the task's own": lambda ctx: ctx.goto("begin").cmd(
        CallTool(id="t", name="t", undoes=Undoes(tool="t", invocation_id="T/1.1", result=""))
    ),
    "asks 'q' and for 'x' at once": lambda ctx: ctx.await_input("q", "?").cmd(Cmd.tool("x", "x")),
}


def readable(task: ByHand) -> None:
    """Everything that is kept of a task can be written and read, and is the same then."""
    for one in (task.task, *task.journal):
        assert type(one).model_validate_json(one.model_dump_json()) == one


@pytest.mark.parametrize("said", SLIPS)
def test_a_slip_fails_the_task_with_what_came_and_what_to_write(said: str) -> None:
    """
    Neither `advance` nor whoever reads the journal meets the wrong type.
    """
    task = ByHand(one_step(SLIPS[said], Step("next", lambda ctx: ctx.complete()).resume_from("begin")))
    task.say()

    assert (task.status, said in task.reason) == (Status.FAILED, True), task.reason
    readable(task)


def test_an_exception_is_a_reason() -> None:
    """
    `ctx.fail(error)` says its type and its text; of an empty one, its type.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.fail(ValueError("no price"))

    assert reason_of(begin) == "ValueError: no price"
    assert Transition.fail(KeyError()).reason == "KeyError"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_whatever_an_author_made_can_be_described() -> None:
    """
    A text that cannot be read, an address that differs from process to process, half a surrogate pair.
    """
    assert describe(Unspeakable()).startswith("Unspeakable: its text cannot be read")
    assert "__repr__ raised RuntimeError" in shown(Unspeakable())
    assert describe(ValueError(f"{object()} {HALF}")) == "ValueError: <object object> \ufffd"
    assert shown(object()) == "<object object> (object)"


@tool(effect="read_only")
def look(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    "give",
    [
        lambda ctx: ctx.fail(HALF + "no"),
        lambda ctx: ctx.fail(ValueError(HALF)),
        lambda ctx: ctx.say(HALF) or ctx.complete(),
        lambda ctx: ctx.say(Content.from_data({HALF: [HALF]})) or ctx.complete(),
        lambda ctx: ctx.status(HALF) or ctx.complete(),
        lambda ctx: ctx.complete(artifacts=[Artifact.from_text("a", HALF)]),
        lambda ctx: ctx.goto("next", value=HALF),
        lambda ctx: ctx.goto("next", value={HALF: {"deep": [HALF]}}),
        lambda ctx: Transition.goto("next").cmd(Cmd.tool("value", look, value={HALF: HALF})),
        lambda ctx: Transition.goto("next").cmd(Cmd.llm("value", HALF, HALF, settings={"stop": [HALF]})),
        lambda ctx: Transition.goto("next").cmd(CallTool(id="value", name=HALF, key=HALF)),
        lambda ctx: ctx.await_approval("gate", HALF, show={"who": HALF}),
        lambda ctx: ctx.await_input("q", HALF),
    ],
)
def test_half_a_surrogate_pair_is_replaced_wherever_it_enters(give: Callable[[Ctx], Any]) -> None:
    """
    A model's answer that was cut off makes no journal that cannot be written.
    """

    def following(ctx: Ctx, value: Any = None) -> Transition:
        return ctx.complete()

    answered = Step("answered", lambda ctx: ctx.complete()).resume_from("begin")
    task = ByHand(one_step(give, Step("next", following), answered))
    task.say()

    assert "surrogate" not in task.reason
    assert "bug" not in task.reason
    readable(task)


UNCHECKED = Content.model_construct(parts=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "give",
    [
        lambda ctx: ctx.complete(UNCHECKED),
        lambda ctx: ctx.complete(Content.model_construct(parts=(Part.model_construct(text="x", data=1),))),
        lambda ctx: ctx.complete("x", [Artifact.model_construct(name="a", parts=())]),
        lambda ctx: Transition(ending=Ending.COMPLETED, messages=(UNCHECKED,)),
        lambda ctx: ctx.await_input("q", UNCHECKED),
        lambda ctx: ctx.llm("a", "b", UNCHECKED),
        lambda ctx: ctx.chat("a", UserSaid.model_construct(content=UNCHECKED)),
        lambda ctx: ctx.chat("a", Reply.model_construct(text=None)),  # type: ignore[arg-type]
        lambda ctx: ctx.goto("next").cmd(CallTool.model_construct(id="value", name=3)),  # type: ignore[arg-type]
        lambda ctx: ctx.goto("next").cmd(CallSkill.model_construct(id="value", skill="s", input=UNCHECKED)),
    ],
)
def test_what_was_made_without_checks_is_checked_where_a_skill_gives_it(give: Callable[[Ctx], Any]) -> None:
    """
    An entry with a value of `model_construct` that pydantic would refuse could be written, and never be read.
    """

    def following(ctx: Ctx, value: Any = None) -> Transition:
        return ctx.complete()

    answered = Step("answered", lambda ctx: ctx.complete()).resume_from("begin")
    task = ByHand(one_step(give, Step("next", following), answered))
    task.say()

    assert task.status is Status.FAILED
    assert "bug" not in task.reason
    readable(task)


def test_an_exception_with_half_a_surrogate_pair_ends_the_task_readably() -> None:
    """
    Whoever raises it, and wherever it goes.
    """

    def begin(ctx: Ctx) -> Transition:
        raise ValueError(HALF)

    task = ByHand(one_step(begin))
    task.say()

    assert task.reason == "bug: ValueError: \ufffd"
    readable(task)


def test_the_fields_of_the_engine_are_not_an_authors() -> None:
    """
    What `goto`, `patch` and `await_input` set is set by them only.
    """
    with pytest.raises(TypeError):
        Transition(resume={})  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Transition(uncaught=ValueError())  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Transition(writes=None)  # type: ignore[call-arg]

    by_hand = Transition(ending=Ending.COMPLETED, messages=["hi"])  # type: ignore[arg-type]

    assert by_hand == Transition.complete().message("hi")


def test_a_parallel_that_is_never_awaited_is_caught() -> None:
    """
    As a call is: what looks done would silently not have been.
    """

    async def pay(ctx: Ctx) -> None:
        await ctx.tool("pay")

    async def begin(ctx: Ctx) -> Transition:
        ctx.parallel(pay(ctx), pay(ctx))  # type: ignore[unused-awaitable]
        return ctx.complete("paid")

    assert "made a `ctx.parallel(...)` and never awaited it" in reason_of(begin)
    gc.collect()  # the coroutines are closed: nobody is warned of them


# --- what was given stays as it was


def test_what_a_step_changes_later_was_said_as_it_was() -> None:
    """
    A content, an artifact and an input are copied when they are given.
    """
    content = Content.from_data({"n": 1})
    artifact = Artifact.from_data("a", {"n": 1})

    async def begin(ctx: Ctx) -> Transition:
        ctx.say(content)
        ctx.hand_over(artifact)
        asked = ctx.llm("a", "?", content)
        content.data["n"] = artifact.parts[0].data["n"] = 99  # type: ignore[call-overload, index]
        await asked
        return ctx.complete()

    task = ByHand(one_step(begin))
    entry = task.say()
    before = entry.model_dump_json()
    content.data["n"] = artifact.parts[0].data["n"] = 1000  # type: ignore[call-overload, index]

    assert entry.model_dump_json() == before
    assert '"n":1}' in before
    assert "99" not in before


def test_an_offer_that_a_step_changes_later_was_made_as_it_was() -> None:
    """
    The schema of a tool is copied when it is offered: else it would change in what the thread keeps, and the next call
    would refer to it as the one that the model knows.
    """
    offer = ToolOffer(name="look", parameters={"type": "object"})

    async def begin(ctx: Ctx) -> Transition:
        for word in ("here", "there"):
            assert offer.parameters is not None
            offer.parameters["description"] = word
            asked = ctx.chat("look", word, tools=[offer])
            offer.parameters["description"] = "scribbled"
            await asked
        return ctx.complete()

    task = ByHand(one_step(begin))
    task.say()
    task.give("look", "Nothing.")
    frames = [
        one.command.frame for entry in task.journal for one in entry.commands if isinstance(one.command, CallChat)
    ]

    said = [frame and frame.tools[0].parameters for frame in frames]
    assert said == [{"type": "object", "description": word} for word in ("here", "there")]


def test_a_command_that_a_reducer_keeps_is_not_the_journals() -> None:
    """
    Commands made by hand, too.
    """
    content = Content.from_data({"n": 1})
    asked = CallSkill(id="a", skill="other", input=content)
    transition = Transition.to(0).cmd(asked)
    content.data["n"] = 99  # type: ignore[call-overload, index]

    (command,) = transition.commands
    assert isinstance(command, CallSkill)
    assert command.input == Content.from_data({"n": 1})


@flow_skill()
class Scribbles:
    """Writes into whatever it is given."""

    @staticmethod
    def initial() -> list[Any]:
        return []

    def on_event(self, state: list[Any], event: Any, ctx: Ctx) -> Transition:
        match event:
            case UserMessage(content=content):
                content.data.append("scribbled")  # type: ignore[union-attr]
                return Transition.to([]).cmd(Cmd.skill("part", "other", "go")).cmd(Cmd.tool("t", look, value=1))
            case DecisionMade():
                event.changes["amount"] = event.shown["amount"] = "scribbled"  # type: ignore[call-overload, index]
                return Transition.complete()
            case _:
                if hasattr(event, "failure"):
                    event.failure.details["why"] = "scribbled"
                    gate = Cmd.ask_approval("gate", "?", show={"amount": 1}, editable=["amount"])
                    return Transition.to([]).cmd(gate)
                event.outcome.artifacts[0].parts[0].data["n"] = "scribbled"
                return Transition.to([])


def test_nothing_that_a_reducer_is_given_is_the_journals() -> None:
    """
    Messages, parts' artifacts, the details of failures, and what was decided on.
    """
    task = ByHand(Scribbles)
    task.feed(UserMessage(content=Content.from_data([])))
    outcome = SkillOutcome(task_id="T/1.1", artifacts=(Artifact.from_data("a", {"n": 1}),))
    task.feed(SkillResult(id="part", invocation_id="T/1.1", outcome=outcome))
    task.fail("t", Failure(kind=FailureKind.PERMANENT, type="x", message="x", details={"why": "x"}))
    wait = task.task.waits[0]
    assert wait.ask.digest  # type: ignore[union-attr]
    task.feed(
        DecisionMade(
            gate=wait.gate,
            digest=wait.ask.digest,  # type: ignore[union-attr]
            decision="approved",
            approver="Ann",
            changes={"amount": 2},
        )
    )

    assert task.status is Status.COMPLETED
    assert all("scribbled" not in entry.model_dump_json() for entry in task.journal)
    assert "scribbled" not in task.task.model_dump_json()


SHARED: list[int] = []


@flow_skill()
class Shares:
    """Begins with a list of its module, and writes into it."""

    @staticmethod
    def initial() -> list[int]:
        return SHARED

    def on_event(self, state: list[int], event: Any, ctx: Ctx) -> Transition:
        state.append(1)
        return Transition.complete(state).message(str(state))


def test_no_task_begins_with_what_another_one_wrote() -> None:
    """
    `initial` may return one and the same object each time.
    """
    for _ in range(3):
        task = ByHand(Shares)
        task.say()
        assert task.said == ["[1]"]
        assert task.folded() == task.task


# --- nesting


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("levels", [90, 120, 180, 240, 2000])
def test_what_is_nested_too_deep_is_refused_or_fails(levels: int) -> None:
    """
    Messages are refused, results fail their command; arguments, states and messages of the skill fail the task. Either
    way all can be read.
    """

    for give in (
        lambda ctx: ctx.goto("next", value=nested(levels)),
        lambda ctx: ctx.complete(Content.from_data(nested(min(levels, 240)))),
        lambda ctx: Transition.goto("next").cmd(Cmd.tool("value", look, value=nested(levels))),
    ):
        task = ByHand(one_step(give, Step("next", follow)))
        task.say()
        assert (levels < 100) or "nested" in task.reason or "depth" in task.reason, task.reason
        readable(task)


@pytest.mark.parametrize("levels", [90, 120, 180, 240])
def test_what_comes_in_nested_too_deep_poisons_no_journal(levels: int) -> None:
    """
    A message is refused, and a result that nobody could read is a failure of its command.
    """

    async def begin(ctx: Ctx) -> Transition:
        await ctx.tool("a")
        await ctx.ask("q", "?")
        return ctx.complete()

    task = ByHand(one_step(begin))
    task.say()
    deep = levels > 100
    entry = (
        task.say(data=nested(levels)) if False else task.feed(UserMessage(content=Content.from_data(nested(levels))))
    )
    assert entry.refused
    task.give("a", nested(levels))
    readable(task)
    if deep:
        assert "nested deeper than 100 levels" in task.reason
        return
    entry = task.feed(UserMessage(content=Content.from_data(nested(levels))))
    assert (entry.refused, task.status) == ("", Status.COMPLETED)
    readable(task)


def test_a_refused_message_is_refused_again_when_the_journal_is_folded() -> None:
    """
    What is kept of it is cut, and still too deep.
    """
    task = ByHand(
        one_step(lambda ctx: ctx.await_input("q", "?"), Step("b", lambda ctx: ctx.complete()).resume_from("begin"))
    )
    task.say()
    task.feed(UserMessage(content=Content.from_data(nested(200))))
    entries = [Entry.model_validate_json(entry.model_dump_json()) for entry in task.journal]
    task.journal = entries

    assert "nested deeper" in entries[1].refused
    assert task.folded() == Snapshot.model_validate_json(task.task.model_dump_json()) == task.task


def test_a_number_that_nobody_could_read_is_refused() -> None:
    """
    An integer of more than 4,300 digits is written as JSON, and read by nobody.
    """
    assert "more than 4,300 digits" in reason_of(lambda ctx: ctx.goto("begin2", value=10**5000), Step("begin2", two))
    with pytest.raises(SkillError, match="4,300 digits"):
        Cmd.tool("a", look, value={"n": [10**5000]})


def two(ctx: Ctx, value: int) -> Transition:
    return ctx.complete()


def follow(ctx: Ctx, value: Any) -> Transition:
    return ctx.complete()


class Asks:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete(str(await ctx.tool("a")))


@pytest.mark.parametrize("cut", [False, True])
def test_a_number_that_is_none_is_the_same_before_and_after_json(cut: bool) -> None:
    """
    An infinite one in a result is its name, as JSON has it.
    """
    task = ByHand(Asks, cut=cut)
    task.say()
    task.give("a", {"n": float("inf")})

    assert task.said == ["{'n': 'Infinity'}"]
    readable(task)


def test_a_gate_that_shows_such_a_number_is_decided_on() -> None:
    """
    The digest is the same before and after JSON.
    """
    task = ByHand(table("gate", Step("begin", gate).start()))
    task.say()
    read = Snapshot.model_validate_json(task.task.model_dump_json())

    assert read.waits[0].ask.digest == task.task.waits[0].ask.digest  # type: ignore[union-attr]


async def gate(ctx: Ctx) -> Transition:
    await ctx.approve("ok", "?", show={"n": float("nan"), "m": float("-inf")})
    return ctx.complete()
