"""The main job in about a minute: a task that loses its worker, waits for a person, and completes (`make demo`).

Starts a Temporal server and a worker of its own, runs `research_loop`, kills the worker with SIGKILL in the middle of a
model call, starts another, answers the task's question, and removes everything at the end.

    python client/demo.py [--topic TEXT] [--answer TEXT] [--keep]

Exits with 0; with 1 if the task failed, 2 if the demo could not run, 130 after Ctrl-C. The scripted model needs no
network. With REFOLD_MODEL=openai:NAME, OPENAI_API_KEY and perhaps OPENAI_BASE_URL the demo calls a real model over
HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Coroutine
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo

from refold import CommandFailed, Content, Event, LlmResult, RefoldError, Status, UserMessage
from refold.core.events import BackoffOver, CancelRequested
from refold.core.fold.journal import Entry
from refold.engine import Progress, TaskView, Tokens
from refold.temporal import TemporalEngine, connect
from refold.temporal.dev import DevServer, dev_server
from refold.words.text import clean, snippet

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "The tides of the North Sea"
ANSWER = "For sailors: what matters is when the currents turn."
MOST_ANSWERS = 4
MOST_CALLS = 16
CALL_S = "3"  # seconds of a scripted model call: time to read along, and to kill a worker during the call
ASK_EVERY_S = 0.05
READY_WITHIN_S = 60.0
MODEL_TEXT = "cyan"
INDENT = " " * 9
DONE, TASK_FAILED, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 130


class DemoError(Exception):
    """The demo cannot continue; the message says why."""


# --- the worker, a process of its own


class Worker:
    """`refold worker` as a child process."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.killed = False

    @classmethod
    async def started(cls, server: DevServer, folder: Path, number: int) -> Worker:
        """A worker that polls."""
        command = [
            "-m",
            "refold.cli",
            "worker",
            "workflows",
            "activities",
            "--recovery",
            "fast-recovery",
            "--json",
            "--with-parent",
        ]
        log = folder / f"worker-{number}.log"
        with log.open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                cwd=ROOT,
                env=os.environ | {"TEMPORAL_ADDRESS": server.address},
                stdin=PIPE,
                stdout=PIPE,
                stderr=err,
                start_new_session=True,  # the demo handles Ctrl-C itself
            )
        worker = cls(process, log)
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                await worker._ready()
        except BaseException as error:
            await worker.kill()
            if isinstance(error, TimeoutError):
                raise DemoError(f"the worker was not ready within {READY_WITHIN_S:.0f} s:\n{worker.said}") from None
            raise
        return worker

    async def _ready(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if isinstance(told, dict) and "skills" in told:
                return
        raise DemoError(f"the worker ended with code {await self.process.wait()}:\n{self.said}")

    @property
    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2_000:].strip()

    async def kill(self) -> None:
        """Kill it by SIGKILL, like a loss of power: it cannot clean up."""
        if self.process.returncode is None:
            self.killed = True
            self.process.kill()
        await self.process.wait()


# --- the output


class Teller:
    """Prints the story: the journal in plain words, and the model's text as it comes."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, markup=False, emoji=False)
        self._began = time.monotonic()
        self._column = 0
        self._writing: tuple[str, int] | None = None
        self._written = 0

    def head(self, text: str) -> None:
        """The beginning of a part."""
        self._end_line()
        self.console.print()
        self._lines("", text, "bold")

    def say(self, text: str, style: str = "") -> None:
        """One line, with the seconds since the start."""
        self._lines(f"{time.monotonic() - self._began:6.1f}s  ", text, style)

    def more(self, text: str, style: str = "dim") -> None:
        """A continuation line."""
        self._lines(INDENT, text, style)

    def _lines(self, first: str, text: str, style: str) -> None:
        self._end_line()
        room = max(20, self.console.width - len(first))
        # An address must not be broken, or it cannot be followed.
        lines = wrap(clean(text), room, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            before = Text(first if number == 0 else " " * len(first), "dim")
            self.console.print(before + Text(line, style), soft_wrap=True)

    def write(self, tokens: Tokens) -> None:
        """A piece of the model's text, wrapped between words."""
        key = (tokens.invocation_id, tokens.attempt)
        if key != self._writing:
            again = f", attempt {tokens.attempt}" if tokens.attempt > 1 else ""
            self.more(f"the model writes{again}:")
            self._writing, self._written = key, 0
        if tokens.offset > self._written:
            self._put("… ")
        self._written = tokens.offset + len(tokens.text)
        for word in re.findall(r"\S+\s?|\s", clean(tokens.text).replace("\n", " ")):
            self._put(word)

    def _put(self, word: str) -> None:
        if self._column and self._column + len(word) > self.console.width:
            self._end_line()
        if not self._column:
            self.console.print(INDENT, end="  ")
            self._column = len(INDENT) + 2
        self.console.print(Text(word, MODEL_TEXT), end="", soft_wrap=True)
        self._column += len(word)

    def _end_line(self) -> None:
        if self._column:
            self._column = 0
            self.console.print()

    def frame(self, title: str, text: str) -> None:
        """An artifact."""
        self._end_line()
        self.console.print()
        self.console.print(Panel(Text(clean(text)), title=clean(title), title_align="left"))

    def table(self, names: dict[str, str], tries: dict[str, int]) -> None:
        """How often each call was made."""
        table = Table("InvocationId", "call", "attempts", box=SIMPLE)
        for id, times in tries.items():
            table.add_row(
                Text(id), Text(clean(names.get(id, ""))), Text(str(times), "bold yellow" if times > 1 else "")
            )
        self.console.print(table)

    def tell(self, entry: Entry) -> None:
        """One journal entry."""
        self._finish(entry.event)
        self.say(f"#{entry.seq}  {happened(entry)}")
        if entry.refused:
            self.more(f"refused: {entry.refused}")
        for issued in entry.commands:
            if issued.command.kind == "llm":
                self.more(f"asks the model: {issued.command.id}, InvocationId {issued.invocation_id}")
        for move in entry.moves:
            self.more(f"the task is now {move.to_state.value}", "green")

    def _finish(self, event: Event) -> None:
        """The last words of a streamed text: they come with the journal."""
        if self._writing is None or not isinstance(event, LlmResult):
            return
        id, attempt = self._writing
        if id == event.invocation_id and isinstance(event.value, str) and len(event.value) > self._written:
            rest = event.value[self._written :]
            self.write(Tokens(invocation_id=id, attempt=attempt, offset=self._written, text=rest))
        self._writing = None


def happened(entry: Entry) -> str:
    """What an entry's event says, in plain words."""
    match entry.event:
        case UserMessage(content=content) if entry.seq == 1:
            return f"the task begins: “{snippet(content.text)}”"
        case UserMessage(content=content):
            return f"a person answered: “{snippet(content.text)}”"
        case LlmResult(id="critique", value={"decision": decision, **rest}):
            return f"the editor says {decision}: “{snippet(str(rest.get('text', '')))}”"
        case LlmResult(id=id):
            return f"{'the draft' if id == 'research' else id} is there, and is kept"
        case CommandFailed(id=id, failure=failure):
            return f"{id} failed ({failure.kind.value}): {snippet(failure.message)}"
        case BackoffOver(retry=retry):
            return f"the call is tried again: retry {retry}"
        case CancelRequested(reason=reason):
            return f"the task is canceled: {reason}"
        case event:
            return event.kind


# --- the story


class Demo:
    """One task, two workers, and a person who answers."""

    def __init__(self, server: DevServer, folder: Path, teller: Teller, answer: str) -> None:
        self.server = server
        self.folder = folder
        self.teller = teller
        self.answer = answer
        self._worker: Worker | None = None
        self._hired = asyncio.Event()
        self._lost = False
        self._calls = 0
        self._answers = 0

    async def __aenter__(self) -> Demo:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._worker is not None:
            await self._worker.kill()

    async def play(self, topic: str) -> int:
        """From the start to the end; the exit code."""
        self.teller.head("A worker, and a task")
        await self._hire(1)
        engine = await connect(address=self.server.address)
        view = await engine.start("research_loop", Content.from_text(topic), stream=True)
        link = f"{self.server.ui_url}/namespaces/{self.server.namespace}/workflows/{view.task_id}"
        self.teller.say(f"task {view.task_id}, in the Temporal UI:")
        self.teller.more(link, "")
        await self._unless_a_worker_dies(self._follow(engine, view.task_id))
        return await self._sum_up(engine, view.task_id, link)

    async def _hire(self, number: int) -> None:
        began = time.monotonic()
        self._worker = await Worker.started(self.server, self.folder, number)
        self._hired.set()
        took = time.monotonic() - began
        self.teller.say(f"worker {number} is there: process {self._worker.process.pid}, up in {took:.1f} s")

    async def _unless_a_worker_dies(self, story: Coroutine[Any, Any, None]) -> None:
        telling = asyncio.create_task(story)
        dying = asyncio.create_task(self._a_worker_dies())
        try:
            await asyncio.wait({telling, dying}, return_when=asyncio.FIRST_COMPLETED)
            await (telling if telling.done() else dying)
        finally:
            for task in (telling, dying):
                task.cancel()
            await asyncio.gather(telling, dying, return_exceptions=True)

    async def _a_worker_dies(self) -> None:
        while True:
            await self._hired.wait()
            worker = self._worker
            assert worker is not None
            code = await worker.process.wait()
            if not worker.killed:
                raise DemoError(f"a worker ended by itself with code {code}:\n{worker.said}")

    async def _follow(self, engine: TemporalEngine, task_id: str) -> None:
        async for news in engine.watch(task_id, follow=True):
            if isinstance(news, Tokens):
                self.teller.write(news)
                if self._calls > 1:
                    await self._lose_the_worker(engine, task_id)
                continue
            if isinstance(news, Progress):
                continue
            self.teller.tell(news)
            # A model may be too fast to be seen writing: then the worker is killed as soon as the second call has
            # ended.
            if self._calls > 1 and not news.ends:
                await self._lose_the_worker(engine, task_id)
            asked = [issued.command.kind for issued in news.commands]
            self._calls += asked.count("llm")
            if self._calls > MOST_CALLS:
                await engine.cancel(task_id, reason=f"the demo ends here, after {MOST_CALLS} model calls")
            elif "ask" in asked:
                await self._answer(engine, task_id)

    async def _answer(self, engine: TemporalEngine, task_id: str) -> None:
        view = await engine.look(task_id)
        for wait in view.waiting_for:
            self.teller.head(f"The task waits for a person: {snippet(wait.message)}")
            if self._answers == MOST_ANSWERS:
                await engine.cancel(task_id, reason=f"the demo ends here, after {MOST_ANSWERS} answers")
                return
            self._answers += 1
            self.teller.more(f"it would wait for months; the demo answers at once: “{self.answer}”", "")
            await engine.send(task_id, Content.from_text(self.answer), slot=wait.slot)

    async def _lose_the_worker(self, engine: TemporalEngine, task_id: str) -> None:
        """Kill the worker, start another and report the recovery; once."""
        if self._lost or self._worker is None:
            return
        self._lost = True
        self._hired.clear()
        pid = self._worker.process.pid
        await self._worker.kill()
        killed = time.monotonic()
        call = await under_way(engine, task_id)
        self.teller.head(f"kill -9 {pid}: the worker is gone")
        if call is None:
            self.teller.more("it had no model call in hand just then")
        else:
            self.teller.more(f"in the middle of model call {call.activity_id}, attempt {call.attempt}", "")
        self.teller.more("nobody holds the task now but Temporal; what is in its journal stays there", "")
        await self._hire(2)
        while call is not None:
            again = await under_way(engine, task_id)
            if again is None or again.activity_id != call.activity_id:
                return  # the call ended before it could be observed
            if again.attempt > call.attempt and again.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED:
                break
            await asyncio.sleep(ASK_EVERY_S)
        if call is not None:
            took = time.monotonic() - killed
            self.teller.say(f"it goes on where it was, {took:.1f} s after the kill", "bold green")
            self.teller.more(f"the same call, {call.activity_id}, is now in attempt {call.attempt + 1}", "")

    async def _sum_up(self, engine: TemporalEngine, task_id: str, link: str) -> int:
        view = await engine.look(task_id)
        for artifact in view.artifacts:
            self.teller.frame(artifact.name, artifact.text or json.dumps(artifact.data))
        self.teller.head("What happened how often")
        names = {
            issued.invocation_id: issued.command.id
            async for entry in engine.journal(task_id)
            for issued in entry.commands
        }
        tries = await tries_of(engine, task_id)
        self.teller.table(names, tries)
        repeated = [id for id, times in tries.items() if times > 1]
        self.teller.more(
            f"{len(tries)} model calls; {len(tries) - len(repeated)} were made once, and the one that died with its "
            "worker was made again under its old id."
            if len(repeated) == 1
            else f"{len(tries)} model calls; made more than once: {', '.join(repeated) or 'none'}.",
            "",
        )
        if not self._answers:
            self.teller.more("The editor never needed a person this time.", "")
        if not self._lost:
            self.teller.more("It was over before the worker could be killed.", "")
        return self._verdict(view, link)

    def _verdict(self, view: TaskView, link: str) -> int:
        self.teller.head(f"The task is {view.status}" + (f": {view.reason}" if view.reason else ""))
        self.teller.more(f"all of it in the Temporal UI: {link}", "")
        return DONE if view.status in (Status.COMPLETED, Status.CANCELED) else TASK_FAILED


async def under_way(engine: TemporalEngine, task_id: str) -> PendingActivityInfo | None:
    """The effect that Temporal shows as running."""
    description = await engine.client.get_workflow_handle(task_id).describe()
    return next(iter(description.raw_description.pending_activities), None)


async def tries_of(engine: TemporalEngine, task_id: str) -> dict[str, int]:
    """How often each effect was begun, by its id, from Temporal's history."""
    ids: dict[int, str] = {}
    tries: dict[str, int] = {}
    async for event in engine.client.get_workflow_handle(task_id).fetch_history_events():
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            ids[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            tries[ids[started.scheduled_event_id]] = started.attempt
    return tries


# --- set-up


def set_stage(folder: Path) -> None:
    """Make this process and its workers use only the demo's own server, folder and settings."""
    for name in [name for name in os.environ if name.startswith("TEMPORAL_")]:
        del os.environ[name]
    settings = folder / "temporal.toml"
    settings.touch()
    values = folder / "values"
    values.mkdir()
    os.environ["TEMPORAL_CONFIG_FILE"] = str(settings)
    os.environ["REFOLD_STORAGE"] = str(values)
    os.environ.setdefault("REFOLD_SCRIPTED_DELAY", CALL_S)
    os.environ.pop("REFOLD_TASK_QUEUE", None)


async def main(topic: str, answer: str, *, keep: bool = False) -> int:
    """Run the demo; returns the exit code. Everything that it started is removed, however it ends."""
    teller = Teller()
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    with tempfile.TemporaryDirectory(prefix="refold-demo-") as name:
        folder = Path(name)
        set_stage(folder)
        model = os.environ.get("REFOLD_MODEL", "") or "scripted:demo"
        teller.head(f"refold demo, model {model}")
        async with dev_server(ui=True, log=folder / "server.log") as server:
            teller.say(f"a Temporal server is up at {server.address}; its UI: {server.ui_url}")
            async with Demo(server, folder, teller, answer) as demo:
                code = await demo.play(topic)
                if keep:
                    teller.more("The server stays up. Ctrl-C ends it.", "bold")
                    await ctrl_c()
                else:
                    teller.more("The server stops now, and the link with it; `--keep` leaves both up.")
                teller.more("To approve, answer and look in a browser: `refold dev`, and the link after `page`.")
    return code


async def ctrl_c() -> None:
    """Wait for it."""
    pressed = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, pressed.set)
    await pressed.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--topic", default=TOPIC, help="what the task is to write about")
    parser.add_argument("--answer", default=ANSWER, help="what the person answers")
    parser.add_argument("--keep", action="store_true", help="leave server and UI up at the end, until Ctrl-C")
    given = parser.parse_args()
    try:
        sys.exit(asyncio.run(main(given.topic, given.answer, keep=given.keep)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("\nstopped; nothing is left behind", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except (RefoldError, DemoError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(CANNOT_RUN)
