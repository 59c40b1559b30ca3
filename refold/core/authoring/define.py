"""How a class becomes a skill: `flow_skill` compiles a reducer or class of steps; `steps/table.py` compiles tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar, Unpack, cast

from refold.core.authoring.reducer import compile_reducer
from refold.core.authoring.skill import Options, Skill, SkillOptions, options_for
from refold.core.errors import DefinitionError, brief
from refold.core.steps.table import compile_steps, hidden_steps, steps_of

C = TypeVar("C", bound=type)


def flow_skill(*, id: str | None = None, **options: Unpack[SkillOptions]) -> Callable[[C], C]:
    """Make a class a skill: one with `on_event` (a reducer) or one with `@step` methods.

    Args:
        id: Unique among the skills served together; None takes the class's name in snake_case.
        options: `name`, `description`, `retry` and so on; see `SkillOptions`.

    Raises:
        DefinitionError: The class is written wrongly; lists all problems.
    """

    def declare(cls: C) -> C:
        if not isinstance(cls, type):
            raise DefinitionError(
                str(getattr(cls, "__name__", cls)), ["it is no class; functions become a skill by `table`"]
            )
        compiled = _compile(options_for(cls, id, **options), cls)
        cls.__refold_skill__ = compiled  # type: ignore[attr-defined]  # how a class carries its skill
        return cls

    return declare


def skill_of(author: Any) -> Skill:
    """The compiled skill of a class, or `author` itself if it is compiled. Compiles a class without the decorator.

    Raises:
        DefinitionError: `author` is no skill, or is written wrongly.
    """
    if (compiled := _compiled(author)) is not None:
        return compiled
    if isinstance(author, type):
        return _compile(options_for(author), author)
    named = author if isinstance(author, str) else str(getattr(author, "__name__", None) or brief(author))
    raise DefinitionError(
        named, [f"it is neither a class with on_event or @step methods, nor a table{_way_out(author)}"]
    )


def _compiled(author: Any) -> Skill | None:
    if isinstance(author, type):
        own: Skill | None = vars(author).get("__refold_skill__")  # not its base class's
        return own
    return cast("Skill", author) if callable(getattr(author, "on", None)) and hasattr(author, "options") else None


def _way_out(author: Any) -> str:
    """What to give in place of what is no skill, where that can be told."""
    if isinstance(author, str):
        return "; a skill is given itself, not by its name: import it"
    if isinstance(author, ModuleType):
        skills = [f"{author.__name__}.{name}" for name, one in vars(author).items() if _compiled(one) is not None]
        return f"; it is a module: give a skill of it{': ' * bool(skills)}{', '.join(skills)}"
    cls = type(author)
    return f"; give the class, {cls.__name__}, not an object of it" if _compiled(cls) is not None else ""


def listed(skills: Any) -> Iterable[Any]:
    """Skills that are given as a list, as they are.

    Raises:
        DefinitionError: It is one skill, or a text, in place of a list.
    """
    if isinstance(skills, Iterable) and not isinstance(skills, str | type):
        return skills
    if isinstance(skills, str):
        raise DefinitionError(skills, ["it is a text, not a list of skills: import the skill, and write [TheSkill]"])
    named = getattr(skills, "__name__", None) or brief(skills)
    raise DefinitionError(named, [f"it is given alone, where a list of skills is expected: write [{named}]"])


def _compile(options: Options, cls: type) -> Skill:
    if hidden := hidden_steps(cls):
        raise DefinitionError(options.card.id, [*options.problems, *hidden])
    steps = steps_of(cls)
    if hasattr(cls, "on_event"):
        if steps:
            raise DefinitionError(options.card.id, ["it has both on_event and @step methods; choose one style"])
        if options.contract is not None:
            raise DefinitionError(options.card.id, ["it is a reducer, which has no steps to keep a contract between"])
        return compile_reducer(options, cls)
    if not steps:
        way_out = "; it is the workflow of a skill: give the skill itself" if _compiled(vars(cls).get("skill")) else ""
        raise DefinitionError(options.card.id, [f"it has neither on_event nor a @step method{way_out}"])
    return compile_steps(options, steps, cls)
