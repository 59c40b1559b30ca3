"""`refold inbox`, `approve`, `deny`, `resolve`, `recover`, `fork`: decisions that only a person makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.text import Text

from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.person import As, caller
from refold.cli.text.entries import Story
from refold.cli.text.views import FAILED, asked, brief, replies, ways_out
from refold.cli.verb import Call, TaskId, TaskOrFile, add
from refold.cli.waiting import Wait, newest, shown
from refold.core.errors import InputRejected
from refold.core.gates import is_among
from refold.core.values import shortened
from refold.engine import Decision, Engine, EngineError, Listed, TaskFilter, TaskNotFound, TaskView, WaitView
from refold.engine.refusals import check_task_id
from refold.export.engine import ExportEngine
from refold.words.as_json import json_value
from refold.words.text import clean, indented

PAGE = 20
"""How many waiting tasks are looked at together."""

Gates = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="GATE",
        help="The gate's name or id; needed if several are open. Several are decided together: all of them, or none.",
        show_default=False,
    ),
]
Digests = Annotated[
    list[str] | None,
    typer.Option(
        "--digest",
        metavar="DIGEST",
        help="The digest that `refold inbox` printed; the decision is refused if the gate's data has changed since. "
        "One for each gate, in their order.",
    ),
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="The reason, for the journal.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=JSON", help="Change data that the gate declares editable; repeatable."),
]
VouchedBy = Annotated[
    str | None,
    typer.Option(
        "--vouched-by",
        metavar="NAME",
        help="The service that vouches for the approver; signs with REFOLD_APPROVAL_KEY.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (inbox, approve, deny, resolve, recover, fork):
        add(app, run)


async def inbox(
    call: Call,
    approver: Annotated[
        str | None, typer.Option("--for", metavar="NAME", help="Only gates at which this person may decide.")
    ] = None,
) -> None:
    """List what waits for a decision, an operator or a callback.

    The latest come first. A gate or blocked command of a part is listed once, under the part's id. With --json, a gate
    has a `gate_kind`, a blocked command a `command`, a callback a `callback`.
    """
    engine = await call.engine()
    found = unread = 0
    async for view in _waiting(engine):
        found += _gates(call, view, approver)
        if approver is None:
            found += _blocked(call, view) + _callbacks(call, view)
        if view.differs:
            call.out.alert(f"{view.task_id} takes nothing, since its code has changed: {view.differs}")
        elif view.note and any(one.queue for one in view.pending):
            call.out.alert(f"{view.task_id}: {view.note}")
        elif view.note:
            call.out.alert(f"{view.task_id} waits, and cannot be asked for what: {view.note}")
            unread += 1
    if not found and not unread:
        call.out.note("nothing waits for a decision")


async def approve(
    call: Call, task_id: TaskId, gates: Gates = None, approver: As = None, digests: Digests = None,
    comment: Comment = "", vouched_by: VouchedBy = None, changed: Set = None, wait: Wait = False,
) -> int:  # fmt: skip
    """Grant the request of a gate, or of several together. A grant after its timeout is recorded for `refold recover`.

    With --set the changed data is granted: `--set 'arguments={"amount_cents": 500}'`. Earlier grants become void.
    """
    decisions = _decisions(gates or (), digests or (), approved=True, comment=comment, changes=_changes(changed or ()))
    return await _decide(call, task_id, decisions, approver, vouched_by, wait)


async def deny(
    call: Call, task_id: TaskId, gates: Gates = None, approver: As = None, digests: Digests = None,
    comment: Comment = "", vouched_by: VouchedBy = None, wait: Wait = False,
) -> int:  # fmt: skip
    """Deny the request of a gate, or of several together."""
    decisions = _decisions(gates or (), digests or (), approved=False, comment=comment, changes={})
    return await _decide(call, task_id, decisions, approver, vouched_by, wait)


def _decisions(
    gates: Sequence[str], digests: Sequence[str], *, approved: bool, comment: str, changes: dict[str, JsonValue]
) -> list[Decision]:
    named: list[str | None] = [*gates] or [None]
    if digests and len(digests) != len(named):
        raise CallError(f"give one --digest for each gate, in their order: {len(named)} of them, not {len(digests)}")
    if changes and len(named) > 1:
        raise CallError("--set changes the data of one gate; approve the others apart")
    shown: list[str | None] = [*digests] or [None] * len(named)
    return [
        Decision(gate=gate, approved=approved, digest=digest, comment=comment, changes=changes)
        for gate, digest in zip(named, shown, strict=True)
    ]


async def _decide(
    call: Call,
    task_id: str,
    decisions: list[Decision],
    approver: str | None,
    vouched_by: str | None,
    wait: bool,
) -> int:
    call.hint = f"`{call.again('show', task_id)}` tells how it stands"
    engine = await call.engine()
    before = await newest(engine, task_id) if wait else 0
    try:
        view = await engine.decide_together(task_id, decisions, approver=caller(approver), vouched_by=vouched_by)
    except InputRejected:
        call.hint = await _asks_instead(call, engine, task_id) or call.hint
        raise
    if view.late:
        call.out.note("recorded, but too late: the task had failed already, and goes on as another one")
    return await shown(call, engine, view, wait=wait, after=before)


async def _asks_instead(call: Call, engine: Engine, task_id: str) -> str:
    """How to answer a task that only asks questions; empty if it has a gate open, asks nothing, or can take nothing."""
    with suppress(EngineError):  # the refusal is told in any case
        asks = await engine.look(task_id)
        only_asks = not (asks.differs or any(one.gate_kind for one in asks.waiting_for))
        if only_asks and (answers := replies(asks, call.server.options)):
            return f"it asks a question instead: {', '.join(f'`{line}`' for line in answers)}"
    return ""


async def resolve(
    call: Call,
    task_id: TaskId,
    retry: Annotated[
        bool,
        typer.Option(
            "--retry",
            help="Perform the command again, because its effect did not take place or its dependency is up again.",
        ),
    ] = False,
    outcome: Annotated[
        str | None, typer.Option("--outcome", metavar="JSON", help="The effect took place: the command's result.")
    ] = None,
    command: Annotated[
        str | None, typer.Option("--command", metavar="ID", help="The command's id; needed if several are blocked.")
    ] = None,
    comment: Comment = "",
    by: As = None,
    wait: Wait = False,
) -> int:
    """Retry the blocked command of a task, or supply its result."""
    if retry == (outcome is not None):
        raise CallError("give one of --retry and --outcome JSON")
    value = None if outcome is None else _json(outcome)
    call.hint = f"`{call.again('show', task_id)}` tells how it stands"
    engine = await call.engine()
    before = await newest(engine, task_id) if wait else 0
    view = await engine.resolve(
        task_id,
        retry=retry,
        outcome=value,
        invocation_id=command,
        by=caller(by),
        comment=comment,
    )
    return await shown(call, engine, view, wait=wait, after=before)


async def recover(
    call: Call,
    task_id: TaskId,
    by: As = None,
    wait: Wait = False,
) -> int:
    """Start a task that continues from where this one failed. Finished effects are not repeated.

    Its id is the old one with `.r1`; with `.r2` if that task failed too, and so on. It runs on the task queue of the
    old one, unless --task-queue names another.
    """
    call.hint = f"`{call.again('show', task_id)}` tells how it stands"
    engine = await call.engine()
    view = await engine.recover(task_id, by=caller(by), task_queue=call.server.asked_queue)
    return await shown(call, engine, view, wait=wait)


async def fork(
    call: Call,
    task_id: TaskOrFile,
    at: Annotated[
        int,
        typer.Option("--at", metavar="SEQ", help="The entry to branch off from, by its number in `refold journal`."),
    ],
    live: Annotated[bool, typer.Option("--live", help="Perform effects, under ids and keys of their own.")] = False,
    new_id: Annotated[
        str | None, typer.Option("--id", help="The new task's id; else the old id with a number.")
    ] = None,
    by: As = None,
    wait: Wait = False,
) -> int:
    """Start a task that branches off from an entry of this one.

    This task, open or ended, does not change. Without --live no effect is performed: each model call, tool and so on
    fails at once as `DryRun`, and the journal lists the commands that the skill issued. A fork of an export runs in
    memory, with the skill in this folder, and its journal is printed: nothing else stays of it. Any other runs on the
    task queue of this task, unless --task-queue names another.
    """
    if new_id is not None:
        check_task_id(new_id)  # before there is a hint, which is of entries
    call.hint = f"`{call.again('journal', task_id)}` lists its entries"
    engine, original = await call.reader(task_id)
    asked_queue = call.server.asked_queue
    view = await engine.fork(original, at=at, live=live, new_id=new_id, by=caller(by), task_queue=asked_queue)
    if isinstance(engine, ExportEngine):
        story = Story(call.out)
        async for entry in engine.journal(view.task_id):
            story.tell(entry)
        if call.out.json:
            call.out.value(view)
        else:
            call.out.say(*brief(view))
        return TASK_FAILED if view.status in FAILED else DONE
    engine = await call.engine()
    return await shown(call, engine, view, wait=wait)


def _json(text: str, option: str = "--outcome") -> JsonValue:
    try:
        return json_value(text)
    except ValueError as error:
        raise CallError(
            f"{option} takes JSON, for example '\"done\"' or '{{\"id\": 7}}'; got {shortened(text, 60)!r}: {error}"
        ) from None


def _changes(given: Sequence[str]) -> dict[str, JsonValue]:
    changes = {}
    for one in given:
        name, is_, text = one.partition("=")
        if not is_:
            raise CallError(f"--set takes KEY=JSON, for example 'arguments={{\"amount_cents\": 500}}'; got {one!r}")
        changes[name] = _json(text, f"--set {name}")
    return changes


async def _waiting(engine: Engine) -> AsyncIterator[TaskView]:
    """All tasks that wait for people, a page at a time."""
    place = None
    while True:
        page = await engine.find(TaskFilter(waits=True), after=place, limit=PAGE)
        for view in await asyncio.gather(*(_looked(engine, one) for one in page)):
            if view is not None:
                yield view
        if len(page) < PAGE:
            return
        place = page[-1].place


async def _looked(engine: Engine, listed: Listed) -> TaskView | None:
    try:
        return await engine.look(listed.task_id)
    except TaskNotFound:
        return None  # it was deleted meanwhile


def _gates(call: Call, view: TaskView, approver: str | None) -> int:
    """Print the gates of a task at which this person may decide, and count them."""
    gates = [wait for wait in view.waiting_for if wait.gate_kind is not None and wait.asked_by is None]
    gates = [wait for wait in gates if _may(wait, approver)]
    for wait in gates:
        if call.out.json:
            call.out.value({"task_id": view.task_id, "skill": view.skill, **wait.model_dump(mode="json")})
        else:
            call.out.say(*_open_gate(view, wait))
    return len(gates)


def _blocked(call: Call, view: TaskView) -> int:
    """Print the blocked commands of a task, and count them."""
    blocked = [one for one in view.pending if one.blocked]
    for one in blocked:
        if call.out.json:
            call.out.value({"task_id": view.task_id, "skill": view.skill, **one.model_dump(mode="json")})
        else:
            call.out.say(Text(clean(view.task_id)).append("  ").append(clean(f"{one.command} (blocked)"), "yellow"))
            call.out.say(*indented(one.failure or ""))
            call.out.say(*(f"  {line}" for line in ways_out(view, call.server.options)))
    return len(blocked)


def _callbacks(call: Call, view: TaskView) -> int:
    """Print the callbacks that a task waits for, and count them."""
    callbacks = [wait for wait in view.waiting_for if wait.callback is not None and wait.asked_by is None]
    for wait in callbacks:
        if call.out.json:
            call.out.value({"task_id": view.task_id, "skill": view.skill, **wait.model_dump(mode="json")})
        else:
            call.out.say(Text(clean(view.task_id)).append("  ").append(clean(f"{wait.slot} (callback)"), "yellow"))
            call.out.say(*asked(wait))
    return len(callbacks)


def _may(wait: WaitView, approver: str | None) -> bool:
    if approver is None:
        return True
    again = bool(wait.editable)  # who granted it may grant it anew with changes, and do nothing else
    listed = not wait.approvers or is_among(approver, wait.approvers)
    barred = (*wait.excluded, *(() if again else wait.granted_by))
    return listed and not is_among(approver, barred)


def _open_gate(view: TaskView, wait: WaitView) -> Iterator[str | Text]:
    yield Text(clean(view.task_id)).append("  ").append(clean(f"{wait.slot} ({wait.gate_kind})"), "yellow")
    yield from asked(wait)
    if wait.editable:
        yield from indented(f"may be changed with --set KEY=JSON: {', '.join(wait.editable)}")
    who = ", ".join(wait.approvers) or "anybody"
    barred = [name for name in wait.excluded if not wait.approvers or is_among(name, wait.approvers)]
    but = f" but {', '.join(barred)}" if barred else ""
    granted = f"; granted by {', '.join(wait.granted_by)}" if wait.granted_by else ""
    until = f"; until {wait.timeout_at:%Y-%m-%d %H:%M:%S}" if wait.timeout_at else ""
    yield from indented(f"{wait.needed} of {who}{but}{granted}{until}; digest {wait.digest}")
