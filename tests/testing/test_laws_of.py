import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Network
from typing import Annotated, Any, Literal, get_args
from uuid import UUID

import pytest
from annotated_types import Ge, Lt
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from pydantic import (
    UUID4,
    UUID5,
    UUID7,
    AfterValidator,
    AwareDatetime,
    BaseModel,
    Field,
    IPvAnyAddress,
    NaiveDatetime,
    TypeAdapter,
)

import refold.testing
from refold import (
    Cmd,
    CommandFailed,
    Content,
    Ctx,
    Event,
    GatePolicy,
    LlmResult,
    Step,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    table,
)
from refold.core.events import CancelRequested, Forked, Recovered
from refold.core.fold.wanted import Perform
from refold.testing import LawBroken, check_history, check_laws, histories, laws_of, permanent
from refold.testing.laws import check_lineage
from refold.testing.plausible import plausible_event, strategies_of
from refold.testing.play import START
from refold.testing.strategies import Happening, Life, Made
from refold.testing.values import values_for, values_of_schema
from tests.temporal.callback_skills import TOOLS, Checkout, CheckoutByHand, LateCheckout
from workflows.hello import Hello
from workflows.research import Critique

EVENTS = get_args(get_args(Event)[0])
CANCEL = Happening(CancelRequested(), START)
QUICK = settings(max_examples=20)


class Tree(BaseModel):
    """Holds every kind of field that a schema may have."""

    name: Annotated[str, Field(min_length=2, max_length=3)]
    code: Annotated[str, Field(pattern="^[a-z]{2}$")] = "ab"
    size: Annotated[int, Ge(1), Lt(5)]
    share: Annotated[float, Field(gt=0, le=1)]
    born: date
    seen: datetime | None
    key: UUID | Literal["none"]
    pair: tuple[int, str]
    tags: set[Literal["a", "b"]] = set()
    more: dict[str, bool] = {}
    rest: dict[str, Any] = {}
    inner: list["Tree"] = Field(default=[], max_length=2)


@flow_skill(id="unsteady")
class Unsteady:
    """Says something else each time it is called."""

    calls: list[int] = []

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        self.calls.append(1)
        return ctx.complete(f"call {len(self.calls)}")


def test_laws_are_a_test() -> None:
    """
    They carry the skill's name, and one line checks them.
    """
    test = laws_of(Hello, profile=QUICK)

    assert test.__name__ == "laws_of_hello"
    test()
    check_laws(Hello, profile=QUICK)


def _of_all_words(word: str) -> str:
    if word != "xyzzy":
        raise ValueError("another word")
    return word


class Odd(BaseModel):
    """A condition that no schema tells of: no value that is drawn fits."""

    word: Annotated[str, AfterValidator(_of_all_words)]


def test_a_skill_that_never_begins_is_not_green() -> None:
    """
    Where no message is drawn that fits its input, the test says that it has checked nothing, and the way out.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()

    never = table("never", Step("begin", begin).start(), input=Odd)

    with pytest.raises(AssertionError, match=r"no task of skill 'never' began.*`check_history`"):
        check_laws(never, profile=settings(max_examples=5, suppress_health_check=list(HealthCheck), database=None))


@pytest.mark.parametrize("skill", [Checkout, LateCheckout, CheckoutByHand])
def test_a_call_to_an_address_gets_somewhere(skill: Any) -> None:
    """
    Addresses are made as a worker makes them, and called, also early, so that some task is paid.
    """

    def paid(history: list[Happening]) -> bool:
        said = [one.text for entry in check_history(skill, history) for one in entry.messages]
        return any("paid " in text for text in said)

    check_laws(skill, tools=TOOLS, profile=QUICK)
    find(histories(skill, tools=TOOLS), paid, settings=settings(max_examples=2000, phases=[Phase.generate]))


def test_one_history_can_be_checked() -> None:
    """
    It gives the journal, or says which law is broken, how, and after what.
    """
    begun = [Happening(UserMessage(content=Content.from_text("hi")), START)]

    assert [entry.seq for entry in check_history(Hello, begun)] == [1]
    with pytest.raises(LawBroken, match="the same events give the same journal") as raised:
        check_history(Unsteady, begun)
    assert raised.value.history == tuple(begun)
    assert "1. 2026-01-01T00:00:00+00:00 UserMessage" in str(raised.value)


def test_a_reply_that_is_refused_by_a_patch_keeps_the_laws() -> None:
    """
    The refusal depends on a patch of refold, whose answer its entry records.
    """

    async def begin(ctx: Ctx) -> Transition:
        return ctx.await_input("answer", "Well?")

    async def end(ctx: Ctx, answer: int | None) -> Transition:
        return ctx.complete(str(answer))

    skill = table("asks_for_a_number", Step("begin", begin).start(), Step("end", end).resume_from("begin"))
    history = [Happening(UserMessage(content=Content.from_text(said)), START) for said in ("go", "many", "5")]

    assert [bool(entry.refused) for entry in check_history(skill, history)] == [False, True, False]


def test_a_part_with_a_timeout_and_a_gate_that_tells_its_approvers_keep_the_laws() -> None:
    """
    The part goes on once, beside its timeout; and what tells the approvers has no number of its own.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        policy = GatePolicy(notify_at_open=True)
        await ctx.gather(ctx.skill("part", "hello", "Ada", timeout_s=60), ctx.approve("sure", "Sure?", policy=policy))
        return ctx.complete()

    check_laws(table("asks", Step("begin", begin).start()), profile=QUICK)


SAID = Happening(UserMessage(content=Content.from_text("hi")), START)
GREETED = Happening(LlmResult(id="greeting", invocation_id="T/1.1", value="Hello."), START)
GREETING = Perform(invocation_id="T/1.1", command=Cmd.llm("greeting"), attempt=1)


@pytest.mark.parametrize(
    ("history", "going", "law"),
    [
        pytest.param([SAID, GREETED], {"T/1.1#1": GREETING}, r"never wanted again, but \['T/1.1'\] is", id="settled"),
        pytest.param([SAID, CANCEL], {"T/1.2#1": GREETING}, "was wanted before it", id="new after the end"),
        pytest.param([SAID], {}, "an open task that wants nothing waits for a person", id="stalled"),
    ],
)
def test_a_core_that_wants_the_wrong_thing_is_found(
    history: list[Happening], going: dict[str, Perform], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By the journal alone: a command that came back, an effect that begins after the end, a task that nobody wakes.
    """
    before = {"T/1.1#1": GREETING}
    monkeypatch.setattr("refold.testing.laws.wanted", lambda task: going if task.seq == len(history) else before)
    monkeypatch.setattr("refold.testing.laws._check_state", lambda *_: None)

    with pytest.raises(LawBroken, match=law):
        check_history(Hello, history)


def test_a_lineage_goes_on_from_task_to_task() -> None:
    """
    The journals of a task, of the one that goes on for it, and of a branch of that one; the law names them all.
    """
    failed = CommandFailed(id="greeting", invocation_id="T/1.1", failure=permanent("no words"))
    lives = [
        Life(None, [SAID, Happening(failed, START)]),
        Life(Made(how="recovered", task_id="T2", at=START), [Happening(Recovered(task_id="T", by="Ops"), START)]),
        Life(Made(how="forked", task_id="T3", at=START, seq=3), [Happening(Forked(task_id="T2", seq=3), START)]),
    ]

    journals = check_lineage(Hello, lives)

    assert [[entry.event.kind for entry in one] for one in journals] == [
        ["user_message", "command_failed"],
        ["recovered"],
        ["forked"],
    ]
    broken = [*lives[:2], Life(Made(how="forked", task_id="T3", at=START, seq=9), [])]
    with pytest.raises(LawBroken, match="twice gives the same task") as raised:
        check_lineage(Hello, broken)
    assert "3. 2026-01-01T00:00:00+00:00 recovered as 'T2'" in str(raised.value)


@pytest.mark.parametrize(
    "kind",
    [
        *(Tree, int, list[Critique], str | None, Literal["a", 1]),
        *(UUID4, UUID5, UUID7, IPv4Address, IPv6Network, IPvAnyAddress, NaiveDatetime, AwareDatetime),
        *(Annotated[int, Field(multiple_of=500)], Annotated[float, Field(multiple_of=0.25, gt=0, le=5)]),
        Annotated[Decimal, Field(decimal_places=2)],
    ],
)
def test_values_fit_their_type(kind: Any) -> None:
    """
    Each value that is made validates, by type and by JSON schema.
    """

    @QUICK
    @given(values_for(kind))
    def fit(value: Any) -> None:
        TypeAdapter(kind).validate_python(value)

    fit()


@QUICK
@given(values_of_schema("workflows.research:Critique"), values_of_schema("nowhere:Nothing"), values_for(st.just(7)))
def test_values_are_made_by_name(critique: Any, anything: object, seven: object) -> None:
    """
    A name that is loaded gives fitting values, an unknown one anything; a strategy is taken as it is.
    """
    assert isinstance(Critique.model_validate(critique), Critique)
    assert TypeAdapter(Any).dump_json(anything)
    assert seven == 7


@QUICK
@given(data=st.data())
def test_single_events_can_be_drawn(data: st.DataObject) -> None:
    """
    `plausible_event` gives what may come next; `values` says what a command comes back with.
    """
    history = data.draw(histories(Hello, max_events=1))
    snapshot = refold.testing.play(Hello, "hi", unfinished=True).snapshot
    values = strategies_of({"greeting": Literal["Hello."]})
    event = data.draw(st.composite(plausible_event)(skill_of(Hello), snapshot, values))

    assert len(history) == 1
    assert isinstance(event, EVENTS)


def test_without_hypothesis_the_rest_works() -> None:
    """
    Whoever asks for the laws is told what to install.
    """
    script = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from refold.testing import FakeEngine, play\n"
        "try:\n    from refold.testing import laws_of\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout == "refold.testing.laws_of needs Hypothesis: pip install 'refold[testing]'\n"


def test_what_is_listed_is_there() -> None:
    """
    Each exported name exists; no other name is made up.
    """
    assert all(getattr(refold.testing, name) for name in refold.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pray'"):
        refold.testing.pray  # noqa: B018 - the access is what is tested
