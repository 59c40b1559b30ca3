"""What `refold check` finds where the code of a skill stands in several modules, and what it leaves alone there."""

from __future__ import annotations

from textwrap import dedent

import pytest

from refold.static import check_source
from refold.static.code.module import parse

HEAD = """
import datetime, functools
from refold import Cmd, Ctx, Step, Transition, flow_skill, step, table, tool
"""
CLOCK = "import datetime\ndef stamp():\n    return datetime.datetime.now()\n"


def found(*, name: str = "workflows.a", file: str = "workflows/a.py", code: str, **others: str) -> list[str]:
    """The findings in a module beside others, as `file:rule`; a package of the others is written `helpers__init`."""
    modules = {}
    for other, text in others.items():
        path = other.replace("__", "/")
        package = path.endswith("/init")
        path = f"{path.removesuffix('/init')}/__init__" if package else path
        dotted = path.removesuffix("/__init__").replace("/", ".")
        modules[dotted] = parse(dedent(text), f"{path}.py", dotted)
    return [f"{one.file}:{one.rule}" for one in check_source(HEAD + dedent(code), file, name, reach=modules.get)]


def in_step(body: str, head: str = "") -> str:
    """A skill with one step."""
    method = (
        f"    @step(start=True)\n    async def begin(self, ctx: Ctx):\n        {body}\n        return ctx.complete()\n"
    )
    return f"{head}\nclass A:\n{method}"


@pytest.mark.parametrize(
    "package",
    [
        "from .planning import stamp",
        "from helpers.planning import stamp",
        "from .planning import stamp as stamp",
        "from . import planning\nstamp = planning.stamp",
        "from .more import stamp",
        "from .planning import *\nfrom .planning import stamp",
    ],
)
def test_what_a_package_passes_on_is_followed(package: str) -> None:
    """
    A helper is found through the package that imports it from one of its modules, absolutely or relatively.
    """
    more = "from .planning import stamp"
    code = in_step("stamp()", "from helpers import stamp")

    assert found(code=code, helpers__init=package, helpers__more=more, helpers__planning=CLOCK) == [
        "helpers/planning.py:clock"
    ]


@pytest.mark.parametrize(
    ("name", "file", "line"),
    [
        ("workflows", "workflows/__init__.py", "from .planning import stamp"),
        ("workflows.a", "workflows/a.py", "from .planning import stamp"),
        ("workflows.deep.a", "workflows/deep/a.py", "from ..planning import stamp"),
        ("workflows.deep", "workflows/deep/__init__.py", "from ..planning import stamp"),
    ],
)
def test_a_relative_import_starts_at_its_package(name: str, file: str, line: str) -> None:
    """
    Whether it stands in a module, in the package's own file, or inside a function.
    """
    for code in (in_step("stamp()", line), in_step(f"{line}; stamp()")):
        assert found(name=name, file=file, code=code, workflows__planning=CLOCK) == ["workflows/planning.py:clock"]


@pytest.mark.parametrize("line", ["from .random import pick", "from . import random; pick = random.random"])
def test_a_module_of_the_application_is_not_one_of_python(line: str) -> None:
    """
    `.random` is the neighbour of that name.
    """
    for code in (in_step("pick()", line.replace("; ", "\n")), in_step(f"{line}; pick()")):
        assert found(code=code, workflows__random="def pick(): return 4\nrandom = pick") == []
        assert found(name="a", file="a.py", code=code) == []


def test_names_that_lead_in_a_circle_are_left_alone() -> None:
    """
    Two modules that import a name from each other, and a module named like what is imported from it.
    """
    code = in_step("one(); two()", "from helpers import one, two")
    package = "from .one import one\nfrom .two import two"

    assert found(code=code, helpers__init=package, helpers__two="from helpers import two") == []


PLANNER = """
class Planner(Base):
    async def plan(self, ctx, text=''):
        return await ctx.llm('plan', text)

async def _plan(ctx, k):
    return await ctx.llm('plan', str(k))

def made():
    return _plan

PL = Planner()
plan = functools.partial(_plan, k=1)
wrapped = functools.lru_cache(_plan)
again = made()
"""
LIBRARY = "import library\nfrom library import fetch, helper\n"


@pytest.mark.parametrize(
    "awaited",
    [
        "super().begin(ctx)",
        "PL.plan(ctx)",
        "Planner().plan(ctx)",
        "plan(ctx)",
        "wrapped(ctx)",
        "again(ctx, 1)",
        "made()(ctx, 1)",
        "type(self).begin(self, ctx)",
        "next(iter([ctx.llm('a', 'b')]))",
        "PL.plan(*self.given)",
    ],
)
def test_what_is_or_may_be_the_applications_own_is_awaited(awaited: str) -> None:
    """
    What a call returns, an object of a module and a function of a base class may await calls of ctx alone.
    """
    here = in_step(f"await {awaited}", PLANNER).replace("class A:", "class A(Base):")
    there = in_step(f"await {awaited}", "from helpers import Planner, PL, again, made, plan, wrapped")
    package = "from .planning import Planner, PL, again, made, plan, wrapped"

    assert found(code=here) == []
    assert found(code=there, helpers__init=package, helpers__planning=f"import functools{PLANNER}") == []


@pytest.mark.parametrize(
    ("awaited", "reported"),
    [
        ("fetch('x')", True),
        ("library.Client().fetch(ctx.task_id)", True),
        ("helper(ctx)", False),
        ("library.Helpers().plan(to=ctx)", False),
        ("library.race(ctx.llm('a', 'b'))", False),
        ("library.decorated(fetch)('x')", False),
    ],
)
def test_a_librarys_function_is_awaited_if_it_is_given_ctx(awaited: str, reported: bool) -> None:
    """
    A library may help with skills, and gets ctx or its calls then; without them it waits for something else.
    """
    assert found(code=in_step(f"await {awaited}", LIBRARY)) == ["workflows/a.py:await"] * reported
