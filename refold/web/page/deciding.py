"""What people send from the page: decisions, answers, resolutions. Each is checked where all of its kind are: by the
task. The page adds who sends it.
"""

from __future__ import annotations

from pydantic import JsonValue
from starlette.responses import Response

from refold.core.commands import AskApproval, AskUser
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.gates import digest_of
from refold.core.waits import Wait
from refold.engine import TaskView
from refold.record import TaskRecord
from refold.web.page.forms import changes, fields_for, fields_of_value, filled
from refold.web.page.frame import Call, Refused, task_path
from refold.web.page.items import decisions_in
from refold.words.text import snippet

LOOK_BACK = 500
"""How many entries are searched for who decided before."""

VERDICTS = {"approve": True, "deny": False, "change": True}


async def decide(call: Call) -> Response:
    """`POST /decide`: approve, deny, or approve with changes, at one gate."""
    record = await call.record(_given(call, "task"))
    verdict = _given(call, "decision")
    if verdict not in VERDICTS:
        raise Refused(400, "a decision is to approve, to deny, or to approve with changes; nothing happened")
    wait = await _open_gate(call, record, _given(call, "gate"), _given(call, "digest"))
    edits = _edits(call, wait) if verdict == "change" else None
    view = await _decide(call, record, wait, approved=VERDICTS[verdict], edits=edits)
    return _back(call, record, _said(view, wait, verdict))


async def decide_all(call: Call) -> Response:
    """`POST /decide-all`: the same decision at several gates of a task. Nothing happens unless all can be decided."""
    record = await call.record(_given(call, "task"))
    verdict = _given(call, "decision")
    gates, digests = call.fields.get("gate", []), call.fields.get("digest", [])
    if verdict not in ("approve", "deny") or not gates or len(gates) != len(digests):
        raise Refused(400, "the form names no gates, or no decision; nothing happened")
    pairs = zip(gates, digests, strict=True)
    waits = [await _open_gate(call, record, gate, digest) for gate, digest in pairs]
    done: list[str] = []
    for wait in waits:
        try:
            await _decide(call, record, wait, approved=VERDICTS[verdict], edits=None)
        except InputRejected as error:
            if not done:
                raise
            raise InputRejected(f"decided at {', '.join(done)}; then {wait.slot} was refused: {error.reason}") from None
        done.append(wait.slot)
    word = "Approved" if VERDICTS[verdict] else "Denied"
    return _back(call, record, f"{word}: {', '.join(done)}.")


async def answer(call: Call) -> Response:
    """`POST /answer`: answer a question."""
    record = await call.record(_given(call, "task"))
    wait = next((one for one in record.waits if one.gate == _given(call, "gate")), None)
    if wait is None or not isinstance(wait.ask, AskUser) or wait.ask.callback is not None:
        raise InputRejected("this question is answered already, or is not asked any more, so your answer was not sent")
    if wait.ask.expect is None:
        text = call.form.get("text", "")
        if not text.strip():
            raise InputRejected("there is nothing to send: write an answer first")
        content = Content.from_text(text)
    else:
        value = filled(fields_for(wait.ask.expect), call.form)
        if value is None:
            raise InputRejected("null is no answer; nothing was sent")
        content = Content.from_data(value)
    # The same answer of the same person is taken once: a second click changes nothing.
    once = digest_of(wait.gate, call.person.name, content.model_dump(mode="json"))
    await call.engine.send(wait.asked_by, content, slot=wait.slot, delivery_id=f"page:{once}", sender=call.person.name)
    return _back(call, record, f"Your answer to “{snippet(wait.slot, 80)}” was taken.")


async def resolve(call: Call) -> Response:
    """`POST /resolve`: perform a blocked command again, or say what it came to."""
    record = await call.record(_given(call, "task"))
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
    return _back(call, record, done)


async def _open_gate(call: Call, record: TaskRecord, gate: str, digest: str) -> Wait:
    """The gate, if it is open and shows what the person saw.

    Raises:
        InputRejected: It is not; the message says who decided, or what changed.
    """
    wait = next((one for one in record.waits if one.gate == gate), None)
    if wait is None or not isinstance(wait.ask, AskApproval):
        raise InputRejected(await _who_decided(call, record, gate))
    if digest not in (wait.ask.digest, wait.ask.former):
        raise InputRejected(
            f"what {wait.slot!r} shows has changed since you opened it, so nothing happened; go back, look at what it "
            "shows now, and decide again"
        )
    return wait


async def _who_decided(call: Call, record: TaskRecord, gate: str) -> str:
    holder = gate.rpartition("/")[0] or record.task_id
    task_id = record.task_id if record.task_id == holder or gate not in record.reported_by else holder
    entries = [entry async for entry in call.engine.journal(task_id, after=max(0, record.seq - LOOK_BACK))]
    if found := decisions_in(entries, gate):
        entry, decision = found[-1]
        who = "You have" if decision.approver == call.person.name else f"{decision.approver} has"
        return (
            f"{who} {decision.decision} this already, at {entry.at:%Y-%m-%d %H:%M:%S} UTC; nothing happened a second "
            "time"
        )
    return "this gate is closed: nobody can decide here any more, so nothing happened"


def _edits(call: Call, wait: Wait) -> dict[str, JsonValue]:
    assert isinstance(wait.ask, AskApproval)
    show = wait.ask.show if isinstance(wait.ask.show, dict) else {}
    edits = changes(fields_of_value(show, wait.ask.editable), call.form, show)
    if not edits:
        raise InputRejected("nothing was changed, so nothing happened; to grant what is shown, press Approve")
    return edits


async def _decide(
    call: Call, record: TaskRecord, wait: Wait, *, approved: bool, edits: dict[str, JsonValue] | None
) -> TaskView:
    assert isinstance(wait.ask, AskApproval)
    vouches = call.person.proven and wait.ask.policy.guarded
    return await call.engine.decide(
        record.task_id,
        wait.gate,
        approved=approved,
        approver=call.person.name,
        digest=wait.ask.digest,
        comment=call.form.get("comment", ""),
        # Signing needs a key, and only gates that restrict who decides require a signature.
        vouched_by=call.person.name if vouches else None,
        changes=edits,
    )


def _said(view: TaskView, wait: Wait, verdict: str) -> str:
    name = snippet(wait.slot, 80)
    if view.late:
        return f"Recorded, but too late: the task had failed already. Recover it to go on with your grant of “{name}”."
    if verdict == "deny":
        return f"You denied “{name}”."
    more = " with your changes" if verdict == "change" else ""
    waits = any(one.gate == wait.gate for one in view.waiting_for)
    return f"You approved “{name}”{more}." + (" It waits for more people." if waits else "")


def _back(call: Call, record: TaskRecord, said: str) -> Response:
    """To where the form stood: the task's page, or the inbox."""
    return call.go(task_path(record.task_id) if call.form.get("back") == "task" else "/", said)


def _given(call: Call, name: str) -> str:
    value = call.form.get(name, "")
    if not value:
        raise Refused(400, f"the form has no {name!r}, so nothing happened")
    return value
