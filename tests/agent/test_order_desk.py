"""The order desk: four tools, a person before refunds, a guardrail; and what orchestrators change, and do not."""

from typing import Any

import pytest

from refold import Status
from refold.agent import Agent, ByTool, Concurrent, Orchestrator, Sequential
from refold.core.chat import ToolReturn
from refold.testing import Played, approve, calls, cancel, check_laws, deny, permanent, play, reply, transient
from tests.agent.shop import results
from tests.sweeps import examples
from workflows.order_desk import OrderDesk

ORDER = {"order_id": "A1", "customer": "a1@example.org", "paid_cents": 5000}
PAID = {"payment_id": "P1", "order_id": "A1", "amount_cents": 500}
FOUND = [calls("find_order", order_id="A1"), calls("look_up_route", order_id="A1")]
REFUND = calls("pay_refund", order_id="A1", amount_cents=500)
MAIL = calls("send_mail", to="a1@example.org", subject="Refund", text="500 cents.")
DONE = {"find_order": ORDER, "look_up_route": 7, "pay_refund": PAID, "send_mail": None}


def desk(orchestrator: Orchestrator, **options: Any) -> Agent:
    """A desk with another orchestrator."""
    tools = [tool.function or name for name, tool in OrderDesk.parts.tools.items()]
    return Agent("desk", tools=tools, orchestrator=orchestrator, gates=["pay_refund"], **options)


def most_in_flight(story: Played) -> int:
    return max(len(snapshot.pending) for snapshot in story.snapshots)


def test_a_refund() -> None:
    """
    Looked up side by side, decided by a person who sees exactly what will be paid, paid once under a business key,
    and told by mail.
    """
    story = play(
        OrderDesk,
        "A1 cost 5 too much",
        approve("pay_refund", by="Ann"),
        answers={"model": [FOUND, REFUND, MAIL, "Five are on their way."], **DONE},
    )
    (paid,) = [one for one in story.asked if one.kind == "tool" and one.name == "pay_refund"]
    (gate,) = [one for one in story.asked if one.kind == "approval"]

    assert (story.status, story.said[-1]) == (Status.COMPLETED, "Five are on their way.")
    assert gate.show == {"tool": "pay_refund", "arguments": {"order_id": "A1", "amount_cents": 500}}
    assert (paid.key, paid.args) == ("refund:A1", {"order_id": "A1", "amount_cents": 500})


def test_a_denied_refund_reaches_the_model() -> None:
    """
    As a refusal that it can read; nothing is paid, and the customer has an answer.
    """
    denied = deny("pay_refund", by="Ann", comment="it was used")
    story = play(OrderDesk, "money!", denied, answers={"model": [REFUND, "I am sorry."]})

    assert results(story) == [("pay_refund", "Ann denied this call: it was used; do not try it again unasked", True)]
    assert story.said[-1] == "I am sorry."


def test_the_guardrail_hides_card_numbers() -> None:
    """
    Whatever the model says of them.
    """
    story = play(OrderDesk, "which card?", reply("model", "4111 1111 1111 1111"))

    assert story.said == ("I cannot tell you that here.",)


ORCHESTRATORS = [
    pytest.param(Sequential(), 1, id="sequential"),
    pytest.param(Concurrent(3), 3, id="concurrent-3"),
    pytest.param(Concurrent(), 6, id="concurrent"),
    pytest.param(ByTool({"look_up_route": Concurrent(2)}, together=False), 2, id="by tool, one after the other"),
    pytest.param(ByTool({"look_up_route": Concurrent(2)}), 3, id="by tool, together"),
]


@pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])
@pytest.mark.parametrize(("orchestrator", "most"), ORCHESTRATORS)
def test_another_orchestrator_gives_the_same_answer(orchestrator: Orchestrator, most: int, cut: bool) -> None:
    """
    Never more calls are out than its limit, and results stand in the order of the calls, whichever comes first.
    """
    wish = [calls("find_order", order_id="A0"), *(calls("look_up_route", order_id=f"A{n}") for n in range(1, 6))]
    script: list[Any] = [reply("model", wish)]
    answers = {"model": ["ok"], "find_order": ORDER, "look_up_route": lambda command: command.args["order_id"]}
    story = play(desk(orchestrator), "go", script, answers=answers, cut=cut)

    assert story.said == ("ok",)
    assert [value for _, value, _ in results(story)] == [ORDER, "A1", "A2", "A3", "A4", "A5"]
    assert most_in_flight(story) == most


def test_a_limit_lets_something_go_on() -> None:
    """
    Nothing abreast is a mistake.
    """
    with pytest.raises(ValueError, match="limit=0 is no number of calls"):
        Concurrent(0)


def test_what_comes_first_is_told_in_the_order_of_the_calls() -> None:
    """
    A slow first call holds no other up, and stays the first.
    """
    wish = [calls("find_order", order_id="A1"), *[calls("look_up_route", order_id="A1")] * 3]
    late = [reply("look_up_route", 2), reply("look_up_route.2", 3), reply("look_up_route", 4), reply("find_order", 1)]
    story = play(desk(Concurrent(3)), "go", reply("model", wish), late, reply("model", "ok"))

    assert [value for _, value, _ in results(story)] == [1, 2, 3, 4]


def test_one_that_fails_or_is_tried_again_leaves_the_others_alone() -> None:
    """
    One is refused, one is busy at first; the others are called once each, and come back before.
    """
    wish = [calls("find_order", order_id="A1"), calls("look_up_route", order_id="A1"), MAIL]
    answers = {
        "model": [wish, "ok"],
        "find_order": permanent("no such order"),
        "look_up_route": [transient("busy"), 7],
        "send_mail": None,
    }
    story = play(desk(Concurrent(3)), "go", answers=answers)

    assert results(story) == [
        ("find_order", "no such order", True),
        ("look_up_route", 7, False),
        ("send_mail", None, False),
    ]
    assert [one.id for one in story.asked].count("send_mail") == 1


def test_a_gate_waits_for_the_others() -> None:
    """
    What needs nobody is done while somebody is asked; only the call that waited is made after the decision.
    """
    story = play(
        desk(Concurrent(3)),
        "go",
        reply("model", [REFUND, *FOUND]),
        [reply("find_order", ORDER), reply("look_up_route", 7)],
        approve("pay_refund"),
        reply("pay_refund", PAID),
        reply("model", "ok"),
    )
    order = [one.id for one in story.asked]

    assert order == ["model", "find_order", "look_up_route", "pay_refund", "pay_refund", "model"]
    assert [one.value for one in story.snapshot.threads["main"].said if isinstance(one, ToolReturn)] == [PAID, ORDER, 7]


@pytest.mark.parametrize(("orchestrator", "called"), [(Sequential(), 1), (Concurrent(2), 2)])
def test_a_cancel_comes_between_tools(orchestrator: Orchestrator, called: int) -> None:
    """
    Calls that are out are told to stop, and no other is begun.
    """
    wish = [calls("look_up_route", order_id=f"A{n}") for n in range(4)]
    story = play(desk(orchestrator), "go", reply("model", wish), cancel("enough"))

    assert (story.status, story.reason) == (Status.CANCELED, "enough")
    assert len(story.asked) == 1 + called


def test_the_laws_hold() -> None:
    """
    For the shipped desk, with its gate, its guardrail and three calls abreast.
    """
    tools = [tool.function for tool in OrderDesk.parts.tools.values() if tool.function is not None]
    check_laws(OrderDesk, tools=tools, max_examples=examples(40))
