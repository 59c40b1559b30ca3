"""What a task keeps is what its skill gave it: a way through JSON that changes a value is found, and said."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cached_property, partial
from typing import Annotated, Any, Generic, Literal, TypeVar
from zoneinfo import ZoneInfo

import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    TypeAdapter,
)
from pydantic.alias_generators import to_camel

from refold import (
    Cmd,
    Content,
    Contract,
    Ctx,
    DefinitionError,
    SkillError,
    Status,
    Step,
    Transition,
    UserMessage,
    table,
)
from refold.core.authoring.define import skill_of
from refold.core.codec import NoData, codec, misfit
from tests.core.byhand import ByHand
from tests.core.small import one_step

T = TypeVar("T")


class A(BaseModel):
    n: int = 0


class B(BaseModel):
    n: int = 0


class Derived(A):
    more: str = ""


class Cached(BaseModel):
    n: int = 0
    cache: dict[str, int] = Field(default_factory=dict, exclude=True)


class Private(BaseModel):
    n: int = 0
    _seen: int = PrivateAttr(default=0)

    def seen(self) -> Private:
        self._seen += 1
        return self


class Credentials(BaseModel):
    token: SecretStr


class Colour(StrEnum):
    RED = "red"


class Level(Enum):
    HIGH = 1


@dataclass
class Plain:
    items: list[Any] = field(default_factory=list)


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")

    order_id: int
    net_cents: int = 0


def test_a_unions_order_counts() -> None:
    """
    `A | B` and `B | A` are equal in Python, and read the same data as different classes.
    """
    kinds: list[tuple[Any, type]] = [(A | B, A), (B | A, B), (A | B, A), (list[A | B], A), (list[B | A], B)]
    for kind, first in kinds:
        data: Any = [{"n": 1}] if str(kind).startswith("list") else {"n": 1}
        fresh = codec(kind).fresh(data)
        assert type(fresh[0] if isinstance(fresh, list) else fresh) is first
        assert TypeAdapter(kind).validate_python(data) == fresh


LOST: list[tuple[str, Any, Any, str]] = [
    ("member", A | B, B(n=1), "it is a B, and reads back as a A"),
    ("inner member", dict[str, A | B], {"x": B()}, "x is a B, and reads back as a A"),
    ("subclass", A, Derived(more="x"), "it is a Derived, and reads back as a A"),
    ("subclass in a list", list[A], [A(), Derived()], "[1] is a Derived"),
    ("decimal or text", Decimal | str, Decimal("1.5"), "it is a Decimal, and reads back as a str"),
    ("int or decimal", int | Decimal, Decimal(1), "it is a Decimal, and reads back as a int"),
    ("secret", Credentials, Credentials(token=SecretStr("x")), "token reads back as asterisks"),
    ("excluded", Cached, Cached(cache={"a": 1}), "the field is excluded from the data"),
    ("private", Private, Private().seen(), "_seen reads back changed; a private attribute is no data"),
    ("date in anything", dict[str, Any], {"on": date(2026, 1, 1)}, "on is a date, and reads back as a str"),
    ("model in anything", Plain, Plain(items=[A()]), "items[0] is a A, and reads back as a dict"),
    ("enum in anything", list[Any], [Level.HIGH], "[0] is a Level"),
    ("keys in anything", dict[str, Any], {"by": {1: "a"}}, "by loses 1"),
    ("set in anything", dict[str, Any], {"tags": {"a"}}, "tags holds a set, which has no order"),
]


@pytest.mark.parametrize(("kind", "value", "said"), [one[1:] for one in LOST], ids=[one[0] for one in LOST])
def test_a_value_that_reads_back_changed_is_an_error_that_says_where(kind: Any, value: Any, said: str) -> None:
    """
    Handed to a step it fails the task, which would else go on with another value than the skill gave.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.goto("next", value=value)

    def following(ctx: Ctx, value: Any) -> Transition:
        return ctx.complete()

    following.__annotations__["value"] = kind
    task = ByHand(one_step(begin, Step("next", following)))
    task.say()

    assert (task.status, said in task.reason) == (Status.FAILED, True), task.reason


SAME: list[tuple[Any, Any]] = [
    (A | B, A(n=1)),
    (Decimal | None, Decimal("1.50")),
    (float, 1),
    (Plain, Plain(items=[1, (2, 3), {"a": None}])),
    (dict[str, Any], {"a": [1, (2,), None, 1.5, True]}),
    (list[float], [float("nan"), float("inf")]),
    (Colour | str, Colour.RED),
    (Cached, Cached()),
    (Private, Private()),
    (dict[int, date], {1: date(2026, 1, 1)}),
    (tuple[Level, ...], (Level.HIGH,)),
    (Camel, Camel.model_validate({"orderId": 1, "netCents": 5})),
    (Annotated[frozenset[str], PlainSerializer(sorted)], frozenset({"b", "a"})),
    (Annotated[str, BeforeValidator(str.strip)], " x "),
    (JsonValue, {"a": [{"b": 1.0}]}),
]


@pytest.mark.parametrize(("kind", "value"), SAME, ids=[str(kind) for kind, _ in SAME])
def test_what_reads_back_the_same_is_taken(kind: Any, value: Any) -> None:
    """
    Where nothing is lost, nothing is refused.
    """
    way = codec(kind)

    assert way.lost(value, way.fresh(way.data(value))) == ""


class Box(BaseModel, Generic[T]):
    held: list[T]


def test_a_time_reads_back_with_its_offset_and_without_its_zone() -> None:
    """
    As docs/limits.md says: the zone's name, kept beside it, gives days of the right length again.
    """
    before = datetime(2026, 10, 24, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    _, after = codec(datetime).saved(before)

    assert (after, after.utcoffset()) == (before, timedelta(hours=2))
    assert after + timedelta(days=1) != before + timedelta(days=1)
    assert after.astimezone(ZoneInfo("Europe/Berlin")) + timedelta(days=1) == before + timedelta(days=1)


BERLIN = ZoneInfo("Europe/Berlin")


class Meeting(BaseModel):
    at: datetime


class Shared(BaseModel):
    model_config = ConfigDict(frozen=True)

    at: datetime | None = None


def of_steps(at: datetime) -> Any:
    """A skill of steps that hands a time on."""

    def begin(ctx: Ctx) -> Transition:
        return ctx.goto("asks", at=at, by=[Meeting(at=at)])

    def asks(ctx: Ctx, at: datetime, by: list[Meeting]) -> Transition:
        return ctx.complete(f"{at} {by[0].at}")

    return one_step(begin, Step("asks", asks))


def of_a_contract(at: datetime, *, first: bool = False) -> Any:
    """A skill whose shared state has a time, from the first or written by a step."""

    def begins(content: Content, ctx: Ctx) -> Shared:
        return Shared(at=at if first else None)

    def begin(ctx: Ctx) -> Transition:
        return ctx.goto("asks") if first else ctx.goto("asks").patch(at=at)

    def asks(ctx: Ctx, state: Shared) -> Transition:
        return ctx.complete(f"{state.at} {state.at}")

    writes = Step("begin", begin, writes=["at"]).start()
    return table("shared", writes, Step("asks", asks, reads=["at"]), contract=Contract(state=Shared, begins=begins))


def of_a_reducer(at: datetime) -> Any:
    """A skill whose state has a time."""

    class Meets:
        @staticmethod
        def initial() -> Meeting:
            return Meeting(at=at)

        def on_event(self, state: Meeting, event: Any, ctx: Ctx) -> Transition:
            return Transition.complete(Meeting(at=at)).message(f"{state.at} {state.at}")

    return Meets


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
    ],
    ids=["first", "repeated", "skipped"],
)
@pytest.mark.parametrize(
    ("author", "refused"),
    [
        pytest.param(of_steps, "it reads back changed", id="steps"),
        pytest.param(of_a_reducer, "at reads back changed", id="reducer"),
        pytest.param(of_a_contract, "it reads back changed", id="contract"),
        pytest.param(partial(of_a_contract, first=True), "", id="contract-begins"),
    ],
)
def test_a_time_is_kept_when_the_clocks_change(at: datetime, author: Callable[[datetime], Any], refused: str) -> None:
    """
    In the hour that summer time repeats or skips, as in any other: such a time equals no time of another zone in
    Python. A task of an earlier release was refused it, as its history says.
    """
    kept = at.replace(tzinfo=timezone(at.utcoffset() or timedelta()), fold=0)
    task = ByHand(author(at), cut=True)
    task.say()
    assert task.said == [f"{kept} {kept}"], task.reason
    assert task.folded() == task.task

    old = ByHand(author(at), patched=lambda _: False)
    old.say()
    assert refused in old.reason


def test_another_offset_or_hour_is_another_time() -> None:
    """
    Only the zone may be lost on the way through JSON.
    """
    at = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    fixed = [datetime(2026, 10, 25, hour, 30, tzinfo=timezone(timedelta(hours=off))) for hour, off in ((2, 1), (3, 2))]
    same_moment = at.astimezone(UTC)

    assert all(codec(datetime).lost(at, other) for other in (*fixed, same_moment))


def test_models_of_one_generic_are_told_apart() -> None:
    """
    Empty, they are equal to pydantic; but the code that meets them may ask for the class.
    """
    way = codec(Box[int] | Box[str])
    box = Box[str](held=[])

    assert "tell the classes apart" in way.lost(box, way.fresh(way.data(box)))
    full = Box[str](held=["a"])
    assert way.lost(full, way.fresh(way.data(full))) == ""


class Priced(BaseModel):
    """An order whose sum is worked out at its first use."""

    net: Decimal
    note: A | B = A()
    _seen: int = PrivateAttr(default=0)

    @cached_property
    def gross(self) -> Decimal:
        return self.net * 2


def priced(net: int = 1, **more: Any) -> Priced:
    """An order whose sum was looked at."""
    order = Priced(net=Decimal(net), **more)
    assert order.gross == 2 * net
    return order


def goes_on_with_an_order() -> Any:
    """A skill of steps that hands an order on twice: to the next step, and over a question."""

    def begin(ctx: Ctx) -> Transition:
        return ctx.goto("asks", order=priced())

    def asks(ctx: Ctx, order: Priced) -> Transition:
        return ctx.await_input("fine", f"{order.gross}?", order=order)

    def answered(ctx: Ctx, order: Priced) -> Transition:
        return ctx.complete(str(order.gross))

    return one_step(begin, Step("asks", asks), Step("answered", answered).resume_from("asks"))


class Reduces:
    """A skill whose state is an order."""

    @staticmethod
    def initial() -> Priced:
        return priced()

    def on_event(self, state: Priced, event: Any, ctx: Ctx) -> Transition:
        if state.gross == 4:
            return Transition.complete().message("4")
        return Transition.await_input("fine", "2?", priced(2))


@pytest.mark.parametrize("author", [goes_on_with_an_order, lambda: Reduces], ids=["steps", "reducer"])
def test_the_value_of_a_cached_property_is_worked_out_again(author: Any) -> None:
    """
    It follows from the fields. A task of an earlier release was refused it, as its history says.
    """
    task = ByHand(author(), cut=True)
    task.say()
    assert task.said == ["2?"], task.reason
    task.say("yes", gate=task.gate("fine"))
    assert task.status is Status.COMPLETED, task.reason
    assert task.folded() == task.task

    old = ByHand(author(), patched=lambda _: False)
    old.say()
    assert "it loses 'gross'" in old.reason


@pytest.mark.parametrize(
    ("lost", "said"),
    [(lambda: priced(note=B()), "note is a B"), (lambda: seen(priced()), "_seen reads back changed")],
    ids=["field", "private"],
)
def test_what_is_lost_beside_a_cached_property_is_found(lost: Callable[[], Priced], said: str) -> None:
    """
    And named, instead of the property.
    """
    with pytest.raises(NoData, match=said):
        codec(Priced).saved(lost())


def seen(order: Priced) -> Priced:
    order._seen = 1
    return order


def test_a_reducers_state_is_looked_at_all_through() -> None:
    """
    Not its class alone.
    """

    class Holds(BaseModel):
        kind: Literal["holds"] = "holds"
        held: A | B

    class Skill:
        @staticmethod
        def initial() -> Holds:
            return Holds(held=A())

        def on_event(self, state: Holds, event: Any, ctx: Ctx) -> Transition:
            return Transition.to(Holds(held=B(n=1))).cmd(Cmd.llm("a"))

    Skill.on_event.__annotations__["state"] = Holds
    task = ByHand(Skill)
    task.say()

    assert task.reason == (
        "state Holds cannot be saved: held is a B, and reads back as a A; tell the classes apart, for example by a "
        "field `kind: Literal[...]`"
    )


def test_what_a_question_expects_is_checked_as_it_is_decoded() -> None:
    """
    A strict model takes its dates and enums from JSON, so data that spells them fits.
    """

    class Strict(BaseModel):
        model_config = ConfigDict(strict=True)

        on: date
        colour: Colour

    assert misfit(Strict, {"on": "2026-01-01", "colour": "red"}) == ""
    assert "colour" in misfit(Strict, {"on": "2026-01-01", "colour": "blue"})

    def begin(ctx: Ctx, given: Any) -> Transition:
        return ctx.complete(given.colour)

    begin.__annotations__["given"] = Strict
    task = ByHand(table("strict", Step("begin", begin).start(), input=Strict))
    task.feed(UserMessage(content=Content.from_data({"on": "2026-01-01", "colour": "red"})))

    assert (task.status, task.said) == (Status.COMPLETED, ["red"])


# --- what has no order


class Tagged(BaseModel):
    tags: set[str] = set()


@pytest.mark.parametrize(
    "kind", [set[str], frozenset[int], dict[str, set[int]], Tagged, list[Tagged], Tagged | None], ids=str
)
def test_a_set_is_found_when_the_skill_is_defined(kind: Any) -> None:
    """
    Its order differs from process to process, so no two would write the same journal.
    """

    def begin(ctx: Ctx) -> Transition:
        return ctx.complete()

    def following(ctx: Ctx, value: Any) -> Transition:
        return ctx.complete()

    class Reduces:
        @staticmethod
        def initial() -> Any:
            return None

        def on_event(self, state: Any, event: Any, ctx: Ctx) -> Transition:
            return Transition.complete()

    following.__annotations__["value"] = kind
    Reduces.on_event.__annotations__["state"] = kind
    for define in (lambda: one_step(begin, Step("next", following)), lambda: skill_of(Reduces)):
        with pytest.raises(DefinitionError, match="a set, which has no order: use a list, or a tuple"):
            define()


@pytest.mark.parametrize("value", [{"a"}, [{"a"}], {"x": frozenset("a")}, Tagged(tags={"a"}), [Tagged()]])
def test_a_set_in_a_command_is_an_error(value: Any) -> None:
    """
    In arguments, inputs and what a gate shows.
    """
    for ask in (
        lambda: Cmd.tool("a", "a", tags=value),
        lambda: Cmd.activity("a", "a", value),
        lambda: Cmd.skill("a", "a", value),
        lambda: Cmd.ask_approval("a", "?", show=value),
    ):
        with pytest.raises(SkillError, match=r"holds a set, which has no order: give a list, for example `sorted"):
            ask()


JOURNAL = """
from pydantic import BaseModel
from refold import Cmd, Ctx, Transition, Step, table
from tests.core.byhand import ByHand

WORDS = {"one", "two", "three", "four", "five"}

class Shown(BaseModel):
    tags: list[str]
    more: dict[str, object] = {}

async def begin(ctx: Ctx) -> Transition:
    try:
        await ctx.tool("a", tags=WORDS)
    except Exception as error:
        ctx.say(str(error))
    try:
        await ctx.approve("b", "?", show=Shown(tags=[], more={"words": frozenset(WORDS)}))
    except Exception as error:
        ctx.say(str(error))
    await ctx.tool("a", tags=sorted(WORDS))
    return ctx.goto("next", value={"words": WORDS})

def following(ctx: Ctx, value: dict[str, object]) -> Transition:
    return ctx.complete(str(value))

task = ByHand(table("sets", Step("begin", begin).start(), Step("next", following)))
task.say()
task.give("a", "A")
for entry in task.journal:
    print(entry.model_dump_json())
"""


def test_two_processes_write_the_same_journal() -> None:
    """
    Whatever their hash seeds are.
    """
    written = {
        subprocess.run(
            [sys.executable, "-c", JOURNAL],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(written) == 1
    assert "value: dict[str, object], but got" in written.pop()
