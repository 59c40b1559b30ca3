"""Tasks as people read them: a short answer, a card, and a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from shlex import quote

from rich.text import Text

from refold.cli.files import described
from refold.cli.text.table import LABEL, aligned, row
from refold.core.lifecycle import Status, TaskState
from refold.core.waits import Unresolved
from refold.engine import ArtifactView, PendingView, TaskView, WaitView
from refold.words.costs import dollars, in_words
from refold.words.text import clean, counted, indented, snippet

FAILED = frozenset({Status.FAILED, Status.REJECTED, Status.CANCELED})
"""Statuses for which `start`, `answer` and `watch` exit with 1."""

COLORS = {
    Status.SUBMITTED: "dim",
    Status.WORKING: "cyan",
    Status.INPUT_REQUIRED: "yellow",
    Status.AUTH_REQUIRED: "yellow",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.REJECTED: "red",
    Status.CANCELED: "magenta",
}


def brief(view: TaskView) -> Iterator[str | Text]:
    """The task after a call: its id, its status, and its question or last message."""
    if view.waiting_for:
        slots = ", ".join(wait.slot for wait in view.waiting_for)
        yield Text(clean(view.task_id)).append("  ").append(clean(f"waiting for: {slots}"), COLORS[view.status])
        for wait in view.waiting_for:
            yield from indented(wait.message)
        return
    yield Text(clean(view.task_id)).append("  ").append(view.status, COLORS[view.status])
    if view.reason:
        yield from indented(view.reason)
    elif view.status is Status.COMPLETED:
        said = [message.text for message in view.messages if message.role == "agent"]
        yield from indented(said[-1] if said else "")
        yield from (f"  {clean(one.name)}: {snippet(_content(one))}" for one in view.artifacts)
    else:
        for one in view.pending:
            yield f"  {_pending(one)}"
            yield from indented(_why_blocked(one), "    ")
        yield from (f"  {line}" for one in _of_parts(view) for line in _blocked(one))


def card(view: TaskView, *, past: bool = False, options: str = "") -> Iterator[str | Text]:
    """Everything about a task, on one screen.

    Args:
        options: As for `ways_out`.
        past: The view is of an earlier entry, or of an export, so no command to answer it is shown.
    """
    yield Text(f"{clean(view.task_id)}  {clean(view.skill)}")
    status = Text("status".ljust(LABEL)).append(view.status, COLORS[view.status])
    # "completed (done)" would say the same twice.
    yield status if view.lifecycle in (TaskState.DONE, TaskState.FAILED) else status.append(f" ({view.lifecycle})")
    if view.updated_at is not None:
        yield row("updated", f"{moment(view.updated_at)}  entry {view.seq}")
    for label, text in (("reason", view.reason), ("progress", view.progress)):
        if text:
            yield from _rows(label, clean(text).splitlines())
    if view.note != view.reason:
        yield from _rows("note", _note(view))
    if view.cost is not None and view.cost.calls:
        yield row("cost", in_words(view.cost))
    yield from _family(view)
    if view.refused:
        yield row("refused", f"{counted(view.refused, 'event')}, see `refold journal`")
    pending = [line for one in view.pending for line in (_pending(one), *indented(_why_blocked(one)))]
    yield from _rows("pending", pending)
    yield from _rows("blocked", [line for one in _of_parts(view) for line in _blocked(one)])
    if view.sealing:
        yield row("sealing", f"waits for {clean(', '.join(view.sealing))}; then it goes on in a new run")
    for wait in view.waiting_for:
        article = "an" if (wait.expects or "").lower().startswith(("a", "e", "i", "o")) else "a"
        fits = f" ({article} {wait.expects})" if wait.expects else ""
        yield from _rows("waits for", [f"{wait.slot}{fits}", *asked(wait)])
    if not past:
        yield from _rows("next", ways_out(view, options))
    if view.messages:
        yield "messages"
    for message in view.messages:
        beside = "" if message.data is None else f"\n{json.dumps(message.data, ensure_ascii=False)}"
        first, *more = clean(message.text + beside).splitlines() or [""]
        yield f"  {message.role.ljust(LABEL - 2)}{first}"
        yield from (f"{' ' * LABEL}{line}" for line in more)
    if view.artifacts:
        yield "artifacts"
    for artifact in view.artifacts:
        yield f"  {clean(artifact.name)}"
        yield from indented(_content(artifact), " " * LABEL)


def _note(view: TaskView) -> list[str]:
    """The note; that on code that differs in three lines: whose, what, and the ways out."""
    whose, found, ways = view.note.partition(view.differs) if view.differs else (view.note, "", "")
    return clean("\n".join(filter(None, (whose.rstrip(), found, ways.removeprefix(". "))))).splitlines()


def asked(wait: WaitView) -> list[str]:
    """The question to a person, the data of a gate, and the times of a callback."""
    shown = [] if wait.show is None else indented(json.dumps(wait.show, ensure_ascii=False))
    if wait.since is not None and wait.timeout_at is not None:  # a callback
        times = f"since {moment(wait.since)}, until {moment(wait.timeout_at)}"
        shown = [f"  waits for a call to its own address {times}"]
    return [*indented(wait.message), *shown]


def ways_out(view: TaskView, options: str = "") -> list[str]:
    """What a person types next, a whole command each, by how the task stands; empty where nothing is left to do.

    Args:
        view: The task.
        options: What the commands need to use the task's server; see `ServerOptions.options`.
    """
    task_id = view.task_id
    if view.differs:  # it takes nothing
        return [
            f"{_command('replay', task_id, flags=options)}    # does the code in this folder fit what was recorded?"
        ]
    lines = replies(view, options)
    for one in view.unresolved:
        lines += _resolutions(one.task_id, options)
    if lines:
        return lines
    match view.lifecycle:
        case TaskState.PLANNED if "`refold release " in view.note:
            return [f"{_command('release', task_id, flags=options)}    # begins it now"]
        case TaskState.BLOCKED:
            retry = _command("resolve", task_id, flags=f" --retry{options}")
            return [f"{retry}    # to retry it now", _command("watch", task_id, flags=options)]
        case TaskState.RUNNING | TaskState.RETRYING | TaskState.PAUSED if not view.note:
            return [_command("watch", task_id, flags=options)]
        case TaskState.FAILED if view.forked_from is not None and not view.forked_from.live:
            return []  # recovered, it would fail again: no effect takes place
        case TaskState.FAILED if view.status is Status.CANCELED and not view.messages:
            return []  # it was canceled before it began, so there is nothing to go on from
        case TaskState.FAILED if view.seq and not any(one.how == "recovered" for one in view.offspring):
            return [_command("recover", task_id, flags=options)]
        case _:
            return []  # it is done, or left no journal, or another task goes on for it, or its note says what to do


def replies(view: TaskView, options: str = "") -> list[str]:
    """The commands that answer what a task asks, and decide at its gates; see `ways_out`."""
    return [line for wait in view.waiting_for for line in _answers(view, wait, options)]


def _command(verb: str, task_id: str, operands: str = "", *, flags: str = "") -> str:
    """A command on a task. An id that begins with `-`, as Temporal's own tools give it, stands after `--` and flags."""
    if task_id.startswith("-"):
        return f"refold {verb}{flags} -- {quote(task_id)}{operands}"
    return f"refold {verb} {quote(task_id)}{operands}{flags}"


def _answers(view: TaskView, wait: WaitView, options: str) -> list[str]:
    """The commands that answer a question, or decide at a gate."""
    if wait.callback is not None:
        return []
    several = len(view.waiting_for) > 1
    if wait.gate_kind is not None:
        gate = f" {quote(wait.gate)}" if several else ""
        return [_command(verb, view.task_id, gate, flags=options) for verb in ("approve", "deny")]
    reply = "TEXT" if wait.expects is None else filled(wait.fields)
    alike = sum(other.slot == wait.slot for other in view.waiting_for) > 1  # questions of its parts, say
    question = f" --slot {quote(wait.gate if alike else wait.slot)}" if several else ""
    data = reply.startswith("--")
    operands, flags = ("", f" {reply}") if data else (f" {reply}", "")
    return [_command("answer", view.task_id, operands, flags=f"{flags}{question}{options}")]


def filled(fields: Sequence[str]) -> str:
    """Data as a person types it: the required ones of `fields_of`, else the first; JSON where there are none."""
    if not fields:
        return "--data JSON"
    return " ".join(f"{name}=…" for name in fields if not name.endswith("?")) or f"{fields[0][:-1]}=…"


def _resolutions(task_id: str, options: str) -> list[str]:
    outcome = _command("resolve", task_id, flags=f" --outcome JSON{options}")
    retry = _command("resolve", task_id, flags=f" --retry{options}")
    return [f"{outcome}    # it took place: its result", f"{retry}    # it did not"]


def _of_parts(view: TaskView) -> list[Unresolved]:
    """The blocked commands of the task's parts; its own are pending ones."""
    return [one for one in view.unresolved if one.task_id != view.task_id]


def _blocked(one: Unresolved) -> list[str]:
    return [clean(f"{one.command}  {one.invocation_id}  blocked"), *indented(one.failure)]


def _why_blocked(pending: PendingView) -> str:
    return (pending.failure or "") if pending.blocked else ""


def _family(view: TaskView) -> Iterator[str]:
    """What this task came from, a schedule or another task, and the tasks recovered or forked from it."""
    if view.schedule is not None:
        yield row("schedule", view.schedule)
    if view.recovered_from is not None:
        yield row("recovers", view.recovered_from)
    if (fork := view.forked_from) is not None:
        how = "live" if fork.live else "dry: no effect takes place"
        yield row("forked from", f"{fork.task_id}  entry {fork.seq}  ({how})")
    lines = [f"{one.task_id}  {one.how} from entry {one.seq}" for one in view.offspring]
    yield from _rows("went on as", lines)


def rows(views: Sequence[TaskView]) -> Iterator[str]:
    """Tasks as an aligned table, one a line."""
    table = [["TASK", "SKILL", "STATUS", "LIFECYCLE", "UPDATED", "COST", "WHAT"]]
    for view in views:
        updated = moment(view.updated_at) if view.updated_at is not None else "-"
        table.append([view.task_id, view.skill, view.status, view.lifecycle, updated, _cost(view), _what(view)])
    if all(view.cost is None for view in views):
        for cells in table:
            del cells[-2]
    yield from aligned(table)


def _cost(view: TaskView) -> str:
    if view.cost is None or not view.cost.calls:
        return "-"
    return dollars(view.cost.usd) + ("+?" if view.cost.unpriced_calls and view.cost.usd is not None else "")


def moment(at: datetime) -> str:
    """A time, in the local time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _what(view: TaskView) -> str:
    if view.differs:
        return snippet(f"its code has changed: {view.differs}", 80)
    if view.waiting_for:
        return snippet("; ".join(f"{wait.slot}: {wait.message}" for wait in view.waiting_for), 80)
    if view.unresolved:
        return snippet("; ".join(f"blocked: {one.command}: {one.failure}" for one in view.unresolved), 80)
    if view.reason or view.note or view.progress:
        return snippet(view.reason or view.note or view.progress, 80)
    return snippet(", ".join(one.command for one in view.pending), 80)


def _pending(pending: PendingView) -> str:
    text = f"{pending.command}  {pending.invocation_id}"
    if pending.attempt > 1:
        text += f"  attempt {pending.attempt}"
    if pending.blocked:
        text += "  blocked"
    elif pending.failure:
        text += f"  after: {snippet(pending.failure)}"
    if pending.held:
        text += "  begins when the task goes on"
    if pending.due_at is not None:
        text += f"  due {moment(pending.due_at)}"
    return clean(text)


def _content(artifact: ArtifactView) -> str:
    if artifact.text is not None:
        return artifact.text
    if artifact.parts:
        return "\n".join(map(described, artifact.parts))
    return artifact.url if artifact.url is not None else json.dumps(artifact.data, ensure_ascii=False)


def _rows(label: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield row("" if number else label, line)
