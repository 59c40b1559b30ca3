"""Contracts: what steps may read and write of a shared state, and what happens where they do otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from typing import Any, cast

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator
from typing_extensions import TypedDict

from refold import (
    ALL,
    AdapterError,
    Artifact,
    CommandError,
    Content,
    Contract,
    Ctx,
    DefinitionError,
    ErrorRecord,
    Fallback,
    Invariant,
    Move,
    Requirement,
    StatePatch,
    StateTransitionEvent,
    Step,
    Transition,
    UnauthorizedReadError,
    UnauthorizedWriteError,
    adapt,
    flow_skill,
    skill_of,
    step,
    table,
)
from refold.core.authoring.cmd import Cmd
from refold.core.fold.apply import advance
from refold.lineage.recover import recover
from refold.record import explain
from refold.testing import Played, fails, laws_of, permanent, play, reply, user
from tests.core.byhand import ByHand
from tests.sweeps import examples


class Plan(BaseModel):
    """What the model is asked for."""

    model_config = ConfigDict(frozen=True)

    goal: str
    parts: list[str] = []


class Work(BaseModel):
    """What the steps share."""

    model_config = ConfigDict(frozen=True)

    phase: str = "new"
    topic: str
    rounds: int = Field(default=0, ge=0)
    plan: Plan | None = None
    text: str = ""
    trouble: ErrorRecord | None = None
    strict: bool = True

    @property
    def headline(self) -> str:
        return f"{self.topic}: {self.text}"

    @cached_property
    def initial(self) -> str:
        return self.topic[:1]


def begun(content: Content, ctx: Ctx) -> Work:
    if content.text == "nonsense":
        raise ValueError("nobody can work on nonsense")
    return Work(topic=content.text, strict=not content.text.endswith("(lenient)"))


WORK = Contract(
    state=Work,
    begins=begun,
    owned=["topic", "rounds", "strict"],
    lifecycle="phase",
    moves=[
        Move("new", "planning"),
        Move("planning", "writing"),
        Move("writing", "planning", then=lambda work: StatePatch(rounds=work.rounds + 1, plan=None)),
        Move("writing", "done"),
        Move("planning", "failed"),
        Move("writing", "failed"),
    ],
    invariants=[
        Invariant("topic", "there is a topic", lambda work: bool(work.topic)),
        Invariant("plan", "who writes has a plan", lambda work: work.plan is not None, at="writing"),
        Invariant("rounds", "rounds never go back", keeps=lambda before, work: work.rounds >= before.rounds),
    ],
)


START, ITSELF, MISSPELT = "start", "plan", "wrte"
"""By name, so that the definition cannot see where the step leads."""


def nothing() -> StatePatch:
    return StatePatch()


def completed() -> Transition:
    return Transition.complete()


def writer(
    plans: Callable[..., Any] | None = None,
    body: Callable[..., Any] | None = None,
    contract: Contract = WORK,
    **of_writes: Any,
) -> Any:
    """A skill that plans and writes; the bodies of its steps are the test's."""

    async def plan_usually(ctx: Ctx, state: Work) -> Any:
        return StatePatch(plan=await ctx.llm("plan", "Plan.", state.topic, expect=Plan))

    async def write_usually(ctx: Ctx, state: Work) -> Any:
        assert state.plan is not None
        return ctx.complete("Done.").patch(text=state.plan.goal)

    def handle(error: ErrorRecord) -> StatePatch:
        return StatePatch(trouble=error)

    terms: dict[str, Any] = {"reads": ["topic", "plan", "rounds"], "writes": ["text"], "requires": ["plan"]}
    return table(
        "writer",
        Step("start", nothing, enters="new").start(),
        Step("plan", plans or plan_usually, enters="planning", reads=["topic", "rounds"], writes=["plan"]),
        Step("write", body or write_usually, **{"enters": "writing", **terms, **of_writes}),
        Step("handle", handle, on_error=True, reads=ALL, writes=["trouble"]),
        contract=contract,
    )


PLAN = {"goal": "a poem"}


def audit(story: Played) -> list[StateTransitionEvent]:
    return [event for entry in story.entries for event in entry.audit]


def found(story: Played, stage: str) -> ErrorRecord:
    """What the audit holds against a step."""
    return next(event.err for event in audit(story) if event.stage == stage and event.err is not None)


def state(story: Played) -> Work:
    snapshot: Any = story.snapshot.state
    return Work.model_validate(snapshot["state"])


# --- what a step sees


def test_a_step_sees_what_it_reads_and_writes_what_it_returns() -> None:
    """
    A table's steps share the state; a patch alone goes on by the only way there is.
    """
    story = play(writer(), "Tides", reply("plan", PLAN))

    assert (story.status, story.said) == ("completed", ("Done.",))
    assert state(story) == Work(phase="done", topic="Tides", plan=Plan(goal="a poem"), text="a poem")
    assert [(event.stage, event.from_state, event.to_state) for event in audit(story)] == [
        ("orchestrator", "", "new"),
        ("start", "new", "planning"),
        ("plan", "planning", "writing"),
        ("write", "writing", "done"),
    ]


@pytest.mark.parametrize(
    "reads",
    [
        pytest.param(lambda work: work.text, id="field"),
        pytest.param(lambda work: work.headline, id="property-that-reads-it"),
        pytest.param(lambda work: hasattr(work, "text"), id="hasattr"),
        pytest.param(lambda work: getattr(work, "text", ""), id="getattr-with-default"),
        pytest.param(lambda work: work.model_copy().text, id="copy"),
    ],
)
def test_there_is_no_way_around_a_view(reads: Callable[[Work], Any]) -> None:
    """
    A field that is not declared is not there: the error says which ones are.
    """
    caught: list[Exception] = []

    def plans(state: Work) -> StatePatch:
        try:
            reads(state)
        except UnauthorizedReadError as error:
            caught.append(error)
            raise
        return StatePatch(plan=Plan(goal="x"))

    story = play(writer(plans), "Tides")

    assert story.status == "failed"
    assert caught
    assert "field 'text': reads only what it declares" in story.reason
    assert "expected one of: topic, rounds; got text" in story.reason


def test_what_a_model_works_out_once_is_no_change() -> None:
    """
    Its own methods and properties work on a view, those that remember their value too.
    """

    def plans(state: Work) -> StatePatch:
        return StatePatch(plan=Plan(goal=state.initial + state.initial))

    assert state(play(writer(plans), "Tides")).text == "TT"


def test_a_view_dumps_what_may_be_read() -> None:
    """
    Whatever shows a whole model shows the declared fields alone.
    """
    dumped: list[Any] = []

    def plans(state: Work) -> StatePatch:
        dumped.extend([state.model_dump(), dict(state), repr(state), isinstance(state, Work)])
        return StatePatch(plan=Plan(goal="x"))

    play(writer(plans), "Tides")

    assert dumped == [
        {"topic": "Tides", "rounds": 0},
        {"topic": "Tides", "rounds": 0},
        "Work(topic='Tides', rounds=0)",
        True,
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        pytest.param(lambda work: setattr(work, "topic", "Ebbs"), "topic", id="assigned"),
        pytest.param(lambda work: delattr(work, "topic"), "topic", id="deleted"),
        pytest.param(lambda work: work.__dict__.update(topic="Ebbs"), "topic", id="behind-its-back"),
        pytest.param(lambda work: work.plan.parts.append("more"), "plan", id="nested-list"),
    ],
)
def test_the_state_is_frozen(change: Callable[[Any], Any], field: str) -> None:
    """
    A change in place stops the task, however deep; nothing of it is kept.
    """

    def writes(state: Work) -> Transition:
        change(state)
        return Transition.complete().patch(text="x")

    story = play(writer(body=writes), "Tides", reply("plan", PLAN))

    assert story.status == "failed"
    assert found(story, "write").type == "UnauthorizedWriteError"
    assert found(story, "write").field == field
    assert f"return StatePatch({field}=...)" in story.reason
    after = state(story)
    assert (after.topic, after.plan, after.text) == ("Tides", Plan(goal="a poem"), "")


def test_a_breach_that_a_step_swallows_stops_it_before_it_asks_again() -> None:
    """
    Nothing that it asks for afterwards is started.
    """

    async def plans(ctx: Ctx, state: Work) -> StatePatch:
        with suppress(UnauthorizedWriteError):
            state.topic = "Ebbs"  # type: ignore[misc]  # the point
        return StatePatch(plan=await ctx.llm("plan", expect=Plan))

    story = play(writer(plans), "Tides")

    assert story.status == "failed"
    assert story.asked == ()


# --- what a step writes


@pytest.mark.parametrize(
    ("patch", "type", "said"),
    [
        pytest.param({"text": "x"}, "UnauthorizedWriteError", "writes only what it declares", id="undeclared"),
        pytest.param({"rounds": 1}, "UnauthorizedWriteError", "the orchestrator alone writes it", id="owned"),
        pytest.param({"rest": 1}, "UnauthorizedWriteError", "the state has no such field", id="unknown"),
        pytest.param({"plan": {"goal": "x"}}, "PatchError", "must fit Work", id="data-for-a-model"),
        pytest.param({"plan": Plan.model_construct(goal=cast("str", 3))}, "PatchError", "must fit Work", id="misfit"),
        pytest.param({"plan": None}, "InvariantError", "who writes has a plan", id="invariant"),
    ],
)
def test_what_may_not_be_written_is_not_merged(patch: dict[str, Any], type: str, said: str) -> None:
    """
    Nor is anything else of the patch; the handler's own patch is.
    """
    story = play(writer(lambda: StatePatch(**{"plan": Plan(goal="x"), **patch})), "Tides")

    assert found(story, "plan").type == type
    assert said in story.reason
    assert state(story).plan is None
    assert state(story).trouble == found(story, "plan")
    assert state(story).phase == "failed"


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        pytest.param(lambda: Transition.goto(START), "there is no move from planning to new", id="no-move"),
        pytest.param(lambda: Transition.goto(ITSELF), "there is no move from planning to planning", id="to-itself"),
        pytest.param(completed, "ends where it declares", id="no-end-from-here"),
        pytest.param(
            lambda: Transition.goto("write").patch(plan=Plan(goal="x"), phase="done"),
            "writes only what it declares",
            id="lifecycle-undeclared",
        ),
        pytest.param(lambda: Transition.goto("write", plan=1), "hands arguments on", id="arguments"),
        pytest.param(lambda: Transition.goto(MISSPELT), "goes to 'wrte', which does not exist", id="misspelt"),
        pytest.param(lambda: 7, "a step of a contract returns a `StatePatch(...)` or a transition", id="no-transition"),
    ],
)
def test_a_way_on_that_is_none(outcome: Callable[[], Any], said: str) -> None:
    """
    The task fails, and says which move was wrong.
    """
    story = play(writer(outcome), "Tides")

    assert story.status == "failed"
    assert said in story.reason
    assert state(story).plan is None


def test_a_patch_and_the_way_on_agree() -> None:
    """
    A step that may write the lifecycle says there what `next` says.
    """
    skill = writer(None, lambda: StatePatch(phase="done"), writes=["phase"], next=lambda _: "planning")
    story = play(skill, "Tides", reply("plan", PLAN))

    assert found(story, "write").type == "IllegalMoveError"
    assert "the patch and the way on agree (expected planning; got done)" in story.reason


def test_next_decides_by_what_the_step_may_see() -> None:
    """
    It sees what the step reads and writes, as the step leaves it.
    """
    rounds = writer(body=lambda: StatePatch(text="x"), next=lambda seen: "done" if seen.rounds else "planning")
    story = play(rounds, "Tides", reply("plan", PLAN), reply("plan", PLAN))
    prying = play(
        writer(body=lambda: StatePatch(text="x"), next=lambda seen: seen.trouble), "Tides", reply("plan", PLAN)
    )

    assert (story.status, state(story).rounds) == ("completed", 1)
    assert found(prying, "write").type == "UnauthorizedReadError"


@pytest.mark.parametrize("where", ["nowhere", "new", "failed", "writing"])
def test_a_dead_end_fails_with_a_record(where: str) -> None:
    """
    `next` names no state, or one that no legal move leads to.
    """
    story = play(writer(body=lambda: StatePatch(text="x"), next=lambda _: where), "Tides", reply("plan", PLAN))

    assert found(story, "write").type == "IllegalMoveError"
    assert state(story).phase == "failed"
    assert state(story).text == ""


# --- before a step


def test_what_a_step_requires_is_checked_before_it_is_executed() -> None:
    """
    It is not executed, and the requirement is named.
    """
    ran: list[int] = []
    long = Requirement("plan", "the plan has a goal of some length", lambda seen: len(seen.plan.goal) > 3)
    story = play(writer(body=lambda: ran.append(1), requires=["plan", long]), "Tides", reply("plan", {"goal": "x"}))

    assert ran == []
    assert found(story, "write").type == "RequirementError"
    assert "field 'plan': the plan has a goal of some length (got Plan(goal='x', parts=[]))" in story.reason


def test_a_requirement_sees_what_the_step_sees() -> None:
    """
    One that reads another field is a breach, too.
    """
    prying = Requirement("topic", "no trouble so far", lambda seen: seen.trouble is None)
    story = play(writer(requires=[prying]), "Tides", reply("plan", PLAN))

    assert (found(story, "write").type, found(story, "write").field) == ("UnauthorizedReadError", "trouble")


@pytest.mark.parametrize(
    ("text", "said"),
    [("nonsense", "nobody can work on nonsense"), ("", "there is a topic")],
)
def test_a_task_that_cannot_begin_is_rejected(text: str, said: str) -> None:
    """
    What the first state breaks is told to whoever started the task.
    """
    story = play(writer(), user(Content.from_text(text)))

    assert story.status == "rejected"
    assert said in story.reason


def test_a_check_that_fails_is_a_broken_rule() -> None:
    """
    An invariant with a bug stops the task with its own name.
    """
    buggy = replace(WORK, invariants=[Invariant("text", "text is short", lambda work: bool(1 / 0), at="writing")])
    story = play(writer(contract=buggy), "Tides", reply("plan", PLAN))

    assert "text is short (got its check failed with ZeroDivisionError: division by zero)" in story.reason


# --- failures


def test_a_bug_is_audited_and_handled() -> None:
    """
    The reason says that it is a bug; the state says what and where.
    """
    story = play(writer(body=lambda: 1 / 0), "Tides", reply("plan", PLAN))

    assert story.reason == "bug: ZeroDivisionError: division by zero"
    assert "at tests.core.contracts.test_contracts in <lambda>" in story.entries[-1].note
    trouble = state(story).trouble
    assert trouble is not None
    assert (trouble.type, trouble.stage, trouble.lifecycle) == ("ZeroDivisionError", "write", "writing")


def test_a_command_that_fails_is_handled() -> None:
    """
    The failure's own short name is the record's type.
    """
    story = play(writer(), "Tides", fails("plan", permanent("no such account", type="http_401")))

    assert (found(story, "plan").type, story.reason) == ("http_401", "plan: no such account")
    assert state(story).phase == "failed"


def test_what_a_failing_step_and_its_handler_say_is_said() -> None:
    """
    What the step said and handed over before it raised the failure again comes first, as without a contract.
    """

    @flow_skill(contract=WORK)
    class Sorry:
        @step(start=True, enters="new")
        def begin(self, ctx: Ctx) -> Transition:
            return ctx.goto("plan").message("I begin.")

        @step(enters="planning", reads=["topic"], writes=["plan"])
        async def plan(self, ctx: Ctx, state: Work) -> StatePatch:
            try:
                return StatePatch(plan=await ctx.llm("plan", "Plan.", state.topic, expect=Plan))
            except CommandError:
                ctx.say("There is no plan.")
                ctx.hand_over(Artifact.from_text("log", "what was tried"))
                raise

        @step(enters="writing")
        def write(self) -> StatePatch:
            return StatePatch()

        @step(on_error=True, writes=["trouble"])
        def handle(self, ctx: Ctx, error: ErrorRecord) -> StatePatch:
            ctx.say(f"Sorry: {error.type}.")
            ctx.hand_over(Artifact.from_text("record", error.message))
            ctx.status("gave up")
            return StatePatch(trouble=error)

    story = play(Sorry, "Tides", fails("plan", permanent("no such account", type="http_401")))

    assert (story.said, story.reason) == (
        ("I begin.", "There is no plan.", "Sorry: http_401."),
        "plan: no such account",
    )
    assert [one.name for one in story.snapshot.artifacts] == ["log", "record"]
    assert story.snapshot.progress == "gave up"


async def rejects_late(ctx: Ctx, state: Work) -> Transition:
    return ctx.reject("too late")


async def ends_and_asks(ctx: Ctx, state: Work) -> Transition:
    return ctx.complete("Done.").patch(text="x").cmd(Cmd.llm("title"))


async def fails_and_asks(ctx: Ctx, state: Work) -> Transition:
    return ctx.fail("no words").cmd(Cmd.llm("title"))


async def asks_twice_in_one_thread(ctx: Ctx, state: Work) -> Transition:
    await ctx.gather(ctx.chat("one", "Hi."), ctx.chat("two", "Hi."))
    return ctx.complete()


@pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rejects_late, "a skill rejects a task in answer to its first message only"),
        (ends_and_asks, "the task ends, and asks for 'title' all the same"),
        (fails_and_asks, "the task ends, and asks for 'title' all the same"),
        (asks_twice_in_one_thread, "chat 'two' goes on with thread 'main' while 'one' waits"),
    ],
)
def test_what_is_refused_of_a_transition_is_a_failure_of_its_step(body: Any, reason: str, cut: bool) -> None:
    """
    The handler gets it, and the audit has it once; a task of an earlier release fails with neither.
    """
    task, old = ByHand(writer(body=body), cut=cut), ByHand(writer(body=body), cut=cut, patched=lambda _: False)
    for one in (task, old):
        one.say("Tides")
        one.give("plan", PLAN)

    assert task.reason.startswith(reason)
    assert old.reason.startswith(reason)
    assert [(event.stage, event.err is None) for event in task.journal[-1].audit] == [
        ("plan", True),
        ("write", False),
        ("handle", True),
    ]
    assert old.journal[-1].audit == ()
    after = Work.model_validate(cast("Any", task.task.state)["state"])
    assert after.trouble == next(event.err for event in task.journal[-1].audit if event.stage == "write")
    assert (after.phase, after.text) == ("failed", "")
    assert (task.folded(), old.folded()) == (task.task, old.task)


def test_a_handler_that_fails_hides_nothing() -> None:
    """
    The task fails for what it was called for; the audit holds both.
    """

    @flow_skill(contract=WORK)
    class Clumsy:
        @step(start=True, enters="new")
        def begin(self) -> StatePatch:
            return StatePatch()

        @step(enters="planning")
        def plan(self) -> StatePatch:
            raise LookupError("no plan")

        @step(enters="writing")
        def write(self) -> StatePatch:
            return StatePatch()

        @step(on_error=True, writes=["trouble"])
        def handle(self, ctx: Ctx) -> StatePatch:
            ctx.say("This is not said.")
            return StatePatch(text="oops")

    story = play(Clumsy, "Tides")

    assert story.reason == "bug: LookupError: no plan"
    assert (found(story, "handle").type, story.said) == ("UnauthorizedWriteError", ())
    assert state(story).phase == "planning"


def test_a_step_that_changes_a_list_in_place_and_then_fails() -> None:
    """
    The handler gets the state as the step found it, is not blamed, and its patch is kept.
    """

    def writes(state: Work) -> StatePatch:
        assert state.plan is not None
        state.plan.parts.append("half done")
        raise LookupError("no words")

    story = play(writer(body=writes), "Tides", reply("plan", PLAN))
    after = state(story)

    assert story.reason == "bug: LookupError: no words"
    assert [event.stage for event in audit(story) if event.err] == ["write"]
    assert (after.phase, after.plan, after.trouble) == ("failed", Plan(goal="a poem"), found(story, "write"))


def test_a_change_in_place_that_cannot_be_saved_is_a_change_in_place() -> None:
    """
    Whatever a step puts into a list of the state, the error says that the state is frozen.
    """

    def writes(state: Work) -> StatePatch:
        assert state.plan is not None
        state.plan.parts.append(cast("str", object()))
        return StatePatch(text="x")

    story = play(writer(body=writes, next=lambda _: "done"), "Tides", reply("plan", PLAN))

    assert (found(story, "write").type, found(story, "write").field) == ("UnauthorizedWriteError", "plan")


def test_a_call_that_is_never_awaited_leaves_the_state_as_it_was() -> None:
    """
    It is found before anything is merged.
    """

    def plans(ctx: Ctx, state: Work) -> StatePatch:
        _ = ctx.llm("plan", "Plan.")
        return StatePatch(plan=Plan(goal="x"))

    story = play(writer(plans), "Tides")

    assert "made the call 'plan' and never awaited it" in story.reason
    assert [event.err is None for event in audit(story) if event.stage == "plan"] == [False]
    assert state(story).plan is None


class Page(BaseModel):
    """The state of a skill without moves."""

    model_config = ConfigDict(frozen=True)

    count: int = 0
    trouble: ErrorRecord | None = None


NOWHERE = "nowhere"


def asks(**more: Any) -> Transition:
    return Transition.await_input("mood", "How are you?", **more)


def goes_to(name: str) -> Transition:
    return Transition.goto(name)


def hears(ctx: Ctx, mood: str) -> Transition:
    return ctx.complete()


def hears_from(ctx: Ctx, mood: str, by: str) -> Transition:
    return ctx.complete()


def gives_up(error: ErrorRecord) -> StatePatch:
    return StatePatch(trouble=error)


def leaving(outcome: Callable[[], Any], *more: Step, **terms: Any) -> Any:
    """A skill whose first step counts, and leaves with this outcome."""
    return table(
        "leaving",
        Step("begin", outcome, reads=["count"], writes=["count"], **terms).start(),
        *more,
        Step("handle", gives_up, on_error=True, writes=["trouble"]),
        contract=Contract(state=Page, begins=lambda content, ctx: Page()),
    )


WAYS_OUT: list[tuple[str, Any, str]] = [
    ("next", leaving(lambda: StatePatch(count=1), next=lambda _: NOWHERE), "goes to 'nowhere', which does not exist"),
    ("nobody", leaving(lambda: asks().patch(count=1)), "awaits input, but no step says resume_from='begin'"),
    (
        "unfit",
        leaving(lambda: asks().patch(count=1), Step("heard", hears_from).resume_from("begin")),
        "step 'heard' needs by: str, and nothing will give it",
    ),
    (
        "late",
        leaving(lambda: asks(timeout_s=5).patch(count=1), Step("heard", hears).resume_from("begin")),
        "'mood' may time out, and step 'heard', which receives the answer, needs mood: str",
    ),
    (
        "fed",
        leaving(lambda: goes_to("more").cmd(Cmd.llm("x")).patch(count=1), Step("more", completed)),
        "step 'more' has no parameter 'x'",
    ),
]


@pytest.mark.parametrize(("skill", "said"), [pytest.param(*rest, id=id) for id, *rest in WAYS_OUT])
def test_a_step_that_fails_in_its_way_out_leaves_nothing_half_done(skill: Any, said: str) -> None:
    """
    Its patch is not kept, the audit has the failure alone, and the handler's patch is kept.
    """
    story = play(skill, "go")
    after = Page.model_validate(cast("Any", story.snapshot.state)["state"])

    assert said in story.reason
    assert [(one.stage, set(one.patch), one.err is None) for one in audit(story)] == [
        ("orchestrator", set(), True),
        ("begin", set(), False),
        ("handle", {"trouble"}, True),
    ]
    assert (after.count, after.trouble) == (0, found(story, "begin"))


def test_a_task_of_an_earlier_release_keeps_the_patch_of_a_step_that_failed_in_its_way_out() -> None:
    """
    Its journal says so, and its history has no marker.
    """
    task = ByHand(WAYS_OUT[0][1], patched=lambda _: False)
    entry = task.say()

    assert [one.patch for one in entry.audit if one.stage == "begin"] == [{"count": 1}, {}]
    assert cast("Any", task.task.state)["state"]["count"] == 1
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


def feeding() -> Any:
    """A skill whose second step gets the result of a command that the first one's goto waits for."""
    second = Step("second", hears, reads=["count"])
    return leaving(lambda: goes_to("second").cmd(Cmd.llm("mood")).patch(count=1), second)


def test_a_command_that_a_goto_waits_for_fails_the_step_that_gets_its_result() -> None:
    """
    The failure is audited and handled like that of a command that the step awaits.
    """
    story = play(feeding(), "go", fails("mood", permanent("no mood")))
    after = Page.model_validate(cast("Any", story.snapshot.state)["state"])

    assert story.reason == "mood: no mood"
    assert [(one.stage, one.awaited, one.err is None) for one in audit(story)][1:] == [
        ("begin", (), True),
        ("second", ("T/1.1",), False),
        ("handle", (), True),
    ]
    assert (after.count, after.trouble) == (1, found(story, "second"))
    assert skill_of(feeding()).where(story.snapshot.state) == "second"


def test_a_task_of_an_earlier_release_does_not_handle_the_failure_of_a_command_that_a_goto_waits_for() -> None:
    """
    Its journal says so, and its history has no marker.
    """
    task = ByHand(feeding(), patched=lambda _: False)
    task.say()
    entry = task.fail("mood")

    assert (task.status, entry.audit) == ("failed", ())
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


class Grows(BaseModel):
    """Its notes are not written as they were read."""

    model_config = ConfigDict(frozen=True)

    notes: list[str] = []

    @field_validator("notes")
    @classmethod
    def _numbered(cls, notes: list[str]) -> list[str]:
        return [f"{number} {note}" for number, note in enumerate(notes)]


class Address(TypedDict):
    town: str


def test_a_step_may_take_a_typed_dict() -> None:
    """
    Which is no class that a state can be an instance of.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.await_input("address", "Where?")

    def end(ctx: Ctx, address: Address) -> Transition:
        return ctx.complete(address["town"])

    skill = table(
        "moves_house",
        Step("begin", begin).start(),
        Step("end", end).resume_from("begin"),
        contract=Contract(state=Grows, begins=lambda content, ctx: Grows()),
    )

    assert play(skill, "go", user({"town": "Bonn"})).said[-1] == "Bonn"


def test_what_the_validators_of_a_state_do_is_no_change_in_place() -> None:
    """
    Nobody is blamed for a type that writes something else than it has read.
    """
    contract = Contract(
        state=Grows,
        begins=lambda content, ctx: Grows(notes=[content.text]),
        invariants=[Invariant("notes", "there are notes", lambda grows: bool(grows.notes))],
    )

    def begin(ctx: Ctx, state: Grows) -> Transition:
        return ctx.complete(state.notes[0])

    story = play(table("grows", Step("begin", begin, reads=ALL).start(), contract=contract), "a")

    assert (story.status, story.said) == ("completed", ("0 0 a",))


def test_better_code_recovers_what_a_breach_stopped() -> None:
    """
    The model is not asked again: the step goes on with the answer that it had.
    """

    async def plans(ctx: Ctx, state: Work) -> StatePatch:
        plan = await ctx.llm("plan", expect=Plan)
        return StatePatch(plan=plan, text="x")

    async def better(ctx: Ctx, state: Work) -> StatePatch:
        return StatePatch(plan=await ctx.llm("plan", expect=Plan))

    story = play(writer(plans), "Tides", reply("plan", PLAN))
    assert story.status == "failed"
    skill = writer(better)
    base, again = recover(skill, story.snapshots[0], story.entries, "U", story.snapshot.at)
    after, entry = advance(skill, base, again, story.snapshot.at)

    assert after.status == "completed"
    assert entry.commands == ()
    assert [event.stage for event in entry.audit] == ["plan", "write"]


# --- opting out


def test_a_step_may_be_freed_from_the_moves_and_the_journal_says_so() -> None:
    """
    Permissions, invariants and the orchestrator's fields hold all the same.
    """
    jump: dict[str, Any] = {"enforce_moves": False, "requires": []}
    free = play(writer(body=lambda: Transition.goto("start"), **jump), "Tides", reply("plan", PLAN), unfinished=True)
    astray = play(
        writer(body=lambda: StatePatch(topic="x"), next=lambda _: "new", **jump), "Tides", reply("plan", PLAN)
    )

    moved = next(event for event in audit(free) if event.stage == "write")
    assert (moved.from_state, moved.to_state, moved.free) == ("writing", "new", True)
    assert found(astray, "write").type == "UnauthorizedWriteError"


class Door(BaseModel):
    """What a door is, and how often it was closed."""

    model_config = ConfigDict(frozen=True)

    at: str = "open"
    closed: int = 0


DOOR = Contract(
    state=Door,
    begins=lambda content, ctx: Door(),
    owned=["closed"],
    lifecycle="at",
    moves=[
        Move("open", "closed", then=lambda door: StatePatch(closed=door.closed + 1)),
        Move("closed", "locked"),
        Move("open", "failed"),
    ],
)


def waiting(ctx: Ctx) -> Transition:
    return ctx.await_input("next", "And now?")


def door(to: str) -> Any:
    """A step sets the field of the lifecycle, and goes to a freed step that runs in any state."""
    return table(
        "door",
        Step("begin", lambda: Transition.goto("look").patch(at=to), enters="open", writes=["at"]).start(),
        Step("look", waiting, enforce_moves=False),
        Step("heard", lambda: Transition.goto("lock"), enforce_moves=False).resume_from("look"),
        Step("lock", completed, enters="closed"),
        contract=DOOR,
    )


def test_a_move_by_the_patch_alone_is_a_move_like_any_other() -> None:
    """
    Where the next step runs in any state, the patch says the state: the move must be legal, its `then` is applied, and
    the audit has it. The state at hand is no move.
    """
    legal = play(door("closed"), "x", unfinished=True)
    illegal = play(door("locked"), "x", unfinished=True)
    none = play(door("open"), "x", unfinished=True)

    moved = next(event for event in audit(legal) if event.stage == "begin")
    assert (moved.from_state, moved.to_state) == ("open", "closed")
    assert cast("Any", legal.snapshot.state)["state"] == {"at": "closed", "closed": 1}
    assert found(illegal, "begin").type == "IllegalMoveError"
    assert "there is no move from open to locked" in illegal.reason
    assert cast("Any", none.snapshot.state)["state"] == {"at": "open", "closed": 0}
    assert [entry.patches for entry in none.entries] == [{}]


def test_a_task_of_an_earlier_release_keeps_a_move_that_was_not_checked() -> None:
    """
    Its journal says so, and its history has no marker.
    """
    task = ByHand(skill_of(door("locked")), patched=lambda _: False)
    entry = task.say()

    (moved,) = [event for event in entry.audit if event.stage == "begin"]
    assert (moved.from_state, moved.to_state) == ("open", "open")
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


# --- stages that hand their output on


async def plan_as_before(ctx: Ctx, output: dict[str, Any]) -> dict[str, Any]:
    """A stage of old: gets the output of the one before, returns its own."""
    goal = await ctx.llm("goal", "What is the goal?", output["topic"])
    return {"goal": goal} if goal else {}


async def write_as_before(ctx: Ctx, output: dict[str, Any]) -> dict[str, Any]:
    """The next one."""
    return {"text": await ctx.llm("text", "Write.", str(output))}


MOVING = replace(WORK, fallback=Fallback("sequential", lambda work: not work.strict))


@flow_skill(id="moving", contract=MOVING)
class Moving:
    """One stage has been moved over to the contract by an adapter; the old way is there while tasks may need it."""

    @step(start=True, enters="new")
    def begin(self) -> StatePatch:
        return StatePatch()

    @step(enters="planning", reads=["topic"], writes=["plan"])
    async def plan(self, ctx: Ctx, state: Work) -> StatePatch:
        return adapt(await plan_as_before(ctx, {"topic": state.topic}), plan=Plan)

    @step(enters="writing", reads=["plan"], writes=["text"])
    async def write(self, ctx: Ctx, state: Work) -> Transition:
        output = await write_as_before(ctx, {"goal": state.plan.goal if state.plan else ""})
        return ctx.complete(output["text"]).patch(adapt(output["text"], text=str))

    @step(reads=["topic"], writes=["text"], enforce_moves=False)
    async def sequential(self, ctx: Ctx, state: Work) -> Transition:
        output: dict[str, Any] = {"topic": state.topic}
        for stage in (plan_as_before, write_as_before):
            output = await stage(ctx, output)
        return ctx.complete(output["text"]).patch(text=output["text"])


def test_an_adapted_stage_gives_a_patch() -> None:
    """
    Its output is read as the field's type.
    """
    story = play(Moving, "Tides", reply("goal", "a poem"), reply("text", "The sea."))

    assert (story.said, state(story).text) == (("The sea.",), "The sea.")


def test_an_output_that_is_not_complete_fails_the_task() -> None:
    """
    The adapter says what was missing; without the flag nobody falls back.
    """
    story = play(Moving, "Tides", reply("goal", ""))

    assert found(story, "plan").type == "AdapterError"
    assert "step 'plan' in 'planning', field 'plan': the stage's output is complete" in story.reason
    assert "got goal: Field required" in story.reason


def test_with_the_flag_the_old_way_takes_over_and_the_journal_says_why() -> None:
    """
    The flag came in with the task: every replay of it goes the same way.
    """
    story = play(
        Moving, "Tides (lenient)", reply("goal", ""), reply("goal", "x"), reply("text", "The sea."), unfinished=True
    )

    assert story.status == "completed"
    assert found(story, "plan").type == "AdapterError"
    ways = [(event.stage, event.to_state, event.free) for event in audit(story)][2:]
    assert ways == [("plan", "planning", False), ("sequential", "done", True)]


class Careless(Plan):
    """A plan whose validator expects a complete output."""

    @model_validator(mode="before")
    @classmethod
    def _titled(cls, output: dict[str, Any]) -> dict[str, Any]:
        return {"goal": output["goal"].title()}


@flow_skill(id="careless", contract=MOVING)
class MovingCarelessly(Moving):
    """The field's type raises what is no ValueError."""

    async def plan(self, ctx: Ctx, state: Work) -> StatePatch:
        return adapt(await plan_as_before(ctx, {"topic": state.topic}), plan=Careless)


@pytest.mark.parametrize("now", [True, False], ids=["now", "earlier-release"])
@pytest.mark.parametrize("text", ["Tides", "Tides (lenient)"])
def test_whatever_a_validator_raises_the_output_does_not_fit(text: str, now: bool) -> None:
    """
    The old way takes over where it may. In an earlier release the task failed, as its history says.
    """
    task = ByHand(MovingCarelessly, patched=lambda _: now)
    task.say(text)
    task.give("goal", "")
    [record] = [event.err for event in task.journal[-1].audit if event.err is not None]

    if now:
        assert (record.type, record.rule) == ("AdapterError", "the stage's output is validated without an error")
        assert (record.field, record.expected, record.actual) == ("plan", "a Careless", "KeyError: 'goal'")
    else:
        assert (record.type, record.rule, record.message) == ("KeyError", "", "'goal'")
    assert task.status == ("working" if now and "lenient" in text else "failed"), task.reason


def test_adapt_by_itself() -> None:
    """
    Each field reads the whole output.
    """
    assert adapt({"goal": "x", "more": 1}, plan=Plan) == StatePatch(plan=Plan(goal="x"))
    with pytest.raises(AdapterError):
        adapt({"goals": "x"}, plan=Plan)
    with pytest.raises(AdapterError):
        adapt({"goal": object()}, plan=Plan)


# --- a contract that changes while tasks run


class Draft(BaseModel):
    """The state of a skill, before it had a lifecycle."""

    model_config = ConfigDict(frozen=True)

    text: str = ""


class Stage(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


class Staged(Draft):
    """The state of the skill since."""

    stage: Stage = Stage.OPEN


def drafting(kind: type[Draft], *moves: Move) -> Any:
    """A skill that waits for a text, with the state and the moves of its time."""

    async def begin(ctx: Ctx) -> Transition:
        return ctx.complete().patch(text=await ctx.llm("text", "Write."))

    terms: dict[str, Any] = {"enters": Stage.OPEN} if moves else {}
    contract = Contract(state=kind, begins=lambda content, ctx: kind(), lifecycle="stage", moves=moves)
    return skill_of(table("drafting", Step("begin", begin, writes=["text"], **terms).start(), contract=contract))


@pytest.mark.parametrize("given", [True, False], ids=["completes", "fails"])
def test_a_contract_gains_moves_while_a_task_runs(given: bool) -> None:
    """
    The task is where the field's default says. One that failed in an earlier release stays failed.
    """
    task, old = ByHand(drafting(Draft), cut=True), ByHand(drafting(Draft), cut=True, patched=lambda _: False)
    for one in (task, old):
        one.say()
        one.skill = drafting(Staged, Move(Stage.OPEN, Stage.CLOSED))
        _ = one.give("text", "Once.") if given else one.fail("text")

    [event] = task.journal[-1].audit
    assert (event.from_state, event.to_state) == ("open", "closed" if given else "open")
    assert task.status == ("completed" if given else "failed"), task.reason
    assert ("forbidden" in task.reason) is not given
    assert "KeyError" in old.reason


# --- without a lifecycle


class Bill(BaseModel):
    """What the steps of a smaller skill share."""

    model_config = ConfigDict(frozen=True)

    item: str
    price: int | None = None
    note: str = ""


@flow_skill(id="billing", contract=Contract(state=Bill, begins=lambda content, ctx: Bill(item=content.text)))
class Billing:
    """Permissions and nothing else: steps say where they go."""

    @step(start=True, reads=["item"], writes=["price"])
    def begin(self, state: Bill) -> Transition:
        asked = Cmd.llm("price", "What does it cost?", state.item, expect=int)
        return Transition.goto("check").patch(price=1).cmd(asked)

    @step(reads=["price"], writes=["price"], requires=["price"])
    def check(self, ctx: Ctx, price: int) -> Transition:
        return ctx.await_input("note", f"It costs {price}. Anything to note?").patch(price=price)

    @step(resume_from="check", reads=["item", "price"], writes=["note"])
    def noted(self, ctx: Ctx, content: Content, state: Bill) -> Transition:
        return ctx.complete(f"{state.item}: {state.price}").patch(note=content.text)


def test_permissions_alone() -> None:
    """
    The audit names steps where there are no states; what a command or a person answered is among what was met.
    """
    story = play(Billing, "Lamp", reply("price", 30), user("in red"))

    assert story.said[-1] == "Lamp: 30"
    assert [(event.from_state, event.to_state) for event in audit(story)[1:]] == [
        ("begin", "check"),
        ("check", "noted"),
        ("noted", "completed"),
    ]
    assert [event.awaited for event in audit(story)[1:]] == [(), ("T/1.1",), ("T/2.1",)]
    assert explain(story.entries, "price").earlier == (1,)


test_laws_of_billing = laws_of(Billing, max_examples=examples(40))
test_laws_of_moving = laws_of(Moving, max_examples=examples(40))
test_laws_of_writer = laws_of(writer(), max_examples=examples(50))

# --- what the author's own functions may do wrong


class Unspeakable(Exception):
    """An error, and a value, that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __bool__ = __str__


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


def gives(value: Any) -> Callable[..., Any]:
    return lambda *_: value


async def soon(*_: Any) -> bool:
    return True


def spoiling(work: Any) -> StatePatch:
    """Changes the state that it is given in place."""
    work.plan.parts.append("more")
    return StatePatch(text="x")


later: Any = lambda *_: soon()  # noqa: E731 - no coroutine function, but gives a coroutine
without: Any = lambda: True  # noqa: E731 - takes no argument
spoils: Any = spoiling


def then(hook: Callable[..., Any]) -> Contract:
    moves = [replace(one, then=hook) if one.target == "done" else one for one in WORK.moves]
    return replace(WORK, moves=moves)


def holds(hook: Callable[..., Any], at: str = "done") -> Contract:
    return replace(WORK, invariants=[Invariant("plan", "the plan is good", hook, at=at)])


def needs(hook: Callable[..., Any]) -> list[Requirement]:
    return [Requirement("plan", "the plan is good", hook)]


PATCH, WRITE, MOVE, RULE, NEED = (
    f"{kind}Error" for kind in ("Patch", "UnauthorizedWrite", "IllegalMove", "Invariant", "Requirement")
)
PRIVATE = (
    "`then` of the move writing -> done writes any field but the lifecycle's (expected one of: topic, rounds, plan"
)
WRONG_HOOKS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("then-garbage", {"contract": then(gives(None))}, PATCH, "phase", "returns a StatePatch (got None)"),
    ("then-data", {"contract": then(gives({"text": "x"}))}, PATCH, "phase", "(got {'text': 'x'})"),
    ("then-raises", {"contract": then(raises(KeyError("k")))}, PATCH, "phase", "got it failed with KeyError: 'k'"),
    ("then-exits", {"contract": then(raises(SystemExit(3)))}, PATCH, "phase", "it failed with SystemExit: 3"),
    ("then-silent", {"contract": then(raises(Unspeakable()))}, PATCH, "phase", "Unspeakable: its text cannot be read"),
    ("then-async", {"contract": then(later)}, PATCH, "phase", "is `async`, and nothing awaits it"),
    ("then-misfit", {"contract": then(gives(StatePatch(rounds=-1)))}, PATCH, "rounds", "must fit Work"),
    ("then-spoils", {"contract": then(spoils)}, WRITE, "plan", "only looks at the state"),
    ("then-lifecycle", {"contract": then(gives(StatePatch(phase="new")))}, WRITE, "phase", PRIVATE),
    ("then-unknown", {"contract": then(gives(StatePatch(x=1)))}, WRITE, "x", "; got x=1)"),
    ("next-garbage", {"next": gives(None)}, MOVE, "phase", "names the state that follows (expected one of: planning"),
    ("next-number", {"next": gives(7)}, MOVE, "phase", "planning, done, failed; got 7)"),
    ("next-silent", {"next": gives(Unspeakable())}, MOVE, "phase", "got what cannot be shown"),
    ("next-raises", {"next": raises(TypeError("t"))}, MOVE, "phase", "it failed with TypeError: t"),
    ("next-async", {"next": later}, MOVE, "phase", "is `async`, and nothing awaits it"),
    ("next-patch", {"next": spoils}, MOVE, "phase", "got StatePatch(text='x'))"),
    ("rule-raises", {"contract": holds(raises(Unspeakable()))}, RULE, "plan", "Unspeakable: its text cannot be read"),
    ("rule-silent", {"contract": holds(gives(Unspeakable()))}, RULE, "plan", "its check failed with RuntimeError"),
    ("rule-async", {"contract": holds(later)}, RULE, "plan", "its check is `async`, and nothing awaits it"),
    ("rule-spoils", {"contract": holds(spoils, at="writing")}, WRITE, "plan", "a check of the contract only looks"),
    ("need-async", {"requires": needs(later)}, NEED, "plan", "its check is `async`, and nothing awaits it"),
    ("need-exits", {"requires": needs(raises(SystemExit()))}, NEED, "plan", "its check failed with SystemExit"),
    ("need-spoils", {"requires": needs(spoils)}, WRITE, "plan", "a check of the contract only looks at the state"),
]


@pytest.mark.parametrize(("terms", "type", "field", "said"), [pytest.param(*rest, id=id) for id, *rest in WRONG_HOOKS])
def test_whatever_a_function_of_the_contract_does(terms: dict[str, Any], type: str, field: str, said: str) -> None:
    """
    The error names step, state, field and what came; nothing is merged, and the handler's patch is kept.
    """
    story = play(
        writer(body=lambda: StatePatch(text="x"), **{"next": lambda _: "done", **terms}), "Tides", reply("plan", PLAN)
    )
    error = found(story, "write")

    assert (error.type, error.field, error.lifecycle) == (type, field, "writing")
    assert said in story.reason
    assert story.reason.startswith(f"step 'write' in 'writing', field {field!r}: ")
    assert (state(story).phase, state(story).text, state(story).trouble) == ("failed", "", error)
    assert state(story).plan == Plan(goal="a poem")


@pytest.mark.parametrize(
    ("begins", "said"),
    [
        pytest.param(gives(None), "begins returned None; it returns a Work", id="garbage"),
        pytest.param(gives({"topic": "x"}), "begins returned {'topic': 'x'}; it returns a Work", id="data"),
        pytest.param(gives(Unspeakable()), "begins returned what cannot be shown", id="silent"),
        pytest.param(later, "begins is `async`, and nothing awaits it", id="async"),
        pytest.param(raises(KeyError("k")), "begins failed with KeyError: 'k'; to reject a first message", id="raises"),
        pytest.param(
            gives(cast("Any", Work).model_construct(text="x")), "the first state cannot be saved", id="no-topic"
        ),
        pytest.param(gives(cast("Any", Work).model_construct(topic=7)), "the first state cannot be saved", id="misfit"),
        pytest.param(lambda _, ctx: ctx.say("Hi.") or Work(topic="x"), "begins asks for something, or says", id="says"),
    ],
)
def test_whatever_begins_does(begins: Callable[..., Any], said: str) -> None:
    """
    The task fails, and the error says what the first state is made of.
    """
    story = play(writer(contract=replace(WORK, begins=begins)), "Tides")

    assert story.status == "failed"
    assert said in story.reason


def test_a_validator_of_the_state_with_a_bug() -> None:
    """
    The patch does not fit, and the error says why.
    """

    class Buggy(Work):
        @field_validator("text")
        @classmethod
        def _looked_up(cls, text: str) -> str:
            return {"": ""}[text]

    contract = replace(WORK, state=Buggy, begins=lambda content, ctx: Buggy(topic=content.text))
    story = play(writer(contract=contract), "Tides", reply("plan", PLAN))

    assert found(story, "write").type == "PatchError"
    assert "must fit Buggy (got its validation failed with KeyError: 'a poem')" in story.reason


def test_begins_changes_the_journal_no_more_than_a_step_does() -> None:
    """
    The message that it takes apart is its own.
    """

    def begins(content: Content, ctx: Ctx) -> Work:
        data: Any = content.data
        return Work(topic=data.pop("topic"))

    story = play(writer(contract=replace(WORK, begins=begins)), user({"topic": "Tides"}), unfinished=True)

    assert '"topic":"Tides"' in story.entries[0].event.model_dump_json()


@pytest.mark.parametrize("when", [raises(Unspeakable()), gives(Unspeakable()), later])
def test_a_fallback_that_cannot_say_whether(when: Callable[..., Any]) -> None:
    """
    Nobody falls back; the task fails for what the adapter found, and the audit has both.
    """

    @flow_skill(id="moving", contract=replace(MOVING, fallback=Fallback("sequential", when)))
    class Unsure(Moving):
        """The same, with another flag."""

    story = play(Unsure, "Tides", reply("goal", ""))
    errors = [event.err for event in audit(story) if event.err is not None]

    assert "the stage's output is complete" in story.reason
    assert [(error.stage, error.type) for error in errors] == [("plan", "AdapterError"), ("plan", "ContractError")]
    assert "`when` of the fallback says whether the task may fall back (got it " in errors[1].message


# --- definition errors


class Thawed(BaseModel):
    """A state that can be changed."""

    topic: str = ""


MISTAKES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("thawed", {"state": Thawed}, {}, "Thawed is not frozen; write `model_config = ConfigDict(frozen=True)`"),
    ("no-type", {"state": "Run"}, {}, "its contract's state is 'Run'; it is a pydantic model"),
    ("no-move", {"moves": [("a", "b")]}, {}, "moves: ('a', 'b') is no move; write Move(source, target)"),
    ("no-invariant", {"invariants": [print]}, {}, "is none; write Invariant(field, rule, holds)"),
    ("no-begin", {"begins": lambda content: None}, {}, "is no function of two arguments"),
    ("no-model", {"state": dict}, {}, "its contract's state is <class 'dict'>; it is a pydantic model"),
    ("owned", {"owned": ["topc"]}, {}, "owned: the state has no 'topc'; it has: phase, topic, rounds"),
    ("invariant", {"invariants": [Invariant("x", "r", bool)]}, {}, "the invariant 'r' is about 'x', which the state"),
    ("no-rule", {"invariants": [Invariant("text", "r")]}, {}, "says either holds= or keeps=, one of them"),
    ("at", {"invariants": [Invariant("text", "r", bool, at="x")]}, {}, "'r' is about 'x'; the states are: new"),
    ("field", {"lifecycle": "stage"}, {}, "its moves are of the field 'stage', which the state does not have"),
    ("twice", {"moves": [*WORK.moves, Move("new", "planning")]}, {}, "two moves from new to planning"),
    ("after", {"moves": [*WORK.moves, Move("failed", "new")]}, {}, "a move leaves 'failed'"),
    ("nobody", {"moves": [*WORK.moves, Move("new", "x"), Move("x", "done")]}, {}, "no step enters 'x'"),
    ("fallback", {"fallback": Fallback("x", bool)}, {}, "it falls back to 'x', which does not exist"),
    ("not-free", {"fallback": Fallback("plan", bool)}, {}, "so that step says enforce_moves=False"),
    ("reads", {}, {"reads": ["txt"]}, "step 'write': reads 'txt', which the state does not have; it has: phase"),
    ("one-text", {}, {"reads": "text"}, "step 'write': reads='text' is one text; write reads=['text']"),
    ("nothing", {}, {"reads": [], "requires": []}, "takes 'state', and reads nothing of it; declare `reads=[...]`"),
    ("writes", {}, {"writes": ["rounds"]}, "step 'write': writes 'rounds', which the orchestrator alone writes"),
    ("requires", {}, {"requires": ["trouble"]}, "step 'write': requires 'trouble', and does not read it"),
    ("enters", {}, {"enters": "x"}, "step 'write': enters 'x', which no move knows; the states are: new, planning"),
    ("an-end", {}, {"enters": "done"}, "enters 'done', which no move leaves: a task that comes there has ended"),
    ("exits", {}, {"exits": ["new"]}, "exits to 'new'; the legal moves from writing lead to: planning, done, failed"),
    ("two", {}, {"enters": "planning"}, "two steps enter 'planning'; each state has one"),
    ("handlers", {}, {"on_error": True}, "say on_error; one does"),
    ("begin-async", {"begins": soon}, {}, "is `async`, and nothing awaits it; ask for what it needs in a step"),
    ("no-then", {"moves": [*WORK.moves, Move("new", "done", cast("Any", 7))]}, {}, "then=7 is no function of one"),
    ("no-holds", {"invariants": [Invariant("text", "r", without)]}, {}, "is no function of one argument, the"),
    ("no-keeps", {"invariants": [Invariant("text", "r", keeps=cast("Any", soon))]}, {}, "is `async`, and nothing"),
    ("no-fallback", {"fallback": "write"}, {}, "fallback='write' is none; write Fallback(step, when)"),
    ("no-when", {"fallback": Fallback("write", cast("Any", True))}, {}, "fallback: when=True is no function of one"),
    ("no-check", {}, {"requires": [Requirement("plan", "r", without)]}, "the requirement 'r': holds=<function <lambda"),
    ("no-next", {}, {"next": "done"}, "step 'write': next='done' is no function of one argument, what the step reads"),
]  # fmt: skip


@pytest.mark.parametrize(("contract", "terms", "said"), [pytest.param(*rest, id=id) for id, *rest in MISTAKES])
def test_a_contract_is_checked_when_the_skill_is_defined(
    contract: dict[str, Any], terms: dict[str, Any], said: str
) -> None:
    """
    Each mistake has its sentence, with what would be right.
    """
    with pytest.raises(DefinitionError) as caught:
        writer(contract=replace(WORK, **contract), **{"enters": "writing", **terms})

    assert said in str(caught.value)


def test_what_the_code_says_literally_is_found_when_the_skill_is_defined() -> None:
    """
    A field that is read and not declared, and a goto that no legal move allows.
    """

    def plans(ctx: Ctx, state: Work) -> Transition:
        return ctx.goto("start").patch(plan=Plan(goal=state.text))

    with pytest.raises(DefinitionError) as caught:
        writer(plans)

    assert caught.value.problems == (
        "step 'plan': its code reads state.text, and does not declare it: reads=[..., 'text']",
        "step 'plan' goes to new, where no move leads that it may make from planning",
    )


def test_terms_need_a_contract() -> None:
    """
    Permissions of a state that nobody shares mean nothing.
    """
    with pytest.raises(DefinitionError, match="step 'begin': reads= needs a contract"):
        table("t", Step("begin", lambda ctx: ctx.complete(), reads=["x"]).start())


def test_a_reducer_has_no_steps_to_keep_a_contract() -> None:
    """
    Its one function sees the whole state, by design.
    """
    with pytest.raises(DefinitionError, match="it is a reducer"):

        @flow_skill(contract=WORK)
        class Reduces:
            @staticmethod
            def initial() -> Work:
                return Work(topic="")

            def on_event(self, state: Work, event: Any, ctx: Ctx) -> Transition:
                return Transition.ignore()


def test_a_handler_may_not_wait() -> None:
    """
    The task is over when it runs.
    """

    @flow_skill(contract=WORK)
    class Waits:
        @step(start=True, enters="new")
        def begin(self) -> StatePatch:
            return StatePatch()

        @step(enters="planning")
        def plan(self) -> StatePatch:
            raise CommandError("x", "T/1.1", permanent("no"))

        @step(enters="writing")
        def write(self) -> StatePatch:
            return StatePatch()

        @step(on_error=True, writes=["trouble"])
        async def handle(self, ctx: Ctx, error: ErrorRecord) -> StatePatch:
            await ctx.llm("sorry", "Say sorry.")
            return StatePatch(trouble=error)

    story = play(Waits, "Tides")

    assert (story.status, story.asked) == ("failed", ())
    assert "the task is over: it may not wait" in found(story, "handle").message
    assert skill_of(Waits).where(story.snapshot.state) == "plan"


def test_what_a_step_writes_reads_back_as_it_was() -> None:
    """
    A subclass would lose its fields.
    """

    class Note(BaseModel):
        model_config = ConfigDict(frozen=True)

        text: str = ""

    class Signed(Note):
        by: str = ""

    class Notes(BaseModel):
        model_config = ConfigDict(frozen=True)

        note: Note = Note()

    def begin(state: Notes) -> Transition:
        return Transition.complete().patch(note=Signed(by="Ann"))

    begin.__annotations__["state"] = Notes
    contract = Contract(state=Notes, begins=lambda content, ctx: Notes())
    first = Step("begin", begin, reads=["note"], writes=["note"]).start()

    story = play(table("signed", first, contract=contract), "go")

    assert "it is a Signed, and reads back as a Note" in story.reason


class Part(BaseModel):
    model_config = ConfigDict(frozen=True)

    price: Decimal = Decimal(1)

    @cached_property
    def doubled(self) -> Decimal:
        return 2 * self.price


class Signed(Part):
    by: str = ""


class Begun(BaseModel):
    """A state of which not everything can be saved."""

    model_config = ConfigDict(frozen=True, extra="allow")

    part: Part = Part()
    token: SecretStr = SecretStr("")
    _seen: int = PrivateAttr(default=0)

    @cached_property
    def twice(self) -> Decimal:
        return self.part.doubled


def having_seen() -> Begun:
    state = Begun()
    state._seen = 1
    return state


def having_worked_out() -> Begun:
    state = Begun()
    assert state.twice == 2
    return state


def beginning(begins: Callable[[], BaseModel]) -> Any:
    """A skill that begins with this state, and completes."""
    contract = Contract(state=type(begins()), begins=lambda content, ctx: begins())
    return table("beginning", Step("end", completed).start(), contract=contract)


BEGINS_LOST: list[tuple[str, Callable[[], BaseModel], str]] = [
    ("subclass", lambda: Begun(part=Signed(by="Ann")), "part is a Signed, and reads back as a Part"),
    ("secret", lambda: Begun(token=SecretStr("x")), "token reads back as asterisks"),
    ("private", having_seen, "_seen reads back changed; a private attribute is no data: make it a field"),
    ("more", lambda: Begun.model_validate({"more": 1}), "it loses 'more'"),
]


@pytest.mark.parametrize(("begins", "said"), [pytest.param(*rest, id=id) for id, *rest in BEGINS_LOST])
def test_a_first_state_that_reads_back_changed_is_an_error_that_says_where(
    begins: Callable[[], BaseModel], said: str
) -> None:
    """
    As does a patch.
    """
    story = play(beginning(begins), "go")

    assert (story.status, story.said) == ("failed", ())
    assert f"the first state cannot be saved: {said}" in story.reason


def test_a_first_state_may_hold_the_value_of_a_cached_property() -> None:
    """
    It is worked out again from the fields.
    """
    assert play(beginning(having_worked_out), "go").status == "completed"


def test_a_task_of_an_earlier_release_begins_with_a_first_state_that_reads_back_changed() -> None:
    """
    Its journal says so, and its history has no marker.
    """
    task = ByHand(beginning(BEGINS_LOST[0][1]), patched=lambda _: False)
    task.say()

    assert task.status == "completed"
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})
