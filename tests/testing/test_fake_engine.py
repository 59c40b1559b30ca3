import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import httpx
import pytest
from pydantic import BaseModel, JsonValue, RootModel, model_validator

from refold import (
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Ctx,
    DefinitionError,
    Event,
    GatePolicy,
    InputRejected,
    Status,
    Step,
    TaskState,
    Transition,
    flow_skill,
    step,
    table,
    tool,
)
from refold.core.authoring.define import skill_of
from refold.core.errors import RefoldError
from refold.core.events import UserMessage
from refold.core.fold.apply import fold, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.effects import Never, TryLater
from refold.engine import (
    Engine,
    EngineError,
    NotConnected,
    NoWorker,
    Progress,
    TaskExists,
    TaskFilter,
    TaskNotFound,
    Tokens,
    UnknownSkill,
)
from refold.lineage.recover import recover
from refold.testing import FakeEngine, ScriptError, transient
from refold.testing.play import START
from workflows.hello import Hello
from workflows.research_loop import ResearchLoop

TEXT = Content.from_text
ASKS = {"decision": "NeedsHumanInput", "text": "For whom?"}
APPROVES = {"decision": "Approved"}


class Job(BaseModel):
    seconds: float


@flow_skill(id="naps", input=Job)
class Naps:
    @step(start=True)
    async def nap(self, ctx: Ctx, job: Job) -> Transition:
        await ctx.sleep(job.seconds)
        return ctx.complete(f"Up at {ctx.now:%H:%M:%S}.")


@flow_skill(id="boss")
class Boss:
    @step(start=True)
    async def hand_down(self, ctx: Ctx, content: Content) -> Transition:
        nap, talk = await ctx.gather(ctx.skill("nap", Naps, {"seconds": 5}), ctx.skill("talk", content.text, "Ada"))
        return ctx.complete(f"{nap.text} {talk.text}")


@flow_skill(id="calls")
class Calls:
    @step(start=True)
    async def call(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("called", content.text, "tides")).text)


def research(**more: object) -> FakeEngine:
    return FakeEngine([ResearchLoop], answers={"research": "draft", "critique": [ASKS, APPROVES], **more})


async def news(engine: Engine, task_id: str, *, after: int = 0, follow: bool = False) -> list[int | str]:
    """What a watcher sees: numbers of entries, and texts."""
    watched = engine.watch(task_id, after=after, follow=follow)
    return [one.seq if isinstance(one, Entry) else one.text async for one in watched if not isinstance(one, Progress)]


async def test_a_task_goes_as_far_as_it_can() -> None:
    """
    A call returns when only people, timers and unknown commands are left.
    """
    engine = research()
    asked = await engine.start("research_loop", TEXT("tides"), task_id="T")
    done = await engine.send("T", TEXT("For children."))

    assert (asked.status, asked.waiting_for[0].slot) == ("input-required", "guidance")
    assert (done.status, done.artifacts[0].text) == ("completed", "draft")
    assert done == await engine.look("T")


async def test_what_nobody_answers_stays_out() -> None:
    """
    The test lets it come back, or fail.
    """
    engine = FakeEngine([ResearchLoop])
    started = await engine.start("research_loop", TEXT("tides"))
    await engine.reply(started.task_id, "research", "draft")
    backing_off = await engine.fail(started.task_id, "critique", transient("busy"))

    assert [one.command for one in started.pending] == ["llm research"]
    assert backing_off.lifecycle == "retrying"
    with pytest.raises(ScriptError, match=r"no command 'research' is out.*nothing"):
        await engine.reply(started.task_id, "research", "again")


async def test_the_clock_is_turned_by_hand() -> None:
    """
    Timers ring at their own moments on the way, however far it is turned.
    """
    engine = FakeEngine([Naps])
    await engine.start("naps", Content.from_data({"seconds": 60}), task_id="long")
    await engine.start("naps", Content.from_data({"seconds": 30}), task_id="short")
    await engine.advance(59)
    at_59 = [view.task_id async for view in engine.list(lifecycle=TaskState.RUNNING)]
    await engine.advance()

    assert at_59 == ["long"]
    assert (await engine.look("long")).messages[-1].text == "Up at 00:01:00."
    assert (await engine.look("short")).messages[-1].text == "Up at 00:00:30."
    assert (await engine.at("short", 2)).at - (await engine.at("short", 1)).at == timedelta(seconds=30)


@flow_skill(id="polls")
class Polls:
    """Looks again every so many seconds, for ever."""

    @step(start=True)
    async def look(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.sleep(float(content.text))
        return ctx.goto("look", content=content)


@flow_skill(id="nests")
class Nests:
    """Calls itself, for ever: as many parts as it is told."""

    @step(start=True)
    async def call(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(*[ctx.skill(f"nest {n}", "nests", content.text) for n in range(int(content.text))])
        return ctx.complete()


@flow_skill(id="fans")
class Fans:
    @step(start=True)
    async def call(self, ctx: Ctx) -> Transition:
        said = await ctx.gather(*[ctx.skill(f"hello {n}", Hello, "Ada") for n in range(100)])
        return ctx.complete(f"{len(said)} greetings")


async def test_a_timer_rings_once_there_is_a_worker() -> None:
    """
    Without one the clock moves all the same.
    """
    engine = FakeEngine([Naps])
    await engine.start("naps", Content.from_data({"seconds": 5}), task_id="T")
    engine.worker = False
    await engine.advance(60)
    before = await engine.look("T")
    engine.worker = True
    await engine.settle()

    assert (before.lifecycle, await engine.count(TaskFilter(lifecycle=TaskState.DONE))) == ("running", 1)
    assert (await engine.look("T")).messages[-1].text == "Up at 00:01:00."


@pytest.mark.slow
async def test_much_to_do_is_no_loop() -> None:
    """
    A day of looking each minute, many tasks that begin at once, and many parts of one task: each of them has fewer
    events than the limit, and all of them together have more.
    """
    polling = FakeEngine([Polls])
    await polling.start("polls", TEXT("60"), task_id="T")
    await polling.advance(24 * 3600)
    engine = FakeEngine([Hello, Fans], answers={"greeting": "Hello."}, auto=False, limit=150)
    await engine.start("fans", TEXT("go"), task_id="F")
    for _ in range(151):
        await engine.start("hello", TEXT("Ada"))
    await engine.settle()

    assert (await polling.look("T")).seq == 1 + 24 * 60
    assert (await engine.look("F")).messages[-1].text == "100 greetings"
    assert await engine.count(TaskFilter(skill="hello", lifecycle=TaskState.DONE)) == 251


@flow_skill(id="counts")
class Counts:
    @step(start=True)
    async def count(self, ctx: Ctx) -> Transition:
        for n in range(600):
            await ctx.tool("count", n=n, id=f"count {n}")
        return ctx.complete("600")


async def test_much_to_do_at_once_is_given_a_larger_limit() -> None:
    """
    Since it looks like a loop; the error says so.
    """
    engine = FakeEngine([Counts], answers={"count": lambda command: command.args["n"]})
    with pytest.raises(ScriptError, match=r"no end; if it is no loop, give FakeEngine\(limit=\) a larger number"):
        await engine.start("counts", TEXT("go"))
    engine = FakeEngine([Counts], answers={"count": lambda command: command.args["n"]}, limit=1_000)

    assert (await engine.start("counts", TEXT("go"))).messages[-1].text == "600"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("skill", "said", "found"),
    [
        ("polls", "0", "events of task 'T' without the clock moving"),
        ("nests", "1", "events of task 'T/1.1' without the clock moving"),
        ("nests", "2", r"events of task 'T/1.\d' without the clock moving"),
        ("polls", "60", "timers of task 'T' rang"),
    ],
)
async def test_a_loop_is_found(skill: str, said: str, found: str) -> None:
    """
    Of events at one moment, of parts that call parts, of timers that nothing bounds.
    """
    engine = FakeEngine([Polls, Nests], auto=False)
    await engine.start(skill, TEXT(said), task_id="T")

    with pytest.raises(ScriptError, match=found):
        await engine.advance()


async def test_what_is_due_happens_when_it_settles() -> None:
    """
    Without `auto` nothing happens before; a clock that is only turned rings nothing either.
    """
    engine = FakeEngine([Naps], auto=False)
    first = await engine.start("naps", Content.from_data({"seconds": 60}), task_id="T")
    await engine.settle()
    engine.clock.advance(60)
    asleep = await engine.look("T")
    await engine.settle()

    assert (first.status, asleep.status) == ("submitted", "working")
    assert (await engine.look("T")).status == "completed"
    with pytest.raises(ValueError, match="only advances"):
        engine.clock.advance(-1)


async def test_a_retry_goes_out_when_it_is_due() -> None:
    """
    The default policy waits 1 s; then the next answer is given.
    """
    engine = FakeEngine([Hello], answers={"greeting": [transient("busy"), TimeoutError("late"), "Hello."]})
    await engine.start("hello", TEXT("Ada"), task_id="T")
    await engine.advance(1)
    after_1 = await engine.look("T")
    await engine.advance(2)

    [again] = after_1.pending
    assert (after_1.lifecycle, again.attempt, again.failure) == ("retrying", 2, "no answer in time")
    assert (await engine.look("T")).messages[-1].text == "Hello."


RAISED: dict[str, Exception] = {
    "later": TryLater("busy"),
    "unsent": TryLater("busy", unsent=True),
    "never": Never("no such item"),
    "refused": httpx.ConnectError("no connection"),
    "slow": httpx.ReadTimeout("no answer"),
    "lost": ConnectionResetError("lost"),
    "bug": KeyError("a bug"),
}


@tool(effect="read_only")
async def look_up(why: str) -> str:
    """Look it up."""
    raise RAISED[why]


@tool(effect="at_most_once")
async def order(why: str) -> str:
    """Order it."""
    raise RAISED[why]


@tool(effect="at_most_once")
def order_in_thread(why: str) -> str:
    """Order it."""
    raise RAISED[why]


@flow_skill(id="calling")
class Calling:
    """Calls a tool: `order why=lost`."""

    @step(start=True)
    async def call(self, ctx: Ctx, content: Content) -> Transition:
        name, _, argument = content.text.partition(" ")
        return ctx.complete(await ctx.tool(name, dict([argument.split("=")])))


@pytest.mark.parametrize(
    ("why", "repeatable", "once"),
    [
        ("later", "retrying", "blocked"),
        ("unsent", "retrying", "retrying"),
        ("never", "failed", "failed"),
        ("refused", "retrying", "retrying"),
        ("slow", "retrying", "blocked"),
        ("lost", "retrying", "blocked"),
        ("bug", "failed", "blocked"),
    ],
)
async def test_what_a_tool_raises_is_classified_as_on_a_worker(why: str, repeatable: str, once: str) -> None:
    """
    What may pass is tried again; a tool whose effect may happen once at most blocks where nobody knows of its effect.
    """
    engine = FakeEngine([Calling], tools=[look_up, order, order_in_thread])
    for name, expected in (("look_up", repeatable), ("order", once), ("order_in_thread", once)):
        view = await engine.start("calling", TEXT(f"{name} why={why}"))
        assert expected in (view.lifecycle, view.status), name


async def test_an_effect_in_doubt_is_told_as_on_a_worker() -> None:
    """
    With what a person does about it.
    """
    engine = FakeEngine([Calling], tools=[order])
    (doubt,) = (await engine.start("calling", TEXT("order why=lost"))).unresolved

    assert doubt.failure == (
        "it is not known whether the tool 'order' has had its effect, and it may happen once at most: the connection "
        "failed or broke off; the tool has no probe; find out at the receiver, then resolve the command"
    )


async def test_arguments_that_do_not_fit_leave_no_doubt() -> None:
    """
    The tool has not run, so its effect is not in question.
    """
    engine = FakeEngine([Calling], tools=[order])
    view = await engine.start("calling", TEXT("order reason=none"))

    assert view.status is Status.FAILED


@tool(effect="read_only")
async def weigh(grams: int) -> str:
    """Weigh it."""
    return f"{grams} g" if grams else grams  # type: ignore[return-value]  # the tool's mistake


@tool(effect="compensate", undo=weigh)
def load(grams: int) -> str:
    """Load it."""
    return f"{grams} g"


@pytest.mark.parametrize(
    ("tool", "grams", "reason"),
    [
        ("weigh", 5, ""),
        ("weigh", "5", "tool 'weigh': grams: Input should be a valid integer"),
        ("weigh", 5.0, "tool 'weigh': grams: Input should be a valid integer"),
        ("weigh", 0, "returned a value of type int, which cannot be written as str: expected `str`, got int"),
        ("load", 5, "call it by its function"),
    ],
)
async def test_a_tool_is_called_as_on_a_worker(tool: str, grams: Any, reason: str) -> None:
    """
    Its arguments are checked strictly, its result by its type, and an effect that nobody could undo is refused.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(await ctx.tool(tool, grams=grams))

    engine = FakeEngine([table("calls", Step("begin", begin).start())], tools=[weigh, load])
    view = await engine.start("calls", TEXT("go"))

    assert (view.status == "completed", reason in view.reason) == (not reason, True), view.reason


class Waiting(BaseModel):
    """For a call to an address."""


class AsksByAddress:
    """A reducer that makes an address."""

    expires: datetime

    @staticmethod
    def initial() -> Waiting:
        return Waiting()

    def on_event(self, state: Waiting, event: Event, ctx: Ctx) -> Transition:
        if isinstance(event, CommandFailed):
            return Transition.fail(event.failure.message)
        return Transition.to(state).cmd(Cmd.callback("address", self.expires))


@pytest.mark.parametrize(
    "until", [START.replace(year=2027, tzinfo=None), START - timedelta(days=1)], ids=["without zone", "past"]
)
async def test_no_address_is_made_that_a_worker_would_not_make(until: datetime) -> None:
    """
    One that expires in the past, or at a time that nobody can compare with now, fails its command.
    """

    class AsksThem(AsksByAddress):
        expires = until

    view = await FakeEngine([AsksThem]).start("asks_them", TEXT("go"))

    assert view.reason.startswith("an address expires at a time to come")


async def test_a_called_skill_is_a_task_of_its_own() -> None:
    """
    Its id is the invocation id; what it comes to is the caller's result.
    """
    engine = FakeEngine([Boss, Naps, Hello], answers={"greeting": "Hello."})
    await engine.start("boss", TEXT("hello"), task_id="T")
    listed = [(view.task_id, view.status) async for view in engine.list()]
    await engine.advance()

    assert listed == [("T/1.2", "completed"), ("T/1.1", "working"), ("T", "working")]
    assert (await engine.look("T")).messages[-1].text == "Up at 00:00:05. Hello."
    assert (await engine.at("T/1.1", 1)).parent == "T"


async def test_what_a_called_skill_asks_is_answered_at_its_caller() -> None:
    """
    The caller shows the question, takes the answer, and passes it on.
    """
    engine = FakeEngine([Calls, Boss, Naps, ResearchLoop], answers={"research": "draft", "critique": [ASKS, APPROVES]})
    asked = await engine.start("calls", TEXT("research_loop"), task_id="T")
    done = await engine.send("T", TEXT("For children."))

    assert (asked.status, asked.waiting_for[0].gate) == ("input-required", "T/1.1/3.1")
    assert (done.status, done.messages[-1].text) == ("completed", "Approved.")
    assert await news(engine, "T/1.1") == [1, 2, 3, 4, 5, 6]


KNOWS: list[str] = []


class Size(RootModel[str]):
    """A size. Each look at one that is large takes a name out of `KNOWS`, and without any nobody knows it."""

    @model_validator(mode="after")
    def _fits(self) -> "Size":
        if self.root == "large":
            KNOWS.pop()
        return self


@flow_skill()
class Sizes:
    """Asks for a size."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        size = await ctx.ask("size", "Which size?", expect=Size)
        return ctx.complete(size.root)


async def test_an_answer_that_a_called_skill_refuses_is_asked_for_again() -> None:
    """
    What the caller lets pass may not fit for the part, whose worker is another one; the question is open again.
    """
    engine = FakeEngine([Calls, Sizes])
    await engine.start("calls", TEXT("sizes"), task_id="T")
    KNOWS[:] = ["the engine, for the caller", "the caller"]

    asked = await engine.send("T", TEXT("large"))
    done = await engine.send("T", TEXT("small"))

    assert (asked.status, [one.slot for one in asked.waiting_for]) == (Status.INPUT_REQUIRED, ["size"])
    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "small")


async def test_a_called_skill_ends_with_its_caller() -> None:
    """
    Cancelling the caller cancels what it called.
    """
    engine = FakeEngine([Boss, Naps, Hello])
    await engine.start("boss", TEXT("hello"), task_id="T")
    await engine.cancel("T")

    assert [view.status async for view in engine.list()] == ["canceled", "canceled", "canceled"]


@pytest.mark.parametrize(
    ("called", "reason"),
    [
        ("nobody", "talk: no skill 'nobody'"),
        ("naps", "talk: skill 'naps' starts from data"),
        ("hello", "talk: greeting: ValueError: no words"),
    ],
)
async def test_a_called_skill_that_fails_fails_its_command(called: str, reason: str) -> None:
    """
    Unknown, not startable, or failed: the caller hears of it.
    """
    engine = FakeEngine([Boss, Naps, Hello], answers={"greeting": ValueError("no words")})
    await engine.start("boss", TEXT(called), task_id="T")
    await engine.advance()

    assert (await engine.look("T")).reason.startswith(reason)


@flow_skill(id="unwilling")
class Unwilling:
    @step(start=True)
    async def refuse(self, ctx: Ctx, content: Content) -> Transition:
        match content.text:
            case "fail":
                return ctx.fail("no paper")
            case "reject":
                return ctx.reject("not mine")
            case _:
                return ctx.complete((await ctx.ask("why", "Why?")).text)


@flow_skill(id="whole")
class Whole:
    @step(start=True)
    async def call(self, ctx: Ctx, content: Content) -> Transition:
        try:
            done = await ctx.skill("part", Unwilling, content.text)
        except CommandError as error:
            return ctx.complete(f"{error.failure.type}: {error.failure.message}")
        return ctx.complete(done.text)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("fail", "TaskFailed: no paper"),
        ("reject", "TaskRejected: not mine"),
        ("ask", "canceled: it was canceled from outside"),
    ],
)
async def test_a_part_fails_its_command_as_on_temporal(said: str, failure: str) -> None:
    """
    The command has the part's own reason, and a type that tells a failed, a rejected and a canceled part apart.
    """
    engine = FakeEngine([Whole, Unwilling])
    await engine.start("whole", TEXT(said), task_id="T")
    if said == "ask":
        await engine.cancel("T/1.1", reason="enough")

    assert (await engine.look("T")).messages[-1].text == failure


@flow_skill(id="patient")
class Patient:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        await ctx.approve("pay", "Pay?", show={"cents": 5}, policy=GatePolicy(timeout_s=60, grace_s=300))
        return ctx.complete("paid")


@flow_skill(id="clerk")
class Clerk:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        try:
            await ctx.skill("patient", Patient, "pay")
        except CommandError:
            return ctx.fail(f"failed at {ctx.now:%H:%M}")
        return ctx.complete()


async def test_a_part_that_takes_late_grants_is_not_over() -> None:
    """
    As on Temporal: its question is gone at once, and the task above goes on once the part is over.
    """
    engine = FakeEngine([Clerk, Patient])
    asked = await engine.start("clerk", TEXT("go"), task_id="T")
    await engine.advance(60)
    part, above = await engine.look("T/1.1"), await engine.look("T")
    await engine.advance(300)

    assert (asked.status, part.status) == ("input-required", "failed")
    assert (above.status, above.waiting_for) == ("working", ())
    assert (await engine.look("T")).reason == "failed at 00:06"


async def test_a_task_is_recovered_once_it_is_over() -> None:
    """
    Until then nobody knows what a late grant allows, or which effects are undone: its own, and those of its parts.
    """
    engine = FakeEngine([Clerk, Patient])
    await engine.start("patient", TEXT("go"), task_id="alone")
    await engine.start("clerk", TEXT("go"), task_id="T")
    await engine.advance(60)
    with pytest.raises(InputRejected, match="'alone' has ended and is not over"):
        await engine.recover("alone")
    await engine.cancel("T")
    with pytest.raises(InputRejected, match="'T' has ended and is not over"):
        await engine.recover("T")
    await engine.advance(300)

    assert (await engine.recover("alone")).status == "input-required"
    assert (await engine.recover("T")).status == "input-required"


async def test_a_caller_that_leaves_leaves_the_command_to_the_next() -> None:
    """
    A caller may be canceled while a stand-in is awaited: the command is performed again by whoever settles next.
    """
    asked: list[str] = []

    async def greeting(command: object) -> str:
        asked.append("greeting")
        if len(asked) == 1:
            starting.cancel()
            await asyncio.Future()
        return "Hello."

    engine = FakeEngine([Hello], answers={"greeting": greeting})
    starting = asyncio.create_task(engine.start("hello", TEXT("Ada"), task_id="T"))
    await asyncio.wait([starting])
    await engine.settle()

    assert starting.cancelled()
    assert ((await engine.look("T")).messages[-1].text, len(asked)) == ("Hello.", 2)


async def test_a_task_that_goes_on_for_one_of_another_engine_starts_its_parts_anew() -> None:
    """
    This engine does not know how far the parts of the other one came.
    """
    other = FakeEngine([Calls, Hello], answers={"called": ValueError("no")})
    await other.start("calls", TEXT("hello"), task_id="T")
    base = await anext(other.past("T"))
    assert isinstance(base, Snapshot)
    entries = [entry async for entry in other.journal("T")]
    snapshot, first = recover(skill_of(Calls), base, entries, "T.r1", base.at)
    view = await FakeEngine([Calls, Hello], answers={"greeting": "Hello."}).begin(snapshot, first)

    assert (view.status, view.messages[-1].text) == ("completed", "Hello.")


async def test_errors_are_those_of_an_engine() -> None:
    """
    What is refused raises, and leaves no trace.
    """
    engine = research()
    await engine.start("research_loop", TEXT("tides"), task_id="T")
    with pytest.raises(TaskExists, match="'T' exists already"):
        await engine.start("research_loop", TEXT("tides"), task_id="T")
    with pytest.raises(UnknownSkill, match="known here: research_loop"):
        await engine.start("reserch", TEXT("tides"))
    with pytest.raises(TaskNotFound, match="no task 'X'"):
        await engine.look("X")
    with pytest.raises(TaskNotFound):
        await news(engine, "X")
    with pytest.raises(InputRejected, match="nothing waits for an answer to 'who'"):
        await engine.send("T", TEXT("me"), slot="who")
    with pytest.raises(InputRejected, match="has the entries 1 to 3, not 4"):
        await engine.at("T", 4)
    await engine.cancel("T", reason="enough")
    with pytest.raises(InputRejected, match="has ended"):
        await engine.cancel("T")
    with pytest.raises(InputRejected, match="starts from data"):
        await FakeEngine([Naps]).start("naps", TEXT("now"))

    assert (await engine.look("T")).refused == 0
    assert (await engine.look("T")).reason == "enough"


async def test_a_signal_that_is_refused_is_journaled() -> None:
    """
    A raw signal has nobody to raise to.
    """
    engine = FakeEngine([Hello])
    await engine.start("hello", TEXT("Ada"), task_id="T")
    entry = await engine.signal("T", UserMessage(content=TEXT("and?")))

    assert "waits for no message" in entry.refused
    assert (await engine.look("T")).refused == 1


async def test_a_delivery_is_taken_once() -> None:
    """
    The same delivery again answers with how the task stands.
    """
    engine = research()
    await engine.start("research_loop", TEXT("tides"), task_id="T")
    done = await engine.send("T", TEXT("For children."), delivery_id="d1")

    assert await engine.send("T", TEXT("For children."), delivery_id="d1") == done


async def test_tasks_are_listed_newest_first() -> None:
    """
    By skill, by lifecycle, and no more than asked for.
    """
    engine = FakeEngine([Hello, ResearchLoop], answers={"greeting": "Hello."})
    for skill in ("hello", "research_loop", "hello"):
        await engine.start(skill, TEXT("Ada"))

    async def ids(**filters: object) -> list[str]:
        return [view.task_id async for view in engine.list(**filters)]  # type: ignore[arg-type]

    assert await ids() == ["hello-3", "research_loop-2", "hello-1"]
    assert await ids(skill="hello", limit=1) == ["hello-3"]
    assert await ids(lifecycle=TaskState.RUNNING) == ["research_loop-2"]


async def test_the_past_can_be_read() -> None:
    """
    `journal` gives the entries after a number, `at` the task as it was.
    """
    engine = research()
    await engine.start("research_loop", TEXT("tides"), task_id="T")
    entries = [entry async for entry in engine.journal("T")]

    assert [entry.seq async for entry in engine.journal("T", after=1)] == [2, 3]
    skill = engine.skills["research_loop"]
    assert await engine.at("T", 2) == fold(skill, planned(skill, "T", entries[0].at), entries[:2])


async def test_watching_ends_at_a_pause_or_at_the_end() -> None:
    """
    `follow` stays over pauses; the end always ends it.
    """
    engine = research()
    await engine.start("research_loop", TEXT("tides"), task_id="T")
    at_pause = await news(engine, "T")
    following = asyncio.create_task(news(engine, "T", after=2, follow=True))
    await asyncio.sleep(0)
    await engine.send("T", TEXT("For children."))

    assert at_pause == [1, 2, 3]
    assert await following == [3, 4, 5, 6]
    assert await news(engine, "T", after=4) == [5, 6]


async def test_watchers_see_a_model_write() -> None:
    """
    Text shows to those who watch, of tasks that were started to stream, with its offset.
    """
    engine = FakeEngine([Hello])
    await engine.start("hello", TEXT("Ada"), task_id="T", stream=True)
    watching = asyncio.create_task(news(engine, "T"))
    await asyncio.sleep(0)
    engine.write("T", "greeting", "Hel")
    engine.write("T", "greeting", "lo.")
    await engine.reply("T", "greeting", "Hello.")

    assert await watching == [1, "Hel", "lo.", 2]
    assert await news(engine, "T") == [1, 2]


async def test_text_carries_its_offset() -> None:
    """
    A second piece begins where the first ended.
    """
    engine = FakeEngine([Hello])
    await engine.start("hello", TEXT("Ada"), task_id="T", stream=True)
    watched = engine.watch("T", after=1)
    engine.write("T", "greeting", "lost")  # nobody watches yet
    first = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0)
    engine.write("T", "greeting", "Hel")

    assert await first == Tokens(invocation_id="T/1.1", attempt=1, offset=4, text="Hel")


async def test_a_part_that_takes_too_long_is_canceled() -> None:
    """
    At its timeout the call fails; until then the part's question is the whole's.
    """
    engine = FakeEngine([table("whole", Step("begin", patient).start()), Hello2])
    view = await engine.start("whole", TEXT("go"), task_id="T")
    assert [wait.slot for wait in view.waiting_for] == ["name"]

    await engine.advance(59)
    assert (await engine.look("T")).status is Status.INPUT_REQUIRED
    await engine.advance(1)

    assert (await engine.look("T")).messages[-1].text == "timeout"
    assert (await engine.look("T/1.1")).status is Status.CANCELED


@flow_skill(id="hello2")
class Hello2:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("name", "Who?")).text)


async def patient(ctx: Ctx, content: Content) -> Transition:
    try:
        return ctx.complete((await ctx.skill("hello", Hello2, "x", timeout_s=60)).text)
    except CommandError as error:
        return ctx.complete(error.failure.type)


async def test_watchers_see_a_tool_report() -> None:
    """
    Each report with its number; it is no entry.
    """
    engine = FakeEngine([table("waits", Step("begin", waits).start())])
    await engine.start("waits", TEXT("go"), task_id="T")
    watched = engine.watch("T", after=1)
    first = asyncio.ensure_future(anext(watched))
    await asyncio.sleep(0)
    engine.report("T", "lookup", "half")
    engine.report("T", "lookup", {"done": 1})

    about = {"invocation_id": "T/1.1", "tool": "lookup", "attempt": 1}
    assert await first == Progress(**about, number=1, said="half")
    assert await anext(watched) == Progress(**about, number=2, said={"done": 1})
    await watched.aclose()


async def waits(ctx: Ctx, content: Content) -> Transition:
    await ctx.tool("lookup")
    return ctx.complete()


async def test_without_a_worker_tasks_wait() -> None:
    """
    They are taken, and go on when a worker is there.
    """
    engine = research()
    engine.worker = False
    started = await engine.start("research_loop", TEXT("tides"), task_id="T")
    with pytest.raises(NoWorker):
        await engine.send("T", TEXT("hello?"))
    engine.worker = True
    await engine.settle()

    assert (started.status, started.note) == ("submitted", "no worker answers; start one with `refold worker`")
    assert (await engine.look("T")).status == "input-required"


@pytest.mark.parametrize(
    ("later", "kinds"),
    [(False, ["user_message", "cancel_requested"]), (True, ["cancel_requested"])],
    ids=["begins", "held"],
)
async def test_a_request_to_cancel_is_kept_until_a_worker_is_there(later: bool, kinds: list[str]) -> None:
    """
    As the server keeps it: the caller is told that the task is not canceled yet, and the first reason counts.
    """
    engine = research()
    engine.worker = False
    await engine.start("research_loop", TEXT("tides"), task_id="T", hold=later)

    for reason in ("not today", "nor tomorrow"):
        with pytest.raises(NoWorker, match="task 'T' is not canceled yet, but will be once a worker is there: no work"):
            await engine.cancel("T", reason=reason, by="ada")
    before = await engine.look("T")
    engine.worker = True
    await engine.settle()
    after = await engine.look("T")

    assert (before.status, after.status, after.reason) == ("submitted", "canceled", "not today")
    assert [entry.event.kind async for entry in engine.journal("T")] == kinds
    engine.worker = False
    with pytest.raises(InputRejected, match="there is nothing to cancel"):
        await engine.cancel("T")


async def test_a_lifecycle_that_is_none_is_refused() -> None:
    """
    With what it may be, as whatever else does not fit.
    """
    with pytest.raises(InputRejected, match="lifecycle: Input should be 'planned', 'running'"):
        [view async for view in research().list(lifecycle=cast(TaskState, "nope"))]


async def test_a_fault_is_raised_by_every_call() -> None:
    """
    What cannot be reached answers nothing.
    """
    engine = research()
    engine.fault = NotConnected("no server at 127.0.0.1:7233")

    with pytest.raises(EngineError, match="7233"):
        await engine.start("research_loop", TEXT("tides"))
    with pytest.raises(NotConnected):
        await engine.look("T")
    with pytest.raises(NotConnected):
        [view async for view in engine.list()]


async def test_it_is_an_engine() -> None:
    """
    The type checker agrees that it does what the protocol says.
    """
    engine: Engine = FakeEngine([Hello])

    assert (await engine.start("hello", TEXT("Ada"))).task_id == "hello-1"


async def test_stand_ins_may_be_async() -> None:
    """
    A slow one does not keep others from talking to the engine.
    """
    arrived, go = asyncio.Event(), asyncio.Event()

    async def slowly(_: object) -> str:
        arrived.set()
        await go.wait()
        return "Hello."

    engine = FakeEngine([Hello], answers={"greeting": slowly})
    starting = asyncio.create_task(engine.start("hello", TEXT("Ada"), task_id="T"))
    await arrived.wait()
    meanwhile = await engine.look("T")
    await engine.cancel("T")
    go.set()

    assert (meanwhile.status, (await starting).status) == ("working", "canceled")


async def test_a_called_skill_goes_on_when_its_caller_recovers() -> None:
    """
    Under an id of its own; what had come back to it is not asked for again.
    """

    async def child(ctx: Ctx, content: Content) -> Transition:
        first = await ctx.tool("first")
        return ctx.complete(f"{first} {await ctx.tool('second')}")

    async def caller(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("part", "part", "go")).text)

    engine = FakeEngine([table("part", Step("begin", child).start()), table("caller", Step("begin", caller).start())])
    view = await engine.start("caller", Content.from_text("go"))
    part = f"{view.task_id}/1.1"
    await engine.reply(part, "first", 1)
    await engine.fail(part, "second", "gone")
    assert (await engine.look(view.task_id)).status is Status.FAILED

    new = await engine.recover(view.task_id)
    await engine.reply(f"{new.task_id}/1.1", "second", 2)

    assert (await engine.look(new.task_id)).messages[-1].text == "1 2"
    assert [one.task_id for one in await engine.offspring(view.task_id)] == [new.task_id]


async def test_a_part_that_a_recovered_task_never_started_keeps_its_progress() -> None:
    """
    The recovered task was canceled while it performed the compensated charge again; the next one continues the part of
    the first task.
    """

    @tool(effect="idempotent")
    def refund(result: JsonValue) -> None: ...

    @tool(effect="compensate", undo=refund)
    def charge() -> JsonValue: ...

    async def child(ctx: Ctx, content: Content) -> Transition:
        first = await ctx.tool("first")
        return ctx.complete(f"{first} {await ctx.tool('second')}")

    async def caller(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(charge)
        return ctx.complete((await ctx.skill("part", "part", "go")).text)

    engine = FakeEngine(
        [table("part", Step("begin", child).start()), table("caller", Step("begin", caller).start())],
        answers={"undo charge": None},
    )
    await engine.start("caller", TEXT("go"), task_id="T")
    await engine.reply("T", "charge", "c-1")
    await engine.reply("T/2.1", "first", 1)
    await engine.fail("T/2.1", "second", "gone")
    await engine.recover("T")
    await engine.cancel("T.r1")
    await engine.fail("T.r1", "charge", "gone")
    await engine.recover("T.r1")
    await engine.reply("T.r1.r1", "charge", "c-3")

    await engine.reply("T.r1.r1/2.1", "second", 2)

    assert (await engine.look("T.r1.r1")).messages[-1].text == "1 2"


async def test_one_task_at_a_time_goes_on_for_another() -> None:
    """
    Two would make the same effects, each under ids of its own. Where the first one fails, either recovers.
    """

    async def mails(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("mail")
        await ctx.ask("more", "More?")
        return ctx.complete()

    engine = FakeEngine([table("mails", Step("begin", mails).start())])
    failed = (await engine.start("mails", Content.from_text("go"), task_id="T")).task_id
    await engine.fail(failed, "mail", "gone")
    first = await engine.recover(failed)

    with pytest.raises(InputRejected, match=r"'T' was recovered before: 'T.r1' goes on for it \(working\)"):
        await engine.recover(failed)

    await engine.cancel(first.task_id)
    second = await engine.recover(first.task_id)
    with pytest.raises(InputRejected, match=r"'T.r1.r1' goes on for it"):
        await engine.recover(failed)
    await engine.cancel(second.task_id)
    assert (await engine.recover(failed)).task_id == "T.r2"


@pytest.mark.parametrize(("first", "second"), [("T", "T/1.1"), ("T/1.1", "T")])
async def test_a_part_goes_on_with_its_task_or_alone(first: str, second: str) -> None:
    """
    Whichever is recovered first: with both, the part's effects would be made twice.
    """

    async def child(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("more", "More?")).text)

    async def caller(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("part", "part", "go")).text)

    engine = FakeEngine([table("part", Step("begin", child).start()), table("caller", Step("begin", caller).start())])
    await engine.start("caller", TEXT("go"), task_id="T")
    await engine.cancel("T")
    await engine.recover(first)

    with pytest.raises(InputRejected, match=f"'{first}' was recovered before: '{first}.r1' goes on for it"):
        await engine.recover(second)


async def test_a_part_that_its_task_did_without_does_not_matter() -> None:
    """
    Its failure was handled, so recovery does not send it again: somebody may have recovered it by itself.
    """

    async def child(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.ask("more", "More?")).text)

    async def caller(ctx: Ctx, content: Content) -> Transition:
        try:
            await ctx.skill("part", "part", "go")
        except CommandError:
            await ctx.ask("next", "Go on without it?")
        return ctx.complete()

    engine = FakeEngine([table("part", Step("begin", child).start()), table("caller", Step("begin", caller).start())])
    await engine.start("caller", TEXT("go"), task_id="T")
    await engine.cancel("T/1.1")
    await engine.recover("T/1.1")
    await engine.cancel("T")

    assert [wait.slot for wait in (await engine.recover("T")).waiting_for] == ["next"]


async def test_what_is_wanted_again_is_performed_again() -> None:
    """
    The engine remembers nothing of a command that came back, as no worker does: a core that wanted one again would
    have its effect twice here, too.
    """
    asked = 0

    def answer(_: object) -> str:
        nonlocal asked
        asked += 1
        return "Hello."

    engine = FakeEngine([Hello], answers={"greeting": answer}, auto=False)
    await engine.start("hello", TEXT("Ada"), task_id="T")
    await engine.settle()
    before = await engine.at("T", 1)

    engine._task("T").snapshots.append(before)  # as a core with a fault would leave it
    await engine.settle()

    assert asked == 2


async def test_the_open_gate_of_a_recovered_part_is_shown_at_its_parent() -> None:
    """
    The part goes on with the gate that was open; the new parent has to be told of it.
    """

    async def child(ctx: Ctx, content: Content) -> Transition:
        decision = await ctx.approve("sure", "Sure?")
        return ctx.complete(decision.decision)

    async def caller(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("part", "part", "go")).text)

    engine = FakeEngine([table("part", Step("begin", child).start()), table("caller", Step("begin", caller).start())])
    asked = await engine.start("caller", TEXT("go"), task_id="T")
    await engine.cancel("T")
    new = await engine.recover("T")

    assert [wait.slot for wait in asked.waiting_for] == ["sure"]
    assert (new.status, [wait.slot for wait in new.waiting_for]) == ("input-required", ["sure"])
    done = await engine.decide(new.task_id, "sure", approved=True, approver="Ann")
    assert done.messages[-1].text == "approved"


async def test_a_held_task_begins_when_it_is_released() -> None:
    """
    Until then it is planned, refuses messages, journals signals as refused, and takes a cancellation.
    """
    engine = FakeEngine([Hello], answers={"greeting": "Hello."})
    held = await engine.start("hello", TEXT("Ada"), hold=True)
    with pytest.raises(InputRejected, match="it is held; `refold release hello-1` begins it now"):
        await engine.send(held.task_id, TEXT("now"))
    refused = await engine.signal(held.task_id, UserMessage(content=TEXT("now")))

    assert (held.lifecycle, held.status) == (TaskState.PLANNED, Status.SUBMITTED)
    assert [message.text for message in held.messages] == ["Ada"]
    assert refused.refused
    assert await news(engine, held.task_id) == [1]
    assert (await engine.release(held.task_id)).status is Status.COMPLETED
    with pytest.raises(InputRejected, match=r"has ended \(completed\); start a new one"):
        await engine.release(held.task_id)

    other = await engine.start("hello", TEXT("Bob"), hold=True)
    assert (await engine.cancel(other.task_id)).status is Status.CANCELED
    with pytest.raises(InputRejected, match="was canceled before it began"):
        await engine.recover(other.task_id)


async def test_a_delayed_task_begins_at_its_time() -> None:
    """
    The clock begins it, or a release before that.
    """
    engine = FakeEngine([Hello], answers={"greeting": "Hello."})
    first, second = [await engine.start("hello", TEXT("Ada"), start_delay=timedelta(hours=1)) for _ in range(2)]
    assert "it begins at" in first.note
    assert (await engine.release(first.task_id)).status is Status.COMPLETED

    await engine.advance(3599)
    assert (await engine.look(second.task_id)).lifecycle is TaskState.PLANNED
    await engine.advance(1)
    assert (await engine.look(second.task_id)).status is Status.COMPLETED


async def test_no_worker_knows_a_delayed_task() -> None:
    """
    As on Temporal: its past and its gates are not asked about before it begins, or is sent something.
    """
    engine = FakeEngine([Hello], answers={"greeting": "Hello."})
    id = (await engine.start("hello", TEXT("Ada"), start_delay=timedelta(hours=1))).task_id

    with pytest.raises(NoWorker, match=f"task '{id}' cannot be asked: it begins at"):
        await engine.at(id, 0)
    with pytest.raises(NoWorker, match=f"task '{id}' cannot be asked for its gates: it begins at"):
        await engine.decide(id, None, approved=True, approver="ada")
    with pytest.raises(InputRejected, match="it begins at"):
        await engine.send(id, TEXT("Bob"))
    assert (await engine.at(id, 0)).lifecycle is TaskState.PLANNED


@pytest.mark.parametrize(("said", "way_out"), [("good", "start a new one"), (None, "recover it, or start a new one")])
async def test_a_task_that_is_over_refuses_in_the_words_of_the_engine_on_temporal(
    said: str | None, way_out: str
) -> None:
    """
    Messages, resolutions and releases name the way out; a cancel and a recovery say why there is nothing to do.
    """
    engine = FakeEngine([Clerk, Patient, Naps, Boss])
    over = (await engine.start("naps", Content.from_data({"seconds": 1}), task_id="T")).task_id
    if said is None:
        await engine.cancel(over)
    else:
        await engine.advance()
    status = (await engine.look(over)).status

    for call in (
        engine.send(over, Content.from_text("hello")),
        engine.resolve(over, retry=True),
        engine.release(over),
        engine.decide(over, "any", approved=True, approver="ada", digest="0" * 32),
    ):
        with pytest.raises(InputRejected, match=rf"task 'T' has ended \({status}\); {way_out}"):
            await call
    with pytest.raises(InputRejected, match=rf"task 'T' has ended \({status}\); there is nothing to cancel"):
        await engine.cancel(over)


async def test_a_cancel_without_a_reason_has_one() -> None:
    """
    The same as on Temporal.
    """
    engine = FakeEngine([Naps])
    await engine.start("naps", Content.from_data({"seconds": 1}), task_id="T")

    assert (await engine.cancel("T")).reason == "canceled on request"


def test_one_skill_or_answers_that_are_no_mapping_are_refused() -> None:
    """
    With what to write instead.
    """
    with pytest.raises(DefinitionError, match=r"write \[Naps\]"):
        FakeEngine(Naps)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"answers= is a list; write a dict"):
        FakeEngine([Naps], answers=["Hello!"])  # type: ignore[arg-type]


@flow_skill(id="twice")
class Twice:
    """Writes, then asks for two things at once."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.llm("draft", content.text)
        await ctx.gather(ctx.ask("one", "One?"), ctx.ask("two", "Two?"))
        return ctx.complete()


async def test_a_task_has_moved_where_lists_show_something_else_or_it_is_over() -> None:
    """
    As on Temporal: neither the first entry of a new task nor one that leaves status and state as they are moves it.
    """
    engine = FakeEngine([Twice])
    moved: dict[str, bool] = {}

    async def moves(name: str) -> None:
        moved[name] = bool(await engine.count(TaskFilter(moved_since=engine.clock.now)))
        engine.clock.advance(60)

    engine.worker = False
    await engine.start("twice", TEXT("go"), task_id="T")
    await moves("start")
    engine.worker = True
    await engine.settle()
    await moves("taken")
    await engine.reply("T", "draft", "A draft.")
    await moves("asks")
    await engine.send("T", TEXT("yes"), slot="one")
    await moves("still asks")
    await engine.send("T", TEXT("yes"), slot="two")
    await moves("completes")

    assert moved == {"start": True, "taken": False, "asks": True, "still asks": False, "completes": True}


async def asked(call: Any) -> object:
    """What a call comes to: its result, or the error's name."""
    try:
        return [one async for one in call] if hasattr(call, "__aiter__") else await call
    except RefoldError as error:
        return type(error).__name__


SENT: dict[str, Callable[[FakeEngine], Any]] = {
    "send": lambda engine: engine.send("T", TEXT("yes"), slot="one"),
    "decide": lambda engine: engine.decide("T", "one", approved=True, approver="ada"),
    "resolve": lambda engine: engine.resolve("T", retry=True),
    "release": lambda engine: engine.release("T"),
}
READ: dict[str, Callable[[FakeEngine], Any]] = {
    "journal": lambda engine: engine.journal("T"),
    "past": lambda engine: engine.past("T"),
    "watch": lambda engine: engine.watch("T"),
    "explain": lambda engine: engine.explain("T", "field"),
    "builds": lambda engine: engine.builds("T"),
    "fork": lambda engine: engine.fork("T", at=1),
}


async def test_an_open_task_without_a_worker_is_known_as_far_as_lists_know_it() -> None:
    """
    As on Temporal: its status, and why there is no more; whatever needs its worker raises.
    """
    engine = FakeEngine([Twice], answers={"draft": "A draft."})
    await engine.start("twice", TEXT("go"), task_id="T", owner="ada")
    engine.worker = False
    view, record = await engine.look("T"), await engine.record("T")
    said = {name: await asked(call(engine)) for name, call in {**SENT, **READ}.items()}
    new = await engine.start("twice", TEXT("go"), owner="ada")

    assert (view.status, view.lifecycle, view.waiting_for, view.messages) == ("input-required", "paused", (), ())
    assert (record.status, record.waits, record.owner) == ("input-required", (), "ada")
    assert [message.content.text for message in record.messages] == ["go"]
    assert view.note == record.note == new.note == "no worker answers; start one with `refold worker`"
    assert [new.messages, *[one.messages async for one in engine.list()]] == [(), (), ()]
    assert await engine.count(TaskFilter(status=Status.INPUT_REQUIRED)) == 1
    assert set(said.values()) == {"NoWorker"}
    assert await asked(engine.at("T", 1)) == "NoWorker"


async def test_an_ended_task_needs_no_worker() -> None:
    """
    Its result is on the server, and so is its journal; only an earlier state is computed by a worker.
    """
    engine = FakeEngine([Hello], answers={"greeting": "Hello."})
    ended = await engine.start("hello", TEXT("Ada"), task_id="T")
    engine.worker = False

    assert await engine.look("T") == ended
    assert (await engine.record("T")).note == ""
    assert {name: await asked(call(engine)) for name, call in SENT.items()} == dict.fromkeys(SENT, "InputRejected")
    assert len([entry async for entry in engine.watch("T")]) == ended.seq
    assert (await engine.fork("T", at=1)).status == "submitted"
    assert await asked(engine.at("T", 1)) == "NoWorker"


@pytest.mark.parametrize("hold", [False, True])
async def test_a_start_without_a_worker_is_refused_by_the_first_one(hold: bool) -> None:
    """
    Nobody knows before whether it fits the skill.
    """
    engine = FakeEngine([Naps])
    engine.worker = False
    started = await engine.start("naps", TEXT("long"), task_id="T", hold=hold)
    engine.worker = True
    await engine.settle()
    view = await engine.look("T")

    assert (started.status, view.status) == ("submitted", "failed")
    assert view.reason.startswith("its start was refused, and its id is free: skill 'naps' starts from data")
    with pytest.raises(EngineError, match="left no journal and cannot be recovered"):
        await engine.recover("T")
    assert (await engine.start("naps", Content.from_data({"seconds": 5}), task_id="T")).status == "working"
