"""Compares a task that is rebuilt with the marks in its history, while it is replayed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NotDone
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, TypeVar

from refold.core.fold.journal import Entry
from refold.divergence import Difference, as_recorded, first_difference
from refold.temporal.data.marks import Mark
from refold.temporal.data.workflow_tasks import NONE, WorkflowTasks
from refold.temporal.recorded.handover import Recorded
from refold.temporal.recorded.reading import Past, Reader, Run, Sent, Words
from refold.temporal.recorded.writing import TAKEN_BACK
from refold.temporal.worker.activation.batches import OWN

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` makes no recorder where it is not.
    from temporalio.bridge.proto.workflow_commands import WorkflowCommand
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

T = TypeVar("T")

WORDS_S = 1.0
"""How long, in seconds, a replayed activation that differs waits for the words of what was recorded."""


UNWRITTEN = 2
"""The events of a workflow task that the server may not write before it is completed: its scheduling and its start."""


class NotReadYet(Exception):
    """The history was not read in time. It is read on, for the next attempt."""


class Comparison:
    """The comparison of one run. Begins to read the run's history at once.

    Attributes:
        difference: What was found; None while nothing differs.
        strict: See `Reader`.
    """

    def __init__(self, run: Run, reader: Reader) -> None:
        self.difference: Difference | None = None
        self.strict = reader.strict
        self._run = run
        self._reader = reader
        self._past: Future[Past | None] = reader.past(run)
        self._words: Words | None = None
        self._next = 0  # of the marks
        self._same = 0  # the number of the newest entry that a mark confirms
        self._sent: list[Sent] = []  # in this workflow task
        self._began = False  # the code refuses to begin the task, and history shows that it began
        self._late = False  # the replay went on before the history was read
        self._blind = [0]  # the workflow tasks that were replayed before it was read, by the events that started them

    def workflow_tasks(self, length: int, jobs: int, until: float, *, replaying: bool) -> WorkflowTasks:
        """The run's workflow tasks, for an activation.

        Args:
            length: Of the activation's history.
            jobs: How many jobs the activation has.
            until: By when, as `time.monotonic` counts.
            replaying: The activation is replayed, which goes on if the history was not read by then.

        Raises:
            NotReadYet: The history was not read by then; or not before a part of it was replayed that it is needed for;
                or for an earlier attempt, after which another worker completed a workflow task.
        """
        try:
            past = awaited(self._past, until)
        except NotReadYet:
            if not replaying:
                raise
            self._blind.append(length)
            self._late = True
            return NONE
        found = past.workflow_tasks if past else NONE
        if any(found.within(since, upto) for since, upto in pairwise(self._blind)):
            raise NotReadYet
        self._blind.clear()
        # The workflow task itself need not be in history yet; else each event that was not read brings a job.
        if past and not replaying and length - found.upto > jobs + UNWRITTEN:
            self._reader.done(self._run, None)
            raise NotReadYet
        return found

    def compare(self, task: Recorded, until: float) -> None:
        """Compare the entries so far with the marks on them, up to the first difference.

        Args:
            task: As it is now.
            until: By when, as `time.monotonic` counts.

        Raises:
            NotReadYet: The history was not read by then.
        """
        if self.difference is not None:
            task.go_on_as_recorded()
            return
        try:
            past, base = awaited(self._past, until), task.base
        except NotReadYet:
            self._late = True
            raise
        marks = (past and past.marks) or ()
        if marks and task.unbegun is not None:
            self.difference, self._began = task.unbegun, True
            self._reader.done(self._run, self.difference)
            return
        while self._next < len(marks) and marks[self._next].seq <= base + len(task.entries):
            mark = marks[self._next]
            if mark.seq > base and task.digests[mark.seq - base] != mark.digest:
                if self._late:
                    raise NotReadYet  # later events were taken as today's code takes them; the next replay is in time
                self._late = True  # unless the words come in time
                self._differ(task, mark, max(until, monotonic() + WORDS_S))
                task.go_on_as_recorded()
                return
            self._next, self._same = self._next + 1, max(self._same, mark.seq)

    def fits(self, completed: int, completion: WorkflowActivationCompletion) -> bool:
        """Whether the task can be replayed further: a task that differs may send other commands than history holds.

        Args:
            completed: The number of the event that completed the replayed workflow task.
            completion: What today's code completes it with.
        """
        if self._began:
            return False
        commands = completion.successful.commands
        self._sent += _sent(commands)
        if any(one.schedule_activity.seq == OWN or one.HasField("schedule_local_activity") for one in commands):
            return True  # there is more to come in this workflow task
        sent, self._sent = self._sent, []
        return self._words is None or sent == list(self._words.sent.get(completed, ()))

    def compare_end(self, task: Recorded, completed: int, until: float) -> None:
        """Compare where the code goes on in a new run, which no entry says: history tells whether the task did.

        Raises:
            NotReadYet: The history was not read by then.
        """
        words = awaited(self._reader.words(self._run), until)
        if words is None or _NEW_RUN in words.sent.get(completed, ()):
            return
        at = task.base + len(task.entries)
        self.difference = Difference(task_id=self._run.workflow_id, seq=at, upto=at, why=NEW_RUN)
        self._words = words
        self._reader.done(self._run, self.difference)
        task.differ(self.difference, lambda entries: entries)

    def end(self, unfit: Difference | None = None) -> None:
        """The replay is over.

        Args:
            unfit: Why the code cannot go on from the snapshot that the run began with.
        """
        if self.difference is None:
            self._reader.done(self._run, unfit)

    def _differ(self, task: Recorded, mark: Mark, until: float) -> None:
        self._words = words = awaited(self._reader.words(self._run), until)
        first = max(self._same - task.base, 0)
        entries = task.entries[first : mark.seq - task.base]
        if words is None:
            words = Words(since=mark.seq + 1, upto=mark.seq, said={}, inputs={}, sent={})
        known = [entry for entry in entries if entry.seq >= words.since]
        id = self._run.workflow_id
        if known:
            self.difference = first_difference(id, known, words.said, words.inputs, build_id=mark.build_id)
        else:
            self.difference = Difference(task_id=id, seq=entries[0].seq, upto=mark.seq, build_id=mark.build_id)
        if not self.difference.field:
            digests = {"recorded": mark.digest.hex(), "now": task.digests[mark.seq - task.base].hex()}
            self.difference = self.difference.changed(digests)
        self._reader.done(self._run, self.difference)
        since = self.difference.seq
        task.differ(self.difference, lambda entries: as_written(id, entries, words, since))


def awaited(reading: Future[T], until: float) -> T:
    """Wait for what a reader reads.

    Args:
        reading: Its result.
        until: By when, as `time.monotonic` counts.

    Raises:
        NotReadYet: It was not read by then.
    """
    if asyncio._get_running_loop() is not None and not reading.done():
        raise NotReadYet  # the SDK's debug mode activates in the event loop, which would wait for itself
    try:
        return reading.result(max(0.0, until - monotonic()))
    except (NotDone, CancelledError):  # the latter as the worker stops
        raise NotReadYet from None


def as_written(task_id: str, entries: Sequence[Entry], words: Words, since: int) -> list[Entry]:
    """Entries as they were recorded, where history holds it; the others as today's code writes them.

    Args:
        task_id: The task.
        entries: As today's code writes them.
        words: What history holds.
        since: The first entry that differs: from there on, what steps wrote to the state is not known, and left out.
    """
    shown = [
        as_recorded(task_id, entry, words.said.get(entry.seq), words.inputs)
        if words.since <= entry.seq <= words.upto
        else entry
        for entry in entries
    ]
    return [entry.changed({"audit": ()}) if entry.audit and entry.seq >= since else entry for entry in shown]


def _sent(commands: Sequence[WorkflowCommand]) -> list[Sent]:
    """The commands that reach the server, as history tells them."""
    kinds = [(command.WhichOneof("variant") or "", command) for command in commands]
    back = {(kind, getattr(command, kind).seq) for kind, command in kinds if kind in TAKEN_BACK.values()}
    return [
        _as_sent(kind, command)
        for kind, command in kinds
        if kind in KINDS and (kind not in TAKEN_BACK or (TAKEN_BACK[kind], getattr(command, kind).seq) not in back)
    ]


def _as_sent(kind: str, command: WorkflowCommand) -> Sent:
    activity, child = command.schedule_activity, command.start_child_workflow_execution
    return KINDS[kind], activity.activity_id or child.workflow_id, activity.activity_type or child.workflow_type


KINDS = {
    "schedule_activity": "activity",
    "start_child_workflow_execution": "child",
    "start_timer": "timer",
    "upsert_workflow_search_attributes": "upsert",
    "complete_workflow_execution": "complete",
    "fail_workflow_execution": "fail",
    "cancel_workflow_execution": "cancel",
    "continue_as_new_workflow_execution": "continue",
}
_NEW_RUN: Sent = ("continue", "", "")
NEW_RUN = "the code goes on in a new run here, as `seal_at_pause=True` lets it, and the task did not"
