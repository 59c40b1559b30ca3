"""What is being performed when a task ends: the task learns no outcome of it, and its journal says so."""

import pytest

from refold import Content, Ctx, Transition, tool
from tests.core.byhand import ByHand, busy
from tests.core.small import one_step


@tool(effect="at_most_once")
def pay(cents: int) -> None: ...


@tool(effect="idempotent")
def release() -> None: ...


@tool(effect="compensate", undo=release)
def reserve() -> None: ...


async def settle(ctx: Ctx, content: Content) -> Transition:
    await ctx.gather(
        ctx.llm("draft"),
        ctx.tool(reserve, id="seat"),
        *(ctx.tool(pay, cents=n, id=f"pay {n}") for n in range(int(content.text))),
    )
    return ctx.complete()


NOTE = "being performed when the task ended, and may have taken place: "


@pytest.mark.parametrize(
    ("payments", "named"),
    [
        (1, "pay 0"),
        (10, ", ".join(f"pay {n}" for n in range(10))),
        (13, ", ".join(f"pay {n}" for n in range(10)) + " and 3 more"),
    ],
)
def test_the_journal_names_effects_that_are_cut_off(payments: int, named: str) -> None:
    """
    The first ten, and how many more there are: not a model call, which changes nothing, nor an effect with a
    compensation, whose outcome the task still awaits.
    """
    task = ByHand(one_step(settle))
    task.say(str(payments))

    assert task.cancel().note == f"canceled on request; {NOTE}{named}"
    assert list(task.task.pending) == [task.pending("seat").invocation_id]


def test_an_effect_that_is_not_performed_now_is_not_named() -> None:
    """
    Between two attempts, an effect has failed and not begun again.
    """
    task = ByHand(one_step(settle))
    task.say("2")
    task.fail("pay 1", busy())

    assert task.cancel().note == f"canceled on request; {NOTE}pay 0"


def test_code_that_did_not_name_them_is_replayed_as_it_was() -> None:
    """
    A patch is asked, so the entry of a task whose history has no answer comes out as before.
    """
    asked: list[str] = []
    task = ByHand(one_step(settle), patched=lambda id: bool(asked.append(id)))
    task.say("1")

    assert task.cancel().note == "canceled on request"
    assert asked == ["refold.cut_off"]
