"""Where histories to replay come from: tasks on a server, one run after another, or files; nothing is kept of them.

A file holds one run, as Temporal's own tools write it: `temporal workflow show --output json`, or a download from its
web interface; or all runs of a task, as the lines `history` of an export.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from google.protobuf.json_format import ParseError
from temporalio.client import WorkflowExecution, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import InputRejected
from refold.engine import TaskFilter
from refold.engine.arguments import Within, takes
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import refusals
from refold.temporal.client.index import search
from refold.temporal.client.index.newest_first import NewestFirst
from refold.temporal.data.search_attributes import quoted
from refold.temporal.replay.replaying import Replayed

Source = AsyncGenerator[WorkflowHistory | Replayed]

ENDINGS = (".json", ".json.gz")
"""How the names of files with histories end."""


@takes()
@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which histories.

    Attributes:
        tasks: All runs of these tasks.
        files: These files, and those in these folders.
        open: The open runs of the open tasks of the task queue: what its workers would go on with.
        recent: All runs of so many tasks of the task queue, the newest ones as `Engine.list` has them.
        skill: With `open` and `recent`: of the tasks of this skill only.
    """

    tasks: Sequence[str] = ()
    files: Sequence[Path] = ()
    open: bool = False
    recent: Annotated[int, Within(0)] = 0
    skill: str | None = None

    @property
    def needs_server(self) -> bool:
        """Whether any of the histories is on a server."""
        return bool(self.tasks or self.open or self.recent)


@takes()
async def histories(choice: Choice, connection: Connection | None, note: Callable[[str], None]) -> Source:
    """The histories of a choice, one after another; what cannot be read is passed on as such.

    Args:
        choice: Which.
        connection: To the server; None where none is needed.
        note: Told of runs that the server keeps no more.

    Raises:
        InputRejected: There is no such file, or no history in a folder.
        TaskNotFound: There is no such task.
        EngineError: The server refuses, or does not answer.
    """
    files = files_in(choice.files)
    if connection is not None:
        server = _Server(connection, note)
        async with aclosing(server.of(choice)) as found:
            async for history in found:
                yield history
    for file in files:
        try:
            for history in read_histories(file):
                yield history
        except ValueError as error:
            yield Replayed(task_id=str(file), problem=f"{file} {error}")


@dataclass(frozen=True, slots=True)
class _Server:
    connection: Connection
    note: Callable[[str], None]

    async def of(self, choice: Choice) -> AsyncGenerator[WorkflowHistory]:
        async for task_id, run_id in self._runs_of(choice):
            history = await self._fetched(task_id, run_id)
            if history is not None:
                yield history

    async def _runs_of(self, choice: Choice) -> AsyncIterator[tuple[str, str]]:
        for task_id in choice.tasks:
            description = await self.connection.describe(task_id)
            for run_id in await self._chain(task_id, description.run_id):
                yield task_id, run_id
        parts = (
            search.tasks(TaskFilter(skill=choice.skill)),
            f"TaskQueue = {quoted(self.connection.task_queue)}",
        )
        query = " AND ".join(parts)
        with refusals("list tasks"):
            if choice.open:
                async for row in self.connection.client.list_workflows(f"{query} AND ExecutionStatus = 'Running'"):
                    yield row.id, row.run_id
            for row in await self._newest(query, choice.recent) if choice.recent else ():
                for run_id in await self._chain(row.id, row.run_id):
                    yield row.id, run_id

    async def _newest(self, query: str, count: int) -> Sequence[WorkflowExecution]:
        within = partial(search.within, "StartTime")
        return await NewestFirst(self.connection.client, query, within, lambda row: row.start_time).page(count)

    async def _chain(self, task_id: str, last: str) -> list[str]:
        """The ids of a task's runs, oldest first, as far back as the server keeps them."""
        found, run_id = [last], last
        while run_id := await self._run_before(task_id, run_id):
            found.append(run_id)
        return found[::-1]

    async def _run_before(self, task_id: str, run_id: str) -> str:
        handle = self.connection.client.get_workflow_handle(task_id, run_id=run_id)
        with refusals(f"read the history of task {task_id!r}"):
            try:
                async for event in handle.fetch_history_events(page_size=1):
                    return event.workflow_execution_started_event_attributes.continued_execution_run_id
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        self.note(f"task {task_id}: its earlier runs are gone, since the server keeps runs for its retention time only")
        return ""

    async def _fetched(self, task_id: str, run_id: str) -> WorkflowHistory | None:
        """One run's history; None where it has gone since it was listed."""
        handle = self.connection.client.get_workflow_handle(task_id, run_id=run_id)
        with refusals(f"read the history of task {task_id!r}"):
            try:
                return await handle.fetch_history()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
        return None


def files_in(paths: Iterable[Path]) -> list[Path]:
    """Files, and those in folders whose names end as histories do, or that are exports with histories, in order.

    Raises:
        InputRejected: There is no such file or folder, or no such file in any of the folders.
    """
    paths, found = list(paths), []
    for path in paths:
        if not path.exists():
            raise InputRejected(f"there is no file {path}; a task is named by its id")
        found += sorted(one for one in path.rglob("*") if _has_histories(one)) if path.is_dir() else [path]
    if paths and not found:
        raise InputRejected(
            f"no file in {', '.join(map(str, paths))} ends in {' or '.join(ENDINGS)}, or is what "
            "`refold export --history` writes"
        )
    return found


def _has_histories(file: Path) -> bool:
    if file.name.endswith(ENDINGS):
        return True
    if not file.name.endswith(".jsonl") or not file.is_file():
        return False
    try:
        with file.open("rb") as lines:
            return any(line.startswith(b'{"history":') for line in lines)
    except OSError:
        return True  # `read_histories` says why it cannot be read


EXPECTED = "expected is what `temporal workflow show --output json` prints, or an export with `--history`"


def read_histories(file: Path) -> list[WorkflowHistory]:
    """The histories in a file: one, or all runs of a task that was exported.

    Raises:
        ValueError: It cannot be read, or holds no history; the message continues a sentence that begins with its name.
    """
    try:
        raw = file.read_bytes()
        found = _documents(gzip.decompress(raw) if file.name.endswith(".gz") else raw)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zlib.error) as error:
        raise ValueError(f"is no JSON ({error}); {EXPECTED}") from None
    if not found:
        raise ValueError("is an export without Temporal's histories: export the task with `--history`")
    return [_history(one, file) for one in found]


def _documents(raw: bytes) -> list[Any]:
    """The histories in a file's text as JSON data: one document, or the lines of an export that hold one."""
    try:
        return [json.loads(raw)]
    except ValueError:
        first, *rest = raw.splitlines() or [b""]
        if not (rest and first.startswith(b'{"header":')):
            raise
        lines = [json.loads(line) for line in rest]
        return [one["history"] for one in lines if isinstance(one, dict) and "history" in one]


def _history(data: Any, file: Path) -> WorkflowHistory:
    try:
        history = WorkflowHistory.from_json("", data.get("history", data))
    except (ValueError, ParseError, TypeError, AttributeError) as error:
        raise ValueError(f"holds no history ({error}); {EXPECTED}") from None
    if not history.events or not history.events[0].HasField("workflow_execution_started_event_attributes"):
        raise ValueError(f"does not begin with a workflow's start; {EXPECTED}")
    return WorkflowHistory(_task_in(history, file), history.events)


def _task_in(history: WorkflowHistory, file: Path) -> str:
    """The task's id: in the history of a server of today, else the file's name."""
    started: Any = history.events[0].workflow_execution_started_event_attributes
    name = file.name
    for ending in reversed(ENDINGS):
        name = name.removesuffix(ending)
    return started.workflow_id or name
