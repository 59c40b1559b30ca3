"""A task driven by hand, event by event, to be recorded. Each event comes a second after the one before."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic_core import to_jsonable_python

from refold.core.authoring.skill import Live
from refold.core.events import EVENT
from refold.core.fold.apply import advance, planned
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, wanted
from tests.records.tapes import Tape, begun, compact

START = datetime(2026, 1, 1, tzinfo=UTC)
RESULTS = {
    "llm": "llm_result", "chat": "chat_result", "tool": "tool_result", "skill": "skill_result", "notify": "notified",
    "activity": "activity_result", "workflow": "workflow_result", "sleep": "timer_fired",
}  # fmt: skip


def failure(kind: str, type: str, message: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "type": type, "message": message, **more}


BUSY = failure("transient", "http_503", "busy")
NEVER = failure("permanent", "http_403", "forbidden")
UNKNOWN = failure("unknown", "outcome_unknown", "the response was lost")


class Hand:
    """A task and what happened to it.

    Args:
        skill: Where the skill is, as `module:name`; without a module, in `tests.records.skills`.
        task_id: Its id.
        planned: How it begins; None for a task of its own.
        origin: How it was made, where it was made of another one.
        patched: The ids for which `ctx.patched` says yes; None for all.
        options: Of `planned`.
    """

    def __init__(
        self,
        skill: str,
        task_id: str = "T",
        *,
        planned_as: Snapshot | None = None,
        origin: dict[str, Any] | None = None,
        patched: tuple[str, ...] | None = None,
        **options: Any,
    ) -> None:
        self.skill = skill if ":" in skill else f"tests.records.skills:{skill}"
        self.origin, self.patched, self.events = origin, patched, list[tuple[str, str]]()
        self.compiled = self.tape("").compiled
        self.task = planned_as or planned(self.compiled, task_id, START, **options)
        self.first, self.live, self.entries = self.task.model_dump_json(), Live(), list[Any]()

    def tape(self, first: str | None = None) -> Tape:
        """What was recorded so far."""
        return Tape(
            skill=self.skill,
            planned=self.first if first is None else first,
            events=tuple(self.events),
            patched=self.patched,
            origin=self.origin,
        )

    def feed(self, event: Any, *, second: float | None = None) -> Hand:
        """Take an event, given as data or as itself."""
        happened = EVENT.validate_python(event) if isinstance(event, dict) else event
        data = to_jsonable_python(happened)
        when = START + timedelta(seconds=second if second is not None else self.task.seq + 1)
        when = when if second is not None else max(when, self.task.at)
        self.events.append((compact(data), when.isoformat().replace("+00:00", "Z")))
        answer: Callable[[str], bool] | None = self.tape().answer()
        self.task, entry = advance(self.compiled, self.task, happened, when, live=self.live, patched=answer)
        self.entries.append(entry)
        return self

    def say(self, said: Any = "go", **more: Any) -> Hand:
        """The user says something: text, or data."""
        parts = [{"text": said}] if isinstance(said, str) else [{"data": said}]
        return self.feed({"kind": "user_message", "content": {"parts": parts}, **more})

    def give(self, *results: Any, second: float | None = None) -> Hand:
        """`give("a", 1)`: the command of this id comes back with a value."""
        id, value = results if len(results) == 2 else (results[0], None)
        one = self.pending(id)
        event: dict[str, Any] = {"kind": RESULTS[one.command.kind], "id": id, "invocation_id": one.invocation_id}
        match one.command.kind:
            case "chat":
                event["reply"] = value if isinstance(value, dict) else {"text": value}
            case "skill":
                event["outcome"] = {"task_id": one.invocation_id, "text": str(value)}
            case "sleep" | "notify":
                pass
            case _:
                event["value"] = value
        return self.feed(event, second=second)

    def fail(self, id: str, why: dict[str, Any] = NEVER) -> Hand:
        """The command of this id fails."""
        one = self.pending(id)
        return self.feed({"kind": "command_failed", "id": id, "invocation_id": one.invocation_id, "failure": why})

    def ring(self, end: str) -> Hand:
        """The alarm rings, when it is due, whose key ends so, or which is of the command of this id."""
        ids = [one.invocation_id for one in self.task.pending.values() if one.command.id == end]
        alarms = [(key, want) for key, want in wanted(self.task).items() if isinstance(want, Alarm)]
        met = [want for key, want in alarms if key.endswith(end) or (ids and key.startswith(tuple(ids)))]
        alarm = self._one(end, met)
        return self.feed(alarm.event, second=(alarm.due_at - START).total_seconds())

    def wait(self, slot: str) -> Any:
        """The open question or gate of this name."""
        return self._one(slot, [one for one in self.task.open_waits if one.slot == slot])

    def decide(self, slot: str, decision: str = "approved", *, by: str = "Ann", **more: Any) -> Hand:
        """Somebody decides at the gate of this name."""
        if "gate" not in more:
            more = {"gate": self.wait(slot).gate, "digest": self.wait(slot).ask.digest, **more}
        fields = {"kind": "decision_made", "decision": decision, "approver": by, "asserted_by": "key", **more}
        second = fields.pop("second", None)
        return self.feed(fields, second=second)

    def resolve(self, **fields: Any) -> Hand:
        """An operator says how it goes on with what is blocked; a given outcome comes back from its receipt."""
        self.feed({"kind": "dependency_resolved", **fields})
        for one in wanted(self.task).values():
            if getattr(one, "given", None) is not None:
                self.give(one.command.id, one.given.outcome)  # type: ignore[union-attr]  # only a Perform has one
        return self

    def cancel(self, reason: str = "", **more: Any) -> Hand:
        return self.feed({"kind": "cancel_requested", "reason": reason, **more})

    def pending(self, id: str) -> Any:
        return self._one(id, [one for one in self.task.pending.values() if one.command.id == id])

    def _one(self, name: str, found: list[Any]) -> Any:
        story = [f"{entry.seq} {entry.event.kind} {entry.refused} {entry.note}" for entry in self.entries]
        assert found, f"no {name!r} in {list(wanted(self.task))}, {self.task.lifecycle}, after\n" + "\n".join(story)
        return found[0]

    # --- tasks made of this one

    def recovered(self, journal: str, task_id: str = "T2", *, skill: str | None = None, by: str | None = None) -> Hand:
        """The task that goes on from where this one failed; `journal` is what this one is recorded as."""
        return self._made({"how": "recover", "by": by, "in_turn": True}, journal, task_id, skill)

    def forked(self, journal: str, seq: int, task_id: str = "F", *, live: bool = False, by: str | None = None) -> Hand:
        """The task that branches off from an entry of this one."""
        return self._made({"how": "fork", "seq": seq, "live": live, "by": by}, journal, task_id, None)

    def _made(self, how: dict[str, Any], journal: str, task_id: str, skill: str | None) -> Hand:
        at = self.task.at.isoformat().replace("+00:00", "Z")
        origin = {**how, "journal": journal, "entries": len(self.entries), "task_id": task_id, "at": at}
        new = Hand(skill or self.skill, planned_as=self.task, origin=origin)
        snapshot, first = begun(origin, new.tape(), of=(Snapshot.model_validate_json(self.first), self.entries))
        new.task, new.first = snapshot, snapshot.model_dump_json()
        assert first is not None
        return new.feed(first)
