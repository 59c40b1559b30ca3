"""How a function is declared a tool: `@tool`, with the effect policy that applies when its outcome is unknown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import Parameter, getdoc, isasyncgenfunction, isclass, isgeneratorfunction
from typing import Any, Literal, ParamSpec, TypeVar, get_type_hints

from refold.core.authoring.signatures import signature
from refold.core.commands import EffectPolicy, Undo
from refold.core.errors import DefinitionError, SkillError
from refold.core.values import LONGEST_CALL_S

P = ParamSpec("P")
R = TypeVar("R")

skill_at_work: ContextVar[str] = ContextVar("skill_at_work", default="")
"""The id of the skill that the fold is calling; empty outside of such a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool's declaration.

    Attributes:
        name: The tool's name in commands, unique among the tools of a worker.
        function: The function, undecorated.
        description: For models and for people.
        effect, timeout_s, undo, probe, durability: As in `tool`.
        takes: The names of the parameters, in order.
        needs: The names of the parameters without a default.
    """

    name: str
    effect: EffectPolicy
    function: Callable[..., Any]
    description: str = ""
    timeout_s: float = 600.0
    undo: ToolSpec | None = None
    probe: Callable[[str], Any] | None = None
    durability: str = "history"
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def returns(self) -> Any:
        """The annotated return type of the function; `Any` without an annotation.

        Raises:
            SkillError: An annotation of the function uses an unknown name.
        """
        return _returned_by(self.function)

    @property
    def undone_by(self) -> Undo | None:
        """The compensation of the tool's effect, in the form in which commands contain it; None if there is none."""
        return None if self.undo is None else Undo(name=self.undo.name, takes=self.undo.takes)

    def unfit(self, args: Collection[str]) -> str:
        """Why the tool cannot be called with arguments of these names; empty if it can."""
        unknown = [name for name in args if name not in self.takes]
        missing = [name for name in self.needs if name not in args]
        found = [f"it takes no {', '.join(unknown)}"] if unknown else []
        found += [f"it needs {', '.join(missing)}"] if missing else []
        return f"{' and '.join(found)}; it takes ({', '.join(self.takes)})" if found else ""


@functools.lru_cache(maxsize=1024)
def _returned_by(function: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(function).get("return", Any)
    except NameError as error:
        raise SkillError(f"the annotations of tool {function.__name__} cannot be read: {error}") from None


def tool(
    function: Any = None,
    /,
    *,
    effect: EffectPolicy | str | None = None,
    name: str | None = None,
    timeout_s: float = 600.0,
    undo: Callable[..., Any] | None = None,
    probe: Callable[[str], Any] | None = None,
    durability: Literal["history", "ledger"] = "history",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function a tool: `@tool(effect="idempotent")`.

    Args:
        effect: One of `EffectPolicy`; no default, since only the author knows.
        name: The tool's name in commands; None takes the function's name.
        timeout_s: How long one attempt may take, in seconds; more than 0, at most `LONGEST_CALL_S`.
        undo: For `compensate`: the tool that compensates the effect. Its parameters get the effect's arguments of the
            same names, and `result` the effect's result. A default must be the same in both.
        probe: For `at_most_once` and `compensate`: a function, `async def` or not, that takes the idempotency key and
            returns `Done(result)`, `NotDone()` or `Unknown()` of `refold.effects`. Called when it is not known whether
            the effect took place; without a probe, a person decides.
        durability: As in `SkillOptions`, for this tool alone.

    Returns:
        A decorator. The function can be called as before, except from a skill, which uses a command.

    Raises:
        DefinitionError: The effect is missing or unknown; `undo`, `probe`, `timeout_s` or `durability` does not fit; a
            parameter cannot be passed by name, or has no annotation; the function yields; or it is none.
    """
    if function is not None:
        raise DefinitionError(name or str(getattr(function, "__name__", "")), _effect_problems(None), what="tool")

    def declare(author: Callable[P, R]) -> Callable[P, R]:
        own = name or str(getattr(author, "__name__", "tool"))
        if not _is_function(author):
            raise DefinitionError(own, [f"{author!r} is no function; write a `def` that calls it"], what="tool")
        parameters = list(signature(author).parameters.values())
        found = [*_effect_problems(effect), *_undo_problems(effect, undo, parameters), *_probe_problems(effect, probe)]
        found += [*_parameter_problems(parameters), *durability_problems(durability)]
        if isgeneratorfunction(author) or isasyncgenfunction(author):
            found.append(
                "it yields, so that a call of it does nothing yet; let it return a list, and report what is done so "
                "far by `current().progress(...)`"
            )
        if not (isinstance(timeout_s, int | float) and 0 < timeout_s <= LONGEST_CALL_S):
            found.append(
                f"timeout_s={timeout_s!r} must be a number of seconds, more than 0 and at most {LONGEST_CALL_S:.0f}; "
                "let a tool start longer work, and another ask for its end"
            )
        if found or effect is None:
            raise DefinitionError(own, found, what="tool")

        @functools.wraps(author)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            if skill := skill_at_work.get():
                raise SkillError(
                    f"skill {skill!r} called the tool {own!r} directly; ask for it instead: "
                    f"`Cmd.tool({own!r}, ...)` in a reducer, `await ctx.tool({own!r}, ...)` in a step"
                )
            return author(*args, **kwargs)

        spec = ToolSpec(
            name=own,
            effect=EffectPolicy(effect),
            function=author,
            description=getdoc(author) or "",
            timeout_s=timeout_s,
            undo=tool_spec(undo),
            probe=probe,
            durability=durability,
            takes=tuple(parameter.name for parameter in parameters),
            needs=tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty),
        )
        guarded.__refold_tool__ = spec  # type: ignore[attr-defined]  # how a function carries its declaration
        return guarded

    return declare


def _is_function(author: object) -> bool:
    """Also true of a wrapper with the function's name and annotations (`functools.wraps`); a partial has neither."""
    return callable(author) and not isclass(author) and hasattr(author, "__name__")


def durability_problems(durability: str) -> list[str]:
    """What is wrong with where the outcomes of effects are kept; empty if nothing is."""
    known = ("history", "ledger")
    return [] if durability in known else [f"durability={durability!r} is neither 'history' nor 'ledger'"]


def _effect_problems(effect: str | None) -> list[str]:
    choices = ", ".join(repr(policy.value) for policy in EffectPolicy)
    if effect is None:
        return [f"a tool declares its effect: @tool(effect=...) with one of {choices}"]
    return [] if effect in list(EffectPolicy) else [f"effect={effect!r} is unknown; choose one of {choices}"]


def _undo_problems(effect: str | None, undo: Callable[..., Any] | None, parameters: Iterable[Parameter]) -> list[str]:
    if effect != EffectPolicy.COMPENSATE:
        return [] if undo is None else ["undo= goes with effect='compensate'"]
    if (spec := tool_spec(undo)) is None:
        needed = "effect='compensate' needs undo=, a function declared with @tool that undoes the effect"
        return [needed if undo is None else f"undo={undo!r} is no function declared with @tool; {needed}"]
    own = {one.name: one.default for one in parameters} | {"result": Parameter.empty}
    found = [f"its undo, {spec.name!r}, needs {name}, which it has not" for name in spec.needs if name not in own]
    its = {one.name: one.default for one in signature(spec.function).parameters.values()}
    # A call may leave out an argument that has a default, and the undo then takes its own default.
    unlike = ", ".join(name for name in its if own.get(name, Parameter.empty) not in (Parameter.empty, its[name]))
    return [*found, f"its undo, {spec.name!r}, must give {unlike} the same default as the tool"] if unlike else found


def _probe_problems(effect: str | None, probe: Any) -> list[str]:
    if probe is None:
        return []
    if effect not in (EffectPolicy.AT_MOST_ONCE, EffectPolicy.COMPENSATE):
        return ["probe= goes with effect='at_most_once' or 'compensate': the others may be repeated"]
    if not callable(probe):
        return [f"probe={probe!r} is no function; give one that takes the idempotency key"]
    try:
        signature(probe).bind("key")
    except TypeError:
        return ["its probe must take one argument, the idempotency key"]
    return []


def _parameter_problems(parameters: Iterable[Parameter]) -> list[str]:
    found = []
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found.append(f"parameter {parameter.name!r} must be a plain one, not `*` or `**` or positional-only")
        elif parameter.annotation is parameter.empty:
            found.append(f"parameter {parameter.name!r} needs an annotation: models and callers read it")
    return found


def tool_spec(function: Any) -> ToolSpec | None:
    """A function's declaration as a tool; None if it is no tool."""
    spec = getattr(function, "__refold_tool__", None)
    return spec if isinstance(spec, ToolSpec) else None
