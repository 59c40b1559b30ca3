"""The two step styles, a class with `@step` methods and a table of plain functions, compiled to the step machine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack, overload

from pydantic import BaseModel

from refold.core.authoring.bytecode import leads, mentions
from refold.core.authoring.reducer import direct_tool_calls, drifts, instance
from refold.core.authoring.skill import Options, Skill, SkillOptions, options_for
from refold.core.contracts.check import compile_contract
from refold.core.contracts.contract import Terms
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import DefinitionError, SkillError, shown
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import MISSING, Param, Source, read_params, start_default
from refold.core.steps.spec import StepSpec

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, init=False)
class Step:
    """One step of a table: its name, its function, how it is entered, and its terms under the skill's contract.

    `Step("begin", begin).start()`, `Step("guided", guided).resume_from("judge")`,
    `Step("think", think, reads=["question"], writes=["thought"])`.
    """

    name: str
    function: Callable[..., Any]
    starts: bool
    resumes: str | None
    interrupted: str | None
    terms: Terms

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        starts: bool = False,
        resumes: str | None = None,
        terms: Terms | None = None,
        interrupted: str | None = None,
        **more: Unpack[Terms],
    ) -> None:
        given: dict[str, Any] = {**(terms or {}), **more}
        # Tuples, since the sandbox shares a skill between tasks only if nothing in it is mutable.
        said = {what: tuple(one) if isinstance(one, list | set) else one for what, one in given.items()}
        about = {"name": name, "function": function, "starts": starts, "resumes": resumes, "interrupted": interrupted}
        for attribute, value in {**about, "terms": said}.items():
            object.__setattr__(self, attribute, value)

    def start(self) -> Step:
        """Make this the step that the first message enters."""
        return replace(self, starts=True)

    def takes_user_message(self) -> Step:
        """Has no effect: a parameter annotated `Content` takes the message. For readers of the table."""
        return self

    def resume_from(self, step: str) -> Step:
        """Make this the step that receives the answer to the question of `step`."""
        return replace(self, resumes=step)

    def on_interrupt(self, step: str) -> Step:
        """Let a message interrupt this step: the step of that name receives it."""
        return replace(self, interrupted=step)


@overload
def step(function: F, /) -> F: ...


@overload
def step(
    *,
    start: bool = False,
    resume_from: str | None = None,
    name: str | None = None,
    on_interrupt: str | None = None,
    **terms: Unpack[Terms],
) -> Callable[[F], F]: ...


def step(
    function: Any = None,
    /,
    *,
    start: bool = False,
    resume_from: str | None = None,
    name: str | None = None,
    on_interrupt: str | None = None,
    **terms: Unpack[Terms],
) -> Any:
    """Make a method a step: `@step`, `@step(start=True)`, `@step(resume_from="critique")`.

    Args:
        start: The first message enters this step; true for exactly one step of a skill.
        resume_from: Name of a step that asks a question; this step receives the answer.
        name: The step's name; None takes the method's name.
        on_interrupt: Name of the step that receives a message which interrupts this step, or came before it. It takes
            the message as `content: Content`, and by their names arguments of this step and results that it has had,
            such as a tool's. None: a message waits for the next question, or for a step with `on_interrupt`.
        terms: What the step may do under the skill's contract; see `Terms`.
    """

    def declare(author: F) -> F:
        declared = Step(name or author.__name__, author, start, resume_from, terms, on_interrupt)
        author.__refold_step__ = declared  # type: ignore[attr-defined]  # how a method carries its declaration
        return author

    return declare(function) if function is not None else declare


def steps_of(cls: type) -> list[Step]:
    """The `@step` methods of a class, in the order of the class body."""
    found: dict[str, Step] = {}
    for base in reversed(cls.__mro__):
        for attribute, member in vars(base).items():
            declared = getattr(member, "__refold_step__", None)
            if isinstance(declared, Step):
                found[attribute] = declared
    # A subclass that overrides the method overrides the step, with `@step` or without.
    return [
        declared if isinstance(declared.function, staticmethod | classmethod) else replace(declared, function=written)
        for written, declared in ((getattr(cls, attribute), declared) for attribute, declared in found.items())
    ]


def hidden_steps(cls: type) -> list[str]:
    """Problems of a class's methods whose decorator stands above `@step` and hides the step from the class."""
    return [
        f"the decorator above `@step` hides the step {declared.name!r}: it returns a function without `functools.wraps`"
        for member in (inspect.getattr_static(cls, attribute) for attribute in dir(cls))
        if not hasattr(member, "__refold_step__") and (declared := _step_behind(member)) is not None
    ]


def _step_behind(member: Any) -> Step | None:
    """The step that a function calls, however many decorators without `functools.wraps` stand between."""
    behind, seen = [member], set()
    while behind:
        one = behind.pop()
        if not inspect.isfunction(one) or one in seen:  # a closure may hold anything, and itself
            continue
        if isinstance(declared := getattr(one, "__refold_step__", None), Step):
            return declared
        seen.add(one)
        for cell in one.__closure__ or ():
            with suppress(ValueError):  # the variable has no value yet
                behind.append(cell.cell_contents)
    return None


def compile_steps(options: Options, steps: Sequence[Step], owner: type | None = None) -> StepMachine:
    """Compile steps to a skill. `owner` is the class whose methods they are; None for plain functions.

    Raises:
        DefinitionError: The skill is written wrongly; lists all problems.
    """
    found = [*options.problems, *_check_routes(steps), *_unknown_options(steps, owner)]
    author = None if owner is None else instance(owner, found)
    specs: dict[str, StepSpec] = {}
    unread: set[str] = set()  # steps with a parameter that cannot be read: what they take is not known
    interrupting = [one.interrupted for one in steps]
    shared = getattr(options.contract, "state", None)
    shared = shared if isinstance(shared, type) else None  # `compile_contract` reports anything else
    for one in steps:
        if not inspect.isfunction(one.function):
            found.append(f"step {one.name!r} is {one.function!r}; a step is a plain function, or a method with `self`")
            continue
        params, wrong = read_params(one.function, bound=owner is not None, input=options.input, state=shared)
        found.extend(f"step {one.name!r}: {problem}" for problem in wrong)
        unread |= {one.name} if wrong else set()
        found.extend(f"step {one.name!r}: {problem}" for problem in _check_code(one, params, interrupting))
        found.extend(f"step {one.name!r}: {problem}" for problem in _drifting(params))
        specs[one.name] = StepSpec(
            name=one.name,
            run=one.function if owner is None else one.function.__get__(author, owner),
            params={param.name: param for param in params},
            start=one.starts,
            resume_from=one.resumes,
            seeds=_seeds(one, params, found) if one.starts else {},
            goes_to=_goes_to(one),
            on_interrupt=one.interrupted,
        )
    known = {name: spec for name, spec in specs.items() if name not in unread}
    found.extend(_unanswered(specs, known))
    contract = options.contract
    if contract is None:
        found.extend(_misfits(specs, known))
        found.extend(_uninterruptible(specs))
        bound = [one for one in steps if one.terms and Terms.__annotations__.keys() >= one.terms.keys()]
        found.extend(f"step {one.name!r}: {min(one.terms)}= needs a contract" for one in bound)
    else:
        specs, wrong = compile_contract(contract, {one.name: one.terms for one in steps if one.name in specs}, specs)
        found.extend(wrong)
        found.extend(f"step {one.name!r}: on_interrupt= is not for a contract" for one in steps if one.interrupted)
    if found:
        raise DefinitionError(options.card.id, found)
    return StepMachine(options, specs) if contract is None else ContractedMachine(options, specs, contract)


def table(id: str, *steps: Step, **options: Unpack[SkillOptions]) -> Skill:
    """Make a skill from a table of steps over plain functions, in reading order; exactly one is the start.

    Raises:
        DefinitionError: The skill is written wrongly; lists all problems.
    """
    wrong = [f"{shown(one)} is no step; write Step(name, function)" for one in steps if not isinstance(one, Step)]
    if wrong:
        raise DefinitionError(str(id), wrong)
    return compile_steps(options_for(None, id, **options), steps)


def _unknown_options(steps: Sequence[Step], owner: type | None) -> Iterator[str]:
    """Problems of steps with a misspelt option, which `step` and `Step` take for a term of the contract."""
    known = "start, resume_from, name, on_interrupt"
    if owner is None:
        known = '`.start()`, `.resume_from("...")` and `.on_interrupt("steer")` behind `Step(name, function)`'
    for one in steps:
        if unknown := sorted(one.terms.keys() - Terms.__annotations__.keys()):
            yield (
                f"step {one.name!r} takes no option {', '.join(unknown)}; the options are: {known}; "
                f"under a contract also {', '.join(Terms.__annotations__)}"
            )


def _goes_to(one: Step) -> tuple[str, ...]:
    return tuple(dict.fromkeys(lead.to for lead in leads(one.function, "goto")))


def _check_routes(steps: Sequence[Step]) -> list[str]:
    names = [one.name for one in steps]
    found = [f"two steps are named {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    starts = [one.name for one in steps if one.starts]
    if len(starts) != 1:
        listed = ", ".join(map(repr, starts)) or "none"
        found.append(f"exactly one step is the start (`@step(start=True)`); here: {listed}")
    resumes = [one.resumes for one in steps if one.resumes is not None]
    for source in dict.fromkeys(resumes):
        if source not in names:
            found.append(f"resume_from={source!r}: no such step; the steps are: {', '.join(names)}")
        if resumes.count(source) > 1:
            found.append(f"two steps say resume_from={source!r}; one answer enters one step")
    known = ", ".join(names)
    for one in steps:
        asks = mentions(one.function, "await_input")
        if asks and one.name not in resumes:
            found.append(f"step {one.name!r} awaits input, but no step says resume_from={one.name!r}")
        found.extend(
            f"step {one.name!r} goes to {target!r}, which does not exist; the steps are: {known}"
            for target in _goes_to(one)
            if target not in names
        )
    return found


_ASKS = {
    "await_input": {"slot", "message", "expect", "timeout_s"},
    "await_approval": {"slot", "message", "show", "policy", "editable"},
}
"""The methods that ask, with their own keywords; other keywords are carried to the step that receives the answer."""


def _misfits(specs: Mapping[str, StepSpec], targets: Mapping[str, StepSpec]) -> list[str]:
    """Problems of literal gotos and questions: arguments that their target step does not take, and missing ones."""
    found: list[str] = []
    resumes = {spec.resume_from: spec for spec in targets.values() if spec.resume_from is not None}
    for name, spec in specs.items():
        for one in leads(spec.run, "goto"):
            target = targets.get(one.to)
            if target is not None and one.names is not None:
                needed = target.needs(message=False) if one.alone else []
                found += _unfit(f"step {name!r} goes to {one.to!r}", target, one.names, needed)
        for method, options in _ASKS.items():
            for one in leads(spec.run, method):
                target, decided = resumes.get(name), method == "await_approval"
                if target is not None and one.names is not None:
                    carried = [given for given in one.names if given not in options]
                    needed = [given for given in target.needs(message=True) if decided or given != one.to]
                    found += _unfit(f"step {name!r} asks {one.to!r}", target, carried, needed)
    return found


def _unanswered(specs: Mapping[str, StepSpec], targets: Mapping[str, StepSpec]) -> Iterator[str]:
    """Problems of literal questions whose answer does not bring what the step that receives it needs of an answer."""
    for source, target in [(spec.resume_from, spec) for spec in targets.values() if spec.resume_from in specs]:
        for method, brings, answer, way_out in _ANSWERS:
            for one in leads(specs[str(source)].run, method):
                yield from (
                    f"step {source!r} asks {one.to!r}, which a {answer} answers, and step {target.name!r} needs "
                    f"{name}: {param.type_name}; take `{way_out}` there"
                    for name, param in target.params.items()
                    if param.needed and param.source.from_message and param.source not in brings
                    if one.names is not None and name not in one.names
                )


def _unfit(what: str, target: StepSpec, given: Sequence[str], needed: Sequence[str]) -> Iterator[str]:
    if unknown := [name for name in given if name not in target.params]:
        yield f"{what} with {', '.join(unknown)}, which step {target.name!r} does not take; it takes: {target.takes}"
    elif missing := [f"{name}: {target.params[name].type_name}" for name in needed if name not in given]:
        yield f"{what} without {', '.join(missing)}, which step {target.name!r} needs: pass it on by keyword"


def _uninterruptible(specs: Mapping[str, StepSpec]) -> Iterator[str]:
    """Problems of steps with `on_interrupt`: the step that is named does not exist, or cannot be entered from there."""
    for name, spec in ((name, spec) for name, spec in specs.items() if spec.on_interrupt is not None):
        said = f"step {name!r}: on_interrupt={spec.on_interrupt!r}"
        target = specs.get(spec.on_interrupt) if isinstance(spec.on_interrupt, str) else None
        if target is None:
            yield f"{said}: no such step; the steps are: {', '.join(specs)}"
            continue
        if not any(param.source in _MESSAGE for param in target.params.values()):
            yield f"{said}: that step takes no message; give it a parameter `content: Content`"
        for param in target.params.values():
            if param.source is Source.INPUT:
                yield f"{said}: that step takes {param.name!r} from the first message, and another one need not fit it"
            elif param.needed and param.source not in _MESSAGE and param.name not in spec.params:
                yield f"{said}: that step needs {param.name}: {param.type_name}; {name!r} has none; give it a default"


_MESSAGE = (Source.CONTENT, Source.EVENT)

_ANSWERS = (
    ("await_input", (*_MESSAGE, Source.INPUT), "message", "content: Content"),
    ("await_approval", (Source.DECISION,), "decision", "decision: DecisionMade"),
)
"""What answers a question, by the method that asks it: what it brings, its name, and what a step takes it as."""


def _check_code(one: Step, params: list[Param], interrupting: Collection[object]) -> list[str]:
    found = direct_tool_calls("its code", one.function)
    if inspect.isasyncgenfunction(one.function) or inspect.isgeneratorfunction(one.function):
        found.append("it yields; a step awaits calls of ctx and returns a transition")
    if one.resumes is None and not one.starts and one.name not in interrupting:
        found.extend(
            f"parameter {param.name!r} takes a message, but no message enters this step"
            for param in params
            if param.source is Source.EVENT
        )
    return found


def _drifting(params: list[Param]) -> Iterator[str]:
    """Problems of defaults with fields that would be others if the default were made again."""
    for param in params:
        default, made = param.default, []
        if isinstance(default, BaseModel):
            with suppress(Exception):  # the author's validators, which need not take what they have changed
                said = default.model_dump(exclude_unset=True)
                made = [param.codec.data(type(default).model_validate(said, by_name=True)) for _ in range(2)]
        if made and (changing := drifts(*made)):
            yield f"the default of parameter {param.name!r} {changing}"


def _seeds(one: Step, params: list[Param], found: list[str]) -> dict[str, Any]:
    seeds: dict[str, Any] = {}
    for param in params:
        if param.source is not Source.PAYLOAD:
            continue
        value = start_default(param)
        try:
            twice = () if value is MISSING else (value, start_default(param))
            made = [param.encode(each, one.name)[0] for each in twice]
        except SkillError:
            made = []
        if made:
            seeds[param.name] = value
            if changing := drifts(*made):
                found.append(f"step {one.name!r}: the first value of parameter {param.name!r} {changing}")
        elif param.default is MISSING:  # a default that does not fit is reported with the parameter
            found.append(
                f"step {one.name!r}: parameter {param.name!r} has nothing to start from; give it a default, or take "
                "the message as `content: Content`"
            )
    return seeds
