"""Where snapshot and journal entry are written: a `Draft` holds a task's fields while one event changes them.

The modules that handle events read and change a `Draft` and have no state of their own. `Draft.outcome` returns the new
snapshot and the entry, which is where the journal is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.skill import Live, Skill
from refold.core.chat import EMPTY, ToolReturn, UserSaid
from refold.core.commands import (
    CALLED,
    AskApproval,
    AskUser,
    CallChat,
    CallSkill,
    CallTool,
    Command,
    Notify,
    Sleep,
    Undo,
    Undoes,
    result_hash,
)
from refold.core.content import Artifact, Message
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.events import ChatResult, ChildAsked, Event, Forked, Recovered, Result, UserMessage
from refold.core.fold.journal import Backoff, Entry, Issued, as_said, receipt_of, with_latest
from refold.core.fold.snapshot import ANSWERED, CALLS_LIMIT, OPENED, SEEN_LIMIT, UNDO, Compensable, Pending, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import LifecycleMove, Status, TaskEvent, TaskState, next_state
from refold.core.lineage.ids import own_id, place
from refold.core.waits import Wait

RESULTS_STAY = "refold.results_stay"
"""The patch with which results of tools go to the model that asked for them also where the call says more than them."""

CALLS_STAY = "refold.calls_stay"
"""The patch with which a callback's address that was called is remembered longer than other deliveries."""

watcher: ContextVar[Callable[[Draft], None] | None] = ContextVar("watcher", default=None)
"""Called with the draft of each event, once it is complete. Set by `refold.testing.coverage` only."""


class Draft:
    """A task's fields while one event changes them. Made by `apply` for each event.

    Args:
        skill: The task's skill.
        base: The task before the event.
        event: What happened.
        at: When it happened; not earlier than `base.at`.
        live: The cache of the task's running step, if there is one.
        ask_patched: Answers a patch id that was never asked before; not called if `recorded` is given.
        recorded: The patches that were answered when this event was first taken; None if this is the first time.
        skipped: Ids of commands whose final failure is skipped, so that the task sends them again. Used by recovery.
        parks: What else waits goes on at a skipped failure, as it did where that was none; see `PARKED`.
        refold: `apply.fold`, for a recovered task to fold its past again.
    """

    def __init__(
        self,
        skill: Skill,
        base: Snapshot,
        event: Event,
        at: datetime,
        live: Live | None = None,
        ask_patched: Callable[[str], bool] | None = None,
        *,
        recorded: Mapping[str, bool] | None = None,
        skipped: Set[str] = frozenset(),
        parks: bool = False,
        refold: Callable[..., Snapshot] | None = None,
    ) -> None:
        self.skill, self.base, self.event, self.at, self.live = skill, base, event, at, live
        self.seq = base.seq + 1
        self.ask_patched, self.recorded, self.skipped, self.refold = ask_patched, recorded, skipped, refold
        # Fields of the snapshot that most events change; `changes` holds new values of the other fields, by name.
        self.lifecycle = base.lifecycle
        self.state = base.state
        self.pending = dict(base.pending)
        self.waits = base.waits
        self.held = base.held
        self.early = base.early
        self.receipts = dict(base.receipts)
        self.threads = base.threads
        self.message: Message | None = None
        self.done = base.done
        self.redo = base.redo
        self.changes: dict[str, Any] = {}
        # The entry.
        self.refused = ""
        self.was_held = False
        self.notes: list[str] = []
        self.moves: list[LifecycleMove] = []
        self.issued: list[Issued] = []
        self.backoffs: list[Backoff] = []
        self.said: list[Message] = []
        self.artifacts: list[Artifact] = []
        self.progress: str | None = None
        self.patches: dict[str, bool] = {}
        self.audit: tuple[StateTransitionEvent, ...] = ()
        self.killed_by: str | None = None
        self.parks, self.parked = parks, ""
        # For `watcher` alone.
        self.cells: list[tuple[str, str, str]] = []
        self.entered: list[str] = []

    # --- what is known

    @property
    def redone(self) -> list[str]:
        """The ids of the compensated effects that are to be performed again, in the order of their places."""
        effects = [id for id, one in self.pending.items() if one.background and not isinstance(one.command, Notify)]
        return sorted(effects, key=lambda id: [int(number) for number in place(id).split(".")])

    @property
    def redoing(self) -> bool:
        """Whether a compensated effect is being performed again. Until it is done, the skill is not called."""
        return bool(self.redone)

    @property
    def races_end_early(self) -> bool:
        """Whether an outcome ends its race now, and the skill is called with the outcome later (`Redo.lost`)."""
        return self.redo is not None and self.redo.lost is not None and self.redoing

    def patched(self, patch: str, again: bool = False) -> bool:
        """The answer of `ctx.patched`; `again`: the step that asks is driven again. The fold asks for its own, too."""
        known = self.base.patches.get(patch, self.patches.get(patch))
        if known is not None:
            return known
        if self.recorded is not None:
            if patch not in self.recorded:
                return False  # older code took this event, and did not know the patch
            answer = self.recorded[patch]
        else:
            # A step that is driven again passed here before, with code that did not ask for this patch.
            answer = not again and self.ask_patched is not None and self.ask_patched(patch)
        self.patches[patch] = answer
        return answer

    # --- the lifecycle

    def move(self, event: TaskEvent) -> None:
        """Change the lifecycle state as the table in `core/lifecycle.py` says, and note the move in the entry."""
        target = next_state(self.lifecycle, event)
        self.moves.append(LifecycleMove.trusted(event=event, from_state=self.lifecycle, to_state=target))
        self.lifecycle = target

    # --- commands

    def issue(self, command: Command) -> None:
        """Add a command of the skill: open it if it is a question or gate, else make it pending."""
        moved = 0
        if isinstance(command, CallChat):
            command = self._framed(command)
            moved = self._moved(command)
        id = self._next_id(command)
        if isinstance(command, AskUser | AskApproval):
            self.waits = (*self.waits, Wait.trusted(gate=id, ask=command, since=self.at))
            self.said.append(Message.trusted(role="agent", content=command.message, seq=self.seq))
        else:
            self.pending[id] = Pending.trusted(invocation_id=id, command=command, moved=moved)

    def issue_reminder(self, notify: Notify) -> None:
        """Add a reminder and start it at once, although the task is paused."""
        id = self._next_id(notify)
        self.pending[id] = Pending.trusted(invocation_id=id, command=notify, started=True, background=True)

    def announce(self) -> None:
        """Tell the approvers of the gates that this event opened, or opened again, where the policy says so."""
        if not self.waits:
            return
        opened = {one.invocation_id for one in self.issued}
        if isinstance(self.event, Recovered) or (isinstance(self.event, Forked) and self.event.live):
            opened |= {wait.gate for wait in self.base.waits}
        for gate, ask in [(wait.gate, wait.ask) for wait in self.waits if wait.gate in opened]:
            if isinstance(ask, AskApproval) and ask.policy.notify_at_open:
                # Not numbered: the ids of the skill's own commands are the same with and without it.
                id, told = own_id(self.base.task_id, gate) + OPENED, notification(gate, ask, opened=True)
                self.issued.append(Issued.trusted(invocation_id=id, command=told))
                self.pending[id] = Pending.trusted(invocation_id=id, command=told, started=True, background=True)

    def issue_undo(self, effect: Compensable) -> None:
        """Add the command that compensates an effect."""
        id = effect.invocation_id + UNDO
        self.issued.append(Issued.trusted(invocation_id=id, command=effect.undo))
        self.pending[id] = Pending.trusted(invocation_id=id, command=effect.undo, started=True, background=True)

    def _next_id(self, command: Command) -> str:
        id = f"{self.base.task_id}/{self.seq}.{len(self.issued) + 1}"
        self.issued.append(Issued.trusted(invocation_id=id, command=command))
        return id

    def _framed(self, chat: CallChat) -> CallChat:
        """The call without its frame if the thread has the same, so that the journal stores instructions once."""
        thread = self.threads.get(chat.thread, EMPTY)
        if chat.frame == thread.frame:
            return chat.model_copy(update={"frame": None})
        if chat.frame is not None:
            self.threads = {**self.threads, chat.thread: thread.changed({"frame": chat.frame})}
        return chat

    def _moved(self, chat: CallChat) -> int:
        """The place of the model that is asked first: results of tools go to the model that asked for them."""
        moved = min(self.threads.get(chat.thread, EMPTY).moved, len(chat.fallbacks))
        if not moved or not any(isinstance(one, UserSaid) for one in chat.say):
            return moved
        has_results = any(isinstance(one, ToolReturn) for one in chat.say)
        return moved if has_results and self.patched(RESULTS_STAY) else 0

    def change_pending(self, id: str, **fields: object) -> None:
        """Change fields of a pending command."""
        self.pending[id] = self.pending[id].changed(fields)

    def back_off(self, pending: Pending, wait_s: float, failure: str) -> None:
        """Schedule a command's next attempt, in `wait_s` seconds."""
        due_at = self.at + timedelta(seconds=wait_s)
        self.change_pending(pending.invocation_id, started=False, due_at=due_at, failure=failure, decided=False)
        self.backoffs.append(Backoff(invocation_id=pending.invocation_id, retry=pending.attempt, due_at=due_at))

    def send_out(self) -> None:
        """Start the commands that may start: of a paused task its timers, of a running or retrying task all commands.

        While compensated effects are performed again, only the oldest one starts: the others may depend on its outcome.
        """
        if self.lifecycle not in (TaskState.RUNNING, TaskState.RETRYING, TaskState.PAUSED):
            return
        redone = self.redone
        first = redone[:1] if self.redo is not None and self.redo.in_turn else redone
        for id, pending in self.pending.items():
            if pending.started or pending.due_at is not None or (redone and id not in first):
                continue
            if isinstance(pending.command, Sleep):
                self.change_pending(id, started=True, due_at=self.at + timedelta(seconds=pending.command.seconds))
            elif self.lifecycle is not TaskState.PAUSED:
                within_s = pending.command.timeout_s if isinstance(pending.command, CallSkill) else None
                until = None if within_s is None else self.at + timedelta(seconds=within_s)
                self.change_pending(id, started=True, until=until)

    # --- outcomes

    def withdraw(self, ids: Sequence[str]) -> None:
        """Close questions and drop commands that nobody awaits any more, with their reminders and held outcomes."""
        if not (gone := set(ids)):
            return
        for id, one in list(self.pending.items()):
            # Not `isinstance`, which is slow in Temporal's sandbox, and there may be a thousand commands.
            if id in gone or (type(one.command) is Notify and one.command.gate in gone):
                del self.pending[id]
        self.waits = tuple(wait for wait in self.waits if wait.gate not in gone)
        self.held = tuple(event for event in self.held if answered(event)[0] not in gone)

    def hold(self, *events: Event) -> None:
        """Hold events until the task runs again."""
        self.held = (*self.held, *events)
        self.was_held = self.was_held or bool(events)

    def keep_receipt(self, event: Event) -> None:
        """Record a command's outcome for the skill to read."""
        receipt = receipt_of(event)
        if receipt is not None:
            self.receipts[receipt.invocation_id] = receipt

    def keep_reply(self, pending: Pending, result: Result) -> None:
        """Add a chat's messages and the model's reply to its thread. Does nothing for other results."""
        if isinstance(pending.command, CallChat) and isinstance(result, ChatResult):
            chat = pending.command
            thread = self.threads.get(chat.thread, EMPTY).after([*chat.say, result.reply])
            self.threads = {**self.threads, chat.thread: thread.changed({"moved": pending.moved})}

    def keep_undo(self, pending: Pending, result: Result) -> None:
        """Record the compensation of an effect that has taken place, if the effect has one."""
        command = pending.command
        if not isinstance(command, CallTool) or command.undo is None:
            return
        id = pending.invocation_id
        if any(one.background and again != id and place(again) == place(id) for again, one in self.pending.items()):
            return  # this effect was compensated, and is being performed again under another id
        self.done = (*self.done, to_undo(id, command, command.undo, result.value))

    @property
    def seen(self) -> Mapping[str, int]:
        """`Snapshot.seen`, as of now."""
        seen: Mapping[str, int] = self.changes.get("seen", self.base.seen)
        return seen

    def note_answer(self, ask: AskUser) -> None:
        """Note in `seen` that the address of a callback has answered its question, if this question has one."""
        if ask.callback is not None:
            oldest = _answers(self.seen)[: 1 - CALLS_LIMIT]
            others = {id: seq for id, seq in self.seen.items() if id not in oldest}
            self.changes["seen"] = {**others, ANSWERED + ask.callback.digest: self.seq}

    def note_message(self, message: UserMessage) -> None:
        """Add a user's message to the task's messages, and its delivery id to `seen`, so that it is taken once."""
        if not message.called_back:
            self.message = as_said(message, self.seq)
        if message.delivery_id is not None:
            self.changes["seen"] = self._newest({**self.base.seen, message.delivery_id: self.seq})

    def _newest(self, seen: Mapping[str, int]) -> Mapping[str, int]:
        ids = [id for id in seen if not id.startswith(ANSWERED)]
        older = [id for id in ids[:-SEEN_LIMIT] if id.startswith(CALLED)]
        kept = older[-CALLS_LIMIT:] if older and self.patched(CALLS_STAY) else []
        return {id: seen[id] for id in [*_answers(seen), *kept, *ids[-SEEN_LIMIT:]]}

    def interruption(self) -> UserMessage | None:
        """Take the oldest early message that may interrupt the task; None if there is none."""
        found = next((one for one in self.early if one.early == "interrupt" and not (one.slot or one.gate)), None)
        if found is not None:
            self.early = tuple(one for one in self.early if one is not found)
            self.notes.append("a message interrupts the task")
        return found

    # --- the result

    def outcome(self) -> tuple[Snapshot, Entry]:
        """The task after the event, and the event's journal entry."""
        after = self._snapshot()
        status = after.status
        if status is self.base.status:
            return after, self._entry(after, None)
        return after.changed({"status_at": self.at}), self._entry(after, status)

    def _snapshot(self) -> Snapshot:
        changes = self.changes
        if self.artifacts:
            changes["artifacts"] = with_latest(self.base.artifacts, self.artifacts)
        if self.patches:
            changes["patches"] = {**self.base.patches, **self.patches}
        if self.progress is not None:
            changes["progress"] = self.progress
        new = self.said if self.message is None else [self.message, *self.said]
        # Not `(*messages, *new)`, which copies twice, into a list and a tuple: a task may have ten thousand messages.
        return self.base.changed({
            "seq": self.seq, "at": self.at, "lifecycle": self.lifecycle, "state": self.state, "pending": self.pending,
            "waits": self.waits, "held": self.held, "early": self.early, "receipts": self.receipts,
            "threads": self.threads, "done": self.done, "redo": self.redo,
            "messages": self.base.messages + tuple(new), **changes,
        })  # fmt: skip

    def _entry(self, after: Snapshot, status: Status | None) -> Entry:
        return Entry.trusted(
            seq=self.seq,
            at=self.at,
            event=self.event,
            refused=self.refused,
            held=self.was_held,
            note="; ".join(self.notes),
            moves=tuple(self.moves),
            commands=tuple(self.issued),
            backoffs=tuple(self.backoffs),
            messages=tuple(message.content for message in self.said),
            artifacts=tuple(self.artifacts),
            progress=self.progress,
            patches=self.patches,
            cause=self.killed_by,
            status=status,
            reason=self.changes.get("reason", ""),
            closed=self._closed(after),
            audit=self.audit,
        )

    def _closed(self, after: Snapshot) -> tuple[str, ...]:
        """The questions that were open before the event, or asked with it, and are not open after it."""
        before = [wait.gate for wait in self.base.open_waits]
        before += [one.invocation_id for one in self.issued if isinstance(one.command, AskUser | AskApproval)]
        if isinstance(self.event, ChildAsked) and not self.refused:
            before += [wait.gate for wait in self.event.waits if wait.gate not in before]
        if not before:
            return ()
        still = {wait.gate for wait in after.open_waits}
        return tuple(gate for gate in before if gate not in still)


def _answers(seen: Mapping[str, int]) -> list[str]:
    return [id for id in seen if id.startswith(ANSWERED)]


def answered(event: Event) -> tuple[str | None, str | None]:
    """The id and the name of the question or command whose outcome an event is; None for other events."""
    if isinstance(event, UserMessage | DecisionMade):
        return event.gate, event.slot
    return getattr(event, "invocation_id", None), getattr(event, "id", None)


def notification(gate: str, ask: AskApproval, *, opened: bool) -> Notify:
    """The notification of a gate's approvers: that it opened, or that it waits for them."""
    return Notify(
        id=f"{'announce' if opened else 'remind'} {ask.slot}",
        gate=gate,
        message=ask.message,
        show=ask.show,
        approvers=ask.policy.approvers,
        opened=opened,
    )


def to_undo(id: str, command: CallTool, undo: Undo, result: JsonValue) -> Compensable:
    """An effect that took place, with the command that compensates it."""
    known = {**command.args, "result": result}
    args = {name: known[name] for name in undo.takes if name in known}
    undoes = Undoes(
        tool=command.name, invocation_id=id, key=command.key, key_scope=command.key_scope, result=result_hash(result)
    )
    undoing = CallTool(id=f"undo {command.id}", name=undo.name, args=args, queue=command.queue, undoes=undoes)
    return Compensable(invocation_id=id, command=command, undo=undoing)
