"""What a worker that kills itself serves: the same skills and tools as `refold worker`."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.core.authoring.tool import tool_spec
from refold.testing.crash_worker import _modules, _tools

MADE = """
from refold import tool

def made(name):
    @tool(effect="idempotent", name=name)
    def performed() -> str:
        return name
    return performed

"""
HELD = {
    "list": 'TOOLS = [made("one"), made("two")]',
    "tuple": 'TOOLS = (made("one"), made("two"))',
    "dict": 'TOOLS = {1: made("one"), 2: made("two")}',
    "names": 'first = made("one")\nsecond = made("two")\nBOTH = [first, second]',
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package within a package that can be imported; neither stays loaded."""
    folder = tmp_path / "crash_shop" / "money"
    folder.mkdir(parents=True)
    for one in (folder, folder.parent):
        (one / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "crash_shop"]:
        del sys.modules[name]


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_every_tool_of_a_package_is_served(held: str, package: Path) -> None:
    """
    Once each, however its module holds it, and however deep in the package that module is.
    """
    (package / "charges.py").write_text(MADE + held)

    found = _tools(list(_modules(["crash_shop"])))

    assert [spec.name for one in found if (spec := tool_spec(one)) is not None] == ["one", "two"]
