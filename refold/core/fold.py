"""The fold: one event in; the next snapshot and one journal entry out.

Rule 1: every change to a task happens in `advance`.
Rule 2: nothing here reads a clock, draws a random number or waits.
Rule 3: the skill is called only while the task is running; what comes in meanwhile is journaled and held.
Rule 4: what cannot be taken is refused, and changes nothing but the number and the count of refusals.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from refold.core.commands import AskUser, Command, Sleep, retry_of
from refold.core.content import Artifact, Message
from refold.core.errors import CommandError, SkillError
from refold.core.events import BackoffOver, CancelRequested, CommandFailed, Event, UserMessage
from refold.core.journal import Entry, Issued, receipt_of
from refold.core.lifecycle import Ending, Move, TaskEvent, TaskState, next_state
from refold.core.refusal import open_wait, refusal
from refold.core.retry import FailureKind
from refold.core.skill import Live, Moment, Skill, skill_id
from refold.core.snapshot import SEEN_LIMIT, Pending, Receipt, ReceiptStatus, Snapshot, Wait
from refold.core.tool import skill_at_work
from refold.core.transition import UNCHANGED, Transition

Patched = Callable[[str], bool]

_ENDED_BY = {
    Ending.COMPLETED: TaskEvent.COMPLETE,
    Ending.FAILED: TaskEvent.FATAL_ERROR,
    Ending.REJECTED: TaskEvent.FATAL_ERROR,
}


def planned(skill: Skill, task_id: str, at: datetime, *, stream: bool = False, parent: str | None = None) -> Snapshot:
    """A task before its first event."""
    version = skill.options.version
    return Snapshot(
        task_id=task_id, skill=skill_id(skill), at=at, skill_version=version, stream=stream, parent=parent
    )


def advance(
    skill: Skill,
    snapshot: Snapshot,
    event: Event,
    at: datetime,
    *,
    live: Live | None = None,
    patched: Patched | None = None,
) -> tuple[Snapshot, Entry]:
    """Take one event. The only way a task ever changes.

    Args:
        skill: The task's skill.
        snapshot: The task as it is.
        event: What happened.
        at: When; an earlier time than the snapshot's counts as the snapshot's.
        live: The cache of a running step, if whoever runs the task keeps one.
        patched: Answers `ctx.patched(id)` the first time it is asked; None answers True.

    Returns:
        The task as it is now, and the entry that says what happened. Never raises for what the event or the skill
        does: the first is refused, the second fails the task.
    """
    turn = _Turn(skill, snapshot, event, max(at, snapshot.at), live, patched)
    turn.take()
    return turn.snapshot(), turn.entry()


def fold(skill: Skill, base: Snapshot, entries: Iterable[Entry]) -> Snapshot:
    """The snapshot after these entries: what `advance` gave when they were made."""
    snapshot = base
    for entry in entries:
        answers = entry.patches
        patched = lambda patch, answers=answers: answers.get(patch, True)  # noqa: E731
        snapshot, _ = advance(skill, snapshot, entry.event, entry.at, patched=patched)
    return snapshot


class _Turn:
    """One call of `advance`: working copies of what changes, and the entry in the making."""

    def __init__(
        self, skill: Skill, base: Snapshot, event: Event, at: datetime, live: Live | None, patched: Patched | None
    ) -> None:
        self.skill, self.base, self.event, self.at, self.live = skill, base, event, at, live
        self.seq = base.seq + 1
        self.ask_patched = patched
        self.changes: dict[str, object] = {}
        self.lifecycle = base.lifecycle
        self.state = base.state
        self.pending = dict(base.pending)
        self.waits = base.waits
        self.held = base.held
        self.receipts = dict(base.receipts)
        self.messages = base.messages
        self.artifacts = base.artifacts
        self.patches: dict[str, bool] = {}
        # the entry
        self.refused = ""
        self.was_held = False
        self.notes: list[str] = []
        self.moves: list[Move] = []
        self.issued: list[Issued] = []
        self.said: list[Message] = []
        self.handed_over: list[Artifact] = []

    # --- what came in

    def take(self) -> None:
        self.refused = refusal(self.skill, self.base, self.event)
        if self.refused:
            self.changes["refused"] = self.base.refused + 1
            return
        match self.event:
            case UserMessage() as message:
                self._heard(message)
            case CommandFailed() as failed if self.lifecycle in (TaskState.PAUSED, TaskState.BLOCKED):
                # Classified when released: a retry could not go out now anyway.
                self._change_pending(failed.invocation_id, started=True, due_at=None, failure=failed.failure.message)
                self._hold(failed)
            case CommandFailed() as failed:
                self._run([failed]) if self.lifecycle is TaskState.RUNNING else self._failed(failed)
            case BackoffOver(invocation_id=id):
                self._change_pending(id, retries=self.pending[id].retries + 1, due_at=None)
                if not any(_backs_off(command) for command in self.pending.values()):
                    self._move(TaskEvent.RETRY)
                    self._run([])
            case CancelRequested(reason=reason):
                self._end(Ending.CANCELED, reason or "canceled on request")
            case result:
                del self.pending[result.invocation_id]
                self._keep_receipt(result)
                self._run([result])
        self._send_out()

    def _heard(self, message: UserMessage) -> None:
        self.messages = (*self.messages, Message(role="user", content=message.content, seq=self.seq))
        if message.delivery_id is not None:
            seen = {**self.base.seen, message.delivery_id: self.seq}
            self.changes["seen"] = dict(list(seen.items())[-SEEN_LIMIT:])
        if self.lifecycle is TaskState.PLANNED:
            self._move(TaskEvent.START)
            self._run([message])
            return
        answered = open_wait(self.base, message)
        self.waits = tuple(wait for wait in self.waits if wait.gate != answered.gate)
        self.receipts[answered.gate] = Receipt.model_construct(
            invocation_id=answered.gate, status=ReceiptStatus.OK, outcome=message.content.model_dump(mode="json")
        )
        reply = message if message.slot else message.model_copy(update={"slot": answered.slot})
        if self.waits:  # the task leaves `paused` with the last answer; this one is met then
            self._hold(reply)
            return
        self._move(TaskEvent.APPROVAL_GRANTED)
        replies = [event for event in self.held if isinstance(event, UserMessage)]
        self.held = tuple(event for event in self.held if not isinstance(event, UserMessage))
        self._run([*replies, reply])

    # --- calling the skill

    def _run(self, events: list[Event]) -> None:
        """Give the skill these events and then the held ones, for as long as the task is running."""
        if self.lifecycle is not TaskState.RUNNING:
            self.held = (*self.held, *events)
            self.was_held = True
            return
        queue = deque([*events, *self.held])
        while queue and self.lifecycle is TaskState.RUNNING:
            event = queue.popleft()
            if isinstance(event, CommandFailed):
                self._failed(event)
            else:
                self._call(event)
        self.held = tuple(queue) if self.lifecycle not in (TaskState.DONE, TaskState.FAILED) else ()
        if self.lifecycle is TaskState.RUNNING and not self.pending:
            where = self.skill.where(self.state)
            self._end(
                Ending.FAILED,
                f"stalled: {where!r} answered {self.event.kind} without asking for anything, waiting or ending",
            )

    def _failed(self, event: CommandFailed) -> None:
        command = self.pending[event.invocation_id]
        policy = retry_of(command.command) or self.skill.options.retry
        failure = event.failure
        if failure.kind is FailureKind.TRANSIENT and command.retries < policy.max_retries:
            wait = policy.delay(command.retries + 1, command.invocation_id, failure.retry_after)
            due_at = self.at + timedelta(seconds=wait)
            self._change_pending(command.invocation_id, started=False, due_at=due_at, failure=failure.message)
            self.notes.append(
                f"{event.id}: {failure.message}; retry {command.retries + 1} of {policy.max_retries} in {wait:g} s"
            )
            if self.lifecycle is TaskState.RUNNING:
                self._move(TaskEvent.TRANSIENT_ERROR)
        elif self.lifecycle is TaskState.RUNNING:
            del self.pending[event.invocation_id]
            self._keep_receipt(event)
            self._call(event)
        else:
            self._hold(event)

    def _call(self, event: Event) -> None:
        moment = Moment(
            task_id=self.base.task_id,
            seq=self.seq,
            at=self.at,
            issued=len(self.issued),
            receipts=self.receipts,
            messages=self.messages,
            patched=self._patched,
        )
        at_work = skill_at_work.set(self.base.skill)
        try:
            transition = self.skill.on(self.state, event, moment, self.live)
            if isinstance(event, CommandFailed) and transition.ignored:
                raise CommandError(event.id, event.invocation_id, event.failure)
            self._apply(transition)
        except CommandError as error:
            self._end_by(error)
        except SkillError as error:
            self._end(Ending.FAILED, str(error))
        except Exception as error:
            self._end(Ending.FAILED, f"bug: {type(error).__name__}: {error}")
            self.notes.append(_place(error))
        finally:
            skill_at_work.reset(at_work)

    def _patched(self, patch: str) -> bool:
        known = self.base.patches.get(patch, self.patches.get(patch))
        if known is None:
            known = self.patches[patch] = True if self.ask_patched is None else self.ask_patched(patch)
        return known

    # --- what the skill answered

    def _apply(self, transition: Transition) -> None:
        if transition.ending is Ending.REJECTED and self.seq != 1:
            raise SkillError("a skill rejects a task in answer to its first message only; use `fail` later on")
        self._refuse_twins(transition.commands)
        if transition.forgets:
            self.receipts = {}
        if transition.state is not UNCHANGED:
            self.state = transition.state
        if transition.progress is not None:
            self.changes["progress"] = transition.progress
        for content in transition.messages:
            self.said.append(Message(role="agent", content=content, seq=self.seq))
        for artifact in transition.artifacts:
            self.handed_over.append(artifact)
        for command in transition.commands:
            self._issue(command)
        if transition.ending is not None:
            self._end(transition.ending, transition.reason)
        elif self.waits:
            self._move(TaskEvent.PAUSE_FOR_APPROVAL)

    def _refuse_twins(self, commands: tuple[Command, ...]) -> None:
        taken = {pending.command.id for pending in self.pending.values()} | {wait.slot for wait in self.waits}
        for command in commands:
            if command.id in taken:
                raise SkillError(
                    f"two commands with the id {command.id!r} are in flight at once; give each its own id, "
                    "or wait for the first one"
                )
            taken.add(command.id)

    def _issue(self, command: Command) -> None:
        id = f"{self.base.task_id}/{self.seq}.{len(self.issued) + 1}"
        self.issued.append(Issued.model_construct(invocation_id=id, command=command))
        if isinstance(command, AskUser):
            self.waits = (*self.waits, Wait(gate=id, ask=command, since=self.at))
            self.said.append(Message(role="agent", content=command.message, seq=self.seq))
        else:
            self.pending[id] = Pending.model_construct(invocation_id=id, command=command)

    def _keep_receipt(self, event: Event) -> None:
        receipt = receipt_of(event)
        if receipt is not None:
            self.receipts[receipt.invocation_id] = receipt

    def _hold(self, event: Event) -> None:
        self.held = (*self.held, event)
        self.was_held = True

    # --- the lifecycle

    def _move(self, event: TaskEvent) -> None:
        target = next_state(self.lifecycle, event)
        self.moves.append(Move.model_construct(event=event, from_state=self.lifecycle, to_state=target))
        self.lifecycle = target

    def _end_by(self, error: CommandError) -> None:
        if error.failure.kind is FailureKind.TRANSIENT:
            self._move(TaskEvent.TRANSIENT_ERROR)
            self._end(Ending.FAILED, f"{error} (no retry left)", TaskEvent.MAX_RETRIES_EXCEEDED)
        else:
            self._end(Ending.FAILED, str(error))

    def _end(self, ending: Ending, reason: str, event: TaskEvent | None = None) -> None:
        if ending is Ending.CANCELED:
            # Outside the table, as termination is: from any open state. DESIGN section 6.
            self.lifecycle = TaskState.FAILED
        else:
            self._move(event or _ENDED_BY[ending])
        self.changes["ending"] = ending
        if ending is not Ending.COMPLETED:
            self.changes["reason"] = reason
            self.notes.append(reason)
        self.pending, self.waits, self.held, self.receipts = {}, (), (), {}

    def _send_out(self) -> None:
        """While the task runs, every command that waits for nothing is on its way."""
        if self.lifecycle not in (TaskState.RUNNING, TaskState.RETRYING):
            return
        for id, pending in self.pending.items():
            if not pending.started and pending.due_at is None:
                due_at = None
                if isinstance(pending.command, Sleep):
                    due_at = self.at + timedelta(seconds=pending.command.seconds)
                self._change_pending(id, started=True, due_at=due_at)

    def _change_pending(self, id: str, **fields: object) -> None:
        self.pending[id] = self.pending[id].model_copy(update=fields)

    # --- what comes out

    def snapshot(self) -> Snapshot:
        replaced = {artifact.name for artifact in self.handed_over}
        kept = tuple(artifact for artifact in self.artifacts if artifact.name not in replaced)
        latest = {artifact.name: artifact for artifact in self.handed_over}
        return self.base.changed(
            {
                "seq": self.seq,
                "at": self.at,
                "lifecycle": self.lifecycle,
                "state": self.state,
                "pending": self.pending,
                "waits": self.waits,
                "held": self.held,
                "receipts": self.receipts,
                "messages": (*self.messages, *self.said),
                "artifacts": (*kept, *latest.values()) if latest else self.artifacts,
                "patches": {**self.base.patches, **self.patches} if self.patches else self.base.patches,
                **self.changes,
            }
        )

    def entry(self) -> Entry:
        return Entry.trusted(
            seq=self.seq,
            at=self.at,
            event=self.event,
            refused=self.refused,
            held=self.was_held,
            note="; ".join(self.notes),
            moves=tuple(self.moves),
            commands=tuple(self.issued),
            messages=tuple(message.content for message in self.said),
            artifacts=tuple(self.handed_over),
            progress=self.changes.get("progress"),
            patches=self.patches,
        )


def _backs_off(pending: Pending) -> bool:
    return pending.due_at is not None and not isinstance(pending.command, Sleep)


def _place(error: Exception) -> str:
    """Where the author's code raised, as `file:line in function`."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith("refold.core.")
    ]
    return "at {}:{} in {}".format(*frames[-1]) if frames else ""
