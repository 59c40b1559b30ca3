"""How a contract is checked and compiled when its skill is defined: all problems, or the terms of each step."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from refold.core.authoring.bytecode import attributes_of
from refold.core.authoring.signatures import signature
from refold.core.codec import codec, unsavable
from refold.core.contracts.contract import (
    ALL,
    Contract,
    Fallback,
    Invariant,
    Lifecycle,
    Move,
    Requirement,
    StepContract,
    Terms,
    plain,
    require,
)
from refold.core.steps.params import Source
from refold.core.steps.spec import StepSpec


def compile_contract(
    contract: Contract, said: Mapping[str, Terms], specs: Mapping[str, StepSpec]
) -> tuple[dict[str, StepSpec], list[str]]:
    """The steps with their terms, and one sentence for each problem found.

    Args:
        contract: The skill's contract.
        said: The declared terms of each step, by its name.
        specs: The steps, compiled without the contract.
    """
    if problems := [*filter(None, [_no_state(contract.state)]), *_wrong_kinds(contract)]:
        return dict(specs), problems
    found = [*_wrong_fields(contract), *_wrong_moves(contract)]
    compiled = {}
    for name, spec in specs.items():
        terms, wrong = _terms(contract, said[name], spec)
        found.extend(f"step {name!r}: {problem}" for problem in wrong)
        compiled[name] = replace(spec, contract=terms)
    found.extend(_wrong_together(contract, compiled))
    return compiled, found


def _no_state(state: Any) -> str:
    if not (isinstance(state, type) and issubclass(state, BaseModel)):
        return f"its contract's state is {state!r}; it is a pydantic model"
    if not state.model_config.get("frozen"):
        return f"its state {state.__name__} is not frozen; write `model_config = ConfigDict(frozen=True)`"
    problem = unsavable(state)
    return f"its state {state.__name__} {problem}" if problem else ""


def _wrong_kinds(contract: Any) -> Iterator[str]:
    """Problems with the types of the contract's parts, for authors without a type checker."""
    yield from _wrong_hook("begins", contract.begins, "the first message's content", "the context")
    for one in contract.moves:
        if not isinstance(one, Move):
            yield f"moves: {one!r} is no move; write Move(source, target)"
        elif one.then is not None:
            yield from _wrong_hook(f"the move to {plain(one.target)}: then", one.then, "the state")
    for one in contract.invariants:
        if not isinstance(one, Invariant):
            yield f"invariants: {one!r} is none; write Invariant(field, rule, holds)"
            continue
        if one.holds is not None:
            yield from _wrong_hook(f"the invariant {one.rule!r}: holds", one.holds, "the state")
        if one.keeps is not None:
            yield from _wrong_hook(f"the invariant {one.rule!r}: keeps", one.keeps, "the state before", "the one after")
    if isinstance(contract.fallback, Fallback):
        yield from _wrong_hook("fallback: when", contract.fallback.when, "the state")
    elif contract.fallback is not None:
        yield f"fallback={contract.fallback!r} is none; write Fallback(step, when)"


def _wrong_hook(name: str, hook: Any, *takes: str) -> Iterator[str]:
    """Problems with the signature of an author's function."""
    try:
        signature(hook).bind(*takes)
    except TypeError:
        count = "one argument" if len(takes) == 1 else "two arguments"
        yield f"{name}={hook!r} is no function of {count}, {' and '.join(takes)}"
    except ValueError:  # a built-in function that does not say what it takes
        pass
    if inspect.iscoroutinefunction(hook):
        yield f"{name}={hook!r} is `async`, and nothing awaits it; ask for what it needs in a step"


def _wrong_fields(contract: Contract) -> Iterator[str]:
    fields = contract.state.model_fields
    listed = ", ".join(fields)
    yield from (f"owned: the state has no {name!r}; it has: {listed}" for name in contract.owned if name not in fields)
    for one in contract.invariants:
        if one.field not in fields:
            yield f"the invariant {one.rule!r} is about {one.field!r}, which the state does not have; it has: {listed}"
        if (one.holds is None) == (one.keeps is None):
            yield f"the invariant {one.rule!r} says either holds= or keeps=, one of them"


def _wrong_moves(contract: Contract) -> Iterator[str]:
    if not contract.moves:
        return
    info = contract.state.model_fields.get(contract.lifecycle)
    if info is None:
        yield f"its moves are of the field {contract.lifecycle!r}, which the state does not have; name it: lifecycle="
        return
    lifecycle = Lifecycle(contract)
    pairs = [(plain(move.source), plain(move.target)) for move in contract.moves]
    yield from (f"two moves from {a} to {b}" for a, b in dict.fromkeys(pairs) if pairs.count((a, b)) > 1)
    values = codec(info.rebuild_annotation())
    for state in lifecycle.states:
        try:
            values.fresh(state)
        except ValidationError:
            yield f"its moves name the state {state!r}, which the field {contract.lifecycle!r} cannot hold"
    if lifecycle.failed in lifecycle.states and lifecycle.targets(lifecycle.failed):
        yield f"a move leaves {lifecycle.failed!r}, the state of tasks that have failed"
    known = ", ".join(lifecycle.states)
    for one in contract.invariants:
        for about in (one.at, one.after):
            if about is not None and plain(about) not in lifecycle.states:
                yield f"the invariant {one.rule!r} is about {plain(about)!r}; the states are: {known}"


def _terms(contract: Contract, terms: Terms, spec: StepSpec) -> tuple[StepContract, list[str]]:
    found: list[str] = []
    fields = tuple(contract.state.model_fields)
    lifecycle = Lifecycle(contract)
    reads = _names(terms, "reads", fields, found)
    writes = _names(terms, "writes", fields, found)
    found.extend(f"writes {name!r}, which the orchestrator alone writes" for name in writes if name in contract.owned)
    sees = [param.name for param in spec.params.values() if param.source is Source.STATE]
    for seen in sees:
        astray = [one for one in attributes_of(spec.run, seen) if one in fields and one not in reads]
        found.extend(f"its code reads {seen}.{one}, and does not declare it: reads=[..., {one!r}]" for one in astray)
    if sees and not reads:
        found.append(f"takes {sees[0]!r}, and reads nothing of it; declare `reads=[...]`, or `reads=ALL`")
    enters, on_error = plain(terms.get("enters", "")), terms.get("on_error", False)
    free = not terms.get("enforce_moves", True)
    if lifecycle.moves:
        found.extend(_wrong_place(lifecycle, enters, terms, on_error=on_error, free=free))
    elif enters or terms.get("exits"):
        found.append("enters and exits are states of a lifecycle, and its contract has no moves")
    if on_error:
        exits: tuple[str, ...] = (lifecycle.failed,)
    elif "exits" in terms:
        exits = tuple(plain(one) for one in terms["exits"])
    else:
        exits = lifecycle.states if free else lifecycle.targets(enters)
    requires = _requirements(terms, reads, found)
    for one in requires:
        found.extend(_wrong_hook(f"the requirement {one.rule!r}: holds", one.holds, "what the step sees"))
    if terms.get("next") is not None:
        found.extend(_wrong_hook("next", terms["next"], "what the step reads and writes"))
    return StepContract(
        reads=reads,
        writes=writes,
        requires=requires,
        enters=enters,
        exits=exits,
        next=terms.get("next"),
        on_error=on_error,
        free=free,
    ), found


def _names(terms: Terms, what: str, fields: tuple[str, ...], found: list[str]) -> tuple[str, ...]:
    given: Any = terms.get(what, ())
    if given == ALL:
        return fields
    if isinstance(given, str):
        found.append(f"{what}={given!r} is one text; write {what}=[{given!r}]")
        return ()
    names = tuple(given)
    known = ", ".join(fields)
    found.extend(
        f"{what} {name!r}, which the state does not have; it has: {known}" for name in names if name not in fields
    )
    return tuple(name for name in fields if name in names)


def _requirements(terms: Terms, reads: tuple[str, ...], found: list[str]) -> tuple[Requirement, ...]:
    given: Any = terms.get("requires", ())
    if isinstance(given, str):
        found.append(f"requires={given!r} is one text; write requires=[{given!r}]")
        return ()
    needed = tuple(one if isinstance(one, Requirement) else require(one) for one in given)
    found.extend(f"requires {one.field!r}, and does not read it" for one in needed if one.field not in reads)
    return needed


def _wrong_place(lifecycle: Lifecycle, enters: str, terms: Terms, *, on_error: bool, free: bool) -> Iterator[str]:
    known = ", ".join(lifecycle.states)
    if on_error:
        if enters or "exits" in terms or "next" in terms:
            yield "runs when another step has failed, and ends the task: it says no enters, exits or next"
        return
    if not enters:
        if not free:
            yield f"says not in which state it runs: enters=, one of {known}"
        return
    if enters not in lifecycle.states:
        yield f"enters {enters!r}, which no move knows; the states are: {known}"
        return
    if enters in lifecycle.ends:
        yield f"enters {enters!r}, which no move leaves: a task that comes there has ended"
    for target in map(plain, terms.get("exits", ())):
        legal = lifecycle.states if free else lifecycle.targets(enters)
        if target not in legal:
            yield f"exits to {target!r}; the legal moves from {enters} lead to: {', '.join(legal) or 'nowhere'}"


def _wrong_together(contract: Contract, steps: Mapping[str, StepSpec]) -> Iterator[str]:
    lifecycle = Lifecycle(contract)
    entered = [step.contract.enters for step in steps.values() if step.contract.enters]
    for state in lifecycle.states:
        if entered.count(state) > 1:
            yield f"two steps enter {state!r}; each state has one"
        if state not in entered and state not in lifecycle.ends:
            yield f"no step enters {state!r}: a task that comes there could not go on"
    for name, step in steps.items():
        source, targets = step.contract.enters, [steps[goto].contract.enters for goto in step.goes_to if goto in steps]
        for target in targets:
            if source and target and target not in step.contract.exits:
                yield f"step {name!r} goes to {target}, where no move leads that it may make from {source}"
    handlers = [name for name, step in steps.items() if step.contract.on_error]
    if len(handlers) > 1:
        yield f"{' and '.join(map(repr, handlers))} say on_error; one does"
    way = contract.fallback
    if way is not None and way.step not in steps:
        yield f"it falls back to {way.step!r}, which does not exist; the steps are: {', '.join(steps)}"
    elif way is not None and lifecycle.moves and not steps[way.step].contract.free:
        yield f"it falls back to {way.step!r} from any state, so that step says enforce_moves=False"
