"""An author's mistake is found when the skill is defined, with a sentence on what to do; all of them at once."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field

from refold import (
    Cmd,
    Content,
    Contract,
    Ctx,
    DecisionMade,
    DefinitionError,
    Event,
    SkillError,
    Step,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
    tool,
)
from refold.core.authoring.define import listed
from refold.core.steps.table import steps_of
from tests.core.byhand import ByHand
from workflows import hello, planner


class State(BaseModel):
    n: int = 0


class Stamped(BaseModel):
    order: str = ""
    id: str = Field(default_factory=lambda: uuid4().hex)
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class Shared(BaseModel):
    model_config = ConfigDict(frozen=True)


class Plain:
    """No data."""


@tool(effect="read_only")
def look_up(word: str) -> str:
    return word


def problems(define: Callable[[], Any]) -> tuple[str, ...]:
    """What is wrong with a definition."""
    with pytest.raises(DefinitionError) as caught:
        define()
    return caught.value.problems


def problem(define: Callable[[], Any]) -> str:
    """What is wrong with a definition, being one thing."""
    (found,) = problems(define)
    return found


# --- reducers


class Reducer:
    @staticmethod
    def initial() -> State:
        return State()

    def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
        return Transition.ignore()


def test_a_reducer_is_a_plain_function_of_four() -> None:
    """
    An async `on_event`, a wrong number of parameters, a missing `initial`, an untyped state: each is named.
    """

    class Wrong:
        async def on_event(self, state, event):  # type: ignore[no-untyped-def]
            return Transition.ignore()

    assert problems(lambda: skill_of(Wrong)) == (
        "on_event is `async`; a reducer is a plain function: drop `async`, and ask with `.cmd(...)`",
        "on_event takes (self, state, event, ctx); it takes (self, state, event)",
        "it needs `initial()`, a static method that returns the first state",
        "parameter 'state' of on_event needs the type of the state, or the union of its types",
    )


def test_a_class_has_one_style() -> None:
    """
    Both styles at once, or none, is no skill.
    """

    class Both(Reducer):
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.complete()

    assert problem(lambda: skill_of(Both)) == "it has both on_event and @step methods; choose one style"
    assert problem(lambda: skill_of(Plain)) == "it has neither on_event nor a @step method"
    assert "neither a class with on_event or @step methods, nor a table" in problem(lambda: skill_of(3))
    assert problem(lambda: skill_of("Plain")).endswith("; a skill is given itself, not by its name: import it")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param({"undo": "refund"}, "undo='refund' is no function declared with @tool", id="undo by name"),
        pytest.param({"undo": len}, "is no function declared with @tool", id="undo without @tool"),
        pytest.param({"undo": look_up, "probe": "probe"}, "probe='probe' is no function", id="probe by name"),
    ],
)
def test_what_undoes_and_probes_a_tool_is_a_function(given: dict[str, Any], said: str) -> None:
    """
    The error says what was given in its place.
    """

    def define() -> None:
        @tool(effect="compensate", **given)
        async def pay(word: str) -> None: ...

    assert said in problem(define)


def test_one_skill_or_a_text_is_no_list_of_skills() -> None:
    """
    One is told how to write the list; a text would be taken for its letters.
    """
    assert problem(lambda: listed(Reducer)) == "it is given alone, where a list of skills is expected: write [Reducer]"
    assert problem(lambda: listed("hello")).startswith("it is a text, not a list of skills: import the skill")
    assert list(listed([Reducer])) == [Reducer]


@pytest.mark.parametrize(
    ("given", "way_out"),
    [
        pytest.param(hello, "it is a module: give a skill of it: workflows.hello.Hello", id="its module"),
        pytest.param(planner, "it is a module: give a skill of it: workflows.planner.Planner", id="an agent's module"),
        pytest.param(hello.Hello(), "give the class, Hello, not an object of it", id="an object of its class"),
        pytest.param(hello.HelloWorkflow, "it is the workflow of a skill: give the skill itself", id="its workflow"),
        pytest.param("hello", "a skill is given itself, not by its name: import it", id="its name"),
    ],
)
def test_what_is_given_in_place_of_a_skill_is_told_what_to_give(given: Any, way_out: str) -> None:
    """
    A worker also takes modules and workflows; `play`, `FakeEngine` and gateways take skills.
    """
    assert problem(lambda: skill_of(given)).endswith(f"; {way_out}")


class WithPlain(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Plain | None = None


class WithCallback(BaseModel):
    then: Callable[[], None] | None = None


class WithSet(BaseModel):
    seen: frozenset[str] = frozenset()


class Around(BaseModel):
    """Two fields that are no data, one of them within another."""

    name: str = ""
    then: Callable[[], None] | None = None
    around: list[WithSet] = []


@pytest.mark.parametrize(
    ("state", "found"),
    [
        (Plain, "pydantic does not know Plain, or a type in it; use a BaseModel"),
        (WithPlain, "its field 'thing' may hold instances of a plain class"),
        (State | list[WithCallback], "its field 'then' may hold functions"),
        (Around, "its field 'seen' may hold a set, which has no order: use a list, or a tuple"),
        (set[int], "it may hold a set, which has no order: use a list, or a tuple"),
    ],
)
def test_a_state_that_is_no_data_is_found(state: Any, found: str) -> None:
    """
    What cannot be written down cannot be a state, wherever in it.
    """

    class Wrong(Reducer):
        def on_event(self, state: Any, event: Event, ctx: Ctx) -> Transition:
            return Transition.ignore()

    Wrong.on_event.__annotations__["state"] = state

    assert problem(lambda: skill_of(Wrong)).startswith(f"its state cannot be saved as data: {found}")


def test_an_initial_state_must_be_a_state() -> None:
    """
    `initial` is called when the skill is defined, and its state is taken through JSON.
    """

    class Other(Reducer):
        @staticmethod
        def initial() -> Any:
            return Plain()

    class Breaks(Reducer):
        @staticmethod
        def initial() -> State:
            raise KeyError("settings")

    assert problem(lambda: skill_of(Other)).startswith(
        "its initial state: SkillError: state Plain cannot be saved: it is a Plain, and reads back as a State; "
    )
    assert problem(lambda: skill_of(Breaks)) == "its initial state: KeyError: 'settings'"


def test_a_skill_is_made_without_arguments() -> None:
    """
    There is one object of the class, for all tasks.
    """

    class Needs(Reducer):
        def __init__(self, url: str) -> None:
            self.url = url

    assert "a skill is made without arguments" in problem(lambda: skill_of(Needs))


class Walking(BaseModel):
    steps: int = 0


class Running(BaseModel):
    steps: int = 0


@flow_skill(id="alike")
class Alike:
    """States that look the same as data."""

    @staticmethod
    def initial() -> Walking | Running:
        return Walking()

    def on_event(self, state: Walking | Running, event: Event, ctx: Ctx) -> Transition:
        return Transition.to(Running()).cmd(Cmd.llm("a"))


def test_states_that_data_cannot_tell_apart_are_found_when_one_is_entered() -> None:
    """
    The task fails before the wrong state could be read back, with the way out.
    """
    task = ByHand(Alike)
    task.say()

    assert task.reason == (
        "state Running cannot be saved: it is a Running, and reads back as a Walking; tell the classes apart, for "
        "example by a field `kind: Literal[...]`"
    )
    assert task.task.state is None


class Counted(BaseModel):
    n: int = Field(default=0, ge=0)


@flow_skill(id="unsavable")
class Unsavable:
    @staticmethod
    def initial() -> Counted:
        return Counted()

    def on_event(self, state: Counted, event: Event, ctx: Ctx) -> Transition:
        if isinstance(event, UserMessage) and event.content.text == "type":
            state.n = "many"  # type: ignore[assignment]
        else:
            state.n = -1
        return Transition.to(state).cmd(Cmd.llm("a"))


@pytest.mark.parametrize(("text", "found"), [("type", "n: expected `int`"), ("value", "greater than or equal to 0")])
def test_a_state_that_was_written_into_wrongly_is_found_at_once(text: str, found: str) -> None:
    """
    A wrong type and a broken constraint fail the task where they happen, not at the next event.
    """
    task = ByHand(Unsavable)
    task.say(text)

    assert task.reason.startswith("state Counted cannot be saved")
    assert found in task.reason


# --- what a reducer must not do


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda ctx: None, "on_event returned None for user_message; it returns a transition, for example"),
        (lambda ctx: ctx.llm("a"), "on_event returned <the call 'a', not awaited>"),
        (
            lambda ctx: Transition() if ctx.llm("a") else None,
            "on_event made the call 'a' on ctx; a reducer asks with `Transition.to(...).cmd(Cmd...)`",
        ),
        (
            lambda ctx: Transition.complete().patch(n=1),
            "on_event returned a transition with `.patch(...)`; a reducer replaces its state: `Transition.to(state)`",
        ),
        (lambda ctx: ctx.goto("x"), "on_event went to step 'x'; a reducer has states, not steps"),
        (
            lambda ctx: ctx.await_input("q", "?", topic="tides"),
            "on_event carries topic over a wait; a reducer keeps them in its state: ",
        ),
    ],
)
def test_a_reducer_that_breaks_a_rule_is_told_so(answer: Callable[[Ctx], Any], reason: str) -> None:
    """
    The task fails with what came and what to write instead.
    """

    class Wrong(Reducer):
        def on_event(self, state: State, event: Event, ctx: Ctx) -> Any:
            return answer(ctx)

    task = ByHand(Wrong)
    task.say()

    assert task.reason.startswith(reason)


def test_a_reducer_may_speak_through_its_context() -> None:
    """
    What it says there comes before what its transition says; ignoring an event keeps the state.
    """

    class Speaks(Reducer):
        def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
            state.n += 1
            if isinstance(event, UserMessage):
                ctx.say("one")
                return Transition.to(state).message("two").cmd(Cmd.llm("a")).cmd(Cmd.llm("b"))
            return Transition.ignore(state)

    task = ByHand(Speaks)
    task.say()
    task.give("a", "x")

    assert (task.said, task.task.state) == (["one", "two"], {"n": 1})


# --- steps


def begin(ctx: Ctx, content: Content) -> Transition:
    return ctx.complete(content.text)


def asks(ctx: Ctx) -> Transition:
    return ctx.await_input("q", "?")


def lost(ctx: Ctx) -> Transition:
    return ctx.goto("no_such_step") if ctx.messages else Transition.goto("nor_this", x=1)


def unannotated(ctx, topic) -> Transition:  # type: ignore[no-untyped-def]
    return Transition.goto("begin")


def pages(topic: str) -> Iterator[str]:
    yield topic


async def pages_async(topic: str) -> AsyncIterator[str]:
    yield topic


def starred(ctx: Ctx, *rest: int, **more: int) -> Transition:
    return ctx.complete()


def plain_payload(ctx: Ctx, thing: Plain) -> Transition:
    return ctx.complete()


def bad_default(ctx: Ctx, n: int = "many") -> Transition:  # type: ignore[assignment]
    return ctx.complete()


def unseeded(ctx: Ctx, topic: str, pair: tuple[int, int]) -> Transition:
    return ctx.complete()


def hears(ctx: Ctx, heard: UserMessage) -> Transition:
    return ctx.complete()


def calls_the_tool(ctx: Ctx) -> Transition:
    return ctx.complete(look_up("x"))


def mentions_the_tool(ctx: Ctx) -> Transition:
    ctx.tool(look_up, word="x")  # type: ignore[unused-awaitable]
    return ctx.complete()


async def generates(ctx: Ctx) -> Any:
    yield ctx.complete()


def unreadable(ctx: Ctx, x: "NoSuchType") -> Transition:  # type: ignore[name-defined]  # noqa: F821
    return ctx.complete()


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that does not say which function it decorates."""

    def inner(*given: Any) -> Any:
        return function(*given)

    return inner


class Hides:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("judge")

    @bare
    @step
    async def judge(self, ctx: Ctx) -> Transition:
        return ctx.complete()


class HidesTwice:
    @bare
    @bare
    @step(start=True)
    async def judge(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()


class Inherits(Hides):
    pass


class Mends(Hides):
    @step
    async def judge(self, ctx: Ctx) -> Transition:
        return ctx.complete()


@pytest.mark.parametrize("cls", [Hides, HidesTwice, Inherits])
def test_a_decorator_above_step_is_refused_where_it_hides_the_step(cls: type) -> None:
    """
    The class would lack that step in silence, and a goto to it name a step that stands in the class.
    """
    assert problem(lambda: flow_skill(id="hides")(cls)) == (
        "the decorator above `@step` hides the step 'judge': it returns a function without `functools.wraps`"
    )


def test_a_step_that_hides_is_overridden() -> None:
    """
    What counts is what the class has.
    """
    assert [one.name for one in steps_of(Mends)] == ["begin", "judge"]
    flow_skill(id="mends")(Mends)


class Lazy:
    """A settings object of a framework that is not set up yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("not set up")


def test_what_a_method_closes_over_is_not_asked_for_attributes() -> None:
    """
    A helper method may close over anything, such as itself and an object that raises whatever it is asked for.
    """
    lazy = Lazy()

    class Closes:
        @step(start=True)
        async def begin(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete()

        helper = closing(lazy)

    flow_skill(id="closes")(Closes)


def closing(over: Any) -> Callable[..., Any]:
    """A function that closes over an object and itself."""

    def inner(*given: Any) -> Any:
        return inner if over is None else over

    return inner


class Misspells:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("q", "?")

    @step(resumes_from="begin")  # type: ignore[call-overload, untyped-decorator]
    async def told(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()


def test_a_misspelt_option_of_a_step_is_no_term_of_a_contract() -> None:
    """
    Its author has none; the options are named.
    """
    _, found = problems(lambda: flow_skill(id="misspells")(Misspells))

    assert found.startswith("step 'told' takes no option resumes_from; the options are: start, resume_from, ")


def test_an_option_of_a_decorated_step_is_said_otherwise_in_a_table() -> None:
    """
    How a step is entered is a method of it there.
    """
    _, found = problems(lambda: table("misspells", Step("begin", begin, start=True)))  # type: ignore[call-arg]

    assert found.startswith("step 'begin' takes no option start; the options are: `.start()`, `.resume_from(")


START = Step("begin", begin).start()


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([Step("begin", begin)], "exactly one step is the start (`@step(start=True)`); here: none"),
        ([], "exactly one step is the start (`@step(start=True)`); here: none"),
        (
            [START, Step("other", begin).start()],
            "exactly one step is the start (`@step(start=True)`); here: 'begin', 'other'",
        ),
        ([START, Step("x", asks), Step("x", begin).resume_from("x")], "two steps are named 'x'"),
        ([START, Step("x", asks)], "step 'x' awaits input, but no step says resume_from='x'"),
        ([START, Step("x", begin).resume_from("y")], "resume_from='y': no such step; the steps are: begin, x"),
        (
            [START, Step("x", asks), Step("y", begin).resume_from("x"), Step("z", begin).resume_from("x")],
            "two steps say resume_from='x'; one answer enters one step",
        ),
        (
            [START, Step("x", starred)],
            "step 'x': parameter 'rest' must be a plain one, not `*` or `**` or positional-only",
        ),
        ([START, Step("x", unannotated)], "step 'x': parameter 'topic' needs an annotation"),
        (
            [START, Step("x", plain_payload)],
            "step 'x': parameter 'thing' cannot be saved as data: pydantic does not know",
        ),
        ([START, Step("x", bad_default)], "step 'x': the default of parameter 'n', 'many', is no int"),
        ([Step("x", bad_default).start()], "step 'x': the default of parameter 'n', 'many', is no int"),
        ([START, Step("x", hears)], "step 'x': parameter 'heard' takes a message, but no message enters this step"),
        ([START, Step("x", generates)], "step 'x': it yields; a step awaits calls of ctx and returns a transition"),
        ([START, Step("x", unreadable)], "step 'x': its annotations cannot be read: name 'NoSuchType' is not defined"),
        ([START, Step("x", calls_the_tool)], "step 'x': its code calls the tool 'look_up' directly; ask for it: "),
        ([START, Step("x", print)], "step 'x' is <built-in function print>; a step is a plain function, or a method"),
    ],
)
def test_a_table_that_cannot_work_is_not_defined(steps: list[Step], found: str) -> None:
    """
    Each mistake is one sentence that names the step.
    """
    assert problems(lambda: table("wrong", *steps))[0].startswith(found)


@pytest.mark.parametrize("broken", ["unannotated", "plain_payload", "unreadable"])
def test_what_a_step_takes_is_judged_only_where_it_can_be_read(broken: str) -> None:
    """
    A parameter that is wrong itself is one problem, not one more for each step that gives it a value.
    """

    def goes(ctx: Ctx) -> Transition:
        return ctx.goto("x", topic="a", thing=1, order=2)

    def asks_it(ctx: Ctx) -> Transition:
        return ctx.await_input("more", "Which?", topic="a")

    steps = [Step("begin", goes).start(), Step("asks", asks_it), Step("x", globals()[broken]).resume_from("asks")]

    (found,) = problems(lambda: table("wrong", *steps))

    assert found.startswith("step 'x': ")


def test_gotos_to_nowhere_are_found_where_they_are_literal() -> None:
    """
    Both `ctx.goto` and `Transition.goto`, each once.
    """
    assert problems(lambda: table("wrong", START, Step("x", lost))) == (
        "step 'x' goes to 'no_such_step', which does not exist; the steps are: begin, x",
        "step 'x' goes to 'nor_this', which does not exist; the steps are: begin, x",
    )


def test_a_start_step_needs_something_to_start_from() -> None:
    """
    What has no default, is no container and is not the message has nothing to begin as; nothing is guessed.
    """
    way_out = "give it a default, or take the message as `content: Content`"

    assert problems(lambda: table("wrong", Step("x", unseeded).start())) == (
        f"step 'x': parameter 'topic' has nothing to start from; {way_out}",
        f"step 'x': parameter 'pair' has nothing to start from; {way_out}",
    )


def test_a_first_value_is_the_same_each_time() -> None:
    """
    It is made when the skill is defined, once for all tasks of a process: an id that is drawn there would be the id of
    each of them, and another one after a worker was replaced.
    """

    class Draws(Reducer):
        @staticmethod
        def initial() -> Any:
            return Stamped(order="o-1")

        def on_event(self, state: Stamped, event: Event, ctx: Ctx) -> Transition:  # type: ignore[override]  # state
            return Transition.complete()

    def begin(ctx: Ctx, content: Content, order: Stamped) -> Transition:
        return ctx.complete()

    # Ruff knows the mistake too.
    def by_default(ctx: Ctx, content: Content, order: Stamped = Stamped(order="o-1")) -> Transition:  # noqa: B008
        return ctx.complete()

    fixed = Stamped(id="a", at=datetime(2026, 1, 1, tzinfo=UTC))

    def by_fixed(ctx: Ctx, content: Content, order: Stamped = fixed) -> Transition:
        return ctx.complete()

    drifts = (
        "differs in 'id', 'at' each time that it is made, as by a clock or a random number, but is made once for all "
        "tasks of a process; take what differs from task to task from ctx.now and ctx.task_id"
    )
    assert problem(lambda: skill_of(Draws)) == f"its initial state {drifts}, in on_event"
    assert problem(lambda: table("wrong", Step("begin", begin).start())) == (
        f"step 'begin': the first value of parameter 'order' {drifts}"
    )
    assert problem(lambda: table("wrong", Step("begin", by_default).start())) == (
        f"step 'begin': the default of parameter 'order' {drifts}"
    )
    assert table("right", Step("begin", by_fixed).start()).places() == ["begin"]


def test_naming_a_tool_is_not_calling_it() -> None:
    """
    `ctx.tool(function)` is how it should be.
    """
    assert table("right", START, Step("x", mentions_the_tool)).options.card.id == "right"


def test_a_step_is_a_method_with_self() -> None:
    """
    A static method as a step is named, not half understood.
    """

    class Static:
        @step(start=True)
        @staticmethod
        def begin(ctx: Ctx, content: Content) -> Transition:
            return ctx.complete()

    assert problem(lambda: skill_of(Static)).endswith("; a step is a plain function, or a method with `self`")


def test_all_problems_are_told_at_once() -> None:
    """
    Those of the declaration and those of each step, in one error that lists them.
    """

    def define() -> Any:
        @flow_skill(id="not an id!", input=Plain)
        class Wrong:
            @step(start=True)
            async def one(self, ctx: Ctx, topic: str) -> Transition:
                return ctx.goto("three")

            @step(start=True, name="two")
            async def other(self, ctx: Ctx, thing: Plain) -> Transition:
                return ctx.await_input("q", "?")

        return Wrong

    with pytest.raises(DefinitionError) as caught:
        define()

    assert len(caught.value.problems) == 7
    assert str(caught.value).startswith(
        "skill 'not an id!' cannot be defined:\n  - its id 'not an id!' may have letters"
    )
    assert str(caught.value).count("\n  - ") == 7


def test_a_subclass_writes_a_step_anew() -> None:
    """
    A step that is written anew is read anew, parameters and all, and is still the step it was.
    """

    @flow_skill(id="base")
    class Base:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.complete("base")

    @flow_skill(id="derived")
    class Derived(Base):
        async def begin(self, ctx: Ctx, words: list[str]) -> Transition:  # type: ignore[override]
            return ctx.complete(f"derived {words}")

    base, derived = ByHand(Base), ByHand(Derived)
    base.say()
    derived.say()

    assert (base.said, derived.said) == (["base"], ["derived []"])


def test_a_decorated_class_is_compiled_once() -> None:
    """
    `skill_of` finds what the decorator made; a subclass without one is its own skill.
    """

    @flow_skill(id="base")
    class Base(Reducer):
        pass

    class Derived(Base):
        pass

    assert skill_of(Base) is skill_of(Base)
    assert skill_of(Derived).options.card.id == "derived"


def test_a_card_is_filled_in_from_the_class() -> None:
    """
    Id and name from the class's name, description from its first paragraph, unless they are given.
    """

    class ResearchHTTPLoop(Reducer):
        """Reads
        the web.

        And more.
        """

    @flow_skill(id="x", name="X", description="Does x.", tags=["t"], examples=["e"])
    class Given(ResearchHTTPLoop):
        pass

    filled, given = skill_of(ResearchHTTPLoop).options.card, skill_of(Given).options.card
    described = table("t", START).options.card

    assert (filled.id, filled.name, filled.description) == ("research_http_loop", "ResearchHTTPLoop", "Reads the web.")
    assert (given.id, given.name, given.description, given.tags, given.examples) == (
        "x",
        "X",
        "Does x.",
        ("t",),
        ("e",),
    )
    assert (described.name, described.description) == ("t", "")


# --- tools


@pytest.mark.parametrize(
    ("define", "found"),
    [
        (
            lambda: tool(look_up),
            "a tool declares its effect: @tool(effect=...) with one of 'read_only', 'idempotent', 'at_least_once'",
        ),
        (lambda: tool()(lambda: None), "a tool declares its effect: @tool(effect=...) with one of 'read_only'"),
        (lambda: tool(effect="harmless")(lambda: None), "effect='harmless' is unknown; choose one of 'read_only'"),
        (lambda: tool(effect="read_only")(starred), "parameter 'rest' must be a plain one"),
        (lambda: tool(effect="read_only")(unannotated), "parameter 'ctx' needs an annotation"),
        (lambda: tool(effect="read_only")(pages), "it yields, so that a call of it does nothing yet"),
        (lambda: tool(effect="read_only")(pages_async), "it yields, so that a call of it does nothing yet"),
        (lambda: tool(effect="read_only")(partial(look_up, "x")), "functools.partial("),
        (lambda: tool(effect="read_only")(Reducer), "<class "),
        (lambda: tool(effect="read_only")(5), "5 is no function; write a `def` that calls it"),  # type: ignore[arg-type]  # a mistake
    ],
)
def test_a_tool_says_what_it_does_and_takes(define: Callable[[], Any], found: str) -> None:
    """
    The effect policy has no default, and the choices are listed; every parameter has a name and a type. A generator's
    body would run only while its result is written: outside its thread, its call and its time limit.
    """
    with pytest.raises(DefinitionError) as caught:
        define()

    assert caught.value.problems[0].startswith(found)
    assert str(caught.value).startswith("tool '")


def test_a_reducer_that_calls_a_tool_is_not_defined() -> None:
    """
    In on_event and in its helpers alike.
    """

    class Calls(Reducer):
        def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
            return self.helper()

        def helper(self) -> Transition:
            return Transition.complete().message(look_up(word="x"))

    assert problem(lambda: skill_of(Calls)).startswith("helper calls the tool 'look_up' directly; ask for it: ")


def test_a_tool_that_is_reached_otherwise_is_refused_when_it_is_called() -> None:
    """
    Through an attribute, a list or a closure: the task fails and says what to write.
    """
    tools = [look_up]

    class Calls(Reducer):
        def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
            return Transition.complete().message(tools[0]("x"))

    task = ByHand(Calls)
    task.say()

    assert task.reason.startswith("skill 'calls' called the tool 'look_up' directly; ask for it instead: ")


def test_a_skill_is_named_by_id_class_or_table() -> None:
    """
    `Cmd.skill` takes any of them, and nothing else.
    """

    @flow_skill(id="child")
    class Child(Reducer):
        pass

    assert [Cmd.skill("c", one, "hi").skill for one in ("child", Child, table("child", START))] == ["child"] * 3
    with pytest.raises(SkillError, match="is not a skill"):
        Cmd.skill("c", Reducer, "hi")


Kind = Annotated[
    Annotated[State, Field(description="plain")] | list[int],
    Field(description="either"),
]


def test_annotated_and_unhashable_types_are_fine() -> None:
    """
    States and parameters may be annotated in any way that pydantic takes.
    """

    class Annotations(Reducer):
        def on_event(self, state: Kind, event: Event, ctx: Ctx) -> Transition:
            return Transition.to([1, 2]).cmd(Cmd.llm("a"))

    def start(ctx: Ctx, words: Annotated[list[str], {"unhashable": []}], mode: Literal["a"] = "a") -> Transition:
        return ctx.complete(f"{words}{mode}")

    reducer, steps = ByHand(Annotations), ByHand(table("t", Step("start", start).start()))
    reducer.say()
    steps.say()

    assert (reducer.task.state, steps.said) == ([1, 2], ["[]a"])


# --- what is handed on


class Page:
    """Something else that one goes to."""

    def goto(self, address: str, **options: Any) -> None:
        """Do nothing."""


PAGE = Page()


def test_only_the_contexts_gotos_are_read() -> None:
    """
    A browser's page has a `goto`, too.
    """

    async def begin(ctx: Ctx, page: Page | None = None) -> Transition:
        PAGE.goto("https://example.org", wait=True)
        Page().goto("https://example.org")
        return ctx.goto("end")

    def end(context: Ctx) -> Transition:
        return context.goto("nowhere") if context.messages else Transition.goto("nor here")

    del begin.__annotations__["page"]
    begin.__annotations__["page"] = int | None

    assert problems(lambda: table("pages", Step("begin", begin).start(), Step("end", end))) == (
        "step 'end' goes to 'nowhere', which does not exist; the steps are: begin, end",
        "step 'end' goes to 'nor here', which does not exist; the steps are: begin, end",
    )


def test_an_annotated_content_is_the_message() -> None:
    """
    `Annotated[Content, ...]` says the same as `Content`.
    """

    def begin(ctx: Ctx, content: Annotated[Content, "what is asked"]) -> Transition:
        return ctx.complete(content.text)

    task = ByHand(table("annotated", Step("begin", begin).start()))
    task.say("hello")

    assert task.said == ["hello"]


def test_a_name_that_is_made_is_no_literal() -> None:
    """
    A text that is a part of a larger expression names no step and no question, and nothing is said of it.
    """
    which = {"a": "a", "b": "b"}

    def begin(ctx: Ctx, kind: str = "a", draft: int = 0) -> Transition:
        match draft:
            case 0:
                return ctx.goto("do_" + kind)
            case 1:
                return ctx.goto(f"do_{kind}", limit=1)
            case 2:
                return ctx.goto("do_%s" % kind)  # noqa: UP031 - people write it
            case 3:
                return ctx.goto("do_{}".format(kind))  # noqa: UP032 - people write it
            case 4:
                return ctx.goto({"a": "do_a", "b": "do_b"}[kind])
            case 5:
                return ctx.goto("_do_a"[draft - 4 :])
            case 6:
                return ctx.goto("do_" + (which["a"] if draft else kind))
            case 7:
                return ctx.goto("do_a" if kind == "a" else "do_b")
            case _:
                return ctx.await_input(f"size_{kind}", "Which size?")

    def do_a(ctx: Ctx, limit: int = 3) -> Transition:
        return ctx.complete("a")

    def answered(ctx: Ctx, size_a: str) -> Transition:
        return ctx.complete(size_a)

    asks = Step("answered", answered).resume_from("begin")
    task = ByHand(table("made", Step("begin", begin).start(), Step("do_a", do_a), Step("do_b", do_a), asks))
    task.say()

    assert task.said == ["a"]


def test_a_literal_in_a_finally_is_read() -> None:
    """
    Python compiles it twice.
    """

    def begin(ctx: Ctx) -> Transition:
        try:
            ctx.say("one")
        finally:
            return ctx.goto("nowhere")  # noqa: B012 - what the test is about

    assert "goes to 'nowhere', which does not exist" in problem(lambda: table("last", Step("begin", begin).start()))


def test_a_literal_below_its_receiver_is_read() -> None:
    """
    To Python, a call whose method stands on another line than its receiver begins at the method.
    """

    # fmt: off
    def begin(ctx: Ctx) -> Transition:
        return (
            ctx
            .goto("nowhere")
        )
    # fmt: on

    assert "goes to 'nowhere', which does not exist" in problem(lambda: table("below", Step("begin", begin).start()))


@pytest.mark.parametrize(
    "contract", [None, Contract(state=Shared, begins=lambda content, ctx: Shared())], ids=["alone", "contract"]
)
def test_a_question_is_met_by_a_step_that_takes_its_answer(contract: Contract | None) -> None:
    """
    A decision is no message, and brings no value of the slot's name; the task would fail once a person has decided.
    """

    def gate(ctx: Ctx) -> Transition:
        return ctx.await_approval("ok", "Pay?")

    def ask(ctx: Ctx) -> Transition:
        return ctx.await_input("size", message="Which size?")

    def takes_content(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(content.text)

    def takes_message(ctx: Ctx, said: UserMessage) -> Transition:
        return ctx.complete(said.content)

    def takes_decision(ctx: Ctx, decision: DecisionMade) -> Transition:
        return ctx.complete(decision.approver)

    def takes_slot(ctx: Ctx, ok: str) -> Transition:
        return ctx.complete(ok)

    def takes_either(ctx: Ctx, content: Content | None = None, decision: DecisionMade | None = None) -> Transition:
        return ctx.complete("fine")

    def made(asks: Callable[[Ctx], Transition], takes: Any) -> Any:
        steps = Step("asks", asks).start(), Step("meets", takes).resume_from("asks")
        return table("meets", *steps, contract=contract)

    decided = "step 'asks' asks 'ok', which a decision answers, and step 'meets' needs"
    way_out = "take `decision: DecisionMade` there"
    assert problem(lambda: made(gate, takes_content)) == f"{decided} content: Content; {way_out}"
    assert problem(lambda: made(gate, takes_message)) == f"{decided} said: UserMessage; {way_out}"
    if contract is None:
        assert problem(lambda: made(gate, takes_slot)) == (
            "step 'asks' asks 'ok' without ok: str, which step 'meets' needs: pass it on by keyword"
        )
    assert problem(lambda: made(ask, takes_decision)) == (
        "step 'asks' asks 'size', which a message answers, and step 'meets' needs decision: DecisionMade; take "
        "`content: Content` there"
    )
    for asks, takes in ((gate, takes_decision), (ask, takes_content), (ask, takes_message)):
        assert made(asks, takes)
    assert made(gate, takes_either)
    assert made(ask, takes_either)


def test_slot_and_message_may_be_given_by_name() -> None:
    """
    They are the question's own, and handed on to no step.
    """

    async def begin(ctx: Ctx) -> Transition:
        return ctx.await_input(message="Which size?", slot="size", draft=1)

    async def answered(ctx: Ctx, size: str, draft: int) -> Transition:
        return ctx.await_approval("ok", message=f"{size}, {draft}?", show=draft)

    async def decided(ctx: Ctx, decision: DecisionMade) -> Transition:
        return ctx.complete(decision.approver)

    def wrong(ctx: Ctx) -> Transition:
        return ctx.await_input("size", message="Which size?", drafts=1)

    after = Step("answered", answered).resume_from("begin")
    task = ByHand(table("named", Step("begin", begin).start(), after, Step("decided", decided).resume_from("answered")))
    task.say()
    task.say("XL")
    task.decide("ok")

    assert task.said == ["Which size?", "XL, 1?", "Ann"]
    assert problems(lambda: table("wrong", Step("begin", wrong).start(), after)) == (
        "step 'begin' asks 'size' with drafts, which step 'answered' does not take; it takes: size, draft",
    )


def test_what_a_goto_hands_on_is_checked_where_it_is_literal() -> None:
    """
    Names that the step does not take, and parameters that nothing gives; however the values are made.
    """
    values: dict[str, Any] = {}

    async def begin(ctx: Ctx, draft: int = 0) -> Transition:
        match draft:
            case 0:
                return ctx.goto("end", name=str(len(f"{draft}, {max(1, draft)}")), nam=1)
            case 1:
                return ctx.goto("end", limit=3)
            case 2:
                return ctx.goto("end", **values)
            case 3:
                return ctx.goto("end", name="" if draft else "x")
            case 4:
                return ctx.goto("end", limit=1).cmd(Cmd.llm("name"))
            case 5:
                return ctx.goto("end", name=await ctx.llm("a"), limit=2)
            case 6:
                return ctx.goto("end", name="x").message("said")
            case _:
                return Transition.goto("end", surplus=sorted(values), name="x")

    def end(ctx: Ctx, name: str, limit: int = 3) -> Transition:
        return ctx.complete(name)

    assert problems(lambda: table("hands", Step("begin", begin).start(), Step("end", end))) == (
        "step 'begin' goes to 'end' with nam, which step 'end' does not take; it takes: name, limit",
        "step 'begin' goes to 'end' without name: str, which step 'end' needs: pass it on by keyword",
        "step 'begin' goes to 'end' with surplus, which step 'end' does not take; it takes: name, limit",
    )


def test_what_a_question_carries_is_checked_where_it_is_literal() -> None:
    """
    The step that gets the answer takes what is carried, and needs no more.
    """

    def begin(ctx: Ctx, draft: int = 0) -> Transition:
        if draft:
            return ctx.await_approval("ok", "?", show=1, policy=None, editable=(), draft=draft)
        return ctx.await_input("size", "?", expect=None, timeout_s=5, drafts=draft)

    def answered(ctx: Ctx, draft: int, size: int, content: Content | None = None) -> Transition:
        return ctx.complete()

    asks = Step("begin", begin).start()
    assert problems(lambda: table("asks", asks, Step("answered", answered).resume_from("begin"))) == (
        "step 'begin' asks 'size' with drafts, which step 'answered' does not take; it takes: draft, size, content",
        "step 'begin' asks 'ok' without size: int, which step 'answered' needs: pass it on by keyword",
    )


def test_a_misspelt_option_is_found() -> None:
    """
    With the options that there are.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.complete()

    said = problem(lambda: table("misspelt", Step("begin", begin).start(), descripton="x"))  # type: ignore[call-arg]

    assert said.startswith("it takes no option descripton; the options are: id, name, description, tags,")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"retry": {"max_retries": 5}}, "it is a policy, for example retry=RetryPolicy(max_retries=5)"),
        ({"upgrade": "to_next"}, "it is a function, upgrade(version, state)"),
        ({"version": "2"}, "it is a whole number; raise it by one when the saved state's shape changes"),
        ({"version": True}, "it is a whole number; raise it by one when the saved state's shape changes"),
        ({"seal_at_pause": "no"}, "it is True or False"),
        ({"contract": "rules"}, "it is a contract, contract=Contract(state=...)"),
        ({"tags": "finance"}, 'it is a list of texts; write tags=["..."]'),
        ({"examples": [1]}, 'it is a list of texts; write examples=["..."]'),
        ({"description": 5}, "it is a text"),
    ],
)
def test_an_option_of_another_kind_is_found(options: dict[str, Any], why: str) -> None:
    """
    Where the skill is defined, and not in the task that first needs it.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.complete()

    [(name, value)] = options.items()
    said = problem(lambda: table("unfit", Step("begin", begin).start(), **options))

    assert said == f"{name}={value!r} ({type(value).__name__}): {why}"


@pytest.mark.parametrize("name", ["Expense", "workflows.expense:Expense", "exit()"])
def test_the_name_of_a_type_is_no_type(name: str) -> None:
    """
    It would let any data in, unchecked; and pydantic would evaluate it.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.complete()

    said = problem(lambda: table("unfit", Step("begin", begin).start(), input=name))

    assert said == f"input={name!r} is not a type that pydantic knows: {name!r} is a text; give the type itself"


def test_what_is_no_id_no_class_and_no_step_is_found() -> None:
    """
    Each is named.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.complete()

    start = Step("begin", begin).start()

    assert problem(lambda: table(3, start)) == "id=3: it is a text"  # type: ignore[arg-type]
    assert problem(lambda: table("odd", start, "end")) == (  # type: ignore[arg-type]
        "'end' (str) is no step; write Step(name, function)"
    )
    assert problem(lambda: flow_skill(id="odd")(begin)) == (  # type: ignore[type-var]
        "it is no class; functions become a skill by `table`"
    )
    assert problem(lambda: tool(effect="read_only", timeout_s="10")(look_up)).startswith(  # type: ignore[arg-type]  # a mistake
        "timeout_s='10' must be a number of seconds"
    )
