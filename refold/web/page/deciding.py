"""The page's forms for decisions, answers and resolutions.

The task checks them, as it does from any client; the page adds who sends them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pydantic import JsonValue
from starlette.responses import Response

from refold.core.commands import AskApproval, AskUser
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.core.gates import digest_of, is_among
from refold.core.waits import Wait
from refold.engine import (
    CodecError,
    Decision,
    EngineError,
    NotConnected,
    NoWorker,
    PayloadTooLarge,
    StorageError,
    Taken,
    TaskNotFound,
    TaskView,
)
from refold.engine.refusals import checked
from refold.record import TaskRecord
from refold.web.page.forms import changes, fields_for, fields_of_value, filled, touched
from refold.web.page.frame import Call, Handler, Refused, again_later, task_path, written
from refold.web.page.items import Item, decisions_in, grouped, items_of
from refold.words.text import snippet

LOOK_BACK = 500
"""How many entries are searched for who decided before."""

VERDICTS = {"approve": True, "deny": False, "change": True}

Gates = Sequence[tuple[str, str]]
"""Gates by their ids, each with the digest of what the person saw."""


def again(handler: Handler) -> Handler:
    """Wrap a form's handler so that nothing a person typed is lost.

    If the task refuses the form, it is shown again with the input and the reason. If no worker answers, the page offers
    to send it again as it is. If the task has taken it and the server then went away, the page says so, and sends
    nothing again.
    """

    async def answered(call: Call) -> Response:
        try:
            return await handler(call)
        except InputRejected as error:
            return await _once_more(call, error, 409)
        except PayloadTooLarge as error:
            return await _once_more(call, error, 413)
        except Taken as error:
            shown = {"status_code": 202, "title": "It was taken", "message": str(error), "said": ""}
            return call.page("error.html", status=202, task_id=call.form.get("task"), **shown)
        except (NoWorker, NotConnected, StorageError, CodecError) as error:
            return again_later(call.site, call.request, call.fields, call.person, 503, str(error))

    return answered


async def _once_more(call: Call, error: InputRejected | PayloadTooLarge, status: int) -> Response:
    task_id, items = "", list[Item]()
    with suppress(EngineError):  # the task cannot be read now, or the person may not see it any more
        record = await call.record(call.form.get("task", ""))
        view = await call.engine.look(record.task_id) if "command" in call.form else None
        sent = {*call.fields.get("gate", ()), *call.fields.get("command", ())}
        task_id, items = record.task_id, [item for item in items_of(record, call.person, view) if item.id in sent]
    groups, typed = grouped(items), touched(call.form)
    shown = _fields_of(groups, typed)
    return call.page(
        "again.html",
        status=status,
        task_id=task_id,
        message=str(error),
        groups=groups,
        typed=typed,
        written=written({name: call.fields[name] for name in typed if name not in shown}),
        in_task=call.form.get("back") == "task",
    )


def _fields_of(groups: Sequence[Sequence[Item]], typed: Mapping[str, str]) -> set[str]:
    """The names of the fields whose text the forms of these items show."""
    shown = set[str]()
    for group in groups:
        for item in group:
            if item.why_not:
                continue
            own = f"comment {item.id}"
            shown |= {own, "text", "outcome", *(one.name for one in item.fields)}
            if len(group) > 1 or not typed.get(own):
                shown.add("comment")  # the form for one gate has one comment: its own, or else that on all
    return shown


async def decide(call: Call) -> Response:
    """`POST /decide`: approve, deny, or approve with changes, at one gate."""
    gates = [(_given(call, "gate"), _given(call, "digest"))]
    record = await _record(call, gates)
    verdict = _given(call, "decision")
    if verdict not in VERDICTS:
        raise Refused(400, "a decision is to approve, to deny, or to approve with changes; nothing happened")
    ((wait, ask),) = await _open_gates(call, record, gates)
    edits = _edits(call, ask) if verdict == "change" else None
    view = await _decide(call, record, gates, [_decision(wait, ask, verdict, call.form.get("comment", ""), edits)])
    return await _back(call, record, _said(view, wait, verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a person chose at one of several gates.

    Attributes:
        gate: The gate's id.
        digest: Of what the person saw.
        verdict: `approve` or `deny`.
        comment: Why.
    """

    gate: str
    digest: str
    verdict: str
    comment: str


async def decide_all(call: Call) -> Response:
    """`POST /decide-all`: decide at several gates of a task, the same at all of them, or at each something else. The
    task takes all decisions, or none.
    """
    choices = _choices(call)
    gates = [(one.gate, one.digest) for one in choices]
    record = await _record(call, gates)
    waits = await _open_gates(call, record, gates)
    made = [
        (wait, ask, _decision(wait, ask, one.verdict, one.comment))
        for (wait, ask), one in zip(waits, choices, strict=True)
    ]
    # A denial that ends the task comes last, as nothing can be decided after it.
    made.sort(key=lambda one: one[1].policy.on_denied == "fail" and not one[2].approved)
    await _decide(call, record, gates, [decision for _, _, decision in made])
    said = []
    for approved, word in ((True, "Approved"), (False, "Denied")):
        if slots := [snippet(wait.slot, 80) for wait, _, decision in made if decision.approved is approved]:
            said.append(f"{word}: {', '.join(slots)}.")
    return await _back(call, record, " ".join(said))


def _choices(call: Call) -> list[Choice]:
    """What the form says of each gate that it names, without those that are left open."""
    ids, digests, verdict = call.fields.get("gate", []), call.fields.get("digest", []), _given(call, "decision")
    if verdict not in ("approve", "deny", "each") or not ids or len(ids) != len(digests):
        raise Refused(400, "the form names no gates, or no decision; nothing happened")
    found = []
    for gate, digest in zip(ids, digests, strict=True):
        own = call.form.get(f"decision {gate}", "")
        if own not in ("approve", "deny", ""):
            raise Refused(400, "a decision is to approve, to deny, or to leave a gate open; nothing happened")
        if own and verdict not in (own, "each"):
            raise InputRejected(
                f"you chose to {own} one of them, but pressed the button to {verdict} all, so nothing happened; "
                "send the decisions that you chose with the button below them"
            )
        if chosen := own if verdict == "each" else verdict:
            comment = call.form.get(f"comment {gate}", "").strip() or call.form.get("comment", "")
            found.append(Choice(gate=gate, digest=digest, verdict=chosen, comment=comment))
    if not found:
        raise InputRejected("you left each of them open, so nothing happened; choose Approve or Deny at one at least")
    return found


async def answer(call: Call) -> Response:
    """`POST /answer`: answer the question that the person saw, and no later one of the same name."""
    record = await call.own(_given(call, "task"))
    wait, ask = _open_question(record, _given(call, "gate"))
    if ask.expect is None:
        text = call.form.get("text", "")
        if not text.strip():
            raise InputRejected("there is nothing to send: write an answer first")
        content = Content.from_text(text)
    else:
        value = filled(fields_for(ask.expect), call.form)
        if value is None:
            raise InputRejected("null, or nothing at all, is no answer; nothing was sent")
        content = checked(Content.from_data, data=value)
    # The same answer of the same person is taken once: a second click changes nothing.
    once = digest_of(wait.gate, call.person.name, content.model_dump(mode="json"))
    delivery_id, sender = f"page:{once}", call.person.name
    try:
        await call.engine.send(wait.asked_by, content, slot=wait.gate, delivery_id=delivery_id, sender=sender)
    except InputRejected:
        with suppress(TaskNotFound):
            _open_question(await call.record(record.task_id), wait.gate)  # somebody else was faster: say so
        raise
    return await _back(call, record, f"Your answer to “{snippet(wait.slot, 80)}” was taken.")


async def resolve(call: Call) -> Response:
    """`POST /resolve`: perform a blocked command again, or say what it came to."""
    record = await call.own(_given(call, "task"))
    how = _given(call, "how")
    if how not in ("retry", "outcome"):
        raise Refused(400, "a blocked command is tried again, or gets its outcome; nothing happened")
    outcome: JsonValue = None
    if how == "outcome":
        outcome = filled(fields_for({}), {"f:[]": call.form.get("outcome", "")})
    await call.engine.resolve(
        record.task_id,
        retry=how == "retry",
        outcome=outcome,
        invocation_id=_given(call, "command"),
        by=call.person.name,
        comment=call.form.get("comment", ""),
    )
    done = "It is tried again." if how == "retry" else "The outcome is recorded."
    return await _back(call, record, done)


def _open_question(record: TaskRecord, gate: str) -> tuple[Wait, AskUser]:
    _check_heard(record)
    wait = next((one for one in record.waits if one.gate == gate), None)
    if wait is None or not isinstance(wait.ask, AskUser) or wait.ask.callback is not None:
        raise InputRejected("this question is answered already, or is not asked any more, so your answer was not sent")
    return wait, wait.ask


def _check_heard(record: TaskRecord) -> None:
    """Refuse an answer to a task whose worker does not say what the task waits for.

    Raises:
        NoWorker: Nobody answers for it.
    """
    if record.note and not record.ended:
        raise NoWorker(f"task {record.task_id!r} did not take it: {record.note}")


async def _record(call: Call, gates: Gates) -> TaskRecord:
    """The task that the form names, if the person may see it; or saw it, at a gate that is closed by now.

    Raises:
        TaskNotFound: There is none, or the person may not see it.
    """
    task_id = _given(call, "task")
    try:
        return await call.record(task_id)
    except TaskNotFound:
        record = await call.engine.record(task_id)
        (gate, digest), *_ = gates
        asked = _asked(await _lately(call, record), gate)
        if (
            asked is None
            or not is_among(call.person.name, asked.policy.approvers)
            or digest not in (asked.digest, asked.former)
        ):
            raise
        return record


async def _lately(call: Call, record: TaskRecord) -> list[Entry]:
    return [entry async for entry in call.engine.journal(record.task_id, after=max(0, record.seq - LOOK_BACK))]


def _asked(entries: Sequence[Entry], gate: str) -> AskApproval | None:
    """What opened a gate, if it is among these entries."""
    found = (one.command for entry in entries for one in entry.commands if one.invocation_id == gate)
    return next((one for one in found if isinstance(one, AskApproval)), None)


async def _open_gates(call: Call, record: TaskRecord, gates: Gates) -> list[tuple[Wait, AskApproval]]:
    """The gates, if all are open and show what the person saw.

    Raises:
        InputRejected: One is not; the message says who decided, or what changed.
    """
    _check_heard(record)
    found = []
    for gate, digest in gates:
        wait = next((one for one in record.waits if one.gate == gate), None)
        if wait is None or not isinstance(wait.ask, AskApproval):
            raise InputRejected(await _who_decided(call, record, gate))
        if digest not in (wait.ask.digest, wait.ask.former):
            raise InputRejected(
                f"what {wait.slot!r} shows has changed since you opened it, so nothing happened; look at what it shows "
                "now, and decide again"
            )
        found.append((wait, wait.ask))
    return found


async def _who_decided(call: Call, record: TaskRecord, gate: str) -> str:
    entries = await _lately(call, record)
    asked = _asked(entries, gate)
    name = "this" if asked is None else f"“{snippet(asked.slot, 80)}”"
    if found := decisions_in(entries, gate):
        mine = [one for one in found if is_among(call.person.name, [one[1].approver])]
        entry, decision = (mine or found)[-1]
        who = "You have" if decision in [one for _, one in mine] else f"{decision.approver} has"
        return (
            f"{who} {decision.decision} {name} already, at {entry.at:%Y-%m-%d %H:%M:%S} UTC; nothing happened a second "
            "time"
        )
    closed = "this gate" if name == "this" else name
    return f"{closed} is closed: nobody can decide here any more, so nothing happened"


def _edits(call: Call, ask: AskApproval) -> dict[str, JsonValue]:
    show = ask.show if isinstance(ask.show, dict) else {}
    edits = changes(fields_of_value(show, ask.editable), call.form, show)
    if not edits:
        raise InputRejected("nothing was changed, so nothing happened; to grant what is shown, press Approve")
    return edits


def _decision(
    wait: Wait, ask: AskApproval, verdict: str, comment: str, edits: dict[str, JsonValue] | None = None
) -> Decision:
    return checked(
        Decision, gate=wait.gate, approved=VERDICTS[verdict], digest=ask.digest, comment=comment, changes=edits or {}
    )


async def _decide(call: Call, record: TaskRecord, gates: Gates, decisions: Sequence[Decision]) -> TaskView:
    ids = {one.gate for one in decisions}
    guarded = any(
        isinstance(one.ask, AskApproval) and one.ask.policy.guarded for one in record.waits if one.gate in ids
    )
    # Signing needs a key, and only gates that restrict who decides require a signature.
    vouched_by = call.person.name if call.person.proven and guarded else None
    try:
        return await call.engine.decide_together(
            record.task_id, decisions, approver=call.person.name, vouched_by=vouched_by
        )
    except InputRejected:
        with suppress(TaskNotFound):
            await _open_gates(call, await _record(call, gates), gates)  # somebody else was faster: say so
        raise


def _said(view: TaskView, wait: Wait, verdict: str) -> str:
    name = snippet(wait.slot, 80)
    if view.late:
        return f"Recorded, but too late: the task had failed already. Recover it to go on with your grant of “{name}”."
    if verdict == "deny":
        return f"You denied “{name}”."
    more = " with your changes" if verdict == "change" else ""
    waits = any(one.gate == wait.gate for one in view.waiting_for)
    return f"You approved “{name}”{more}." + (" It waits for more people." if waits else "")


async def _back(call: Call, record: TaskRecord, said: str) -> Response:
    """To where the form stood: the task's page, or the inbox; an approver may not see the task any more."""
    if not call.person.runs(record):
        try:
            await call.record(record.task_id)
        except EngineError:
            return call.go("/", said)
    if call.form.get("back") == "task":
        return call.go(task_path(record.task_id), said)
    return call.go("/", said, about=record.task_id)


def _given(call: Call, name: str) -> str:
    value = call.form.get(name, "")
    if not value:
        raise Refused(400, f"the form has no {name!r}, so nothing happened")
    return value
