"""What waits for people, as the page shows it: a gate, a question or a blocked command, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Literal

from pydantic import JsonValue

from refold.core.commands import AskApproval, AskUser
from refold.core.fold.journal import Entry
from refold.core.gates import DecisionMade, is_among
from refold.core.schema import type_name
from refold.core.waits import Unresolved, Wait
from refold.differences import differences, shown
from refold.engine import PendingView, TaskView
from refold.record import TaskRecord
from refold.web.page.forms import Field, fields_for, fields_of_value, unlisted
from refold.web.page.people import Person

SHOWN_DIFFERENCES = 100
VALUE_CHARS = 2_000
READS = "you may read here and change nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that waits for a person.

    Attributes:
        kind: A gate, a question, a call to the task's own address, a blocked command, or a task that cannot be asked
            for what it waits.
        task_id: The task that takes the answer.
        skill: Its skill.
        id: The gate's id, or that of the blocked command; unique within the task.
        name: The gate's name, or the command's.
        asks: What is asked, or why the command is blocked.
        since: Since when.
        until: Until when; None waits for ever.
        why_not: Why the person cannot decide; empty if it is their turn.
        show: The data to decide on.
        digest: Of what the gate shows.
        policy: Who decides, in words.
        granted_by: Who has granted it so far.
        fatal: Whether a denial fails the task.
        alone: Whether it cannot be decided together with others, since the task goes on at once.
        fields: The form to answer, or to change what is granted.
        unlisted: How much more may be changed, but not on the page.
        expects: What the answer must be, in words; empty takes any text.
    """

    kind: Literal["gate", "question", "callback", "blocked", "silent"]
    task_id: str
    skill: str
    id: str
    name: str
    asks: str
    since: datetime | None = None
    until: datetime | None = None
    why_not: str = ""
    show: JsonValue = None
    digest: str = ""
    policy: str = ""
    granted_by: tuple[str, ...] = ()
    fatal: bool = False
    alone: bool = False
    fields: tuple[Field, ...] = ()
    unlisted: int = 0
    expects: str = ""

    @property
    def headline(self) -> str:
        """The first line of what is asked; of a blocked command, which one it is."""
        if self.kind == "blocked":
            return f"{self.name} is blocked"
        return self.asks.strip().partition("\n")[0] or self.name

    @property
    def more(self) -> str:
        """The other lines; of a blocked command, why it is blocked."""
        if self.kind == "blocked":
            return self.asks
        return self.asks.strip().partition("\n")[2].strip()


def items_of(
    record: TaskRecord, person: Person, view: TaskView | None = None, blocked_since: datetime | None = None
) -> Iterator[Item]:
    """What waits in a task, oldest first; not what waits in its parts, which is listed with them.

    Args:
        record: The task.
        person: For whom.
        view: The same task, for its blocked commands; None if it has none.
        blocked_since: Since when they are blocked; None if that is not known.
    """
    for wait in record.waits:
        if wait.gate not in record.reported_by:
            yield item_of(record, wait, person)
    if view is None:
        return
    for one in view.unresolved:
        if one.task_id == record.task_id:
            yield _blocked(record, one, person, blocked_since)
    known = {one.invocation_id for one in view.unresolved}
    for pending in view.pending:
        if pending.blocked and pending.invocation_id not in known:
            yield replace(_blocked(record, pending, person, blocked_since), until=pending.due_at)


def grouped(items: Iterable[Item]) -> list[list[Item]]:
    """Gates of one task that the person can decide together, next to each other; all else alone."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        together = item.kind == "gate" and not item.alone and not item.why_not
        groups.setdefault(item.task_id if together else f"{item.task_id} {item.id}", []).append(item)
    return list(groups.values())


def silent(record: TaskRecord) -> Item:
    """A task that waits, and of which nobody can say for what."""
    return Item(
        kind="silent",
        task_id=record.task_id,
        skill=record.skill,
        id="",
        name="",
        asks=record.note or "it waits for something that cannot be read now",
        since=record.status_at,
        why_not="nobody can answer before the task can be read",
    )


def item_of(record: TaskRecord, wait: Wait, person: Person) -> Item:
    """A gate or a question."""
    found = Item(
        kind="question",
        task_id=record.task_id,
        skill=record.skill,
        id=wait.gate,
        name=wait.slot,
        asks=wait.ask.message.text,
        since=wait.since,
        until=wait.timeout_at,
    )
    if isinstance(wait.ask, AskUser):
        return _question(found, wait.ask, _not_theirs(record, person))
    return _gate(found, wait, wait.ask, record, person)


def _not_theirs(record: TaskRecord, person: Person) -> str:
    """Why the person can neither answer nor resolve anything in a task; empty if they can."""
    if not person.acts:
        return READS
    return "" if person.runs(record) else "only the owner of the task may do this, and you decide at its gates"


def _question(found: Item, ask: AskUser, not_theirs: str) -> Item:
    fields = () if ask.expect is None else fields_for(ask.expect)
    called = "it waits for a call to its own address, so nobody answers it here" if ask.callback is not None else ""
    return replace(
        found,
        kind="question" if ask.callback is None else "callback",
        fields=fields,
        expects="" if ask.expect is None else type_name(ask.expect),
        why_not=called or not_theirs,
    )


def _gate(found: Item, wait: Wait, ask: AskApproval, record: TaskRecord, person: Person) -> Item:
    show = ask.show if isinstance(ask.show, dict) else {}
    fields = fields_of_value(show, ask.editable)
    return replace(
        found,
        kind="gate",
        show=ask.show,
        digest=ask.digest,
        policy=_policy(ask),
        granted_by=tuple(grant.approver for grant in wait.grants),
        fatal=ask.policy.on_denied == "fail",
        alone=ask.raced,
        fields=tuple(map(_explained, fields)),
        unlisted=unlisted(show, ask.editable, fields),
        why_not=_why_not(wait, ask, record, person),
    )


def _explained(field: Field) -> Field:
    """A field with what it is for, where its name does not tell: an agent's gate takes the result of its tool."""
    if field.path == ("result",) and not field.required:
        return replace(field, help="Written here, this is the result, and nothing is called.")
    return field


def _why_not(wait: Wait, ask: AskApproval, record: TaskRecord, person: Person) -> str:
    """Why the person cannot decide, as far as it is known here; the task itself has the last word."""
    policy = ask.policy
    if not person.acts:
        return READS
    if policy.approvers and not is_among(person.name, policy.approvers):
        return f"only {_listed(policy.approvers)} may decide, and you are {person.name}"
    if is_among(person.name, (grant.approver for grant in wait.grants)):
        return "you have granted it; it waits for somebody else"
    if policy.second_person and is_among(person.name, [record.owner or ""]):
        return "a second person decides: it is your own task"
    if policy.guarded and not policy.allow_unsigned and not person.proven:
        return "it takes signed decisions alone, and nobody vouches for your name here: sign in with a key or token"
    return ""


def _policy(ask: AskApproval) -> str:
    who = _listed(ask.policy.approvers, "or") if ask.policy.approvers else "anybody"
    if ask.policy.needed > 1:
        who = (
            f"{ask.policy.needed} of {_listed(ask.policy.approvers)}"
            if ask.policy.approvers
            else (f"{ask.policy.needed} people")
        )
    return who + (", but not whoever owns or started the task" if ask.policy.second_person else "")


def _listed(names: Sequence[str], word: str = "and") -> str:
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def _blocked(record: TaskRecord, one: Unresolved | PendingView, person: Person, since: datetime | None) -> Item:
    return Item(
        kind="blocked",
        task_id=record.task_id,
        skill=record.skill,
        id=one.invocation_id,
        name=one.command,
        asks=one.failure or "nobody knows whether it took place",
        since=since,
        why_not=_not_theirs(record, person),
    )


def changed_since(show: JsonValue, earlier: JsonValue) -> list[tuple[str, str, str]]:
    """How the request differs from the one granted before: field, value then, value now."""
    found = islice(differences(earlier, show), SHOWN_DIFFERENCES)
    return [(one.path or "the whole", shown(one.was, VALUE_CHARS), shown(one.now, VALUE_CHARS)) for one in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A grant at a gate of the same name, earlier in the task.

    Attributes:
        decision: The grant.
        seq: Its entry.
        at: When.
        show: The data that was granted.
    """

    decision: DecisionMade
    seq: int
    at: datetime
    show: JsonValue


def earlier_grant(entries: Sequence[Entry], slot: str, gate: str) -> Granted | None:
    """The last grant that a gate can be compared with: of a gate of this name, or of this gate before an edit."""
    asked: dict[str, AskApproval] = {}
    found: Granted | None = None
    for entry in entries:
        for one in entry.commands:
            if isinstance(one.command, AskApproval):
                asked[one.invocation_id] = one.command
        event = entry.event
        if entry.refused or not isinstance(event, DecisionMade) or not event.approved or event.gate not in asked:
            continue
        ask = asked[event.gate] = asked[event.gate].edited(event.changes)
        if ask.slot == slot and (event.gate != gate or event.changes):
            found = Granted(decision=event, seq=entry.seq, at=entry.at, show=ask.show)
    return found


def decisions_in(entries: Sequence[Entry], gate: str | None = None) -> list[tuple[Entry, DecisionMade]]:
    """The decisions that were taken, oldest first: at one gate, or at all."""
    return [
        (entry, entry.event)
        for entry in entries
        if isinstance(entry.event, DecisionMade) and not entry.refused and gate in (None, entry.event.gate)
    ]
