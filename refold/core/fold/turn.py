"""One turn of the fold: what becomes of a task when one event is taken.

The order of things: the event is refused, or taken; the skill is called with it and with what was held, for as long
as the task is running; what the skill answers is applied; commands that may go out are marked so.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import cast

from pydantic import JsonValue

from refold.core.authoring.skill import Live, Moment, Skill
from refold.core.authoring.tool import skill_at_work
from refold.core.authoring.transition import UNCHANGED, Transition
from refold.core.chat import EMPTY, UserSaid
from refold.core.commands import (
    AskApproval,
    AskUser,
    CallActivity,
    CallChat,
    CallLlm,
    CallTool,
    Command,
    Notify,
    Sleep,
    Undo,
    Undoes,
    result_hash,
    retry_of,
)
from refold.core.content import Artifact, Message
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.errors import CommandError, DecodeError, SkillError
from refold.core.events import (
    EVENT,
    RESULT_TYPES,
    BackoffOver,
    CancelRequested,
    ChatResult,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    GraceOver,
    Recovered,
    ReminderDue,
    Result,
    UserMessage,
)
from refold.core.fold import at_gates, early, when_blocked
from refold.core.fold import ending as after_end
from refold.core.fold.journal import Backoff, Entry, Issued, receipt_of
from refold.core.fold.refusal import open_wait, refusal
from refold.core.fold.snapshot import SEEN_LIMIT, Done, Pending, Receipt, ReceiptStatus, Snapshot, status_of
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TERMINAL, Ending, Move, Status, TaskEvent, TaskState, next_state
from refold.core.retry import FailureKind, RetryPolicy
from refold.core.waits import Wait

_ENDED_BY = {
    Ending.COMPLETED: TaskEvent.COMPLETE,
    Ending.FAILED: TaskEvent.FATAL_ERROR,
    Ending.REJECTED: TaskEvent.FATAL_ERROR,
}


class Turn:
    """Working copies of what one event changes, and the entry in the making.

    Args:
        skill: The task's skill.
        base: The task as it was before.
        event: What happened.
        at: When; not earlier than `base.at`.
        live: The cache of this task, if there is one.
        ask_patched: Answers a patch id that was never asked before; not asked where `recorded` is given.
        recorded: What was answered in this turn when it was first taken; None where it is taken for the first time.
        without: Commands whose final failure nobody hears of: they are to be asked for again.
    """

    def __init__(
        self,
        skill: Skill,
        base: Snapshot,
        event: Event,
        at: datetime,
        live: Live | None,
        ask_patched: Callable[[str], bool] | None,
        *,
        recorded: Mapping[str, bool] | None = None,
        without: Set[str] = frozenset(),
    ) -> None:
        self.skill, self.base, self.event, self.at, self.live = skill, base, event, at, live
        self.seq = base.seq + 1
        self.ask_patched, self.recorded, self.without = ask_patched, recorded, without
        self.changes: dict[str, object] = {}
        self.lifecycle = base.lifecycle
        self.state = base.state
        self.pending = dict(base.pending)
        self.waits = base.waits
        self.held = base.held
        self.early = base.early
        self.receipts = dict(base.receipts)
        self.threads = base.threads
        self.messages = base.messages
        self.done = base.done
        # the entry
        self.refused = ""
        self.was_held = False
        self.notes: list[str] = []
        self.moves: list[Move] = []
        self.issued: list[Issued] = []
        self.backoffs: list[Backoff] = []
        self.said: list[Message] = []
        self.handed_over: list[Artifact] = []
        self.progress: str | None = None
        self.patches: dict[str, bool] = {}
        self.audit: tuple[StateTransitionEvent, ...] = ()
        self.cause: str | None = None

    # --- what came in

    def take(self) -> None:
        """Take the event, or refuse it."""
        self.refused = refusal(self.skill, self.base, self.event)
        if self.refused:
            self.changes["refused"] = self.base.refused + 1
            return
        if self.base.ended:
            after_end.take(self)
            return
        match self.event:
            case UserMessage() as message:
                self._heard(message)
            case CommandFailed() as failed:
                self._came_back_failed(failed)
            case BackoffOver(invocation_id=id):
                blocked = self.pending[id].blocked
                self.change_pending(id, retries=self.pending[id].retries + 1, due_at=None, started=blocked)
                if not blocked and not any(_backs_off(command) for command in self.pending.values()):
                    self.move(TaskEvent.RETRY)
                    self.run([])
            case ChildAsked(invocation_id=id, waits=waits):
                gates = {wait.gate for wait in waits}
                answers = tuple(answer for answer in self.pending[id].answers if answer.gate in gates)
                answered = {answer.gate for answer in answers}
                asks = tuple(wait for wait in waits if wait.gate not in answered)
                self.change_pending(id, asks=asks, answers=answers)
            case CancelRequested(reason=reason):
                self.end(Ending.CANCELED, reason or "canceled on request")
            case DecisionMade() as decision:
                at_gates.decided(self, decision)
            case ReminderDue(gate=gate):
                at_gates.remind(self, gate)
            case GateTimedOut(gate=gate):
                at_gates.timed_out(self, gate)
            case DependencyResolved() as resolved:
                when_blocked.resolved(self, resolved)
            case Recovered(again=again, by=by):
                self._go_on(None if again is None else EVENT.validate_python(again), by)
            case Forked(by=by):
                self._go_on(None, by)
            case GraceOver():
                raise AssertionError("refused while the task is open")
            case result:
                self._came_back(result)
        early.meet(self)
        self.send_out()

    def _came_back(self, result: Result) -> None:
        pending = self.pending.pop(result.invocation_id)
        if isinstance(pending.command, Notify):
            return
        self.keep_undo(pending, result)
        self.hear(pending, result)
        if pending.blocked:
            when_blocked.release(self)
        if pending.aside:  # done again: the skill has had its outcome, and waited for this alone
            self.run([])
            return
        self.keep_receipt(result)
        self.run([result])

    def _go_on(self, again: Event | None, by: str | None) -> None:
        """Begin where another task was, with an event that it had and that is delivered once more."""
        if by is not None and by not in self.base.started_by:
            self.changes["started_by"] = (*self.base.started_by, by)
        self.move(TaskEvent.START)
        if self.waits:
            self.move(TaskEvent.PAUSE_FOR_APPROVAL)
        match again:
            case None:
                self.run([])
            case UserMessage() as message if self.waits:
                self._heard(message)
            case UserMessage() as first:
                self._note_message(first)
                self.run([first])
            case DecisionMade() as decision:
                at_gates.decided(self, decision)
            case result if isinstance(result, RESULT_TYPES):
                self._came_back(result)
            case other:
                raise AssertionError(f"{other.kind} is never delivered again")

    def _heard(self, message: UserMessage) -> None:
        self._note_message(message)
        if self.lifecycle is TaskState.PLANNED:
            self.move(TaskEvent.START)
            self.run([message])
            return
        asked = any(isinstance(wait.ask, AskUser) for wait in self.base.open_waits)
        if message.early and not asked:
            early.keep(self, message)
            return
        answered = open_wait(self.base, message)
        if answered in self.waits:
            self.answer(answered, message)
        else:
            self._pass_on(message, answered)

    def answer(self, asked: Wait, message: UserMessage) -> None:
        """Close one of the task's own questions, and go on with its answer."""
        self.waits = tuple(wait for wait in self.waits if wait.gate != asked.gate)
        self.receipts[asked.gate] = Receipt.trusted(
            invocation_id=asked.gate, status=ReceiptStatus.OK, outcome=message.content.model_dump(mode="json")
        )
        reply = message.model_copy(update={"slot": asked.slot, "gate": asked.gate})
        if self.waits:  # the task leaves `paused` with the last answer; this one is met then
            self.hold(reply)
            return
        self.answered(reply)

    def _note_message(self, message: UserMessage) -> None:
        said = Message.trusted(
            role="user",
            content=message.content,
            seq=self.seq,
            id=message.message_id,
            delivery_id=message.delivery_id,
        )
        self.messages = (*self.messages, said)
        if message.delivery_id is not None:
            seen = {**self.base.seen, message.delivery_id: self.seq}
            self.changes["seen"] = dict(list(seen.items())[-SEEN_LIMIT:])

    def answered(self, reply: UserMessage | DecisionMade) -> None:
        """Go on with the last answer: earlier ones first, then what was held."""
        self.move(TaskEvent.APPROVAL_GRANTED)
        replies = [event for event in self.held if isinstance(event, UserMessage | DecisionMade)]
        self.held = tuple(event for event in self.held if not isinstance(event, UserMessage | DecisionMade))
        self.run([*replies, reply])

    def _pass_on(self, message: UserMessage, answered: Wait) -> None:
        """Keep the answer for the part that asked, until it says that it waits for it no more."""
        for id, pending in self.pending.items():
            if answered in pending.asks:
                asks = tuple(wait for wait in pending.asks if wait.gate != answered.gate)
                # The gate is the delivery's id: however often it is passed on, it is taken once.
                answer = UserMessage(content=message.content, gate=answered.gate, delivery_id=answered.gate)
                self.change_pending(id, asks=asks, answers=(*pending.answers, answer))
                return

    def _came_back_failed(self, failed: CommandFailed) -> None:
        pending = self.pending[failed.invocation_id]
        if isinstance(pending.command, Notify):
            # The gate waits on; a reminder that cannot be sent is no reason to fail a task.
            del self.pending[failed.invocation_id]
            self.notes.append(f"not reminded: {failed.failure.message}")
            return
        match self.lifecycle:
            case TaskState.RUNNING if pending.aside:
                self.failed(failed)
            case TaskState.RUNNING:
                self.run([failed])
            case TaskState.RETRYING:
                if self._may_retry(failed):
                    self.retry(failed)
                else:
                    self.hold(failed)
            case TaskState.BLOCKED if pending.blocked:
                when_blocked.probed(self, failed)
            case _:
                # Classified when released: a retry could not go out now anyway.
                self.change_pending(failed.invocation_id, failure=failed.failure.message, asks=(), answers=())
                self.hold(failed)

    # --- calling the skill

    def run(self, events: Sequence[Event]) -> None:
        """Give the skill these events and then the held ones, for as long as the task is running."""
        self._meet_failures_of_doing_again()
        if self.lifecycle is not TaskState.RUNNING or self._does_again():
            self.held = (*self.held, *events)
            self.was_held = bool(events)
            return
        queue = deque([*events, *self.held])
        held_before = len(self.held)
        while queue and self.lifecycle is TaskState.RUNNING:
            event = queue.popleft()
            if isinstance(event, CommandFailed):
                self.failed(event)
            else:
                self.call(event)
        if self.lifecycle in TERMINAL:
            return
        self.held = tuple(queue)
        self.was_held = len(queue) > held_before
        if self.lifecycle is TaskState.RUNNING and all(pending.aside for pending in self.pending.values()):
            where = self.skill.where(self.state)
            self.end(
                Ending.FAILED,
                f"stalled: {where!r} answered {self.event.kind} without asking for anything, waiting or ending",
            )

    def _meet_failures_of_doing_again(self) -> None:
        """Failures that came while the task was no more running, for what the skill itself is waiting for."""
        for event in self.held:
            if self.lifecycle is not TaskState.RUNNING:
                return
            if isinstance(event, CommandFailed) and self.pending[event.invocation_id].aside:
                self.held = tuple(one for one in self.held if one is not event)
                self.failed(event)

    def _does_again(self) -> bool:
        """Whether an effect that was undone is being done again: the skill relies on it, and waits till it is."""
        return any(pending.aside and not isinstance(pending.command, Notify) for pending in self.pending.values())

    def failed(self, event: CommandFailed) -> None:
        """Try a failed command again, or block; else let the skill have it."""
        if self._may_retry(event):
            self.retry(event)
            self.move(TaskEvent.TRANSIENT_ERROR)
            return
        if self.pending[event.invocation_id].given is not None and event.failure.kind is not FailureKind.UNKNOWN:
            when_blocked.take_at_word(self, event)
            return
        if self._should_block(event):
            when_blocked.block(self, event)
            return
        if event.invocation_id in self.without:
            self.change_pending(event.invocation_id, started=False)
            return
        if self.pending.pop(event.invocation_id).aside:
            self._end_by(CommandError(event.id, event.invocation_id, event.failure))
            return
        self.keep_receipt(event)
        self.call(event)

    def _may_retry(self, event: CommandFailed) -> bool:
        pending = self.pending[event.invocation_id]
        policy = self.policy(event.invocation_id)
        counted = pending.retries - pending.forgiven
        return event.failure.kind is FailureKind.TRANSIENT and counted < policy.max_retries

    def _should_block(self, event: CommandFailed) -> bool:
        policy = self.policy(event.invocation_id)
        # A part, or a child workflow, is never run a second time under its id: there is nothing to decide.
        repeatable = isinstance(self.pending[event.invocation_id].command, CallLlm | CallChat | CallTool | CallActivity)
        exhausted = event.failure.kind is FailureKind.TRANSIENT and policy.on_exhausted == "block"
        return repeatable and (exhausted or event.failure.kind is FailureKind.UNKNOWN)

    def policy(self, invocation_id: str) -> RetryPolicy:
        """How a pending command is tried again."""
        return retry_of(self.pending[invocation_id].command, self.skill.options.retry)

    def retry(self, event: CommandFailed) -> None:
        pending, failure = self.pending[event.invocation_id], event.failure
        policy = self.policy(event.invocation_id)
        retry = pending.retries + 1
        wait = policy.delay(retry, pending.invocation_id, failure.retry_after)
        due_at = self.at + timedelta(seconds=wait)
        self.change_pending(pending.invocation_id, started=False, due_at=due_at, failure=failure.message, decided=False)
        self.backoffs.append(Backoff(invocation_id=pending.invocation_id, retry=retry, due_at=due_at))
        self.notes.append(f"{event.id}: {failure.message}; retry {retry} of {policy.max_retries} in {wait:g} s")

    def call(self, event: Event) -> None:
        moment = Moment(
            task_id=self.base.task_id,
            seq=self.seq,
            at=self.at,
            issued=len(self.issued),
            receipts=self.receipts,
            messages=self.messages,
            threads=self.threads,
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
            self.end(Ending.FAILED, str(error))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the author's code raises fails this one task
            self.end(Ending.FAILED, f"bug: {type(error).__name__}: {error}")
            self.notes.append(_place(error))
        finally:
            skill_at_work.reset(at_work)

    def _patched(self, patch: str, again: bool) -> bool:
        known = self.base.patches.get(patch, self.patches.get(patch))
        if known is not None:
            return known
        if self.recorded is not None:
            if patch not in self.recorded:
                return False  # older code took this turn, and did not know the patch
            answer = self.recorded[patch]
        else:
            # A step that is driven again was here before, with code that did not ask.
            answer = not again and self.ask_patched is not None and self.ask_patched(patch)
        self.patches[patch] = answer
        return answer

    # --- what the skill answered

    def _apply(self, transition: Transition) -> None:
        self._check(transition)
        self.audit += transition.audit
        if transition.forgets:
            self.receipts = {}
        if transition.state is not UNCHANGED:
            self.state = transition.state
        if transition.progress is not None:
            self.progress = transition.progress
        self.said += [Message.trusted(role="agent", content=content, seq=self.seq) for content in transition.messages]
        self.handed_over += transition.artifacts
        for command in transition.commands:
            self.issue(command)
        if transition.uncaught is not None:
            raise transition.uncaught
        if transition.ending is not None:
            self.end(transition.ending, transition.reason)
        elif self.waits:
            self.move(TaskEvent.PAUSE_FOR_APPROVAL)

    def _check(self, transition: Transition) -> None:
        if transition.ending is Ending.REJECTED and self.base.lifecycle is not TaskState.PLANNED:
            raise SkillError("a skill rejects a task in answer to its first message only; use `fail` later on")
        if transition.ending is not None and transition.commands:
            raise SkillError(
                f"the task ends, and asks for {transition.commands[0].id!r} all the same: nobody would wait for it; "
                "end when it has come back"
            )
        taken = {pending.command.id for pending in self.pending.values()} | {wait.slot for wait in self.waits}
        for command in transition.commands:
            if command.id in taken:
                raise SkillError(
                    f"two commands with the id {command.id!r} are in flight at once; give each its own id, "
                    "or wait for the first one"
                )
            taken.add(command.id)
        self._check_threads(transition.commands)

    def _check_threads(self, commands: Sequence[Command]) -> None:
        going = {
            pending.command.thread: pending.command.id
            for pending in self.pending.values()
            if isinstance(pending.command, CallChat)
        }
        for chat in commands:
            if not isinstance(chat, CallChat):
                continue
            if chat.thread in going:
                raise SkillError(
                    f"chat {chat.id!r} goes on with thread {chat.thread!r} while {going[chat.thread]!r} waits for a "
                    "reply in it; wait for that one, or give each its own `thread=`"
                )
            going[chat.thread] = chat.id
            said = (*self.threads.get(chat.thread, EMPTY).said, *chat.say)
            if not said:
                raise SkillError(f"chat {chat.id!r} begins thread {chat.thread!r} and says nothing in it: give `say=`")
            if chat.since and not (chat.since < len(said) and isinstance(said[chat.since], UserSaid)):
                raise SkillError(
                    f"chat {chat.id!r} shows thread {chat.thread!r} since turn {chat.since}, where the user says "
                    f"nothing; a model can begin to read there only ({len(said)} turns)"
                )

    def issue(self, command: Command) -> None:
        id = f"{self.base.task_id}/{self.seq}.{len(self.issued) + 1}"
        if isinstance(command, CallChat):
            command = self._framed(command)
        self.issued.append(Issued.trusted(invocation_id=id, command=command))
        if isinstance(command, AskUser | AskApproval):
            self.waits = (*self.waits, Wait.trusted(gate=id, ask=command, since=self.at))
            self.said.append(Message.trusted(role="agent", content=command.message, seq=self.seq))
        else:
            self.pending[id] = Pending.trusted(invocation_id=id, command=command)

    def _framed(self, chat: CallChat) -> CallChat:
        """The call without its frame where the thread has it already: instructions would be journaled each time."""
        thread = self.threads.get(chat.thread, EMPTY)
        if chat.frame == thread.frame:
            return chat.model_copy(update={"frame": None})
        if chat.frame is not None:
            self.threads = {**self.threads, chat.thread: thread.framed(chat.frame)}
        return chat

    def hear(self, pending: Pending, result: Result) -> None:
        """Keep what was said in a conversation."""
        if isinstance(pending.command, CallChat) and isinstance(result, ChatResult):
            chat = pending.command
            thread = self.threads.get(chat.thread, EMPTY).after([*chat.say, result.reply])
            self.threads = {**self.threads, chat.thread: thread}

    def keep_receipt(self, event: Event) -> None:
        receipt = receipt_of(event)
        if receipt is not None:
            self.receipts[receipt.invocation_id] = receipt

    def keep_undo(self, pending: Pending, result: Result) -> None:
        """Remember how an effect is undone, now that it took place."""
        command = pending.command
        if not isinstance(command, CallTool) or command.undo is None:
            return
        id = pending.invocation_id
        if any(one.aside and again.startswith(f"{id}~") for again, one in self.pending.items()):
            return  # it was undone, and is done again under another id
        self.done = (*self.done, to_undo(id, command, command.undo, result.value))

    def hold(self, *events: Event) -> None:
        """Keep events until the task runs again."""
        self.held = (*self.held, *events)
        self.was_held = bool(events)

    # --- the lifecycle

    def move(self, event: TaskEvent) -> None:
        target = next_state(self.lifecycle, event)
        self.moves.append(Move.trusted(event=event, from_state=self.lifecycle, to_state=target))
        self.lifecycle = target

    def _end_by(self, error: CommandError) -> None:
        if not isinstance(error, DecodeError):  # no failure of the command: better code reads the same value
            self.cause = error.invocation_id
        if error.failure.kind is FailureKind.TRANSIENT:
            self.move(TaskEvent.TRANSIENT_ERROR)
            self.end(Ending.FAILED, f"{error} (no retry left)", TaskEvent.MAX_RETRIES_EXCEEDED)
        else:
            self.end(Ending.FAILED, str(error))

    def end(self, ending: Ending, reason: str, event: TaskEvent | None = None) -> None:
        if ending is Ending.CANCELED:
            # Outside the table, as termination is: from any open state. DESIGN section 6.
            self.lifecycle = TaskState.FAILED
        else:
            self.move(event or _ENDED_BY[ending])
        self.changes["ending"] = ending
        if ending is Ending.COMPLETED:
            self.done = ()
        reason = _ADDRESS.sub("", reason)
        if ending is not Ending.COMPLETED:
            self.changes["reason"] = reason
            self.notes.append(reason)
        after_end.let_go(self, ending)
        if self.early:
            self.notes.append(f"nobody asked for {len(self.early)} of the messages that came")
        self.waits, self.held, self.early, self.receipts = (), (), (), {}
        after_end.undo_next(self)

    def send_out(self) -> None:
        """While the task runs, every command that waits for nothing is on its way."""
        if self.lifecycle not in (TaskState.RUNNING, TaskState.RETRYING):
            return
        for id, pending in self.pending.items():
            if not pending.started and pending.due_at is None:
                due_at = None
                if isinstance(pending.command, Sleep):
                    due_at = self.at + timedelta(seconds=pending.command.seconds)
                self.change_pending(id, started=True, due_at=due_at)

    def change_pending(self, id: str, **fields: object) -> None:
        self.pending[id] = self.pending[id].model_copy(update=fields)

    # --- what comes out

    def snapshot(self) -> Snapshot:
        """The task as it is now."""
        changes = self.changes
        if self.handed_over:
            latest = {artifact.name: artifact for artifact in self.handed_over}
            kept = (artifact for artifact in self.base.artifacts if artifact.name not in latest)
            changes["artifacts"] = (*kept, *latest.values())
        if self.patches:
            changes["patches"] = {**self.base.patches, **self.patches}
        if self.progress is not None:
            changes["progress"] = self.progress
        status = self._new_status()
        if status is not None:
            changes["status_at"] = self.at
        return self.base.changed(
            {
                "seq": self.seq,
                "at": self.at,
                "lifecycle": self.lifecycle,
                "state": self.state,
                "pending": self.pending,
                "waits": self.waits,
                "held": self.held,
                "early": self.early,
                "receipts": self.receipts,
                "threads": self.threads,
                "done": self.done,
                "messages": (*self.messages, *self.said),
                **changes,
            }
        )

    def entry(self) -> Entry:
        """What happened, for the journal."""
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
            artifacts=tuple(self.handed_over),
            progress=self.progress,
            patches=self.patches,
            cause=self.cause,
            status=self._new_status(),
            reason=cast("str", self.changes.get("reason", "")),
            closed=self._closed(),
            audit=self.audit,
        )

    def _new_status(self) -> Status | None:
        """What the outside sees now, where it is not what it saw before."""
        ending = cast("Ending | None", self.changes.get("ending", self.base.ending))
        status = status_of(self.lifecycle, ending, self.waits, self._asked_by_parts())
        return None if status is self.base.status else status

    def _asked_by_parts(self) -> tuple[Wait, ...]:
        return tuple(wait for pending in self.pending.values() for wait in pending.asks)

    def _closed(self) -> tuple[str, ...]:
        before = [wait.gate for wait in self.base.open_waits]
        before += [one.invocation_id for one in self.issued if isinstance(one.command, AskUser | AskApproval)]
        if not before:
            return ()
        gates = {wait.gate for wait in (*self.waits, *self._asked_by_parts())}
        return tuple(gate for gate in before if gate not in gates)


def to_undo(id: str, command: CallTool, undo: Undo, result: JsonValue) -> Done:
    """An effect that took place, and the command that undoes it."""
    known = {**command.args, "result": result}
    args = {name: known[name] for name in undo.takes if name in known}
    undoes = Undoes(tool=command.name, invocation_id=id, key=command.key, result=result_hash(result))
    undoing = CallTool(id=f"undo {command.id}", name=undo.name, args=args, queue=command.queue, undoes=undoes)
    return Done(invocation_id=id, command=command, undo=undoing)


def _backs_off(pending: Pending) -> bool:
    return pending.due_at is not None and not pending.blocked and not isinstance(pending.command, Sleep)


# `<object at 0x7f…>` is another one in each process; a journal is the same in all.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_STDLIB = sysconfig.get_path("stdlib")


def _place(error: BaseException) -> str:
    """Where the author's code raised, as `at file:line in function`: the innermost frame that is no library's."""
    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith("refold.core.")
    ]
    own = [frame for frame in frames if not _of_library(frame[0])]
    return "at {}:{} in {}".format(*(own or frames)[-1]) if frames else ""


def _of_library(file: str) -> bool:
    return "site-packages" in file or file.startswith((_STDLIB, "<frozen"))
