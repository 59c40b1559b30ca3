"""What tasks share of a skill's modules, and what they must not."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxMatcher, SandboxRestrictions

import activities
import workflows
import workflows.hello
from refold.temporal import RefoldPlugin, make_worker
from refold.temporal.recorded.reading import FromReplay
from refold.temporal.worker.activation.committed import Unsandboxed
from refold.temporal.worker.registry import workflows_of
from refold.temporal.worker.sandboxed import sharing
from refold.temporal.worker.sandboxed.immutable import mutable_in
from refold.temporal.worker.sandboxed.sandbox import Sandbox, sandbox
from refold.temporal.worker.sandboxed.uses import Uses
from refold.temporal.worker.task.workflow import SkillWorkflow
from tests.temporal import skills

SHIPPED = sorted(found.name for found in pkgutil.iter_modules(workflows.__path__, "workflows."))

SKILL = """
from refold import Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for

{more}

@flow_skill(id="made_up")
class MadeUp:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("done")

MadeUpWorkflow = workflow_for(MadeUp)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, for as long as the test runs."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("made_up")]:
        del sys.modules[name]


def made(folder: Path, name: str, more: str) -> type[SkillWorkflow]:
    """The workflow of a skill in a new module that also says `more`."""
    (folder / f"{name}.py").write_text(SKILL.format(more=more))
    module = __import__(name)
    return workflows_of([module.MadeUpWorkflow])[0]


def judged(module: ModuleType) -> str | None:
    """The first name under which something can change, where nothing but the module itself may reach it."""
    return mutable_in(module, Uses([module]))


def prepared(cls: type[SkillWorkflow], tools: Iterable[Callable[..., Any]] = ()) -> Sandbox:
    """A sandbox that has imported the workflow once, as a worker's does when it starts."""
    runner = sandbox([cls], tools)
    assert isinstance(runner, Sandbox)
    runner.prepare_workflow(workflow._Definition.must_from_class(cls))
    return runner


def begin_another(runner: Sandbox, cls: type[SkillWorkflow]) -> None:
    """Load the workflow as for one more task."""
    SandboxedWorkflowRunner.prepare_workflow(runner, workflow._Definition.must_from_class(cls))


@pytest.mark.parametrize("name", [*SHIPPED, "tests.temporal.skills"])
async def test_tasks_of_a_shipped_skill_share_its_modules(name: str) -> None:
    """
    They hold functions, classes and constants alone. So do those of the skills that most tests on a server use.
    """
    for cls in workflows_of([importlib.import_module(name)]):
        assert isinstance(prepared(cls, [*activities.TOOLS, *skills.TOOLS]).shared[name], sharing.SharedImporter)


def test_a_future_import_leaves_nothing_that_can_change() -> None:
    """
    Most modules begin with one, and their tasks share a copy all the same.
    """
    module = ModuleType("skills_of_the_future")
    exec("from __future__ import annotations", vars(module))

    assert "annotations" in vars(module)
    assert judged(module) is None


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("SEEN = []\ndef f(): SEEN.append(1)", id="list"),
        pytest.param("COUNTS = {}\ndef f(): COUNTS['a'] = 1", id="dict"),
        pytest.param("from types import MappingProxyType\nSEEN = MappingProxyType({'a': []})", id="proxy-of-lists"),
        pytest.param(
            "from types import MappingProxyType\nD = {}\nP = MappingProxyType(D)\ndef f(): D['a'] = 1", id="proxied"
        ),
        pytest.param("SEEN = [[]]\ndef f(): return SEEN[0]", id="list-in-a-list"),
        pytest.param("class Box:\n    n = 0\ndef f(): Box.n += 1", id="attribute-of-a-class"),
        pytest.param("class Box:\n    def __init__(self, xs=[]): self.xs = xs", id="default-of-a-method"),
        pytest.param(
            "def counted(f):\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n    return g\n"
            "@counted\ndef f(): pass",
            id="nonlocal",
        ),
        pytest.param(
            "def counted(f):\n    def g(): g.calls += 1\n    g.calls = 0\n    return g\n@counted\ndef f(): pass",
            id="attribute-of-a-wrapper",
        ),
        pytest.param(
            "from dataclasses import dataclass, field\n@dataclass(frozen=True)\nclass Box:\n"
            "    _seen: dict = field(default_factory=dict)\nBOX = Box()",
            id="frozen-dataclass-with-a-private-dict",
        ),
        pytest.param(
            "from dataclasses import dataclass, field\n@dataclass(frozen=True)\nclass Box:\n"
            "    x: int = field(init=False)\nBOX = Box()",
            id="raises-when-it-is-looked-at",
        ),
        pytest.param(
            "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Box:\n"
            "    n: int = 0\n    def f(self): object.__setattr__(self, 'n', 1)",
            id="frozen-dataclass-that-changes",
        ),
        pytest.param("class Box:\n    def __new__(cls):\n        cls.n = 1", id="singleton"),
        pytest.param("class Seq:\n    n = 0\n    def next(self): self.n += 1\nnext_id = Seq().next", id="method"),
        pytest.param("import enum\nclass Mood(enum.Enum):\n    GOOD = {'n': 0}", id="enum-of-dicts"),
        pytest.param(
            "from pydantic import BaseModel\nclass M(BaseModel, frozen=True): xs: list = []\nM1 = M(xs=[1])",
            id="frozen-model-with-a-list",
        ),
        pytest.param("import functools\nadd = functools.partial([].append, 1)", id="partial"),
        pytest.param(
            "T = ()\nfor _ in range(3000): T = (T,)\n",
            id="too-deep",
        ),
        pytest.param(
            "def keep(held):\n    def mark(f): return lambda: held.append(1)\n    return mark\n"
            "HELD = []\n@keep(HELD)\ndef f(): pass",
            id="handed-to-a-decorator",
        ),
        pytest.param("COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1", id="global"),
        pytest.param("import itertools\nNUMBERS = itertools.count()", id="iterator"),
        pytest.param("import functools\n@functools.cache\ndef kept(x): return x", id="cache"),
        pytest.param("class Box:\n    held = []", id="class-attribute"),
        pytest.param("class Box: pass\nBOX = Box()", id="instance"),
        pytest.param("def f(seen=[]): return seen", id="default"),
        pytest.param("remember = [].append", id="method-of-a-list"),
        pytest.param("import random\nroll = random.Random(7).random", id="method-of-a-generator"),
        pytest.param("def make():\n    seen = []\n    return lambda: seen\nf = make()", id="closure"),
        pytest.param("def f(): pass\nf.calls = []", id="function-attribute"),
        pytest.param("PAIR = (1, [2])", id="tuple-of-list"),
        pytest.param("def f():\n    import made_up_later\n    return made_up_later", id="import-in-a-function"),
        pytest.param(
            "class C:\n    def f(self):\n        return [__import__ for _ in ()] or self.g()\n"
            "    def g(self):\n        def h():\n            from json import loads\n        return h",
            id="import-in-a-method",
        ),
        pytest.param("from types import SimpleNamespace\nBOX = SimpleNamespace(seen=1)", id="namespace"),
        pytest.param(
            "from refold import table, Step\ndef make():\n    seen = []\n"
            "    def begin(content: Content): return Transition.complete(seen)\n    return begin\n"
            "TABLE = table('t', Step('begin', make()).start())",
            id="step-of-a-table",
        ),
        pytest.param(
            "@flow_skill(id='other')\nclass Other:\n    def __init__(self): self.seen = []\n"
            "    @step(start=True)\n    async def begin(self, ctx: Ctx, content: Content): return ctx.complete()",
            id="skills-own-attribute",
        ),
        pytest.param("from pydantic import BaseModel\nclass M(BaseModel): x: int = 0\nM1 = M()", id="model"),
    ],
)
async def test_what_can_change_is_each_tasks_own(more: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """
    A module that holds anything a task could leave a trace in is imported anew for every task.
    """
    name = "made_up_" + re.sub(r"\W", "_", request.node.callspec.id)
    cls = made(folder, name, more)

    assert judged(sys.modules[name]) is not None
    [told_apart] = prepared(cls).shared.values()
    assert str(told_apart).startswith(f"{name}.")


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("LIMIT = 10_000\nNAMES = ('a', 'b')\nBOTH = frozenset({1, 2})", id="values"),
        pytest.param("import enum\nclass Mood(enum.StrEnum):\n    GOOD = 'good'", id="enum"),
        pytest.param("from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: int = 2", id="tuple"),
        pytest.param(
            "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass D:\n    x: int = 0",
            id="dataclass",
        ),
        pytest.param("from pydantic import BaseModel\nclass M(BaseModel):\n    xs: list[int] = []", id="model-class"),
        pytest.param(
            "from pydantic import BaseModel\nclass M(BaseModel, frozen=True): x: int = 0\nM1 = M()", id="frozen-model"
        ),
        pytest.param(
            "import functools, logging\nlog = logging.getLogger('a')\nf = functools.partial(max, 1)", id="log"
        ),
        pytest.param(
            "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass D:\n    x: int = 0\nONE = D(1)",
            id="constant-of-a-dataclass",
        ),
        pytest.param("import structlog\nlog = structlog.get_logger()", id="structlog"),
        pytest.param("from math import floor\njoined = ', '.join\nmade = dict.fromkeys", id="builtins"),
        pytest.param("from datetime import datetime, timedelta\nSOON = timedelta(minutes=5)", id="restricted"),
        pytest.param(
            "from types import MappingProxyType\nP = MappingProxyType({'a': (1,)})\ndef f(): return P", id="proxy"
        ),
        pytest.param("PRICES = {'a': 1}\ndef f(x): return PRICES.get(x, 0)", id="constant-dict"),
        pytest.param(
            "from refold.agent import Agent, Cache, RateLimit\n"
            "USED = [RateLimit(1, steps=['tool']), Cache([], models=True)]\n"
            "NAMES = []\nNAMES.append('a')\nClerk = Agent('clerk', middleware=USED, tags=NAMES)",
            id="what-is-given-to-an-agent",
        ),
    ],
)
async def test_what_cannot_change_is_shared(more: str, folder: Path, request: pytest.FixtureRequest) -> None:
    """
    A module of constants, functions and classes is imported once for all tasks of a worker.
    """
    name = "made_up_" + re.sub(r"\W", "_", request.node.callspec.id)
    cls = made(folder, name, more)

    assert isinstance(prepared(cls).shared[name], sharing.SharedImporter)


async def test_a_helper_that_can_change_keeps_its_skill_from_being_shared(folder: Path) -> None:
    """
    What a skill imports is judged with it.
    """
    (folder / "made_up_helper.py").write_text("SEEN = []\n")
    reads = made(folder, "made_up_reader", "import made_up_helper\ndef f(): return len(made_up_helper.SEEN)")
    changes = made(folder, "made_up_changer", "import made_up_helper\ndef f(): made_up_helper.SEEN.append(1)")

    assert isinstance(prepared(reads).shared["made_up_reader"], sharing.SharedImporter)
    assert prepared(changes).shared == {"made_up_changer": "made_up_helper.SEEN"}


async def test_a_worker_says_what_tasks_do_not_share(client: Client, folder: Path) -> None:
    """
    With the first name under which something can change.
    """
    made(folder, "made_up_said", "SEEN = []\ndef f(): SEEN.append(1)")

    with capture_logs() as lines:
        make_worker(client, RefoldPlugin([sys.modules["made_up_said"], workflows.hello]), task_queue="said")

    said = [(line["module"], line["mutable"]) for line in lines if "module" in line]
    assert said == [("made_up_said", "made_up_said.SEEN")]


async def test_what_a_helpers_function_makes_is_judged_where_it_is_held(folder: Path) -> None:
    """
    No module holds it but the one that had it made.
    """
    helper = "def make():\n    seen = []\n    def f(): seen.append(1)\n    return f\n"
    (folder / "made_up_maker.py").write_text(helper)
    cls = made(folder, "made_up_holder", "from made_up_maker import make\nf = make()")

    assert prepared(cls).shared == {"made_up_holder": "made_up_holder.f"}


@pytest.mark.parametrize("init", ["", None])
async def test_a_package_of_skills_is_shared(init: str | None, folder: Path) -> None:
    """
    Whether its `__init__.py` is empty or not there.
    """
    package = folder / f"made_up_package_{init is None}"
    package.mkdir()
    if init is not None:
        (package / "__init__.py").write_text(init)
    (package / "inner.py").write_text(SKILL.format(more="PRICES = {'a': 1}\ndef f(x): return PRICES[x]"))
    [cls] = workflows_of([importlib.import_module(f"{package.name}.inner").MadeUpWorkflow])

    assert isinstance(prepared(cls).shared[f"{package.name}.inner"], sharing.SharedImporter)


async def test_what_a_step_imports_by_its_name_is_judged_when_it_is_there(folder: Path) -> None:
    """
    An import that no code shows: later tasks share nothing, since the module could keep what one task leaves in it.
    """
    (folder / "made_up_counter.py").write_text("COUNT = []\ndef count(): COUNT.append(1)\n")
    (folder / "made_up_names.py").write_text("NAMES = ()\n")
    cls = made(folder, "made_up_dynamic", "import importlib")
    runner = prepared(cls)
    task = runner.shared["made_up_dynamic"]

    for name, shared in (("made_up_names", True), ("made_up_counter", False)):
        with task.applied():
            importlib.import_module(name)
        begin_another(runner, cls)
        assert (runner.shared["made_up_dynamic"] is task) is shared

    begin_another(runner, cls)
    assert runner.shared == {"made_up_dynamic": "made_up_counter.COUNT"}


async def test_what_the_sandbox_has_loaded_is_not_loaded_again(folder: Path) -> None:
    """
    A worker's start asks several times whether a module can be loaded; one that could not be is tried each time.
    """
    cls = made(folder, "made_up_late", "LATE = 1")
    runner, definition = sandbox([cls]), workflow._Definition.must_from_class(cls)
    text, file = SKILL.format(more="LATE = 1"), folder / "made_up_late.py"

    file.write_text("raise LookupError('too early')\n")
    for _ in range(2):
        with pytest.raises(LookupError, match="too early"):
            runner.prepare_workflow(definition)
    file.write_text(text)
    runner.prepare_workflow(definition)
    file.write_text("raise LookupError('too late')\n")
    runner.prepare_workflow(definition)
    runner.reading(FromReplay()).prepare_workflow(definition)

    with pytest.raises(LookupError, match="too late"):
        sandbox([cls]).prepare_workflow(definition)


@pytest.mark.parametrize("name", ["_create_instance", "_run_code", "_workflow_module_name", "__init__"])
def test_a_sandbox_that_is_made_in_another_way_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Another release of the SDK may take other arguments: then nothing is shared, and the worker starts.
    """
    monkeypatch.setattr(sharing.SharingModules.__base__, name, lambda self, something, new: None)

    with pytest.raises(ImportError, match=f"in another way: {name}"):
        sharing._refuse_another()


def runner_beside(given: WorkflowRunner, plugin: RefoldPlugin) -> WorkflowRunner:
    """What a replayer runs workflows with, whose program has set `given`, and to which refold was added."""
    replayer = Replayer(workflows=[], plugins=[plugin], workflow_runner=given)
    return replayer.config(active_config=True)["workflow_runner"]


def sandbox_beside(restrictions: SandboxRestrictions, plugin: RefoldPlugin) -> Sandbox:
    """The same, where the program has a sandbox with these restrictions."""
    runner = runner_beside(SandboxedWorkflowRunner(restrictions=restrictions), plugin)
    assert isinstance(runner, Sandbox)
    return runner


OURS_PASSED = SandboxRestrictions.default.with_passthrough_modules("ours")


@pytest.mark.parametrize(
    "restrictions",
    [
        pytest.param(OURS_PASSED, id="passed-through"),
        pytest.param(SandboxRestrictions.default.with_passthrough_all_modules(), id="all-passed-through"),
        pytest.param(replace(SandboxRestrictions.default, invalid_modules=SandboxMatcher.all), id="stricter"),
    ],
)
def test_the_restrictions_of_a_program_hold_beside_those_of_refold(restrictions: SandboxRestrictions) -> None:
    """
    A worker has one runner, which runs the program's own workflows, too. What refold passes through is added.
    """
    plugin = RefoldPlugin([workflows.hello])
    passed = (
        restrictions.passthrough_modules | sandbox(workflows_of([workflows.hello])).restrictions.passthrough_modules
    )

    assert sandbox_beside(restrictions, plugin).restrictions == replace(restrictions, passthrough_modules=passed)


def test_the_runner_inside_a_programs_sandbox_stays() -> None:
    """
    It is a part of the program's settings, as the restrictions are.
    """
    runner = runner_beside(SandboxedWorkflowRunner(runner_class=Unsandboxed), RefoldPlugin([workflows.hello]))

    assert isinstance(runner, Sandbox)
    assert runner.runner_class is Unsandboxed


def test_workers_under_other_restrictions_share_no_modules() -> None:
    """
    A module that was imported under one program's restrictions may hold what another's forbid.
    """
    plugin = RefoldPlugin([workflows.hello])
    shared = sandbox_beside(SandboxRestrictions.default, plugin).shared

    assert sandbox_beside(SandboxRestrictions.default, plugin).shared is shared
    assert sandbox_beside(OURS_PASSED, plugin).shared is not shared


def test_a_program_without_a_sandbox_gets_none() -> None:
    """
    Its own workflows may not be fit for one; and a plugin without one stays so beside a program's sandbox.
    """
    sandboxed = SandboxedWorkflowRunner(restrictions=OURS_PASSED)
    without = RefoldPlugin([workflows.hello], sandboxed=False)

    assert isinstance(runner_beside(UnsandboxedWorkflowRunner(), RefoldPlugin([workflows.hello])), Unsandboxed)
    assert isinstance(runner_beside(sandboxed, without), Unsandboxed)
