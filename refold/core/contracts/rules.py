"""The checks of a contract, one method each: invariants, requirements, writes, moves, patches.

Rule 1: a check raises a `ContractError` that names step, lifecycle, field and rule, or does nothing.
Rule 2: a check changes no state; `merged` returns a new one.
Rule 3: whatever an author's function raises or returns, the task fails with such an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from pydantic import JsonValue, ValidationError

from refold.core.authoring.transition import StatePatch
from refold.core.codec import NoData
from refold.core.contracts.contract import Contract, Invariant, Lifecycle, Move, StepContract, plain
from refold.core.contracts.fields import StateFields, Write
from refold.core.errors import (
    ContractError,
    IllegalMoveError,
    InvariantError,
    PatchError,
    RequirementError,
    SkillError,
    UnauthorizedWriteError,
    brief,
    describe,
    text_of,
)
from refold.core.schema import problems

BY_MODEL = "refold.by_model"
"""The patch with which a field is written as the state's model writes it, if its type alone does not do.

See `fields.py`. Earlier releases refused such a value."""

FIRST_STATE_KEPT = "refold.first_state_kept"
"""The patch with which a first state that reads back changed fails the task; earlier releases began all the same."""

MOVES_ADDED = "refold.moves_added"
"""The patch with which a contract may gain moves while a task runs whose state lacks the lifecycle's field.

In earlier releases that task failed with a KeyError."""

Data = Mapping[str, JsonValue]
_SCALARS = {str, int, float, bool}


class HookFailed(Exception):
    """A function of the contract raised, or is `async`; the message continues a sentence about the function."""


def called(hook: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the author's contract.

    Raises:
        ContractError: The function read or wrote a field that it may not.
        HookFailed: The function failed in any other way.
    """
    try:
        found = hook(*args)
    except ContractError:
        raise
    except (Exception, SystemExit) as error:
        raise HookFailed(f"failed with {describe(error)}") from error
    if inspect.iscoroutine(found):
        found.close()
        raise HookFailed("is `async`, and nothing awaits it")
    return found


class SharedState:
    """The shared state at one point of the task, as data and as a value. Never changed, only replaced.

    Attributes:
        data: The state as data.
    """

    __slots__ = ("_decode", "_state", "data")

    def __init__(self, data: dict[str, JsonValue], decode: Callable[[Data], Any], state: Any = None) -> None:
        self.data, self._decode, self._state = data, decode, state

    @property
    def state(self) -> Any:
        """The state as a value, decoded at the first use."""
        if self._state is None:
            self._state = self._decode(self.data)
        return self._state

    def decoded_again(self) -> SharedState:
        """The same state, decoded again, without changes made in place to this value."""
        return SharedState(self.data, self._decode)


class StateValidator:
    """Checks states, patches and moves against a contract.

    Attributes:
        contract: The contract.
        lifecycle: The contract's lifecycle; empty if it has no moves.
        fields: The state's fields, in order.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.lifecycle = Lifecycle(contract)
        self._fields = StateFields(contract.state)
        self.fields = self._fields.names
        self._patched: Callable[[str], bool] = lambda patch: True
        self._rules = tuple(
            replace(one, at=one.at and plain(one.at), after=one.after and plain(one.after))
            for one in contract.invariants
        )

    def asking(self, patched: Callable[[str], bool]) -> StateValidator:
        """The same checks for one task. `patched` says whether the task takes a check that earlier releases lacked."""
        made = copy(self)
        made._patched = patched
        return made

    def saved(self, data: dict[str, JsonValue]) -> SharedState:
        """The state that was saved as this data. Decoding it raises `SkillError` if the data does not fit."""
        return SharedState(data, self._decoded)

    def _decoded(self, data: Data) -> Any:
        try:
            return self._fields.decoded(data)
        except Exception as error:
            raise SkillError(
                f"the saved state does not fit {self.contract.state.__name__}: {_misfit(error)}; give the "
                "skill a new version and an upgrade, or let running tasks finish on the old code"
            ) from error

    def first(self, state: object) -> SharedState:
        """The first state, from what `begins` returned.

        Raises:
            SkillError: `begins` returned no state, or one that cannot be saved or reads back changed.
        """
        kind = self.contract.state
        if type(state) is not kind:
            raise SkillError(f"begins returned {brief(state)}; it returns a {kind.__name__}")
        found = self._first(state, self._fields.by_type)
        lost = (
            "" if isinstance(found, SkillError) else self._fields.lost(state, self.fields, found.state, self._patched)
        )
        if lost or isinstance(found, SkillError) or self._fields.need_model(self.fields):
            other = self._first(state, self._fields.by_model)
            fits = not isinstance(other, SkillError) and not self._fields.lost(
                state, self.fields, other.state, self._patched
            )
            if fits and self._patched(BY_MODEL):
                found, lost = other, ""
        if isinstance(found, SkillError):
            raise found
        if lost and self._patched(FIRST_STATE_KEPT):
            raise SkillError(f"the first state cannot be saved: {lost}")
        return found

    def _first(self, state: Any, write: Write) -> SharedState | SkillError:
        """The first state with its fields written so, or why it cannot be saved."""
        try:
            data = {name: write(state, name) for name in self.fields}
            return SharedState(data, self._decoded, self._fields.decoded(data))
        except Exception as error:  # noqa: BLE001 - the author's validators and serializers may raise any exception
            found = SkillError(f"the first state cannot be saved: {text_of(error)}")
            found.__cause__ = error
            return found

    def lifecycle_of(self, shared: SharedState) -> str:
        """The lifecycle's state; empty if the contract has no moves.

        A state that was saved before the contract had moves may lack the field; then its default counts.
        """
        field = self.contract.lifecycle
        if not self.lifecycle.moves:
            return ""
        if field not in shared.data and self._patched(MOVES_ADDED):
            return plain(getattr(shared.state, field))
        return str(shared.data[field])

    # --- before a step

    def check_invariants(self, step: str, lifecycle: str, state: Any) -> None:
        """Raise an `InvariantError` if an invariant does not hold before a step, or its check fails."""
        for one in self._rules:
            if one.holds is not None and one.after is None and one.at in (None, lifecycle):
                self._hold(one, step, lifecycle, None, state)

    def check_requirements(self, step: str, terms: StepContract, lifecycle: str, seen: Any) -> None:
        """Raise a `RequirementError` if a step's requirement does not hold for its view `seen`, or its check fails."""
        for one in terms.requires:
            if came := self._missed(one.holds, (seen,), seen, one.field):
                raise RequirementError(step, lifecycle, one.field, one.rule, actual=came)

    def check_unchanged(self, what: str, step: str, lifecycle: str, state: Any, data: Data) -> None:
        """Raise an `UnauthorizedWriteError` if `what`, a function of the author's, changed the state in place."""
        if name := self.changed_in_place(state, state, data, self.fields):
            rule, way_out = f"{what} only looks at the state", "a function that changes nothing that it is given"
            raise UnauthorizedWriteError(step, lifecycle, name, rule, expected=way_out, actual="a change in place")

    # --- after a step

    def changed_in_place(self, view: Any, state: Any, data: Data, fields: Iterable[str]) -> str:
        """The first field whose value was changed in place, in the state or in a view of it; empty if none was."""
        seen, known = vars(view), vars(state)
        for name in fields:
            if name in known and (seen.get(name) is not known[name] or self._differs(name, state, data)):
                return name
        return ""

    def _differs(self, name: str, state: Any, data: Data) -> bool:
        value = vars(state)[name]
        if value is None or type(value) in _SCALARS:
            return False
        with suppress(NoData):
            return self._fields.changed(state, name, data, self._fields.by_type)
        differs = True
        with suppress(Exception):  # the author's serializers may raise any exception
            differs = self._fields.changed(state, name, data, self._fields.by_model)
        return differs or not self._patched(BY_MODEL)

    def check_writes(self, step: str, terms: StepContract, lifecycle: str, patch: StatePatch) -> None:
        """Raise an `UnauthorizedWriteError` if a step may not write a field of its patch."""
        allowed = ", ".join(terms.writes) or "none"
        for name in patch.fields:
            if name in terms.writes:
                continue
            if name not in self.fields:
                rule = f"the state has no such field; it has: {', '.join(self.fields)}"
            elif name in self.contract.owned:
                rule = "the orchestrator alone writes it"
            else:
                rule = "writes only what it declares"
            raise UnauthorizedWriteError(step, lifecycle, name, rule, expected=f"one of: {allowed}", actual=name)

    def check_move(self, step: str, terms: StepContract, source: str, target: str, patch: StatePatch) -> Any:
        """Check that a step may make a move. Returns the move; None if the contract does not have it.

        Raises:
            IllegalMoveError: The step may not make the move, or its patch writes another state.
        """
        about = step, source, self.contract.lifecycle
        written = plain(patch.fields.get(self.contract.lifecycle, target))
        if written != target:
            raise IllegalMoveError(*about, "the patch and the way on agree", expected=target, actual=written)
        move = self.lifecycle.moves.get((source, target))
        if terms.free and target in self.lifecycle.states:
            return move
        if move is None:
            legal = ", ".join(self.lifecycle.targets(source)) or "none, it is an end"
            raise IllegalMoveError(*about, f"there is no move from {source} to {target}", expected=legal, actual=target)
        if target not in terms.exits:
            declared = ", ".join(terms.exits) or "none"
            raise IllegalMoveError(*about, "leads only where it declares", expected=declared, actual=target)
        return move

    def merged(
        self, step: str, lifecycle: str, data: Data, fields: Mapping[str, Any]
    ) -> tuple[SharedState, dict[str, JsonValue]]:
        """The state with new values in some fields, and these values as data.

        Raises:
            PatchError: A value does not fit.
        """
        found = self._merged(step, lifecycle, data, fields, by_model=False)
        if isinstance(found, PatchError) or self._fields.need_model(fields):
            other = found
            with suppress(Exception):  # the author's serializers may raise any exception
                other = self._merged(step, lifecycle, data, fields, by_model=True)
            if other is not found and not isinstance(other, PatchError) and self._patched(BY_MODEL):
                return other
        if isinstance(found, PatchError):
            raise found
        return found

    def _merged(
        self, step: str, lifecycle: str, data: Data, fields: Mapping[str, Any], *, by_model: bool
    ) -> tuple[SharedState, dict[str, JsonValue]] | PatchError:
        """As `merged`, with the fields written by the state's model or by their types; or why a value does not fit."""
        fits = f"must fit {self.contract.state.__name__}"
        own = self.contract.lifecycle if self.lifecycle.moves else None
        values = {name: value for name, value in fields.items() if name != own}
        write = self._fields.by_model if by_model else self._fields.by_type
        patch: dict[str, JsonValue] = {}
        # Serializers of the author's may read other fields than their own.
        given = self._decoded(data).model_copy(update=values) if by_model else SimpleNamespace(**values)
        for name, value in fields.items():
            try:
                patch[name] = plain(value) if name == own else write(given, name)
            except NoData as error:
                return PatchError(step, lifecycle, name, fits, actual=str(error))
        after = {**data, **patch}
        try:
            state = self._fields.decoded(after)
        except Exception as error:  # noqa: BLE001 - see `_misfit`
            found = error.errors() if isinstance(error, ValidationError) else []
            at = next((str(one["loc"][0]) for one in found if one["loc"]), "")
            name = at if at in fields else next(iter(fields), "")
            return PatchError(step, lifecycle, name, fits, actual=_misfit(error))
        if by_model:
            lost = {
                next(iter(values), ""): self._fields.lost(state.model_copy(update=values), values, state, self._patched)
            }
        else:
            lost = {
                name: self._fields.lost_by_type(name, one, getattr(state, name), self._patched)
                for name, one in values.items()
            }
        for name, how in lost.items():
            if how:
                return PatchError(step, lifecycle, name, fits, actual=how)
        return SharedState(after, self._decoded, state), patch

    def with_then(
        self, step: str, source: str, move: Move, shared: SharedState
    ) -> tuple[SharedState, dict[str, JsonValue]]:
        """The state with the changes of a move's `then`, and the changed values as data.

        Raises:
            PatchError: `then` fails, returns no patch, or writes a value that does not fit.
            UnauthorizedWriteError: `then` writes the lifecycle or an unknown field, or changes the state in place.
        """
        if move.then is None:
            return shared, {}
        field, way = self.contract.lifecycle, f"`then` of the move {plain(move.source)} -> {plain(move.target)}"
        try:
            changes = called(move.then, shared.state)
        except HookFailed as error:
            raise PatchError(step, source, field, f"{way} returns a StatePatch", actual=f"it {error}") from error
        if not isinstance(changes, StatePatch):
            raise PatchError(step, source, field, f"{way} returns a StatePatch", actual=brief(changes))
        self.check_unchanged(way, step, source, shared.state, shared.data)
        others = [name for name in self.fields if name != field]
        for name, value in changes.fields.items():
            if name not in others:
                rule = f"{way} writes any field but the lifecycle's"
                expected, actual = f"one of: {', '.join(others)}", f"{name}={brief(value)}"
                raise UnauthorizedWriteError(step, source, name, rule, expected=expected, actual=actual)
        return self.merged(step, source, shared.data, changes.fields)

    def check_invariants_after(self, step: str, source: str, before: Any, after: SharedState) -> None:
        """Raise an `InvariantError` if an invariant does not hold after a step, or its check fails."""
        target = self.lifecycle_of(after)
        for one in self._rules:
            if one.at in (None, target) and one.after in (None, source):
                self._hold(one, step, source, before, after.state)

    def _hold(self, one: Invariant, step: str, lifecycle: str, before: Any, state: Any) -> None:
        check, given = (one.holds, (state,)) if one.holds is not None else (one.keeps, (before, state))
        if check is not None and (came := self._missed(check, given, state, one.field)):
            raise InvariantError(step, lifecycle, one.field, one.rule, actual=came)

    def _missed(self, check: Callable[..., Any], given: tuple[Any, ...], state: Any, field: str) -> str:
        """The actual value, for the error, if a check of the author's does not hold; empty if it holds."""
        try:
            found = called(check, *given)
            holds = found is True or called(bool, found)
        except HookFailed as error:
            return f"its check {error}"
        return "" if holds else brief(getattr(state, field)) or "nothing"


def _misfit(error: Exception) -> str:
    """Why data does not fit the state's type; the author's validators may raise any exception."""
    if isinstance(error, ValidationError):
        return problems(error)
    return f"its validation failed with {describe(error)}"
