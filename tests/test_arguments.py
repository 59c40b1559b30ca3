"""What a program gives to a public function is checked before anything happens: by one law over all of them."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pytest
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from temporalio.client import Client

from refold import (
    Content,
    DefinitionError,
    InputRejected,
    TaskEvent,
    a2a,
    evals,
    export,
    projection,
    summary,
    task_store,
    temporal,
    testing,
)
from refold.core.errors import RefoldError
from refold.engine import Engine, EngineError, NotConnected, TaskFilter
from refold.evals import evaluated
from refold.export import read_export
from refold.export.engine import ExportEngine
from refold.projection import Projection, Projector
from refold.task_lifecycle import InMemoryPersistence, TaskLifecycle
from refold.temporal import (
    Choice,
    Drained,
    RefoldPlugin,
    TemporalEngine,
    TemporalWebhooks,
    Timing,
    connect,
    encryption,
    lambda_handler,
    make_worker,
    run_worker,
    tracing,
)
from refold.temporal.keeping.purge import Purge
from refold.temporal.schedules.schedules import Schedules
from refold.testing import Clock, FakeEngine, ScriptError, crash_sweep, replay
from refold.testing.fake_engine.controls import Controls
from refold.web import page
from refold.web.approvals import approval_app, bearer_keys
from workflows.hello import Hello


class Wrong:
    """Neither a text nor a number, nor anything else that a function takes."""


NO: Any = 3
"""What nobody takes, for a type checker."""

LIFECYCLE = TaskLifecycle("t", InMemoryPersistence())

VALID = {
    "content": Content.from_text("go"),
    "skill": "hello",
    "wanted": TaskFilter(),
    "approved": True,
    "dry": True,
    "turn": "x",
    "timing": Timing(every=timedelta(hours=1)),
    "plugin": RefoldPlugin(),
    "engine": FakeEngine(),
    "event": "start",
    "effect": str,
    "persistence": InMemoryPersistence(),
    "source": FakeEngine(),
    "projection": Projection("tasks.db"),
    "feed": a2a.WebhookFeed(FakeEngine()),
    "webhooks": TemporalWebhooks,
    "choice": Choice(),
    "connection": None,
    "note": print,
    "as_json": True,
    "access": page.Access(),
    "entries": [],
    "provider": TracerProvider(),
    "keys": {"k": bytes(32)},
    "authenticate": bearer_keys({"key-of-ada": "ada"}),
    "file": read_export(Path(__file__).with_name("export") / "format-1.jsonl")[0],
}
"""What is given for the other parameters that a call needs, where their type does not say."""


def wrong(function: Callable[..., Any], **valid: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each parameter that does not take anything: its name, and a call with a wrong value for it alone."""
    hints = get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())
    taken = [one for one in parameters if one.name != "self" and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    needed = {one.name: _valid(one.name, hints[one.name], valid) for one in taken if one.default is one.empty}
    for one in taken:
        hint = hints[one.name]
        if hint is Any or Any in get_args(hint) or "JsonValue" in str(hint):
            continue
        given = {**needed, one.name: Wrong()}
        yield one.name, given


def _valid(name: str, hint: Any, valid: dict[str, Any]) -> Any:
    simple: dict[Any, Any] = {str: "t", int: 1, float: 1.0}
    lists: list[Any] | None = [] if get_origin(hint) in (Sequence, Iterable) else None
    return {**VALID, **valid}.get(name, simple.get(hint, lists))


ENGINE = [name for name in vars(Engine) if not name.startswith("_")]


async def outcome_of(call: Callable[..., Any], given: dict[str, Any]) -> None:
    """Call it, and take its first value."""
    found = call(**given)
    if inspect.isasyncgen(found):
        async for _ in found:
            return
    elif inspect.isawaitable(found):
        await found


@pytest.fixture(scope="module")
async def unreached() -> TemporalEngine:
    """An engine whose server is not there: whatever asks it fails."""
    return TemporalEngine(await Client.connect("127.0.0.1:1", lazy=True))


@pytest.mark.parametrize("kind", ["in memory", "Temporal"])
@pytest.mark.parametrize("name", ENGINE)
async def test_an_engine_says_what_it_takes(name: str, kind: str, unreached: TemporalEngine) -> None:
    """
    Before a task is looked for or a server asked.
    """
    engine: Engine = unreached if kind == "Temporal" else FakeEngine([Hello])

    for parameter, given in wrong(getattr(Engine, name)):
        said = {"content": "a message must be Content", "skill": "a task starts by the id"}.get(parameter)
        if name == "list" and parameter == "skill":
            said = "^skill is a text or None; got"
        with pytest.raises(InputRejected, match=said or rf"^{parameter} is .*; got .*Wrong"):
            await outcome_of(getattr(engine, name), given)


TEXTS = [
    (kind, name, parameter)
    for kind in (TemporalEngine, FakeEngine, ExportEngine, Schedules, Purge)
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
    and hasattr(method, "__wrapped__")
    and "testing.fake_engine.controls" not in method.__module__
    for parameter, hint in get_type_hints(method).items()
    if parameter != "return" and str in (hint, *get_args(hint))
]
"""The texts that an engine takes."""


@pytest.mark.parametrize(("kind", "name", "parameter"), TEXTS)
async def test_a_text_that_nobody_can_write_is_refused(
    kind: type, name: str, parameter: str, unreached: TemporalEngine
) -> None:
    """
    As one that is typed in Latin-1 where the system's encoding is UTF-8: before a task is looked for or a server asked.
    """
    client = await Client.connect("127.0.0.1:1", lazy=True, plugins=[RefoldPlugin()])
    engines = {Schedules: unreached.schedules, Purge: TemporalEngine(client).purge(), TemporalEngine: unreached}
    engine = engines[kind] if kind in engines else ExportEngine([]) if kind is ExportEngine else FakeEngine([Hello])
    hint = get_type_hints(getattr(kind, name))[parameter]
    (given,) = (given for one, given in wrong(getattr(kind, name)) if one == parameter)
    odd = ["caf\udce9"] if get_origin(hint) is Sequence else "caf\udce9"

    with pytest.raises(InputRejected, match=rf"^{parameter} is no UTF-8 text; got .*'caf\\udce9'"):
        await outcome_of(getattr(engine, name), {**given, parameter: odd})


OF_TESTS = [
    name
    for name in testing.__all__
    if inspect.isfunction(getattr(testing, name)) and name not in ("histories", "calls")
]
OWN = {
    "answers": TypeError,
    "codec": EngineError,
    "address": NotConnected,
    "skills": DefinitionError,
    "durability": DefinitionError,
    "skill": DefinitionError,
}
"""What has a check of its own, and what that raises."""


@pytest.mark.parametrize(
    ("function", "refusal"),
    [
        (RefoldPlugin, DefinitionError),
        (TemporalEngine, DefinitionError),
        (make_worker, DefinitionError),
        (run_worker, DefinitionError),
        (lambda_handler, DefinitionError),
        (connect, NotConnected),
        (Drained, ValueError),
        (TaskLifecycle, InputRejected),
        (Projection, DefinitionError),
        (Projector, DefinitionError),
        (approval_app, DefinitionError),
        (bearer_keys, DefinitionError),
        (evaluated, InputRejected),
        (FakeEngine, ScriptError),
        (Clock, ScriptError),
        (Clock().advance, ScriptError),
        *((getattr(testing, name), ScriptError) for name in OF_TESTS),
        *((getattr(FakeEngine(), name), ScriptError) for name in vars(Controls) if not name.startswith("_")),
    ],
)
async def test_what_sets_up_a_program_or_a_test_says_what_it_takes(
    function: Callable[..., Any], refusal: type[Exception], unreached: TemporalEngine
) -> None:
    """
    Before anything is made or connected; by the error that its other mistakes have.
    """
    checks = cast(Any, function).__init__ if isinstance(function, type) else function
    for parameter, given in wrong(checks, client=unreached.client, skill=Hello):
        own = OWN.get(parameter)
        if own is not None and function is run_worker:
            continue  # it has set up this process's log by then
        with pytest.raises(own or refusal, match="Wrong" if own is not None else rf"{parameter} is .*; got "):
            await outcome_of(function, given)


OWN_WORDS = {"Profile", "workflow_for", "workflows_of", "OpenTasks", "Refusal", "Schedules", "Exported"}
"""What checks all that it is given by itself, or is for refold to make."""


def programs() -> Iterator[Any]:
    """What a program calls or makes: the functions and classes that packages export."""
    for package in (
        temporal,
        a2a,
        page,
        evals,
        export,
        projection,
        crash_sweep,
        replay,
        task_store,
        encryption,
        tracing,
        summary,
    ):
        for name in getattr(package, "__all__", MODULES.get(package.__name__, ())):
            found = getattr(package, name)
            value = inspect.isclass(found) and issubclass(found, BaseModel | Enum | Exception)
            if (inspect.isclass(found) or inspect.isroutine(found)) and not value and name not in OWN_WORDS:
                yield pytest.param(found, id=f"{package.__name__}.{name}")


MODULES = {
    "refold.testing.crash_sweep": ["CrashSweep"],
    "refold.testing.replay": ["Histories"],
    "refold.task_store": ["SqlitePersistence"],
    "refold.temporal.encryption": ["Encryption"],
    "refold.temporal.tracing": ["Tracing"],
    "refold.summary": ["context_summary"],
}
"""What modules without a list of their own export."""

ODD: dict[Any, list[Any]] = {
    str: [0, b"x", ["a"]],
    bytes: ["abc", 0],
    bool: [None, 0, "yes"],
    int: ["1", 0.5, math.nan, True],
    float: ["1", math.nan, True],
    tuple: ["abc", b"x", 0, None],
    Sequence: ["abc", b"x", 0, None],
    Collection: ["abc", 0],
    Iterable: ["abc", 0, None],
    Mapping: ["abc", ["a"]],
    Callable: ["abc", 0],
}
"""What is given where something else is taken, by what is taken."""


def odd(hint: Any) -> Iterator[Any]:
    """Values of none of the kinds that a parameter takes."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if len(kinds) == 1:
        yield from ODD.get(get_origin(hint) or hint, [None, "abc", 0])
    elif str not in kinds:
        yield "abc"


@pytest.mark.parametrize("made", list(programs()))
async def test_what_a_program_calls_says_what_it_takes(made: Any, unreached: TemporalEngine, tmp_path: Path) -> None:
    """
    Whatever comes: each value that does not fit a parameter's type.
    """
    valid = {"engine": unreached, "client": unreached.client, "skills": [Hello], "skill": "hello"}
    valid |= {"path": tmp_path / "tasks.db", "folder": tmp_path, "file": tmp_path}
    function = cast(Any, made).__init__ if inspect.isclass(made) else made
    for parameter, given in wrong(function, **valid):
        if parameter in ("skills", "codec") or (made is projection.checkpoint and parameter == "skill"):
            continue  # their own checks know what was meant; a row names any skill
        for value in (given[parameter], *odd(get_type_hints(function)[parameter])):
            with pytest.raises((RefoldError, ValueError), match=rf"(?s){parameter} is .*; got "):
                await outcome_of(made, {**given, parameter: value})


async def test_a_schedule_says_what_it_takes(unreached: TemporalEngine) -> None:
    """
    As the engine does.
    """
    for name in vars(Schedules):
        for parameter, given in wrong(getattr(Schedules, name)) if not name.startswith("_") else ():
            said = "a message must be|starts by the id" if parameter in ("content", "skill") else rf"^{parameter} is "
            with pytest.raises(InputRejected, match=said):
                await outcome_of(getattr(unreached.schedules, name), given)


async def test_a_purge_says_what_it_takes() -> None:
    """
    A text is no list of ids, although Python goes through its letters.
    """
    purge = TemporalEngine(await Client.connect("127.0.0.1:1", lazy=True, plugins=[RefoldPlugin()])).purge()

    with pytest.raises(InputRejected, match=r"^task_ids is a list of texts; got 't' \(str\); write \[...\]$"):
        await outcome_of(purge.run, {"task_ids": "t", "dry": True})
    for name in vars(Purge):
        for parameter, given in wrong(getattr(Purge, name)) if not name.startswith("_") else ():
            with pytest.raises(InputRejected, match=rf"^{parameter} is "):
                await outcome_of(getattr(purge, name), given)


@pytest.mark.parametrize(
    "name", [name for name in vars(TaskLifecycle) if inspect.isfunction(vars(TaskLifecycle)[name])]
)
async def test_a_lifecycle_says_what_it_takes(name: str) -> None:
    """
    Before the store is asked for anything.
    """
    for parameter, given in wrong(getattr(TaskLifecycle, name)) if not name.startswith("_") else ():
        with pytest.raises(InputRejected, match=rf"^{parameter} is .*; got .*Wrong"):
            await outcome_of(getattr(TaskLifecycle("t", InMemoryPersistence()), name), given)


@pytest.mark.parametrize("name", [name for name in ENGINE if hasattr(ExportEngine, name)])
async def test_an_export_says_what_it_takes(name: str) -> None:
    """
    As the engine does.
    """
    for parameter, given in wrong(getattr(ExportEngine, name)):
        with pytest.raises(InputRejected, match=rf"^{parameter} is .*; got .*Wrong"):
            await outcome_of(getattr(ExportEngine([]), name), given)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: RefoldPlugin([], model=NO),
            r"plugin 'RefoldPlugin'.*\n  - model is a text or None; got 3 \(int\); write",
        ),
        (
            lambda: approval_app(FakeEngine(), bearer_keys({"key": "chat-bot"}), may_vouch="chat-bot"),
            r"may_vouch is a list of texts; got 'chat-bot' \(str\); write \[...\]$",
        ),
        (lambda: RefoldPlugin([], threads=0), r"threads is a whole number, 1 or more; got 0 \(int\)$"),
        (lambda: RefoldPlugin([], threads=True), "threads is a whole number, 1 or more; got True"),
        (
            lambda: LIFECYCLE.transition(TaskEvent.START, cast(Any, "x")),
            r"metadata is a dict or None; got 'x' \(str\)$",
        ),
        (lambda: LIFECYCLE.execute_idempotent("pay", NO), r"effect is a function; got 3 \(int\)$"),
        (lambda: testing.calls(NO), "tool is a text or a function; got 3"),
        (lambda: testing.passes(-1), r"seconds is a number, 0 to .*; got -1 \(int\)$"),
        (lambda: testing.passes(float("nan")), "seconds is a number, 0 to"),
        (lambda: testing.play(Hello, "x", tools=[NO]), r"tools is a list of functions; got \[3\] \(list\)$"),
        (lambda: testing.play(Hello, "x", at=datetime(2026, 1, 1)), "at is a datetime with a time zone; got"),  # noqa: DTZ001
        (lambda: temporal.upgrade_tasks(NO, [], pace=0), "engine is a TemporalEngine; got 3"),
        (
            lambda: a2a.Security(anonymous=cast(Any, "everybody")),
            "anonymous is 'loopback' or 'everywhere' or None; got",
        ),
        (lambda: a2a.Security(depth=0), "depth is a whole number, 1 or more; got 0"),
        (lambda: a2a.Security(body_seconds=0), r"body_seconds is a number, 0\.01 or more; got 0"),
        (lambda: a2a.Security(header_seconds=0), r"header_seconds is a number, 0\.01 or more; got 0"),
        (lambda: testing.user(object()), "data is what JSON can hold, or a model; got <object object>"),
        (lambda: testing.resolve(outcome=object()), "data is what JSON can hold, or a model; got"),
    ],
)
def test_the_error_says_what_came_and_the_way_out(call: Callable[[], Any], said: str) -> None:
    """
    Bounds, too.
    """
    with pytest.raises(RefoldError, match=f"(?s){said}"):
        call()


@pytest.mark.parametrize("pace", [0, -1, math.nan])
async def test_an_upgrade_has_a_pace(pace: float, unreached: TemporalEngine) -> None:
    """
    It is divided by.
    """
    with pytest.raises(InputRejected, match=r"pace is a number, 0\.01 or more; got"):
        await outcome_of(temporal.upgrade_tasks, {"engine": unreached, "skills": [Hello], "pace": pace})


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_list_of_none_is_refused(limit: int, unreached: TemporalEngine) -> None:
    """
    A server would refuse it in its own words, or send everything.
    """
    for engine in (FakeEngine([Hello]), unreached):
        with pytest.raises(InputRejected, match=f"limit is a whole number, 1 or more; got {limit}"):
            await outcome_of(engine.list, {"limit": limit})
        with pytest.raises(InputRejected, match="limit is"):
            await engine.find(TaskFilter(), limit=limit)


def test_the_annotations_of_a_function_stay() -> None:
    """
    For type checkers, help texts and frameworks that read them.
    """
    assert inspect.signature(FakeEngine.look) == inspect.signature(inspect.unwrap(FakeEngine.look))
    assert inspect.iscoroutinefunction(FakeEngine.look)
