"""Where a task stands among its steps: before a step, in a step, or at a question. Its JSON is the task's saved state.

The keys and their order never change, because histories hold them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.context import Moment
from refold.core.errors import SkillError, brief

Args = Mapping[str, JsonValue]


def _saved(key: str, default: Any = None) -> Any:
    """A property that reads a key of the saved form."""
    return property(lambda self: self.data.get(key, default))


class Await:
    """One await of a step: its commands, and which of them completed.

    Attributes:
        data: The saved form.
        asked: The fingerprints of the await's commands.
        ids: The invocation ids of these commands.
        first: Whether one outcome is enough to resume the step (see `FirstOf`); otherwise all are needed.
        outstanding: Ids of all calls that the step waits for here; with `first`, also those of earlier awaits.
        completed: With `first`: ids of the outstanding calls that had completed when the step was resumed.
        parked: With `first`: ids of outstanding calls whose failure recovery skipped then (see `PARKED`).
        failed: Ids of commands whose failures branches of `ctx.parallel` have received, and that are raised later.
    """

    __slots__ = ("data", "first", "outstanding")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.first = "open" in data
        self.outstanding: list[str] = data.get("open", data["ids"])

    asked: list[str] = _saved("asked")
    ids: list[str] = _saved("ids")
    completed: list[str] = _saved("came")
    parked: Sequence[str] = _saved("parked", ())
    failed: Sequence[str] = _saved("failed", ())

    def back(self, receipts: Collection[str]) -> bool:
        """Whether enough outcomes are there to resume the step."""
        # Most come back in order, so that the last one tells soonest.
        here = (id in receipts for id in reversed(self.outstanding))
        return any(here) if self.first else all(here)


class Position:
    """Where a task stands: `before` a step, `entered` in a step, or `asking` a question.

    Attributes:
        data: The saved form.
        step: The name of the step; at a question, of the step that asked.
        args: Arguments of the step, or of the step that receives the answer, as far as they are known.
        fed_by: Before a step: the invocation id of the command whose result each parameter waits for, by parameter.
        resume: At a question: the name of the step that receives the answer; otherwise None.
        slot: At a question: its name.
        gate: At a question: its invocation id.
        entered_by: With a contract: invocation ids of the answer or results that entered the step.
        state: With a contract: its state.
    """

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        if not (isinstance(data, dict) and "step" in data and "args" in data):
            raise SkillError(
                f"the saved state {brief(data)} is no position among steps; an `upgrade` returns what it was given, "
                "with its own values changed: those under `args`, and under `state` where there is a contract"
            )
        self.data: dict[str, Any] = data

    step: str = _saved("step")
    args: dict[str, JsonValue] = _saved("args")
    fed_by: Mapping[str, str] = _saved("enters", MappingProxyType({}))
    resume: str | None = _saved("resume")
    slot: str = _saved("slot")
    gate: str = _saved("gate")
    entered_by: Sequence[str] = _saved("met", ())
    state: dict[str, JsonValue] = _saved("state")

    @classmethod
    def before(cls, step: str, args: Args, fed_by: Mapping[str, str], **more: JsonValue) -> Position:
        """Before a step, which is entered when the commands of `fed_by` have completed."""
        return cls({"step": step, "args": args, "enters": fed_by, **more})

    @classmethod
    def entered(cls, step: str, args: Args, moment: Moment, **more: JsonValue) -> Position:
        """In a step that has awaited nothing yet."""
        return cls({"step": step, "args": args, **_now(moment, awaits=[]), **more})

    @classmethod
    def asking(cls, step: str, resume: str, slot: str, gate: str, args: Args, **more: JsonValue) -> Position:
        """At a question that a step asked as it ended."""
        return cls({"step": step, "resume": resume, "slot": slot, "gate": gate, "args": args, **more})

    @property
    def awaits(self) -> list[Await]:
        """All awaits of the step so far, oldest first."""
        return [Await(one) for one in self.data.get("awaits", ())]

    @property
    def last(self) -> Await | None:
        """The newest await of the step."""
        return Await(awaits[-1]) if (awaits := self.data.get("awaits")) else None

    @property
    def outstanding(self) -> list[str]:
        """The invocation ids of every command that the step waits for."""
        last = self.last
        return list(self.fed_by.values()) if last is None else last.outstanding

    def awaiting(self, asked: list[str], ids: list[str], outstanding: list[str] | None, failed: list[str]) -> Position:
        """In the step's next await. `outstanding` is given if one outcome is enough to resume the step."""
        new = {"asked": asked, "ids": ids}
        if outstanding is not None:
            new |= {"open": outstanding, **({"failed": failed} if failed else {})}
        return Position({**self.data, "awaits": [*self.data["awaits"], new]})

    def resumed(self, moment: Moment) -> tuple[Position, Await]:
        """The position after the step's last await is over, and that await."""
        *earlier, last = self.data["awaits"]
        first_of = last.get("open")
        completed = {} if first_of is None else {"came": [id for id in first_of if id in moment.receipts]}
        if first_of is not None and moment.parked in first_of:
            completed["parked"] = [moment.parked]
        over = {**last, **_now(moment, **completed)}
        return Position({**self.data, "awaits": [*earlier, over]}), Await(over)


def known_then(noted: Await | Position) -> dict[str, Any]:
    """The time, messages and threads at the moment a step was entered or an await was over, for `Ctx._at`."""
    data = noted.data
    return {"now": datetime.fromisoformat(data["at"]), "message_count": data["heard"], "turns": data.get("threads", {})}


def _now(moment: Moment, **between: Any) -> dict[str, Any]:
    """The saved form of a moment for `known_then`; `between` are keys saved between time and threads."""
    now = {"at": moment.at.isoformat(), "heard": len(moment.messages) + (moment.message is not None), **between}
    threads = {name: len(thread.said) for name, thread in moment.threads.items()}
    return {**now, "threads": threads} if threads else now
