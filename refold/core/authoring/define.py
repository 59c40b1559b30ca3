"""How an author's class becomes a skill: the decorator, and finding the compiled skill again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from refold.core.authoring.reducer import compile_reducer
from refold.core.authoring.skill import Options, Skill, Upgrade, options_for
from refold.core.contracts.contract import Contract
from refold.core.errors import DefinitionError
from refold.core.retry import RetryPolicy
from refold.core.steps.table import compile_steps, steps_of

C = TypeVar("C", bound=type)


def flow_skill(
    *,
    id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    tags: Sequence[str] = (),
    examples: Sequence[str] = (),
    input_modes: Sequence[str] | None = None,
    output_modes: Sequence[str] | None = None,
    input: Any = None,
    retry: RetryPolicy | None = None,
    version: int = 1,
    upgrade: Upgrade | None = None,
    contract: Contract | None = None,
) -> Callable[[C], C]:
    """Make a class a skill: one with `on_event` (a reducer) or one with `@step` methods.

    Args:
        id: Unique among the skills served together; None takes the class's name in snake_case.
        name: For people; None takes the class's name.
        description: For people and models; None takes the docstring's first paragraph.
        tags: For search.
        examples: Messages that it understands.
        input_modes: Media types it takes, such as `image/png` or `image/*`; None is text and JSON.
        output_modes: Media types it answers with; None is text and JSON.
        input: The type that the first message's data must fit; None takes any content.
        retry: How "try later" is tried again; None is three retries after 1, 2 and 4 s.
        version: Of the saved state's shape.
        upgrade: `upgrade(version, state)` turns a state saved by `version` into one of the next.
        contract: What holds between its steps, where they share a state.

    Raises:
        DefinitionError: All that is wrong with the class, at once.
    """

    def declare(cls: C) -> C:
        options = options_for(
            cls,
            id=id,
            name=name,
            description=description,
            tags=tags,
            examples=examples,
            input_modes=input_modes,
            output_modes=output_modes,
            input=input,
            retry=retry,
            version=version,
            upgrade=upgrade,
            contract=contract,
        )
        cls.__refold_skill__ = _compile(options, cls)  # type: ignore[attr-defined]  # how a class carries its skill
        return cls

    return declare


def skill_of(author: Any) -> Skill:
    """The compiled skill of a class, or the skill itself. A class without the decorator is compiled here.

    Raises:
        DefinitionError: It is no skill, or is written wrongly.
    """
    if isinstance(author, type):
        compiled: Skill | None = vars(author).get("__refold_skill__")  # its own, not its base class's
        return compiled or _compile(options_for(author), author)
    if callable(getattr(author, "on", None)) and hasattr(author, "options"):
        skill: Skill = author
        return skill
    raise DefinitionError(repr(author), ["it is neither a class with on_event or @step methods, nor a table"])


def _compile(options: Options, cls: type) -> Skill:
    steps = steps_of(cls)
    if hasattr(cls, "on_event"):
        if steps:
            raise DefinitionError(options.card.id, ["it has both on_event and @step methods; choose one style"])
        if options.contract is not None:
            raise DefinitionError(options.card.id, ["it is a reducer, which has no steps to keep a contract between"])
        return compile_reducer(options, cls)
    if not steps:
        raise DefinitionError(options.card.id, ["it has neither on_event nor a @step method"])
    return compile_steps(options, steps, cls)
