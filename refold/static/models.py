"""The models that skills name in their code: `ctx.llm(…, model="openai:gpt-5")`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from refold.static.code.asked import Asked, asked_in
from refold.static.code.evaluated import UNKNOWN, value_of
from refold.static.code.loaded import loaded_module
from refold.static.code.units import units


def models_of(asked: Asked) -> Iterator[str]:
    """The models that a model call names, one or several to ask in turn, as far as the code says them."""
    node = asked.named.get("model") if asked.verb in ("llm", "chat") else None
    value = UNKNOWN if node is None else value_of(node, asked.unit)
    yield from (one for one in (value if isinstance(value, list | tuple) else (value,)) if isinstance(one, str))


def models_named(modules: Iterable[str]) -> set[str]:
    """The models that the skills of these loaded modules name, and what their code leads to.

    Args:
        modules: Names of modules. Modules that have no word of a model are not looked into.
    """
    named = [
        module for name in modules if (module := loaded_module(name)) and any("model" in one for one in module.lines)
    ]
    found = [asked for module in named for unit in units(module, loaded_module) for asked in asked_in(unit)]
    return {name for asked in found for name in models_of(asked)}
