"""How the fields of a contract's state become data, and what a value loses on that way.

A field is written as its type is: tasks that run have it in this form. Where the type alone does not do, because the
value reads back changed or the order of a set is not defined, the field is written as the state's model writes it, with
the model's configuration and serializers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue, PydanticSchemaGenerationError, TypeAdapter

from refold.core.codec import Codec, NoData, codec, unsavable

Write = Callable[[Any, str], JsonValue]
"""Writes a field of a state as data, given the state and the field. Raises `NoData`."""

Patched = Callable[[str], bool]
"""Answers whether a task takes a check that earlier releases lacked."""


class StateFields:
    """The fields of a state, as data and as values.

    Attributes:
        names: The fields, in order.
    """

    def __init__(self, kind: type[BaseModel]) -> None:
        types = {name: info.rebuild_annotation() for name, info in kind.model_fields.items()}
        self.names = tuple(types)
        self._state = codec(kind)
        self._codecs = {name: _codec_of(field) for name, field in types.items()}
        self._unsavable = frozenset(name for name, field in types.items() if unsavable(field))

    def decoded(self, data: Mapping[str, JsonValue]) -> Any:
        """A new state decoded from data. Raises `ValidationError`, or what a validator of the author's raises."""
        return self._state.fresh(dict(data))

    # --- values as data

    def need_model(self, names: Iterable[str]) -> bool:
        """Whether the type of one of these fields alone cannot be saved: `set[str]` with a `field_serializer`."""
        return not self._unsavable.isdisjoint(names)

    def by_type(self, state: Any, name: str) -> JsonValue:
        """A field as its type writes it. See `Write`."""
        return self._codecs[name].data(getattr(state, name))

    def by_model(self, state: Any, name: str) -> JsonValue:
        """A field as the state's model writes it; as its type does where the model cannot. See `Write`."""
        try:
            return self._state.field(state, name)
        except NoData:  # an excluded field, or the member of an enum under `use_enum_values`
            return self.by_type(state, name)

    # --- what differs

    def lost_by_type(self, name: str, value: Any, fresh: Any, patched: Patched) -> str:
        """What differs between a field's value and `fresh`, as the field's type alone can tell; see `Codec.lost`."""
        return self._codecs[name].lost(value, fresh, patched=patched)

    def lost(self, state: Any, names: Iterable[str], fresh: Any, patched: Patched) -> str:
        """What differs between a state and `fresh`, decoded from its data; empty if no difference is visible.

        The state's validators may have changed values of the fields `names`, as they would without JSON. `patched` as
        for `Codec.lost`.
        """
        found = ""
        with suppress(Exception):  # the author's validators, and comparisons of the author's, may raise any exception
            found = self._state.lost(state, fresh, cached=False, patched=patched)
            if found:
                values = {name: getattr(state, name) for name in self.names}
                made = self._state.adapter.validator.validate_python(values, by_name=True)
                changed = state.model_copy(update={name: getattr(made, name) for name in names})
                found = self._state.lost(changed, fresh, cached=False, patched=patched)
        return found

    def changed(self, state: Any, name: str, data: Mapping[str, JsonValue], write: Write) -> bool:
        """Whether a field's value was changed in place since the state was decoded from data.

        Raises:
            NoData: The value cannot be written.
        """
        now = write(state, name)
        if now == data.get(name, now):
            return False
        # Some types write other data than they read, so compare with the data of a state decoded again.
        return now != write(self.decoded(data), name)


def _codec_of(field: Any) -> Codec:
    try:
        return codec(field)
    except PydanticSchemaGenerationError:  # the state's model allows a class that pydantic does not know, and writes it
        return Codec(TypeAdapter(field, config=ConfigDict(arbitrary_types_allowed=True)))
