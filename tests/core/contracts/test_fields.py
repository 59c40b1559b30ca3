"""The fields of a contract's state: a patch of one makes what the state's own model makes of the value."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, create_model, field_serializer, field_validator

from refold import Contract, Ctx, StatePatch, Step, Transition, table
from refold.core.codec import NoData, codec
from refold.core.contracts.rules import StateValidator
from refold.core.errors import PatchError, SkillError
from refold.testing import play
from tests.core.byhand import ByHand
from tests.sweeps import examples


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Money:
    """An amount, of a class that pydantic does not know."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    def __repr__(self) -> str:
        return f"Money({self.cents})"

    __hash__ = None  # type: ignore[assignment]  # like a list


def _cents(money: Any) -> Any:
    return money.cents


def _money(value: Any) -> Any:
    return Money(value) if isinstance(value, int) else value


def _lower(value: Any) -> Any:
    return value.lower()


# What a value may be like: its type, values of that type, and the state's own validators and serializers of the field.
KINDS: list[tuple[Any, st.SearchStrategy[Any], dict[str, Any]]] = [
    (str, st.text(), {}),
    (str, st.text(), {"lower": field_validator("value")(_lower)}),
    (bytes, st.binary(), {}),
    (list[bytes], st.lists(st.binary()), {}),
    (Colour, st.sampled_from(Colour), {}),
    (list[Colour], st.lists(st.sampled_from(Colour)), {}),
    (timedelta, st.timedeltas(timedelta(days=-99), timedelta(days=99)), {}),
    (float | None, st.none() | st.floats(allow_nan=False), {}),
    (set[str], st.sets(st.text()), {"order": field_serializer("value")(sorted)}),
    (
        Money,
        st.builds(Money, st.integers(0, 9)),
        {"write": field_serializer("value")(_cents), "read": field_validator("value", mode="before")(_money)},
    ),
]
CONFIG: dict[str, list[Any]] = {
    "str_strip_whitespace": [True],
    "str_to_upper": [True],
    "use_enum_values": [True],
    "ser_json_bytes": ["base64", "hex"],
    "val_json_bytes": ["base64", "hex"],
    "ser_json_timedelta": ["float"],
    "ser_json_inf_nan": ["constants", "strings"],
    "strict": [True],
    "extra": ["forbid"],
}


@st.composite
def states(draw: st.DrawFn) -> tuple[type[BaseModel], Any, Any]:
    """A state with some configuration, and two values of its field `value`."""
    kind, values, own = draw(st.sampled_from(KINDS))
    config = draw(st.fixed_dictionaries({}, optional={name: st.sampled_from(one) for name, one in CONFIG.items()}))
    config |= {"frozen": True, "arbitrary_types_allowed": True}
    return _state(kind, config, own), draw(values), draw(values)


def _state(kind: Any, config: dict[str, Any], own: dict[str, Any]) -> type[BaseModel]:
    return create_model(
        "State", __config__=cast("ConfigDict", config), __validators__=own, value=(kind, ...), n=(int, 0)
    )


def contract_of(kind: type[BaseModel], **fields: Any) -> Contract:
    return Contract(state=kind, begins=lambda content, ctx: kind(**fields))


def saved(state: BaseModel) -> bool:
    """Whether a reducer could have this state."""
    try:
        codec(type(state)).saved(state)
    except NoData:
        return False
    return True


@settings(max_examples=examples(300))
@given(made=states())
def test_a_patch_makes_what_the_states_model_makes_of_the_value(made: tuple[type[BaseModel], Any, Any]) -> None:
    """
    Whatever the model's configuration, validators and serializers are. What a reducer's state could hold is taken, and
    what is taken is no change in place.
    """
    kind, first, second = made
    check = StateValidator(contract_of(kind, value=first))
    before, whole = kind(value=first), kind(value=second)
    try:
        shared = check.first(before)
    except SkillError:
        assert not saved(before)
        return
    assert shared.state == before
    try:
        after, patch = check.merged("step", "", shared.data, {"value": second})
    except PatchError:
        assert not saved(whole)
        return

    assert (after.state, type(vars(after.state)["value"])) == (whole, type(vars(whole)["value"]))
    assert (check.saved({**shared.data, **patch}).state, list(after.data)) == (whole, ["value", "n"])
    for one in (shared, after):
        assert check.changed_in_place(one.state, one.state, one.data, check.fields) == ""


class Tidy(BaseModel):
    """A state whose configuration and validators change what is written to it."""

    model_config = ConfigDict(frozen=True, use_enum_values=True, str_strip_whitespace=True)

    title: str = ""
    colours: list[Colour] = []
    tags: set[str] = set()

    _order = field_serializer("tags")(sorted)

    @field_validator("title")
    @classmethod
    def _capital(cls, title: str) -> str:
        return title.capitalize()


class Priced(BaseModel):
    """A state with a class that pydantic does not know."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    price: Money = Money(0)

    _write = field_serializer("price")(_cents)
    _read = field_validator("price", mode="before")(_money)


LETTERS = ["a", "b", "c", "d"]
WRITTEN: list[tuple[type[BaseModel], dict[str, Any], Any, Any]] = [
    (Tidy, {"title": " tides "}, "Tides", " tides "),
    (Tidy, {"colours": [Colour.RED]}, ["red"], ["red"]),
    (Tidy, {"colours": ["red"]}, ["red"], ["red"]),
    (Tidy, {"tags": set(LETTERS)}, set(LETTERS), LETTERS),
    (Priced, {"price": Money(5)}, Money(5), 5),
]


def writing(kind: type[BaseModel], fields: dict[str, Any], seen: list[Any]) -> Any:
    """A skill whose first step writes these fields, and whose next step reads the first of them."""
    (name, *_) = fields

    def look(ctx: Ctx, state: Any) -> Transition:
        seen.append(getattr(state, name))
        return ctx.complete()

    look.__annotations__["state"] = kind
    return table(
        "writing",
        Step("begin", lambda: StatePatch(**fields), writes=[name], next=lambda _: "look").start(),
        Step("look", look, reads=[name]),
        contract=contract_of(kind),
    )


@pytest.mark.parametrize(("kind", "fields", "value", "data"), WRITTEN, ids=[" ".join(one) for _, one, *_ in WRITTEN])
def test_a_step_writes_what_the_states_model_takes(
    kind: type[BaseModel], fields: dict[str, Any], value: Any, data: Any
) -> None:
    """
    And the next step reads what the model makes of it. A set is saved in the order of the state's own serializer.
    """
    seen: list[Any] = []
    story = play(writing(kind, fields, seen), "go")

    assert (story.status, story.reason, seen) == ("completed", "", [value])
    assert [cast("Any", story.snapshot.state)["state"][name] for name in fields] == [data]


def test_a_task_of_an_earlier_release_fails_where_the_fields_type_alone_refuses_a_value() -> None:
    """
    Its journal says so, and its history has no marker.
    """
    task = ByHand(writing(Tidy, {"title": " tides "}, []), patched=lambda _: False)
    task.say()

    assert task.task.reason == "step 'begin', field 'title': must fit Tidy (got it reads back changed)"
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


def test_a_value_that_neither_type_nor_model_can_keep_is_refused() -> None:
    """
    The error is that of the type.
    """
    story = play(writing(Priced, {"price": "much"}, []), "go")

    assert story.reason.startswith("step 'begin', field 'price': must fit Priced (got ")
