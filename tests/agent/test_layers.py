"""Five layers, each a module of its own, each of which knows those before it only."""

import ast
from pathlib import Path

import pytest

import refold.agent
from tests.syntax import parsed

HERE = Path(refold.agent.__file__).parent
# What each module may know of the others. The five layers stand in their order.
BELOW = ["errors", "state", "tools"]
LAYERS = ["clients", "plugins", "steps", "middleware", "orchestrators"]
READY = ["ready.budget", "ready.guards", "ready.limits", "ready.memory", "ready.tracing"]
ORDER = [*BELOW, *LAYERS]
MAY = {
    **{name: set(ORDER[: ORDER.index(name)]) for name in ORDER},
    "orchestrators": {*BELOW, "clients", "plugins", "steps"},  # what stands around them is none of their affair
    "gates": set(BELOW),
    **{name: {*BELOW, "clients", "plugins", "steps", "middleware"} for name in READY},
    "loop": {*BELOW, *LAYERS},
    "looping.turn": {*BELOW, "clients", "plugins", "steps"},
    "looping.slots": {*BELOW, *LAYERS, "loop", "looping.turn"},
    "looping.places": {*BELOW, "looping.slots"},
    "looping.own_loop": {*BELOW, *LAYERS, "loop", "looping.turn", "looping.slots", "looping.places", "ready.budget"},
    "checkpoints": {*BELOW, "loop"},
    "definition": {*BELOW, *LAYERS, *READY, "looping.slots"},
    "agent": {*BELOW, *LAYERS, *READY, "definition", "gates", "loop", "looping.slots", "looping.own_loop"},
}


def _name(file: Path) -> str:
    return file.stem if file.parent == HERE else f"{file.parent.name}.{file.stem}"


FILES = sorted(HERE.rglob("[!_]*.py"))


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_each_layer_knows_those_before_it_only(file: Path) -> None:
    """
    Clients are unaware of the loop, steps of what stands around them, and so on.
    """
    known = {
        node.module.removeprefix("refold.agent.")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("refold.agent.")
    }

    assert known <= MAY[_name(file)]


def test_the_five_layers_are_modules() -> None:
    """
    Each can be imported by its name.
    """
    assert all((HERE / f"{layer}.py").exists() for layer in LAYERS)
