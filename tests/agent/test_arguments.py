"""No person is asked about a call that the worker would refuse by its arguments' types."""

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic_core import to_json

from refold import tool
from refold.agent.tools import tools_of
from refold.effects.tools import tools_of as in_worker
from refold.testing import calls, play
from tests.agent.shop import results, shop
from tests.sweeps import examples

ODD = ("12", "1.5", "true", "2026-01-01", "2026-01-01T00:00:00Z", "a", "", 0, 1, 2**70, 1.0, 0.5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(ODD),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "1"]), inner, max_size=2),
    max_leaves=4,
)
PLAIN = [
    *(str, int, float, bool, type(None), Any, date, datetime, Decimal, list, dict, tuple),
    *(list[int], dict[str, list[int]], dict[int, Any], tuple[int, ...], tuple[int, str], int | None, int | str),
    *(date | None, Literal["a", 1], list[Literal["a"] | None], list[datetime | int]),
]


def brewing(kind: Any) -> Callable[..., Any]:
    """A tool that takes one argument, of this type."""

    def brew(what: Any) -> None:
        """Brew."""

    brew.__annotations__ = {"what": kind, "return": None}
    return tool(effect="at_most_once")(brew)


@pytest.mark.parametrize("brew", [pytest.param(brewing(kind), id=str(kind)) for kind in PLAIN])
@settings(max_examples=examples(60))
@given(value=VALUES)
def test_a_plain_type_is_checked_as_the_worker_checks_it(brew: Callable[..., Any], value: Any) -> None:
    """
    What is refused before a gate the worker would refuse too, and nothing else is.
    """
    try:
        in_worker([brew])["brew"].arguments.model_validate_json(to_json({"what": value}), strict=True)
        refused = False
    except ValidationError:
        refused = True

    assert bool(tools_of([brew])[0]["brew"].misfits({"what": value})) is refused


class Tea(BaseModel):
    """Its check could be code."""

    leaves: int


def never(value: Any) -> Any:
    raise AssertionError("the author's code runs in the worker alone")


@pytest.mark.parametrize("kind", [Tea, list[Tea], Annotated[int, BeforeValidator(never)], "Unknown"])
def test_other_types_are_checked_in_the_worker_alone(kind: Any) -> None:
    """
    Their checks may be code of the author's, which need not be pure.
    """
    assert tools_of([brewing(kind)])[0]["brew"].misfits({"what": ["many"]}) == ""


WRONG = calls("buy", item=["tea"], count="9")


def test_nobody_is_asked_about_a_call_that_the_worker_would_refuse() -> None:
    """
    The model reads at once what is wrong.
    """
    story = play(shop(gates="effects"), "go", answers={"model": [WRONG, "ok"]})
    said = "tool 'buy': item is ['tea'], and must be str; count is '9', and must be int"

    assert [one.kind for one in story.asked] == ["chat", "chat"]
    assert results(story) == [("buy", said, True)]
