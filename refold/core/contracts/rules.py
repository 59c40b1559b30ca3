"""The rules of a contract, each checked by itself.

Rule 1: a check raises a `ContractError` that names step, lifecycle, field and rule, or does nothing.
Rule 2: nothing is changed here: what is merged is a new state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from refold.core.authoring.patch import StatePatch
from refold.core.codec import NoData, codec
from refold.core.contracts.contract import Contract, Invariant, Lifecycle, StepContract, plain
from refold.core.contracts.unchanging import unchanging
from refold.core.errors import (
    ContractError,
    IllegalMoveError,
    InvariantError,
    PatchError,
    RequirementError,
    UnauthorizedWriteError,
)
from refold.core.schema import problems

Data = Mapping[str, JsonValue]


class StateValidator:
    """Checks states, patches and moves against a contract.

    Attributes:
        contract: What is checked against.
        lifecycle: Its moves; none where it has no lifecycle.
        fields: The state's fields, in order.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.lifecycle = Lifecycle(contract)
        self.fields = tuple(contract.state.model_fields)
        self._state = codec(contract.state)
        kinds = {name: info.rebuild_annotation() for name, info in contract.state.model_fields.items()}
        self._codecs = {name: codec(kind) for name, kind in kinds.items()}
        self._changeable = frozenset(name for name, kind in kinds.items() if not unchanging(kind))
        self._owned = frozenset(contract.owned)
        self._rules = tuple(
            replace(one, at=one.at and plain(one.at), after=one.after and plain(one.after))
            for one in contract.invariants
        )

    def state_of(self, data: Data) -> Any:
        """The state that this data reads as.

        Raises:
            ValidationError: It does not fit the state's type.
        """
        return self._state.fresh(dict(data))

    def data_of(self, state: BaseModel) -> dict[str, JsonValue]:
        """A state as data.

        Raises:
            NoData: It has no form as data.
        """
        return {name: self._codecs[name].data(getattr(state, name)) for name in self.fields}

    def lifecycle_of(self, data: Data) -> str:
        """The state of the lifecycle; empty where the contract has none."""
        return str(data[self.contract.lifecycle]) if self.lifecycle.moves else ""

    # --- before a step

    def standing(self, step: str, lifecycle: str, state: Any) -> None:
        """The invariants of a state as it stands.

        Raises:
            InvariantError: One does not hold.
        """
        for one in self._rules:
            if one.holds is not None and one.after is None and one.at in (None, lifecycle):
                self._hold(one, step, lifecycle, None, state)

    def required(self, step: str, terms: StepContract, lifecycle: str, seen: Any) -> None:
        """What a step requires, of what it sees.

        Raises:
            RequirementError: It does not hold, or its check raises.
        """
        for one in terms.requires:
            try:
                if one.holds(seen):
                    continue
                came = repr(getattr(seen, one.field))[:200]
            except ContractError:
                raise  # it looks at what the step does not see
            except Exception as error:
                came = f"its check failed with {type(error).__name__}: {error}"
                raise RequirementError(step, lifecycle, one.field, one.rule, actual=came) from error
            raise RequirementError(step, lifecycle, one.field, one.rule, actual=came)

    # --- after a step

    def untouched(self, view: Any, state: Any, data: Data, allowed: Iterable[str]) -> str:
        """The first field that a step changed in place; empty if it changed none."""
        seen, known = vars(view), vars(state)
        for name in allowed:
            if seen.get(name) is not known[name]:
                return name
            if name in self._changeable and self._codecs[name].data(known[name]) != data[name]:
                return name
        return ""

    def writable(self, step: str, terms: StepContract, lifecycle: str, patch: StatePatch) -> None:
        """Who may write what.

        Raises:
            UnauthorizedWriteError: The patch holds a field that is not the step's to write.
        """
        allowed = ", ".join(terms.writes) or "none"
        for name in patch.fields:
            if name in terms.writes:
                continue
            if name not in self.fields:
                rule = f"the state has no such field; it has: {', '.join(self.fields)}"
            elif name in self._owned:
                rule = "the orchestrator alone writes it"
            else:
                rule = "writes only what it declares"
            raise UnauthorizedWriteError(step, lifecycle, name, rule, expected=f"one of: {allowed}", actual=name)

    def movable(self, step: str, terms: StepContract, source: str, target: str, patch: StatePatch) -> Any:
        """Whether a step may make a move; the move, where the contract knows it.

        Raises:
            IllegalMoveError: It may not, or the patch says another.
        """
        field = self.contract.lifecycle
        legal = ", ".join(self.lifecycle.targets(source)) or "none, it is an end"
        written = plain(patch.fields.get(field, target))
        if written != target:
            raise IllegalMoveError(
                step, source, field, "the patch and the way on agree", expected=target, actual=written
            )
        move = self.lifecycle.moves.get((source, target))
        if terms.free and target in self.lifecycle.states:
            return move
        if move is None:
            raise IllegalMoveError(
                step, source, field, f"there is no move from {source} to {target}", expected=legal, actual=target
            )
        if target not in terms.exits:
            declared = ", ".join(terms.exits) or "none"
            raise IllegalMoveError(
                step, source, field, "leads only where it declares", expected=declared, actual=target
            )
        return move

    def merged(
        self, step: str, lifecycle: str, data: Data, fields: Mapping[str, Any]
    ) -> tuple[dict[str, JsonValue], Any, dict[str, JsonValue]]:
        """The data with other values in some fields, the state that it reads as, and those values as data.

        Raises:
            PatchError: They do not fit.
        """
        patch: dict[str, JsonValue] = {}
        for name, value in fields.items():
            if name == self.contract.lifecycle and self.lifecycle.moves:
                patch[name] = plain(value)
                continue
            try:
                patch[name] = self._codecs[name].data(value)
            except NoData as error:
                raise PatchError(step, lifecycle, name, self._fits(name), actual=str(error)) from None
        after = {**data, **patch}
        try:
            return after, self._state.fresh(after), patch
        except ValidationError as error:
            at = next((str(one["loc"][0]) for one in error.errors() if one["loc"]), "")
            name = at if at in fields else next(iter(fields), "")
            raise PatchError(step, lifecycle, name, self._fits(name), actual=problems(error)) from None

    def moved(self, step: str, source: str, target: str, before: Any, state: Any) -> None:
        """The invariants of a state that a step leaves behind.

        Raises:
            InvariantError: One does not hold.
        """
        for one in self._rules:
            if one.at in (None, target) and one.after in (None, source):
                self._hold(one, step, source, before, state)

    def _fits(self, name: str) -> str:
        return f"must fit {self.contract.state.__name__}"

    def _hold(self, one: Invariant, step: str, lifecycle: str, before: Any, state: Any) -> None:
        try:
            holds = one.holds(state) if one.holds is not None else one.keeps is None or one.keeps(before, state)
            came = "" if holds else repr(getattr(state, one.field))[:200]
        except Exception as error:
            came = f"its check failed with {type(error).__name__}: {error}"
            raise InvariantError(step, lifecycle, one.field, one.rule, actual=came) from error
        if not holds:
            raise InvariantError(step, lifecycle, one.field, one.rule, actual=came)
