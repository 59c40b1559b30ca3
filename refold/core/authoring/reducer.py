"""The reducer style: a class with a typed `State` and one pure function, `on_event(state, event, ctx)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue, ValidationError

from refold.core.authoring.bytecode import called_globals
from refold.core.authoring.context import Ctx, Moment
from refold.core.authoring.signatures import signature
from refold.core.authoring.skill import Live, Options, Skill
from refold.core.authoring.tool import tool_spec
from refold.core.authoring.transition import PATCH_REFUSED, UNCHANGED, Transition, altered
from refold.core.codec import NoData, codec, unsavable
from refold.core.errors import DefinitionError, SkillError, brief, describe
from refold.core.events import Event
from refold.core.schema import problems


class ReducerSkill(Skill):
    """A skill written as a reducer."""

    def __init__(self, options: Options, author: Any, annotation: Any) -> None:
        self.options = options
        self.author = author
        self.annotation = annotation
        self.states = codec(annotation)
        self.first, _ = self._encoded(author.initial())  # as data: no task gets the object that another one was given

    def where(self, state: JsonValue) -> str:
        """The state's `kind`, or the class's name."""
        try:
            return "start" if state is None else _named(state) or type(self._decoded(state)).__name__
        except SkillError:
            return "unknown"

    def places(self) -> list[str]:
        """The types that the state may have, each by its `kind` or its class's name."""
        return [kind_of(member) for member in members_of(self.annotation)]

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        ctx = Ctx(moment)
        if state is None:
            moment.enters(self.where(self.first))
        before = self._before(state, live)
        transition = _checked(self.author.on_event(before, event.own(), ctx), event, ctx)
        after = UNCHANGED if transition.ignored else transition.state
        if after is UNCHANGED and state is None:
            after = self.first
        elif after is not UNCHANGED:
            after, fresh = self._encoded(after, lambda patch: moment.patched(patch, False))
            moment.enters(_named(after) or type(fresh).__name__)
            if live is not None:
                live.decoded = (after, fresh)
        return altered(transition.after(ctx._said), state=after, forgets=True)

    def _before(self, state: JsonValue, live: Live | None) -> Any:
        if state is None:
            return self._decoded(self.first)
        if live is not None and live.decoded is not None and live.decoded[0] is state:
            fresh, live.decoded = live.decoded[1], None
            return fresh
        return self._decoded(state)

    def _decoded(self, state: JsonValue) -> Any:
        try:
            return self.states.fresh(state)
        except ValidationError as error:
            raise SkillError(f"the saved state does not read back: {problems(error)}") from None

    def _encoded(self, state: Any, patched: Callable[[str], bool] = lambda _: True) -> tuple[JsonValue, Any]:
        """A state as JSON data, and a new state decoded from that data; `patched` as for `Codec.saved`."""
        try:
            return self.states.saved(state, patched)
        except NoData as error:
            raise SkillError(f"state {type(state).__name__} cannot be saved: {error}") from None


def _named(state: JsonValue) -> str:
    """The `kind` of a state as data; empty where it has none."""
    kind = state.get("kind") if isinstance(state, dict) else None
    return kind if isinstance(kind, str) else ""


def members_of(annotation: Any) -> list[Any]:
    """The types that a state of this annotation may have."""
    if hasattr(annotation, "__value__"):  # `type State = A | B`
        return members_of(annotation.__value__)
    if get_origin(annotation) is Annotated:
        return members_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [one for member in get_args(annotation) for one in members_of(member)]
    return [get_origin(annotation) or annotation]


def kind_of(member: Any) -> str:
    """What `where` calls a state of this type."""
    field = getattr(member, "model_fields", {}).get("kind")
    default = getattr(member, "kind", None) if field is None else field.default
    return default if isinstance(default, str) else str(getattr(member, "__name__", member))


def _checked(transition: object, event: Event, ctx: Ctx) -> Transition:
    if not isinstance(transition, Transition):
        raise SkillError(
            f"on_event returned {brief(transition)} for {event.kind}; it returns a transition, "
            "for example `Transition.to(...)` or `Transition.ignore(state)`"
        )
    if ctx._made:
        raise SkillError(
            f"on_event made {ctx._made[0].named} on ctx; a reducer asks with `Transition.to(...).cmd(Cmd...)`"
        )
    if transition.enters is not None:
        raise SkillError(f"on_event went to step {transition.enters.step!r}; a reducer has states, not steps")
    if transition.resume:
        raise SkillError(
            f"on_event carries {', '.join(transition.resume)} over a wait; a reducer keeps them in its state: "
            "`Transition.await_input(slot, message, state)`"
        )
    if transition.writes is not None and ctx._moment.patched(PATCH_REFUSED, False):
        raise SkillError(
            "on_event returned a transition with `.patch(...)`; a reducer replaces its state: `Transition.to(state)`"
        )
    return transition


def compile_reducer(options: Options, cls: type) -> ReducerSkill:
    """Compile a class with `on_event` and `initial` to a skill.

    Raises:
        DefinitionError: The class is written wrongly; lists all problems.
    """
    found = [*options.problems, *_shape(cls)]
    annotation = _state_type(cls, found)
    author = instance(cls, found)
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        found.extend(direct_tool_calls(name, function))
    if annotation is not None and (problem := unsavable(annotation)):
        found.append(f"its state {problem}")
    if found:
        raise DefinitionError(options.card.id, found)
    try:
        skill = ReducerSkill(options, author, annotation)
        changing = drifts(skill.first, skill.states.data(author.initial()))
    except Exception as error:
        raise DefinitionError(options.card.id, [f"its initial state: {describe(error)}"]) from error
    if changing:
        raise DefinitionError(options.card.id, [f"its initial state {changing}, in on_event"])
    return skill


def _shape(cls: type) -> list[str]:
    found = []
    on_event = cls.on_event  # type: ignore[attr-defined]  # what makes a class a reducer
    if inspect.iscoroutinefunction(on_event):
        found.append("on_event is `async`; a reducer is a plain function: drop `async`, and ask with `.cmd(...)`")
    names = list(signature(on_event).parameters)
    if len(names) != 4:
        found.append(f"on_event takes (self, state, event, ctx); it takes ({', '.join(names)})")
    if not callable(getattr(cls, "initial", None)):
        found.append("it needs `initial()`, a static method that returns the first state")
    return found


def _state_type(cls: type, found: list[str]) -> Any:
    on_event = cls.on_event  # type: ignore[attr-defined]  # what makes a class a reducer
    try:
        hints = get_type_hints(on_event, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        found.append(f"the annotations of on_event cannot be read: {error}")
        return None
    name = next(iter(list(signature(on_event).parameters)[1:]), "state")
    annotation = hints.get(name, Any)
    if annotation is Any:
        found.append(f"parameter {name!r} of on_event needs the type of the state, or the union of its types")
        return None
    return annotation


def drifts(first: JsonValue, second: JsonValue) -> str:
    """What is wrong with the value that a task begins with, if `first` and `second`, its data when it was made twice,
    differ; empty if they are the same.

    The value is made once, when the skill is defined. All tasks of a process would begin with one clock time or random
    number, those of another process with another, and so would a replay there.
    """
    if first == second:
        return ""
    where = ""
    if isinstance(first, dict) and isinstance(second, dict):
        parts = (repr(name) for name, value in first.items() if value != second.get(name))
        where = f" in {', '.join(parts)}"
    return (
        f"differs{where} each time that it is made, as by a clock or a random number, but is made once for all tasks "
        "of a process; take what differs from task to task from ctx.now and ctx.task_id"
    )


def instance(cls: type, found: list[str]) -> Any:
    """An instance of the author's class; None, with a sentence added to `found`, if its constructor fails."""
    try:
        return cls()
    except Exception as error:  # noqa: BLE001 - __init__ is the author's code
        found.append(f"{cls.__name__}() failed with {type(error).__name__}: {error}; a skill is made without arguments")
        return None


def direct_tool_calls(name: str, function: Callable[..., Any]) -> list[str]:
    """A sentence for each tool that the function calls by its bare name."""
    return [
        f"{name} calls the tool {spec.name!r} directly; ask for it: `Cmd.tool({spec.name!r}, ...)`, "
        f"or in a step `await ctx.tool({spec.name!r}, ...)`"
        for called in called_globals(function)
        if (spec := tool_spec(called)) is not None
    ]
