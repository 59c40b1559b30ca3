"""Where a task stands among its steps: before one, in one, or at a question. As JSON data, it is the task's state.

Tasks are saved in this form, so its keys and their order stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.moment import Moment
from refold.core.errors import SkillError, brief

Args = Mapping[str, JsonValue]


def _saved(key: str, default: Any = None) -> Any:
    """A property that reads a key of the saved form."""
    return property(lambda self: self.data.get(key, default))


class Await:
    """One await of a step: what it asked for, and what came back.

    Attributes:
        data: The saved form.
        asked: The fingerprints of the commands that it asked for.
        ids: The invocation ids of those commands.
        first: Whether the first outstanding call that comes back ends the await (see `FirstOf`); otherwise all do.
        outstanding: Every call that the step waits for here; with `first`, older ones that are not back are among them.
        came: The outstanding calls that were back when the step went on.
        failed: The commands whose failure ended a coroutine of `ctx.parallel`, and is raised when all have ended.
    """

    __slots__ = ("data", "first", "outstanding")

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.first = "open" in data
        self.outstanding: list[str] = data.get("open", data["ids"])

    asked: list[str] = _saved("asked")
    ids: list[str] = _saved("ids")
    came: list[str] = _saved("came")
    failed: Sequence[str] = _saved("failed", ())

    def back(self, receipts: Collection[str]) -> bool:
        """Whether enough has come back for the step to go on."""
        here = [id in receipts for id in self.outstanding]
        return any(here) if self.first else all(here)


class Position:
    """Where a task stands. The class methods say where that can be, and which attributes mean something there.

    Attributes:
        data: The saved form.
        step: The name of the step; at a question, of the one that asked.
        args: The arguments of the step, or of the one that the answer enters, as far as they are known.
        fed_by: The invocation ids of the commands that the step's parameters wait for, by parameter.
        resume: The name of the step that the answer enters; None where the task is not at a question.
        slot: The question's name.
        gate: The question's invocation id.
        entered_by: The invocation ids of what entered the step, an answer or results; noted where there is a contract.
        state: The state of the skill's contract.
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
        """Before a step, which is entered when these commands are back."""
        return cls({"step": step, "args": args, "enters": fed_by, **more})

    @classmethod
    def entered(cls, step: str, args: Args, moment: Moment, **more: JsonValue) -> Position:
        """In a step that has not awaited anything."""
        return cls({"step": step, "args": args, **_now(moment, awaits=[]), **more})

    @classmethod
    def asking(cls, step: str, resume: str, slot: str, gate: str, args: Args, **more: JsonValue) -> Position:
        """At a question of a step that has ended."""
        return cls({"step": step, "resume": resume, "slot": slot, "gate": gate, "args": args, **more})

    @property
    def awaits(self) -> list[Await]:
        """All awaits of the step so far, oldest first."""
        return [Await(one) for one in self.data.get("awaits", ())]

    @property
    def last(self) -> Await | None:
        """The newest await of the step."""
        awaits = self.data.get("awaits")
        return Await(awaits[-1]) if awaits else None

    @property
    def outstanding(self) -> list[str]:
        """The invocation ids of every command that the step waits for."""
        last = self.last
        return list(self.fed_by.values()) if last is None else last.outstanding

    def awaiting(self, asked: list[str], ids: list[str], outstanding: list[str] | None, failed: list[str]) -> Position:
        """In the step's next await; `outstanding` where the first call that comes back ends it."""
        new = {"asked": asked, "ids": ids}
        if outstanding is not None:
            new |= {"open": outstanding, **({"failed": failed} if failed else {})}
        return Position({**self.data, "awaits": [*self.data["awaits"], new]})

    def resumed(self, moment: Moment) -> tuple[Position, Await]:
        """In the same step, now that its last await is over; and that await."""
        *earlier, last = self.data["awaits"]
        first_of = last.get("open")
        came = {} if first_of is None else {"came": [id for id in first_of if id in moment.receipts]}
        over = {**last, **_now(moment, **came)}
        return Position({**self.data, "awaits": [*earlier, over]}), Await(over)


def known_then(noted: Await | Position) -> dict[str, Any]:
    """What a step knew when it was entered, or when this await was over: arguments of `Ctx._at`."""
    data = noted.data
    return {"now": datetime.fromisoformat(data["at"]), "heard": data["heard"], "turns": data.get("threads", {})}


def _now(moment: Moment, **between: Any) -> dict[str, Any]:
    """What a step knows at this moment; `between` are keys that stand there in the saved form."""
    now = {"at": moment.at.isoformat(), "heard": len(moment.messages), **between}
    threads = {name: len(thread.said) for name, thread in moment.threads.items()}
    return {**now, "threads": threads} if threads else now
