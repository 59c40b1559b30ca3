"""Makes a function a verb of the command line: its options, its output, its connection, and the exit codes of its
errors."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any, TypeAlias, get_args

import typer
from typer.core import TyperCommand

from refold import temporal
from refold.cli.application import application
from refold.cli.errors import DONE, WRONG_CALL, debugging, explain, report, show_traceback
from refold.cli.text.output import Output
from refold.engine import Engine, NotConnected
from refold.export.engine import ExportEngine
from refold.export.read import SUFFIX

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line; errors on stderr, too.")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="The Temporal server, host:port. Else TEMPORAL_ADDRESS, else localhost:7233."),
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help="The Temporal namespace. Else TEMPORAL_NAMESPACE, else `default`.")
]
TaskQueue = Annotated[
    str, typer.Option("--task-queue", envvar="REFOLD_TASK_QUEUE", help="The Temporal task queue that the workers poll.")
]
Profile = Annotated[
    str | None, typer.Option("--profile", help="A profile of Temporal's configuration file (TEMPORAL_CONFIG_FILE).")
]
TaskId = Annotated[str, typer.Argument(metavar="TASK", help="The task's id.", show_default=False)]
TaskOrFile = Annotated[
    str,
    typer.Argument(
        metavar="TASK", help="The task's id; or the file of its export, which ends in `.jsonl`.", show_default=False
    ),
]
QUEUE = "refold"
MOST_PORT = 65535
TASKS_S = 1.0
"""How long a process waits, when its verb has returned, for tasks that it has canceled, in seconds."""

CODEC_ENV = "REFOLD_CODEC"  # as `refold.temporal.data.codec` has it, which loads Temporal's SDK


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which Temporal server to use; None leaves a field to Temporal's own settings.

    Attributes:
        asked_queue: The task queue, if this command names it; None where it is a setting's or the usual one.
    """

    address: str | None = None
    namespace: str | None = None
    task_queue: str = QUEUE
    profile: str | None = None
    asked_queue: str | None = None

    @property
    def options(self) -> str:
        """What another command needs to use the same server, as people type it; its settings are that command's too."""
        queue = None if self.task_queue == (os.environ.get("REFOLD_TASK_QUEUE") or QUEUE) else self.task_queue
        given = {"address": self.address, "namespace": self.namespace, "task-queue": queue, "profile": self.profile}
        return "".join(f" --{name} {quote(value)}" for name, value in given.items() if value is not None)


EMPTY_TOO = "empty, too"
"""The mark, in a parameter's annotation, that its verb knows what an empty text means. An empty default says so too."""

Connect = Callable[[ServerOptions], Awaitable[Engine]]


async def over_temporal(server: ServerOptions) -> Engine:
    """The engine of a Temporal server."""
    engine: Engine = await temporal.connect(
        address=server.address,
        namespace=server.namespace,
        profile=server.profile,
        task_queue=server.task_queue,
    )
    return engine


Reader: TypeAlias = Engine | ExportEngine
"""What a task is read from: a server, or an export."""


@dataclass(slots=True)
class Call:
    """One call of a verb.

    Attributes:
        out: Prints its results.
        server: The server to connect to.
        connect: Makes the engine; tests pass another.
        hint: Added to the error if the task refuses the message or decision.
    """

    out: Output
    server: ServerOptions = field(default_factory=ServerOptions)
    connect: Connect = over_temporal
    hint: str = ""

    def again(self, *words: str) -> str:
        """Another command for the same server, as people type it."""
        return f"refold {join(words)}{self.server.options}"

    async def engine(self) -> Engine:
        """Connect to the server."""
        return await self.connect(self.server)

    async def lasting_engine(self) -> Engine:
        """As `engine`, for what runs until it is stopped: it would only log that there is no such namespace."""
        engine = await self.engine()
        if isinstance(engine, temporal.TemporalEngine):
            await engine.connection.check_namespace()
        return engine

    async def reader(self, task: str) -> tuple[Reader, str]:
        """What a task is read from, and the task's id: the server; or an export, if its file stands for the task.

        Raises:
            ExportError: The file is damaged.
        """
        if not _is_there(task):
            try:
                return await self.engine(), task
            except NotConnected as error:
                if task.endswith(SUFFIX):
                    raise NotConnected(f"{error}; and there is no file {task!r}") from None
                raise
        exported = ExportEngine.of(Path(task), lambda: application([]).by_any_id)
        return exported, exported.task_id


def _is_there(export: str) -> bool:
    return export.endswith(SUFFIX) and Path(export).exists()


Verb = Callable[..., int | None] | Callable[..., Coroutine[Any, Any, int | None]]


def add(app: typer.Typer, run: Verb, *, connects: bool = True) -> None:
    """Make a function a verb of its own name. Its docstring is the help text; its first parameter is the `Call`.

    Args:
        app: Gets the verb.
        run: Returns the exit code; None is 0.
        connects: Whether the verb takes the options that name a server.
    """
    taken = list(inspect.signature(run, eval_str=True).parameters.values())[1:]
    shared = [_option("as_json", Json, False)]
    if connects:
        shared += [
            _option("address", Address, None),
            _option("namespace", Namespace, None),
            _option("task_queue", TaskQueue, QUEUE),
            _option("profile", Profile, None),
        ]
    names = {one.name for one in taken}
    shared = [one for one in shared if one.name not in names]
    full = {one.name for one in (*taken, *shared) if one.default != "" and EMPTY_TOO not in get_args(one.annotation)}

    def command(**given: Any) -> None:
        ctx: typer.Context = given.pop("ctx")
        settings = {one.name: given.pop(one.name) for one in shared}
        if (source := ctx.get_parameter_source("task_queue")) is not None and source.name == "COMMANDLINE":
            settings["asked_queue"] = settings.get("task_queue")
        call = Call(Output(json=settings.pop("as_json")), ServerOptions(**settings))
        if ctx.obj is not None:
            call.connect = ctx.obj
        if code := _finish(call, run, given):
            raise typer.Exit(code)

    # typer reads a command's options from its signature.
    command.__signature__ = inspect.Signature([_option("ctx", typer.Context), *taken, *shared])  # type: ignore[attr-defined]
    command.__annotations__ = {}
    app.command(run.__name__.rstrip("_"), help=inspect.getdoc(run), cls=_refusing_empty(full))(command)


def _refusing_empty(full: Collection[str]) -> type[TyperCommand]:
    """A command that takes no empty text for these parameters: it is a shell variable that is not set, mostly, and what
    would be taken in its place is something else than was meant."""

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            helps = given.get("help") or ctx.resilient_parsing  # or completes a line that is being typed
            parameters: list[Any] = [] if helps else self.params
            for parameter in parameters:
                texts = given.get(parameter.name)
                if parameter.name in full and any(text == "" for text in _each(texts)):
                    way_out = "" if parameter.required else ", or leave it out"
                    raise typer.BadParameter(f"it is empty; give a value{way_out}", ctx=ctx, param=parameter)
            return super().parse_args(ctx, args)

    return Command


def _each(texts: Any) -> Sequence[Any]:
    return texts if isinstance(texts, list | tuple) else (texts,)


def _finish(call: Call, run: Verb, given: dict[str, Any]) -> int:
    if os.environ.get(CODEC_ENV) and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # where an application's own codec is
    try:
        result = run(call, **given)
        code = _awaited(result) if inspect.iscoroutine(result) else result
        call.out.end_line()
        return code or DONE  # type: ignore[return-value]  # a coroutine has been run
    except (typer.Exit, typer.Abort, BrokenPipeError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever went wrong, people get a sentence and programs an object
        with contextlib.suppress(OSError):  # if it is the output that cannot be written
            call.out.end_line()
            sys.stdout.flush()
        if debugging():
            show_traceback(error)
        report(*explain(error, call.hint), as_json=call.out.json)
        return WRONG_CALL


def _awaited(verb: Coroutine[Any, Any, int | None]) -> int | None:
    """Run a verb in a loop of its own, as `asyncio.run` does, but leave what never ends to the end of the process:
    threads, and tasks that ignore their cancellation. A tool can leave either, and its worker is to exit all the same.
    """
    runner = asyncio.Runner()
    try:
        return runner.run(verb)
    finally:
        if runner.run(_tasks_ended()):  # not `runner.close()`, which joins the threads
            runner.get_loop().close()
            asyncio.set_event_loop(None)
        else:
            _kept.append(runner)


_kept: list[asyncio.Runner] = []
"""Those whose tasks go on: Python prints a warning when it frees a task that has not ended."""


async def _tasks_ended() -> bool:
    """Cancel the tasks that a verb left, and close generators that nobody reads; False if some have not ended within
    `TASKS_S`."""
    try:
        async with asyncio.timeout(TASKS_S):
            while left := _others():  # a task may start another one as it ends
                for task in left:
                    task.cancel()
                await asyncio.wait(left)
            # Only now: Python refuses to close a generator that a task still reads.
            await asyncio.get_running_loop().shutdown_asyncgens()
            await asyncio.sleep(0)
            while left := _others():  # which close a generator that another one read, and that nobody holds any more
                await asyncio.wait(left)
    except TimeoutError:
        return False
    return True


def _others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def _option(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)
