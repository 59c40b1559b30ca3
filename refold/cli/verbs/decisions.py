"""`refold inbox`, `approve`, `deny`, `resolve`, `recover`, `fork`: decisions that only a person makes."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import JsonValue
from rich.text import Text

from refold.cli.errors import DONE, CallError
from refold.cli.text.output import clean, indented
from refold.cli.text.views import asked, brief
from refold.cli.verb import Call, TaskId, add
from refold.engine import TaskView, WaitView

Gate = Annotated[str | None, typer.Argument(metavar="GATE", help="The gate's name or id; needed if several are open.")]
As = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Your name. Else REFOLD_APPROVER, else your user name.",
                             envvar="REFOLD_APPROVER")
]  # fmt: skip
Digest = Annotated[
    str | None,
    typer.Option(
        "--digest",
        help="The digest that `refold inbox` printed; the decision is refused if the gate's data has changed since.",
    ),
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="The reason, for the journal.")]
Set = Annotated[
    list[str],
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
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many tasks to search, newest first.")] = 100,
) -> None:
    """List the gates that wait for a decision, newest task first."""
    engine = await call.engine()
    found = 0
    async for view in engine.list(limit=limit):
        for wait in view.waiting_for:
            if wait.gate_kind is None or not _may(wait, approver):
                continue
            found += 1
            if call.out.json:
                call.out.value({"task_id": view.task_id, "skill": view.skill, **wait.model_dump(mode="json")})
            else:
                call.out.say(*_open_gate(view, wait))
    if not found and not call.out.json:
        call.out.note("nothing waits for a decision")


async def approve(
    call: Call, task_id: TaskId, gate: Gate = None, approver: As = None, digest: Digest = None,
    comment: Comment = "", vouched_by: VouchedBy = None, changed: Set = [],  # noqa: B006 - typer's way to say none
) -> int:  # fmt: skip
    """Grant the request of a gate. A grant after the gate's timeout is recorded for `refold recover`.

    With --set the changed data is granted: `--set 'arguments={"amount_cents": 500}'`. Earlier grants become void.
    """
    return await _decide(call, task_id, gate, True, approver, digest, comment, vouched_by, _changes(changed))


async def deny(
    call: Call, task_id: TaskId, gate: Gate = None, approver: As = None, digest: Digest = None,
    comment: Comment = "", vouched_by: VouchedBy = None,
) -> int:  # fmt: skip
    """Deny the request of a gate."""
    return await _decide(call, task_id, gate, False, approver, digest, comment, vouched_by)


async def _decide(
    call: Call,
    task_id: str,
    gate: str | None,
    approved: bool,
    approver: str | None,
    digest: str | None,
    comment: str,
    vouched_by: str | None,
    changes: dict[str, JsonValue] | None = None,
) -> int:
    call.hint = f"`refold show {task_id}` tells what it waits for"
    engine = await call.engine()
    view = await engine.decide(
        task_id,
        gate,
        approved=approved,
        approver=approver or getpass.getuser(),
        digest=digest,
        comment=comment,
        vouched_by=vouched_by,
        changes=changes,
    )
    _show(call, view)
    if view.late:
        call.out.note(f"recorded, too late: `refold recover {task_id}` goes on from here")
    return DONE


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
) -> None:
    """Retry the blocked command of a task, or supply its result."""
    if retry == (outcome is not None):
        raise CallError("give one of --retry and --outcome JSON")
    call.hint = f"`refold show {task_id}` tells what is blocked"
    engine = await call.engine()
    view = await engine.resolve(
        task_id,
        retry=retry,
        outcome=None if outcome is None else _json(outcome),
        invocation_id=command,
        by=by or getpass.getuser(),
        comment=comment,
    )
    _show(call, view)


async def recover(
    call: Call,
    task_id: TaskId,
    by: As = None,
) -> None:
    """Start a task that continues from where this one failed. Finished effects are not repeated.

    Its id is the old one with `.r1`; with `.r2` if that task failed too, and so on.
    """
    call.hint = f"`refold show {task_id}` tells how it ended"
    _show(call, await (await call.engine()).recover(task_id, by=by or getpass.getuser()))


async def fork(
    call: Call,
    task_id: TaskId,
    at: Annotated[
        int,
        typer.Option("--at", metavar="SEQ", help="The entry to branch off from, by its number in `refold journal`."),
    ],
    live: Annotated[bool, typer.Option("--live", help="Perform effects, under ids and keys of their own.")] = False,
    new_id: Annotated[
        str | None, typer.Option("--id", help="The new task's id; else the old id with a number.")
    ] = None,
    by: As = None,
) -> None:
    """Start a task that branches off from an entry of this one.

    This task, open or ended, does not change. Without --live no effect is performed: each model call, tool and so on
    fails at once as `DryRun`, and the journal lists the commands that the skill issued.
    """
    call.hint = f"`refold journal {task_id}` lists its entries"
    engine = await call.engine()
    _show(call, await engine.fork(task_id, at=at, live=live, new_id=new_id, by=by or getpass.getuser()))


def _show(call: Call, view: TaskView) -> None:
    if call.out.json:
        call.out.value(view)
        return
    call.out.say(*brief(view))
    if view.note:
        call.out.note(f"note: {view.note}")


def _json(text: str, option: str = "--outcome") -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError as error:
        raise CallError(
            f"{option} takes JSON, for example '\"done\"' or '{{\"id\": 7}}'; got {text!r}: {error}"
        ) from None
    return value


def _changes(given: list[str]) -> dict[str, JsonValue]:
    changes = {}
    for one in given:
        name, is_, text = one.partition("=")
        if not is_:
            raise CallError(f"--set takes KEY=JSON, for example 'arguments={{\"amount_cents\": 500}}'; got {one!r}")
        changes[name] = _json(text, f"--set {name}")
    return changes


def _may(wait: WaitView, approver: str | None) -> bool:
    return approver is None or not wait.approvers or approver in wait.approvers


def _open_gate(view: TaskView, wait: WaitView) -> Iterator[str | Text]:
    yield Text(clean(view.task_id)).append("  ").append(clean(f"{wait.slot} ({wait.gate_kind})"), "yellow")
    yield from asked(wait)
    if wait.editable:
        yield from indented(f"may be changed with --set KEY=JSON: {', '.join(wait.editable)}")
    who = ", ".join(wait.approvers) or "anybody"
    granted = f"; granted by {', '.join(wait.granted_by)}" if wait.granted_by else ""
    until = f"; until {wait.timeout_at:%Y-%m-%d %H:%M:%S}" if wait.timeout_at else ""
    yield from indented(f"{wait.needed} of {who}{granted}{until}; digest {wait.digest}")
