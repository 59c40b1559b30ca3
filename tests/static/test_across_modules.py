"""What `refold check` finds where the code of a skill stands in several modules, and what it leaves alone there."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from refold.static import check_source
from refold.static.code.module import parse
from tests.static.conftest import check

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


BASE = """
import datetime
from refold import Ctx, step

class Base:
    @step(start=True)
    async def begin(self, ctx: Ctx):
        ctx.llm('a', 'b')
        return ctx.goto('then')

    def stamp(self):
        return datetime.datetime.now()

    def on(self):
        return self.own()
"""


@pytest.mark.parametrize("line", ["from .base import Base", "from lib import Base", "from lib import base"])
def test_steps_of_a_base_class_elsewhere_are_steps(line: str) -> None:
    """
    Found where they stand, through whatever module passes the class on; so is what the skill calls of that class.
    """
    base = "base.Base" if line.endswith(" base") else "Base"
    line = line.replace("from .base", "from lib.base")
    beside = {"lib__init": "from .base import Base", "lib__base": BASE}
    code = f"{line}\nclass A({base}):\n    pass\n"
    calls = "    @step\n    def then(self, ctx: Ctx):\n        self.stamp()\n        return ctx.complete()\n"

    assert found(code=code, **beside) == ["lib/base.py:not-awaited"]
    assert found(code=f"{code}{calls}", **beside) == ["lib/base.py:not-awaited", "lib/base.py:clock"]
    assert found(code=f"{code}{calls}".replace("self.", "super()."), **beside) == [
        "lib/base.py:not-awaited",
        "lib/base.py:clock",
    ]


OWN = "    def own(self): return datetime.date.today()\n"
PURE = "    def begin(self, ctx: Ctx):\n        self.on()\n        return ctx.complete()\n"


@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("    async def begin(self, ctx: Ctx):\n        return 1\n", ["workflows/a.py:return"]),
        (OWN, ["lib/base.py:not-awaited"]),
        (PURE, []),
        (f"{PURE}{OWN}", ["workflows/a.py:clock"]),
    ],
    ids=["overridden", "not called", "pure", "called by the base"],
)
def test_a_method_stands_for_the_bases(method: str, at: list[str]) -> None:
    """
    An override of a step is the step, marked or not, and `self` in the base's methods is the skill that inherits them.
    """
    assert found(code=f"from lib.base import Base\nclass A(Base):\n{method}", lib__base=BASE) == at


def test_each_class_that_inherits_a_step_is_looked_at() -> None:
    """
    One may call what is pure, and the next what is not.
    """
    pure = f"class A(Base):\n{PURE}    def own(self): return 1\n"
    code = f"from lib.base import Base\n{pure}class B(Base):\n{PURE}{OWN}"

    assert found(code=code, lib__base=BASE) == ["workflows/a.py:clock"]


@pytest.mark.parametrize(
    "step", ["Step('begin', begin)", "Step('begin', steps.begin)", "Step(name='b', function=begin)"]
)
def test_functions_of_a_table_may_stand_elsewhere(step: str) -> None:
    """
    They are steps, as those of the table's own module are.
    """
    code = f"from workflows import steps\nfrom workflows.steps import begin\ntable('a', {step}.start())\n"
    steps = "def begin(ctx):\n    ctx.llm('a', 'b')\n    return 'x'\n"

    assert found(code=code, workflows__steps=steps) == ["workflows/steps.py:not-awaited", "workflows/steps.py:return"]


def test_classes_that_name_each_other_as_bases_are_left_alone() -> None:
    """
    Python does not import them; the check of their code ends all the same.
    """
    assert (
        found(code="class A(B): pass\nclass B(A): pass\nclass C(C): pass\nclass D(D.E): pass\nclass F(F.a[int]): pass")
        == []
    )


OWN_DECORATORS = {
    "activities/base.py": """
        from functools import partial
        from refold import step, tool
        reads = partial(tool, effect="read_only")
        starts = partial(step, start=True)
    """,
    "activities/web.py": """
        import urllib.request
        from activities.base import reads, tool

        @reads(name="load")
        def fetch(url: str) -> str:
            return urllib.request.urlopen(url).read().decode()

        @tool(effect="read_only")
        def size(url: str) -> int:
            return len(urllib.request.urlopen(url).read())
    """,
    "workflows/own.py": """
        import time
        from activities.base import starts, step
        from activities.web import fetch, size
        from refold import Ctx, Transition, flow_skill
        from refold.temporal import workflow_for

        @flow_skill(id="own")
        class Own:
            @starts()
            async def begin(self, ctx: Ctx) -> Transition:
                text = await ctx.tool(fetch, url="https://a.example")
                return ctx.goto("then", size=await ctx.tool(size, url=text), at=time.time())

            @step
            async def then(self, ctx: Ctx, size: int, at: float) -> Transition:
                return ctx.complete(str(time.time() - at))

        OwnWorkflow = workflow_for(Own)
    """,
}


@pytest.mark.slow
def test_what_an_authors_own_decorator_declares_is_known(empty: Path) -> None:
    """
    A tool is no code of the skill, and a step is, whatever name `tool` and `step` go by.
    """
    for file, text in OWN_DECORATORS.items():
        (empty / file).parent.mkdir(exist_ok=True)
        (empty / file).with_name("__init__.py").touch()
        (empty / file).write_text(dedent(text))

    assert [(one["file"], one["line"], one["rule"]) for one in check().found] == [
        ("workflows/own.py", 13, "clock"),
        ("workflows/own.py", 17, "clock"),
    ]
