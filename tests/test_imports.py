"""Imports run one way: core <- engine <- temporal | a2a | testing <- cli. Packages and functions stay small.

Read from the source, so that a part whose extra is not installed is held to it too. An import under
`TYPE_CHECKING` counts as any other, since a type is also something to know about.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import refold
from tests.syntax import parsed

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "refold").rglob("*.py"))
PACKAGES = [file for file in FILES if file.name == "__init__.py"]

STANDARD = sys.stdlib_module_names | {"annotationlib"}
"""Python's own modules; the last is there from 3.14 on."""

MOST_MODULES = 15
"""In one package, `__init__` aside."""

SCREEN_LINES = 60
"""The most lines of code that one function has."""

# What each part of refold may import of the others. "refold" itself is `refold/__init__.py`.
MAY_IMPORT = {
    "refold": {"core"},
    "__main__": {"cli"},
    "core": {"core"},
    "static": {"static", "refold", "core"},
    "agent": {"agent", "middleware", "cost", "engine", "core"},
    "record": {"core"},
    "summary": {"record", "engine", "core"},
    "cost": {"core"},
    "lineage": {"lineage", "core"},
    "projection": {"projection", "sql", "engine", "core"},
    "digests": {"core"},
    "export": {
        *("export", "callbacks", "lineage", "testing", "digests", "divergence", "formats", "record", "engine"),
        "core",
    },
    "evals": {"evals", "export", "callbacks", "differences", "junit", "record", "engine", "core"},
    "divergence": {"differences", "digests", "record", "conversation", "core"},
    "engine": {"engine", "record", "cost", "core"},
    "webhooks": {"core"},
    "conversation": {"core"},
    "middleware": set(),
    "compatibility": {"core"},
    "callbacks": {"callbacks", "core"},
    "seen": {"seen", "core"},
    "differences": set(),
    "junit": set(),
    "formats": {"engine", "core"},
    "task_lifecycle": {"engine", "core"},
    "task_store": {"task_lifecycle", "engine", "sql", "core"},
    "effects": {
        *("effects", "callbacks", "middleware", "conversation", "cost", "engine", "seen", "sql", "webhooks", "core"),
    },
    "sql": {"sql"},
    "temporal": {
        "temporal",
        "compatibility",
        "conversation",
        "cost",
        "differences",
        "digests",
        "divergence",
        "formats",
        "lineage",
        "record",
        "engine",
        "seen",
        "static",
        "webhooks",
        "core",
    },
    "a2a": {"a2a", "callbacks", "web", "record", "engine", "seen", "webhooks", "core"},
    "testing": {"testing", "callbacks", "lineage", "conversation", "record", "engine", "webhooks", "core"},
    "words": {"words", "cost", "core"},
    "web": {
        *("web", "words", "callbacks", "cost", "record", "static", "differences", "divergence", "engine"),
        *("seen", "core"),
    },
    "cli": {
        *("cli", "evals", "export", "testing", "a2a", "web", "temporal", "digests", "record", "engine", "webhooks"),
        "callbacks",
        *("static", "agent", "cost", "junit", "projection", "seen", "summary", "words", "core"),
    },
}

# Only what runs activities knows how effects are done.
EFFECTS_IMPORTERS = {
    "refold.temporal.worker.run",
    "refold.temporal.worker.plugin",
    "refold.temporal.worker.refusals",
    # A worker's identity names its ledger.
    "refold.temporal.worker.identity",
    # Waits for the codec and the storage as an effect waits for storage.
    "refold.temporal.worker.holding",
    "refold.temporal.webhooks.delivery",
    "refold.temporal.webhooks.webhooks",
    # A worker's process, or a call of a function, ends while a thread of a tool goes on.
    "refold.temporal.serverless.aws",
    # Whether the ledger answers is a part of a worker's readiness.
    "refold.temporal.seen.ready",
    # A query that a worker asks to be sent again: clients and activities send it alike.
    "refold.temporal.client.connection",
    "refold.temporal.client.failed",
    # Which task recovers another one: a worker that undoes an effect tells it as clients do.
    "refold.temporal.client.lineage",
    "refold.temporal.keeping.purge",
    "refold.temporal.worker.activation.committed",
    "refold.temporal.recorded.recorder",
    # The span of an effect, which the effect adds to.
    "refold.temporal.tracing",
    # Gives a task what the activity brings that performs its effects within a workflow task.
    "refold.temporal.worker.short.joined",
    # What an operator does with receipts needs the ledger's database alone.
    "refold.cli.verbs.ledger",
    "refold.cli.verbs.memory",
    "refold.cli.verbs.records",
    # A model that is asked anew, and a tool that is called anew, is called as a worker calls it.
    "refold.evals.models",
    "refold.evals.readers",
    # What a stand-in raises is classified as a worker would.
    "refold.testing.answers",
}

# A worker that kills itself where a test says so is a Temporal worker; nothing of refold imports it.
# Histories to replay are Temporal's.
TEMPORAL_IMPORTERS = {"refold.testing.crash_worker", "refold.testing.replay"}

# Who may import a package from outside; a package that is not named here is open to all but the core.
OUTSIDE_IMPORTERS = {
    "temporalio": re.compile(
        r"refold\.temporal(\..+)?|refold\.effects\.(activities|attempt|asking|callbacks|keepers|resources|short\.(local|stretch|within))"
        r"|refold\.testing\.(crash_worker|replay)"
    ),
    "a2a": re.compile(r"refold\.a2a(\..+)?"),
    "typer": re.compile(r"refold\.cli(\..+)?"),
    "rich": re.compile(r"refold\.cli(\..+)?"),
    "hypothesis": re.compile(r"refold\.testing(\..+)?"),
    "mcp": re.compile(r"refold\.effects\.mcp\.(session|listing|rounds)"),
    "anyio": re.compile(r"refold\.effects\.mcp\.(session|listing)"),
}

# The core's whole world besides the standard library: pydantic and the two halves that it is made of.
CORE_MAY_IMPORT = {"annotated_types", "pydantic", "pydantic_core"}

# The core's import must load none of these; pydantic alone loads none of them either.
OUTSIDE = {"a2a", "asyncio", "httpx", "pydantic_ai", "starlette", "structlog", "temporalio", "typer"}

# An import inside a function is often a cycle in hiding, so each has its reason here: (module, function).
LOCAL_IMPORTS: dict[tuple[str, str], str] = {
    ("refold.effects.resources", "_ledger_from_env"): "SQLAlchemy is loaded only by workers whose tools keep receipts",
    ("refold.effects.memory.memory", "_tables"): "SQLAlchemy is loaded only by workers whose tools remember",
    ("refold.effects.resources", "_open_spending"): "SQLAlchemy is loaded only by workers that limit an owner's day",
    ("refold.temporal.client.connection", "tracing"): "OpenTelemetry's SDK is an extra, and takes long to load",
    ("refold.temporal.tracing", "instrument"): "the providers' libraries load in a thread, while the worker polls",
    ("refold.cli.__main__", "main"): "Ctrl-C ends a command without a traceback, also while it loads",
    ("refold.cli.verbs.look", "_summarized"): "SQLAlchemy is loaded only by the verbs about databases",
    ("refold.cli.verbs.records", "project"): "SQLAlchemy is loaded only by the verbs about databases",
    ("refold.testing.answers", "as_failure"): "effects are loaded only where a stand-in raises",
    ("refold.testing.answers", "_in_doubt"): "effects are loaded only where a stand-in raises",
    ("refold.testing.answers", "_failed"): "effects are loaded only where a stand-in raises",
    ("refold.testing.answers", "_as_workers_run"): "effects are loaded only where a tool is a stand-in",
    ("refold.cost", "_listed"): "the price list is large, and needed only where no price is recorded",
    ("refold.effects.resources", "_mcp_tools"): "the MCP client is loaded only by workers that name servers",
    (
        "refold.effects.models.model_calls",
        "_load",
    ): "the providers load in a thread, while the worker polls",
    ("refold.cli.verbs.processes.serve", "serve"): "the gateway's libraries are an extra, and take long to load",
    ("refold.cli.verbs.processes.serve", "_bound"): "the gateway's libraries are an extra, and take long to load",
    ("refold.cli.verbs.processes.serve", "_with_page"): "the page's libraries are an extra",
    ("refold.cli.verbs.processes.serve", "_grpc"): "gRPC's libraries are an extra of their own, and take long to load",
    ("refold.cli.verbs.processes.serve", "_settings"): "the gateway's libraries are an extra, and take long to load",
    ("refold.cli.verbs.ledger", "_store"): "SQLAlchemy is loaded only by the verbs about receipts",
    ("refold.cli.verbs.ledger", "_make_other_tables"): "SQLAlchemy is loaded only by the verbs about receipts",
    ("refold.evals.evaluate", "_named"): "the models' libraries are loaded only where models are asked anew",
    ("refold.evals.evaluate", "_reading"): "effects are loaded only where read-only tools are called",
    ("refold.cli.verbs.records", "_store"): "SQLAlchemy is loaded only by the verbs about receipts",
    ("refold.cli.verbs.records", "_ledger"): "SQLAlchemy is loaded only by the verbs about receipts",
    ("refold.cli.verbs.ledger", "_refused"): "SQLAlchemy is loaded only by the verbs about databases",
    ("refold.cli.verbs.ledger", "readable_store"): "Temporal's SDK is loaded only with a codec",
    ("refold.cli.verbs.memory", "list_"): "SQLAlchemy is loaded only by the verbs about databases",
    ("refold.cli.verbs.memory", "forget"): "SQLAlchemy is loaded only by the verbs about databases",
    ("refold.cli.verbs.memory", "_whose"): "Temporal's SDK takes long to load",
    ("refold.cli.verbs.processes.dev", "exports"): "Temporal's SDK takes long to load",
    ("refold.cli.verbs.processes.dev", "grace"): "Temporal's SDK takes long to load",
    ("refold.temporal.worker.plugin", "_refused_table"): "SQLAlchemy is loaded only by workers that refuse an update",
    ("refold.cli.verbs.processes.codec", "codec"): "the gateway's libraries are an extra, and take long to load",
    ("refold.cli.verbs.processes.codec", "app_of"): "the gateway's libraries are an extra, and take long to load",
    ("refold.cli.application", "sources_of"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.application", "_usual_names"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.application", "application"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.application", "_why"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.verbs.code", "graph"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.verbs.code", "check"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.verbs.code", "_refused"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.verbs.code", "_finding"): "what reads source code is loaded only by the verbs that do",
    ("refold.cli.verbs.evals", "eval_"): "what folds again is loaded only by the verb that does",
    ("refold.cli.verbs.evals", "_case"): "what folds again is loaded only by the verb that does",
    ("refold.export.engine", "fork"): "the engine in memory is loaded only by who forks an export",
    ("refold.effects.failures.classify", "_by_pydantic_ai"): "pydantic-ai is loaded only where it has raised something",
}

# Import names whose package comes with another that pyproject.toml names.
COMES_WITH = {
    "annotated_types": "pydantic",
    "anyio": "mcp",
    "click": "typer",
    "google": "temporalio",
    "genai_prices": "pydantic-ai-slim",
    "grpc": "a2a-sdk",
    "h11": "uvicorn",
    "httpcore2": "httpx2",
    "markupsafe": "jinja2",
    "mcp_types": "mcp",
    "openai": "pydantic-ai-slim",
    "opentelemetry": "temporalio",
    "pydantic_core": "pydantic",
    "sse_starlette": "a2a-sdk",
}

PROVIDERS = importlib.metadata.packages_distributions()
INSTALLED = {canonicalize_name(name) for names in PROVIDERS.values() for name in names}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {
    re.split(r"[^\w.-]", requirement)[0]
    for group in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for requirement in group
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, by its full name.

    Attributes:
        function: The function that imports it; None at the top of the file.
    """

    module: str
    line: int
    function: str | None


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file) for file in FILES}


@cache
def imports_of(file: Path) -> tuple[Import, ...]:
    """Every import of a file. `from package import module` counts as the module, not as the package."""
    return tuple(_imports_in(parsed(file), None))


def _imports_in(node: ast.AST, function: str | None) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.Import():
                for module in (alias.name for alias in child.names):
                    yield Import(module=module, line=child.lineno, function=function)
            case ast.ImportFrom(module=str(source), level=0):
                full = (f"{source}.{alias.name}" for alias in child.names)
                for module in sorted({name if name in MODULES else source for name in full}):
                    yield Import(module=module, line=child.lineno, function=function)
            case ast.ImportFrom():
                raise AssertionError(f"line {child.lineno}: imports are absolute")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _imports_in(child, child.name)
            case _:
                yield from _imports_in(child, function)


def part_of(module: str) -> str:
    """`refold.core.fold.apply` is of `core`; `refold` is its own part."""
    return module.split(".")[1] if "." in module else module


def all_imports() -> Iterator[tuple[str, Import]]:
    """Every import of refold, with the module that has it."""
    for file in FILES:
        for found in imports_of(file):
            yield module_name(file), found


def may_import(name: str) -> set[str]:
    """The parts of refold that a module may import."""
    allowed = MAY_IMPORT[part_of(name)] | ({"effects"} if name in EFFECTS_IMPORTERS else set())
    return allowed | ({"temporal"} if name in TEMPORAL_IMPORTERS else set())


def test_parts_import_one_way() -> None:
    """
    A part imports only those below it, and siblings never each other.
    """
    wrong = [
        f"{name}, line {found.line}: {found.module}; it may import {', '.join(sorted(may_import(name)))} of refold"
        for name, found in all_imports()
        if found.module.split(".")[0] == "refold" and part_of(found.module) not in may_import(name)
    ]

    assert wrong == []


def test_each_engine_and_protocol_has_one_home() -> None:
    """
    temporalio is known in temporal/ and in what runs the activities of effects/, the A2A SDK in a2a/ alone.
    """
    wrong = [
        f"{name}, line {found.line}: {found.module}"
        for name, found in all_imports()
        if (home := OUTSIDE_IMPORTERS.get(found.module.split(".")[0])) and not home.fullmatch(name)
    ]

    assert wrong == []


def test_the_core_needs_pydantic_alone() -> None:
    """
    The core, and what is known without running it, import the standard library, pydantic and themselves.
    """
    allowed = STANDARD | CORE_MAY_IMPORT | {"refold"}
    wrong = [
        f"{name}, line {found.line}: {found.module}"
        for name, found in all_imports()
        if part_of(name) in {"core", "static", "refold"} and found.module.split(".")[0] not in allowed
    ]

    assert wrong == []


def test_what_is_imported_is_declared() -> None:
    """
    Every package from outside is a dependency or an extra of pyproject.toml, so that an install brings it.
    """
    # hypothesis is the one thing that a user of refold.testing brings along, as they do pytest.
    known = STANDARD | {"refold", "hypothesis"}
    for top in {found.module.split(".")[0] for _, found in all_imports()} - known:
        names = {COMES_WITH[top]} if top in COMES_WITH else set(PROVIDERS.get(top, [top]))
        assert {name.lower().replace("_", "-") for name in names} & DECLARED, top


def test_imports_stand_at_the_top() -> None:
    """
    No function imports anything, but for the listed reasons.
    """
    wrong = [
        f"{name}, line {found.line}: {found.module} in {found.function}"
        for name, found in all_imports()
        if found.function is not None and (name, found.function) not in LOCAL_IMPORTS
    ]

    assert wrong == [], "move it to the top, or list it in LOCAL_IMPORTS with its reason"


def test_listed_local_imports_exist() -> None:
    """
    A reason whose import has gone goes too.
    """
    found = {(name, one.function) for name, one in all_imports()}

    assert set(LOCAL_IMPORTS) <= found


def test_no_module_imports_itself_by_a_detour() -> None:
    """
    The modules can be put in one order in which each imports only earlier ones, also for types alone.
    """
    graph = {module_name(file): {one.module for one in imports_of(file)} & MODULES for file in FILES}

    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


@pytest.mark.parametrize("package", PACKAGES, ids=module_name)
def test_a_package_is_seen_at_a_glance(package: Path) -> None:
    """
    A package has fifteen modules at the most, and the first line of its docstring says what is in there.
    """
    modules = sorted(file.stem for file in package.parent.glob("*.py") if file != package)
    said = ast.get_docstring(parsed(package)) or ""

    assert len(modules) <= MOST_MODULES, modules
    assert said.partition("\n")[0].endswith("."), "the first line is one sentence"


def lines_of_functions(file: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file, and how many lines of code it has."""
    lines = file.read_text().splitlines()
    code = {number for number, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = code.intersection(range(node.lineno, (node.end_lineno or 0) + 1))
            if ast.get_docstring(node) is not None:
                own -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
            yield f"{module_name(file)}, line {node.lineno}: {node.name}", len(own)


def test_a_function_fits_a_screen() -> None:
    """
    A function has sixty lines of code at the most, from its `def` on; docstrings, comments and empty lines are free.
    """
    found = dict(one for file in FILES for one in lines_of_functions(file))

    assert {name: size for name, size in found.items() if size > SCREEN_LINES} == {}


def test_the_core_stands_alone() -> None:
    """
    Importing the core loads no engine, protocol, network or event loop.
    """
    script = "import sys, refold.core; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert OUTSIDE.isdisjoint(done.stdout.split())


# The modules that need an extra; all others are imported by an install without any.
NEEDS_EXTRA = re.compile(
    r"refold\.(a2a|web)(\..+)?"
    r"|refold\.cli\.verbs\.processes\.page"
    r"|refold\.effects\.(mcp\.(listing|rounds|session|tools)|webhooks\.post)"
    r"|refold\.temporal\.(encryption|tracing|webhooks\.(delivery|webhooks))"
    # hypothesis, the extra `testing`, and pytest
    r"|refold\.testing(\..+)?"
)

# Imports the modules that are named on standard input, as if the packages named as arguments were not installed.
IMPORT_WITHOUT = """
import importlib, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(f"{name}: {error}")
"""


def installed_with(requirements: list[str]) -> set[str]:
    """The names of the distributions that an install of these requirements brings."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(one) for one in requirements]
    while left:
        wanted = left.pop()
        one = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if one in found or one[0] not in INSTALLED:
            continue
        found.add(one)
        lines = importlib.metadata.requires(wanted.name) or ()
        left += [
            deeper
            for deeper in map(Requirement, lines)
            if deeper.marker is None or any(deeper.marker.evaluate({"extra": extra}) for extra in ("", *one[1]))
        ]
    return {name for name, _ in found}


@pytest.mark.slow
def test_refold_without_extras_is_whole() -> None:
    """
    With the dependencies alone, every module can be imported but those that an extra is for: the command line, engines
    and workers need none.
    """
    brought = installed_with(PROJECT["dependencies"])
    missing = {top for top, names in PROVIDERS.items() if brought.isdisjoint(map(canonicalize_name, names))}
    asked = sorted(name for name in MODULES if not NEEDS_EXTRA.fullmatch(name))
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT, *sorted(missing - {"refold"})],
        input=" ".join(asked),
        check=True,
        capture_output=True,
        text=True,
    )

    assert "starlette" in missing
    assert "temporalio" not in missing
    assert done.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "lacks", "extra"),
    [("refold.a2a", "a2a", "a2a"), ("refold.temporal.encryption", "cryptography", "encryption")],
)
def test_a_missing_extra_says_what_to_install(module: str, lacks: str, extra: str) -> None:
    """
    Whoever imports what an extra is for learns its name.
    """
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_WITHOUT, lacks], input=module, check=False, capture_output=True, text=True
    )

    assert f"pip install 'refold[{extra}]'" in done.stdout + done.stderr


def test_refold_exports_the_core_alone() -> None:
    """
    `refold` offers names of the core, each listed once, and nothing else but its own modules.
    """
    modules = {name.split(".")[1] for name in MODULES if name.count(".") == 1}
    public = {name for name in vars(refold) if not name.startswith("_")}

    assert {part_of(one.module) for one in imports_of(ROOT / "refold" / "__init__.py")} == {"core"}
    assert len(refold.__all__) == len(set(refold.__all__))
    assert public - modules == set(refold.__all__)
    # The order in which ruff sorts a list of exports: constants, classes, functions.
    assert refold.__all__ == sorted(refold.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
