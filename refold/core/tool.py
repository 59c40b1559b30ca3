"""How a function is declared a tool: a plain typed function, and what may happen when its outcome is unknown."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, get_type_hints

from refold.core.commands import EffectPolicy
from refold.core.errors import DefinitionError, SkillError

P = ParamSpec("P")
R = TypeVar("R")

skill_at_work: ContextVar[str] = ContextVar("skill_at_work", default="")
"""The id of the skill that is being called right now; empty outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """What a tool's declaration says.

    Attributes:
        name: Its name in commands, unique among the tools of a worker.
        effect: What may happen when it is not known whether its effect took place.
        function: The function itself.
        description: For models and for people.
        timeout_s: How long one try may take, in seconds.
    """

    name: str
    effect: EffectPolicy
    function: Callable[..., Any]
    description: str = ""
    timeout_s: float = 600.0

    @property
    def returns(self) -> Any:
        """The type that the function returns, as declared; `Any` where it is not."""
        return get_type_hints(self.function).get("return", Any)


def tool(
    function: Any = None,
    /,
    *,
    effect: EffectPolicy | str | None = None,
    name: str | None = None,
    timeout_s: float = 600.0,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function a tool: `@tool(effect="idempotent")`.

    Args:
        effect: One of `EffectPolicy`; there is no default, for nobody but the author can know.
        name: Its name; None takes the function's.
        timeout_s: How long one try may take, in seconds.

    Returns:
        A decorator. The function may be called as before, except from a skill: there it is a command.

    Raises:
        DefinitionError: No effect, or an unknown one, is given.
    """
    choices = ", ".join(f"{policy.value!r}" for policy in EffectPolicy)
    called = name or getattr(function, "__name__", "tool")
    if function is not None or effect is None:
        raise DefinitionError(called, [f"a tool declares its effect: @tool(effect=...) with one of {choices}"])
    if effect not in list(EffectPolicy):
        raise DefinitionError(called, [f"effect={effect!r} is unknown; choose one of {choices}"])

    def declare(author: Callable[P, R]) -> Callable[P, R]:
        own = name or author.__name__

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
            description=inspect.getdoc(author) or "",
            timeout_s=timeout_s,
        )
        guarded.__refold_tool__ = spec  # type: ignore[attr-defined]  # how a function carries its declaration
        return guarded

    return declare


def tool_spec(function: Any) -> ToolSpec | None:
    """A function's declaration as a tool; None where it has none."""
    spec = getattr(function, "__refold_tool__", None)
    return spec if isinstance(spec, ToolSpec) else None
