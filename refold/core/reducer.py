"""The reducer style: a class with a typed `State` and one pure function, `on_event(state, event, ctx)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from refold.core.code import called_globals
from refold.core.context import Ctx
from refold.core.errors import DefinitionError, SkillError
from refold.core.events import Event
from refold.core.schema import problems
from refold.core.skill import Live, Moment, Options
from refold.core.tool import tool_spec
from refold.core.transition import UNCHANGED, Transition


class ReducerSkill:
    """A skill written as a reducer."""

    def __init__(self, options: Options, author: Any, states: TypeAdapter[Any], kinds: tuple[Any, ...]) -> None:
        self._options = options
        self.author = author
        self.states = states
        self.kinds = kinds

    @property
    def options(self) -> Options:
        """What the author said of the skill."""
        return self._options

    def where(self, state: JsonValue) -> str:
        """The state's `kind`, or the class's name."""
        if isinstance(state, dict) and isinstance(state.get("kind"), str):
            return str(state["kind"])
        return "start" if state is None else type(self._decoded(state)).__name__

    def edges(self) -> list[tuple[str, str]]:
        """A reducer's moves are not literal; `refold graph` reads them from its source."""
        return []

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        ctx = Ctx(moment)
        before = self.author.initial() if state is None else self._decoded(state)
        transition = self.author.on_event(before, event, ctx)
        if not isinstance(transition, Transition):
            raise SkillError(
                f"on_event returned {repr(transition)[:200]} for {event.kind}; it returns a transition, "
                "for example `Transition.to(...)` or `Transition.ignore(state)`"
            )
        if ctx._made:
            raise SkillError(
                f"on_event made the call {ctx._made[0].command.id!r} on ctx; a reducer asks with "
                "`Transition.to(...).cmd(Cmd...)`"
            )
        if transition.enters is not None:
            raise SkillError(f"on_event went to step {transition.enters.step!r}; a reducer has states, not steps")
        after = transition.state
        if after is UNCHANGED and state is None:
            after = before
        encoded = UNCHANGED if after is UNCHANGED else self._encoded(after)
        return replace(transition, state=encoded, forgets=True)

    def _decoded(self, state: JsonValue) -> Any:
        try:
            return self.states.validate_python(state)
        except ValidationError:
            # A strict field takes its value from JSON, not from what JSON reads as.
            return self.states.validate_json(to_json(state))

    def _encoded(self, state: Any) -> JsonValue:
        try:
            data: JsonValue = self.states.dump_python(state, mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise SkillError(f"state {type(state).__name__} cannot be saved: {error}") from None
        return data


def compile_reducer(options: Options, cls: type) -> ReducerSkill:
    """The skill that a class with `on_event` and `initial` is.

    Raises:
        DefinitionError: All that is wrong with the class, at once.
    """
    found = _shape(cls)
    author: Any = None
    states: TypeAdapter[Any] | None = None
    kinds: tuple[Any, ...] = ()
    if not found:
        annotation = _state_type(cls, found)
        kinds = get_args(annotation) or (annotation,)
        try:
            states = TypeAdapter(annotation)
        except Exception as error:
            found.append(f"its state type cannot be saved as data: {error}")
        author = _instance(cls, found)
    if author is not None and states is not None:
        _check_initial(author, states, found)
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        found.extend(direct_tool_calls(name, function))
    if found or states is None:
        raise DefinitionError(options.card.id, found)
    return ReducerSkill(options, author, states, kinds)


def _shape(cls: type) -> list[str]:
    found = []
    on_event = getattr(cls, "on_event", None)
    if inspect.iscoroutinefunction(on_event):
        found.append("on_event is `async`; a reducer is a plain function: drop `async`, and ask with `.cmd(...)`")
    names = list(inspect.signature(on_event).parameters) if callable(on_event) else []
    if len(names) != 4:
        found.append(f"on_event takes (self, state, event, ctx); it takes ({', '.join(names)})")
    if not callable(getattr(cls, "initial", None)):
        found.append("it needs `initial()`, a static method that returns the first state")
    return found


def _state_type(cls: type, found: list[str]) -> Any:
    on_event = cls.on_event  # type: ignore[attr-defined]  # _shape has looked
    try:
        hints = get_type_hints(on_event, include_extras=True)
    except Exception as error:
        found.append(f"the annotations of on_event cannot be read: {error}")
        return None
    name = list(inspect.signature(on_event).parameters)[1]
    if name not in hints or hints[name] is Any:
        found.append(f"parameter {name!r} of on_event needs the type of the state, or the union of its types")
    return hints.get(name)


def _instance(cls: type, found: list[str]) -> Any:
    try:
        return cls()
    except Exception as error:
        found.append(f"{cls.__name__}() failed: {error}; a skill is made without arguments")
        return None


def _check_initial(author: Any, states: TypeAdapter[Any], found: list[str]) -> None:
    try:
        initial = author.initial()
        states.validate_python(states.dump_python(initial, mode="json", warnings="error"))
    except ValidationError as error:
        found.append(f"its initial state does not read back from JSON as its state type: {problems(error)}")
    except Exception as error:
        found.append(f"its initial state cannot be saved: {error}")


def direct_tool_calls(name: str, function: Callable[..., Any]) -> list[str]:
    """A sentence for each tool that the function calls by its bare name."""
    return [
        f"{name} calls the tool {spec.name!r} directly; ask for it: `Cmd.tool({spec.name!r}, ...)`, "
        f"or in a step `await ctx.tool({spec.name!r}, ...)`"
        for called in called_globals(function)
        if (spec := tool_spec(called)) is not None
    ]
