"""Skills that nobody would write, made up by Hypothesis: each call gets garbage, and what it raises may be caught.

Calls and garbage are expressions in text, so that a failing example shows them as they are.
"""

import asyncio
import datetime
import decimal
import pathlib
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from enum import Enum, IntEnum, StrEnum
from functools import cache
from typing import Any, Generic, Literal, TypeVar, Union

from hypothesis import strategies as st
from pydantic import BaseModel, create_model
from typing_extensions import TypedDict

import refold
from refold import Content, Ctx, Event, Step, Transition, flow_skill, table
from refold.core import commands, content, errors, lifecycle


class Odd:
    """Raises whatever is asked of it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no equality")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    def __iter__(self) -> Any:
        raise RuntimeError("no items")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")

    __repr__ = __str__


class Colour(Enum):
    RED = "red"
    LIKE_A_LIST = (1, 2)


class Point(BaseModel):
    x: float = 1.0
    any: Any = None


@dataclass
class Pair:
    left: Any = 1
    right: Any = None


async def _never() -> None: ...


async def _waits_for_asyncio() -> None:
    await asyncio.sleep(0)


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"in": value}
    return value


def _endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _expressions(lines: str) -> list[str]:
    return [line.strip() for line in lines.strip().splitlines()]


GARBAGE = _expressions(
    r"""
    None
    True
    0
    -1
    2**70
    10**5000
    1.5
    float("inf")
    float("nan")
    1e300
    ""
    "q"
    "\ud83d"
    "\x00"
    "x" * 5000
    b"\xff"
    {}
    []
    ()
    {"a": [1, None, {"b": 2.5}]}
    {1: 2, "1": 3}
    {"\ud83d": "\ud83d"}
    {(1, 2): 3}
    {"s", "t", "u"}
    frozenset({1})
    [float("inf")]
    _deep(150)
    _deep(2000)
    _endless()
    object()
    Odd()
    object.__new__(Odd)
    Odd
    len
    (_ for _ in "ab")
    _never
    _never()
    _waits_for_asyncio()
    Ellipsis
    NotImplemented
    Unreadable()
    ValueError("v")
    Colour.RED
    Colour.LIKE_A_LIST
    Colour
    Point()
    Point(any={"s"})
    Point
    Pair()
    Pair(object())
    datetime(2026, 1, 1)
    datetime(2026, 1, 1, tzinfo=timezone.utc)
    date.max
    timedelta.max
    Decimal("NaN")
    Decimal("1.10")
    1j
    UUID(int=1)
    PurePosixPath("/a")
    int
    list[int]
    int | str
    "no.such:Type"
    Content.from_text("c")
    Content.from_text("\ud83d")
    Content.from_data(_deep(150))
    Part(text="p")
    Artifact.from_text("a", "t")
    Artifact.from_data("\ud83d", 1)
    Cmd.tool("t", "t")
    Cmd.sleep("s", 5)
    Cmd.ask_user("q", "?")
    Cmd.ask_user("u", "?", timeout_s=5)
    Cmd.ask_approval("g", "?", show={"b": 1})
    Transition()
    Notify(id="n", gate="T/1.1", message=Content.from_text("m"))
    CallTool(id="t", name="t", undoes=Undoes(tool="t", invocation_id="T/1.1", result=""))
    Transition.to(1)
    Transition.complete()
    GatePolicy(timeout_s=5, on_timeout="continue")
    RetryPolicy(max_retries=1, on_exhausted="block")
    """
)
ERRORS = _expressions(
    r"""
    ValueError("v")
    KeyError("\ud83d")
    TypeError(Odd())
    Unreadable()
    StopIteration()
    StopAsyncIteration()
    GeneratorExit()
    SystemExit(3)
    asyncio.CancelledError()
    MemoryError()
    RecursionError()
    AssertionError(object())
    ExceptionGroup("many", [ValueError("a"), Unreadable()])
    BaseExceptionGroup("many", [SystemExit()])
    SkillError("said")
    SkillError(None)
    InputRejected("no")
    InvalidTransitionError(TaskState.DONE, TaskEvent.START)
    ReplayMismatch("s", "a", "b")
    CommandError("x", "y", None)
    CommandError("x", "T/1.1", Failure(kind=FailureKind.TRANSIENT, type="t", message="m"))
    CommandError(None, None, Failure(kind=FailureKind.UNKNOWN, type="\ud83d", message="\ud83d"))
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
    OSError(5, "disk")
    BaseException("odd")
    """
)

SAYS = _expressions(
    r"""
    ctx.say(x)
    ctx.status(x)
    ctx.hand_over(x)
    ctx.decode(int, x)
    ctx.decode(x, 1)
    ctx.patched(x)
    ctx.thread(x)
    ctx.messages[x]
    ctx.now - x
    sys.intern(x)
    """
)


async def _branch(ctx: Ctx, name: str) -> Any:
    first = await ctx.tool(name)
    await ctx.ask(f"{name}?", "?", timeout_s=60)
    return first


ASKS = _expressions(
    r"""
    ctx.llm(x)
    ctx.llm("a", x)
    ctx.llm("a", input=x)
    ctx.llm("a", expect=x)
    ctx.llm("a", settings=x)
    ctx.llm("a", retry=x)
    ctx.llm("a", queue=x)
    ctx.chat("c", x)
    ctx.chat("c", "hi", tools=[x])
    ctx.chat("c", "hi", thread=x)
    ctx.chat("c", "hi", since=x)
    ctx.tool(x)
    ctx.tool("t", x)
    ctx.tool("t", arg=x)
    ctx.tool("t", id=x)
    ctx.tool("t", key=x)
    ctx.skill("s", x)
    ctx.skill("s", "s", x)
    ctx.activity("v", x)
    ctx.activity("v", "v", timeout_s=x)
    ctx.workflow("w", x)
    ctx.sleep(x)
    ctx.ask(x, "?")
    ctx.ask("q", x)
    ctx.ask("q", "?", expect=x)
    ctx.ask("q", "?", timeout_s=x)
    ctx.approve(x, "?")
    ctx.approve("g", "?", show=x)
    ctx.approve("g", "?", policy=x)
    ctx.approve("g", "?", show={"a": 1}, editable=x)
    ctx.gather(x)
    ctx.gather(ctx.tool("t"), ctx.ask("q", "?"), ctx.sleep(5))
    ctx.parallel(x)
    ctx.parallel(_branch(ctx, "t"), _branch(ctx, "u"))
    ctx.first(x)
    ctx.first(ctx.ask("q", "?", timeout_s=9), ctx.sleep(5), ctx.approve("g", "?"))
    x
    """
)
ENDS = _expressions(
    r"""
    ctx.complete(x)
    ctx.complete("ok", x)
    ctx.complete("ok", [x])
    ctx.fail(x)
    ctx.reject(x)
    ctx.goto(x)
    ctx.goto("work", value=x)
    ctx.goto("work", surplus=x)
    ctx.goto("work", value=x).cmd(Cmd.tool("t", "t"))
    ctx.goto("work").cmd(Cmd.tool("value", "t"))
    ctx.await_input(x, "?")
    ctx.await_input("q", x)
    ctx.await_input("q", "?", expect=x)
    ctx.await_input("q", "?", timeout_s=x)
    ctx.await_input("q", "?", carried=x)
    ctx.await_approval("g", x)
    ctx.await_approval("g", "?", show=x)
    ctx.await_approval("g", "?", policy=x)
    Transition.to(x)
    Transition.ignore(x)
    Transition.complete(x)
    Transition.fail(x)
    Transition.reject(x)
    Transition.goto(x)
    Transition.await_input("q", "?", x)
    Transition.await_approval("g", "?", x, show=x)
    Transition.to({}).cmd(x)
    Transition().message(x)
    Transition().artifact(x)
    Transition().status(x)
    Transition().patch(x)
    Transition(commands=x)
    Transition(messages=x, artifacts=x)
    Transition(ending=x)
    ctx.complete().cmd(Cmd.tool("t", "t"))
    ctx.await_input("q", "?").cmd(Cmd.tool("t", "t"))
    x
    """
)


def _error(expression: str) -> str:
    return f"_raise({expression})"


def _raise(error: BaseException) -> Any:
    raise error


@dataclass(frozen=True)
class Line:
    """One line of a program.

    Attributes:
        then: What becomes of the call: it is returned, awaited, forgotten; `try` catches what it raises.
        call: The call, of `ctx` and `x`.
        x: The garbage; made anew each time.
    """

    then: str
    call: str
    x: str

    def run(self, ctx: Any) -> Any:
        """Make the call."""
        return _compiled(self.call)(ctx, _compiled(self.x)(ctx, None))


_MODULES = [datetime, decimal, pathlib, uuid, lifecycle, content, commands, errors, refold, sys.modules[__name__]]
NAMES = {"asyncio": asyncio, "sys": sys} | {name: value for one in _MODULES for name, value in vars(one).items()}


@cache
def _compiled(expression: str) -> Callable[[Any, Any], Any]:
    made: Callable[[Any, Any], Any] = eval(f"lambda ctx, x: {expression}", NAMES)
    return made


_garbage = st.sampled_from(GARBAGE)
_lines = st.one_of(
    st.builds(Line, st.sampled_from(["await", "await", "try await", "forget"]), st.sampled_from(ASKS), _garbage),
    st.builds(Line, st.sampled_from(["call", "try call"]), st.sampled_from(SAYS), _garbage),
)
_last = st.one_of(
    st.builds(Line, st.just("return"), st.sampled_from(ENDS), _garbage),
    st.builds(Line, st.just("return"), st.sampled_from(ERRORS).map(_error), st.just("None")),
)
Program = tuple[list[Line], Line]
programs: st.SearchStrategy[Program] = st.tuples(st.lists(_lines, max_size=2), _last)


async def _run(program: Program, ctx: Ctx) -> Any:
    lines, last = program
    for line in lines:
        try:
            called = line.run(ctx)
            if "await" in line.then:
                await called
        except Exception:
            if "try" not in line.then:
                raise
    return last.run(ctx)


@st.composite
def skills(draw: st.DrawFn) -> Any:
    """A skill of any style, whose code is made of made-up programs."""
    style = draw(st.sampled_from(["steps", "steps", "plain steps", "reducer"]))
    first, second, third = draw(programs), draw(programs), draw(programs)
    if style == "reducer":
        return _reducer([first, second, third])
    if style == "steps":

        async def begin(ctx: Ctx, content: Content) -> Any:
            return await _run(first, ctx)

        async def work(ctx: Ctx, value: Any = None) -> Any:
            return await _run(second, ctx)

        async def answered(ctx: Ctx, content: Content, carried: Any = None) -> Any:
            return await _run(third, ctx)

        return _table(begin, work, answered)

    def plain_begin(ctx: Ctx, content: Content) -> Any:
        return first[1].run(ctx)

    def plain_work(ctx: Ctx, value: Any = None) -> Any:
        return second[1].run(ctx)

    def plain_answered(ctx: Ctx, content: Content, carried: Any = None) -> Any:
        return third[1].run(ctx)

    return _table(plain_begin, plain_work, plain_answered)


def _table(begin: Any, work: Any, answered: Any) -> Any:
    steps = Step("begin", begin).start(), Step("work", work), Step("answered", answered).resume_from("begin")
    return table("made_up", *steps)


class Counted(BaseModel):
    calls: int = 0
    left: Any = None


def _reducer(made: list[Program]) -> Any:
    @flow_skill(id="made_up")
    class MadeUp:
        @staticmethod
        def initial() -> Counted:
            return Counted()

        def on_event(self, state: Counted, event: Event, ctx: Ctx) -> Any:
            lines, last = made[state.calls % len(made)]
            for line in lines:
                try:
                    line.run(ctx)
                except Exception:
                    if "try" not in line.then:
                        raise
            returned = last.run(ctx)
            if isinstance(returned, Transition) and returned.state == {}:
                return Transition(state=Counted(calls=state.calls + 1), commands=returned.commands)
            return returned

    return MadeUp


# --- types that JSON can hold


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    inside: T
    more: list[T] = []


Kind = tuple[Any, st.SearchStrategy[Any]]
"""A type, and values of it."""

_LEAVES: list[Kind] = [
    (int, st.integers(-(2**60), 2**60)),
    (str, st.text(max_size=4)),
    (bool, st.booleans()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (None, st.none()),
    (datetime.date, st.dates()),
    (datetime.datetime, st.datetimes(timezones=st.just(datetime.UTC))),
    (datetime.timedelta, st.timedeltas(datetime.timedelta(-9), datetime.timedelta(9))),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2)),
    (uuid.UUID, st.uuids()),
    (Size, st.sampled_from(Size)),
    (Level, st.sampled_from(Level)),
    (Literal["a", "small", 1], st.sampled_from(["a", "small", 1])),
]


# For a type checker these are types, and not made by what is drawn.
_GENERIC: list[Any] = [list, dict, tuple, Box, TypedDict, Union]
_list, _dict, _tuple, _box, _typed, _union = _GENERIC


def _composed(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    one, two = inner, st.tuples(inner, inner)
    return st.one_of(
        one.map(lambda a: (_list[a[0]], st.lists(a[1], max_size=2))),
        one.map(lambda a: (_dict[str, a[0]], st.dictionaries(st.text(max_size=2), a[1], max_size=2))),
        one.map(lambda a: (_tuple[a[0], ...], st.lists(a[1], max_size=2).map(tuple))),
        one.map(lambda a: (_box[a[0]], st.builds(_box[a[0]], inside=a[1], more=st.lists(a[1], max_size=1)))),
        two.map(lambda ab: (_tuple[ab[0][0], ab[1][0]], st.tuples(ab[0][1], ab[1][1]))),
        two.map(lambda ab: (_union[ab[0][0], ab[1][0]], ab[0][1] | ab[1][1])),
        two.map(lambda ab: (_typed("Typed", {"a": ab[0][0], "b": ab[1][0]}), _fields(ab))),
        two.map(_model),
        two.map(_data),
    )


def _fields(ab: tuple[Kind, Kind]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"a": ab[0][1], "b": ab[1][1]})


def _model(ab: tuple[Kind, Kind]) -> Kind:
    made = create_model("Model", a=(ab[0][0], ...), b=(ab[1][0], ...))
    return made, _fields(ab).map(lambda fields: made(**fields))


def _data(ab: tuple[Kind, Kind]) -> Kind:
    made = make_dataclass("Data", [("a", ab[0][0]), ("b", ab[1][0])])
    return made, _fields(ab).map(lambda fields: made(**fields))


kinds: st.SearchStrategy[Kind] = st.recursive(st.sampled_from(_LEAVES), _composed, max_leaves=4)
"""Types of every sort that JSON can hold, and values of them."""
