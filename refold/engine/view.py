"""A task's view, made from its snapshot; also of a task that has not begun."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from refold.core.commands import AskUser
from refold.core.content import Artifact, Content, Message, Part
from refold.core.events import Event, UserMessage
from refold.core.fold.journal import as_said
from refold.core.fold.snapshot import Fork, Pending, Snapshot
from refold.core.schema import fields_of, type_name
from refold.core.waits import Wait
from refold.engine.values import ArtifactView, ForkView, MessageView, PendingView, TaskView, WaitView


def view_of(snapshot: Snapshot, note: str = "") -> TaskView:
    """The view of a snapshot."""
    return TaskView(
        task_id=snapshot.task_id,
        skill=snapshot.skill,
        status=snapshot.status,
        lifecycle=snapshot.lifecycle,
        reason=snapshot.reason,
        messages=tuple(_message(message) for message in snapshot.messages),
        artifacts=tuple(_artifact(artifact) for artifact in snapshot.artifacts),
        pending=tuple(_pending(pending) for pending in snapshot.pending.values()),
        waiting_for=(
            *(_wait(snapshot, wait) for wait in snapshot.waits),
            *(_wait(snapshot, wait, wait.asked_by) for pending in snapshot.pending.values() for wait in pending.asks),
        ),
        unresolved=snapshot.unresolved,
        seq=snapshot.seq,
        updated_at=snapshot.at,
        progress=snapshot.progress,
        refused=snapshot.refused,
        late=None if snapshot.late is None else snapshot.late.approver,
        recovered_from=snapshot.recovered_from,
        forked_from=_fork(snapshot.fork),
        note=note,
    )


def _fork(fork: Fork | None) -> ForkView | None:
    return None if fork is None else ForkView(task_id=fork.task_id, seq=fork.seq, live=fork.live)


def _message(message: Message) -> MessageView:
    content = message.content
    return MessageView(role=message.role, text=_text(content), data=content.data if content.text else None)


def _text(content: Content) -> str:
    """A content in words: its text, else its data as JSON, else the files in it."""
    if content.text:
        return content.text
    if content.has_data:
        return to_json(content.data).decode()
    return ", ".join(part.filename or part.url or "a file" for part in content.parts if part.text is None)


def _artifact(artifact: Artifact) -> ArtifactView:
    only = artifact.parts[0] if len(artifact.parts) == 1 else Part(text="")
    simple = len(artifact.parts) == 1 and only.raw is None and only.media_type is None and only.filename is None
    if simple:
        return ArtifactView(name=artifact.name, text=only.text, data=only.data, url=only.url)
    return ArtifactView(name=artifact.name, text=artifact.text or None, parts=artifact.parts)


def _pending(pending: Pending) -> PendingView:
    command = pending.command
    return PendingView(
        invocation_id=pending.invocation_id,
        command=f"{command.kind} {command.subject}",
        attempt=pending.attempt,
        failure=pending.failure or None,
        due_at=pending.due_at,
        blocked=pending.blocked,
        queue=getattr(command, "queue", None),
        held=not pending.started and not pending.blocked and pending.due_at is None,
        until=pending.until,
    )


def _wait(snapshot: Snapshot, wait: Wait, part: str | None = None) -> WaitView:
    ask = wait.ask
    said: dict[str, Any] = {"slot": wait.slot, "message": ask.message.text, "gate": wait.gate, "asked_by": part}
    if isinstance(ask, AskUser):
        if ask.expect is not None:
            said |= {"expects": type_name(ask.expect), "fields": fields_of(ask.expect)}
        if ask.callback is not None:
            said |= {"callback": ask.callback.digest, "since": wait.since, "timeout_at": wait.timeout_at}
        return WaitView(**said)
    return WaitView(
        **said,
        gate_kind=ask.policy.kind.value,
        digest=ask.digest,
        show=ask.show,
        editable=ask.editable,
        approvers=ask.policy.approvers,
        excluded=_people_of(snapshot) if ask.policy.second_person else (),
        needed=ask.policy.needed,
        granted_by=tuple(grant.approver for grant in wait.grants),
        timeout_at=wait.timeout_at,
    )


def late_gate(snapshot: Snapshot) -> WaitView | None:
    """The gate that has timed out and still takes a grant; None if there is none."""
    if (late := snapshot.grace) is None:
        return None
    return WaitView(
        slot=late.gate,
        message="",
        gate=late.gate,
        digest=late.digest,
        approvers=late.policy.approvers,
        excluded=_people_of(snapshot) if late.policy.second_person else (),
        granted_by=late.granted,
    )


def _people_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Who owns the task, and who started it; those of its parts are the same."""
    return tuple(dict.fromkeys((*([snapshot.owner] if snapshot.owner else []), *snapshot.started_by)))


def not_begun(task_id: str | None, begins_at: datetime | None) -> str:
    """What a task says that was started with `hold` or `start_delay`, until it begins.

    Args:
        task_id: Its id; None if it cannot be released.
        begins_at: When it begins; None if it is held.
    """
    when = "it is held" if begins_at is None else f"it begins at {begins_at:%Y-%m-%d %H:%M:%S} UTC"
    return when if task_id is None else f"{when}; `refold release {shlex.quote(task_id)}` begins it now"


def with_first(snapshot: Snapshot, first: Event | None) -> Snapshot:
    """A task that has not begun, as it is shown: with the message that it will begin with."""
    if not isinstance(first, UserMessage):
        return snapshot
    return snapshot.changed({"messages": (*snapshot.messages, as_said(first, snapshot.seq + 1))})
