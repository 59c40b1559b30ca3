"""The calls of a recorded run, and which of them answers a call of the run at hand.

A call is the same as a recorded one if kind, name and arguments are equal; ids do not matter. Where no equal call is
left, `recorded` takes the next call of the same name and reports that its arguments have drifted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.callbacks.address import without_addresses
from refold.core.commands import (
    AskApproval,
    AskUser,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    Notify,
    Sleep,
)
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.values import shortened
from refold.differences import SHOWN_CHARS, parted

MODEL_CALLS = (CallLlm, CallChat)


def arguments(command: Command) -> Any:
    """What a command asks for, as JSON data, without ids, retries and queues."""
    match command:
        case CallTool(args=args):
            return args
        case CallLlm():
            return _dumped(command, "prompt", "input", "expect", "settings")
        case CallChat():
            said = [_turn(one.model_dump(mode="json")) for one in command.say]
            return {**_dumped(command, "thread", "frame", "since"), "say": said}
        case CallActivity() | CallWorkflow():
            return list(command.args)
        case CallSkill():
            return _dumped(command, "input")
        case Sleep(seconds=seconds):
            return {"seconds": seconds}
        case AskUser():
            return _dumped(command, "message", "expect", "timeout_s")
        case AskApproval():
            return _dumped(command, "message", "show", "policy", "editable")
        case Notify():
            return {}


def described(command: Command) -> str:
    """A command, in a line for people: without addresses that work, and cut where it is long."""
    return f"{command.kind} {command.subject} {shortened(_shown(command), SHOWN_CHARS)}"


def _shown(command: Command) -> str:
    """A command's arguments for people; addresses go before anything is cut, since half of one may be enough."""
    return without_addresses(json.dumps(arguments(command), ensure_ascii=False, sort_keys=True))


def same(command: Command) -> str:
    """Equal for equal calls: canonical JSON."""
    name = command.id if isinstance(command, MODEL_CALLS) else command.subject
    return json.dumps([command.kind, name, arguments(command)], sort_keys=True, separators=(",", ":"))


def named(command: Command) -> tuple[str, str]:
    """Equal for calls of one name: of models, tools and so on; a model call has the author's id."""
    return command.kind, command.id if isinstance(command, MODEL_CALLS) else command.subject


def _dumped(command: Command, *names: str) -> dict[str, Any]:
    return command.model_dump(mode="json", include=set(names), exclude_defaults=True)


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn of a conversation without the provider's ids, usage and reasoning."""
    calls = [{"name": one["name"], "args": one.get("args", {})} for one in turn.get("tool_calls", ())]
    kept = {name: value for name, value in turn.items() if name not in ("id", "usage", "aside", "model", "tool_calls")}
    return {**kept, **({"tool_calls": calls} if calls else {})}


@dataclass(slots=True)
class Recording:
    """The recorded calls that are not taken yet.

    Attributes:
        commands: Every recorded command by its id.
        drift: What was taken with other arguments than recorded, for people.
    """

    commands: dict[str, Command]
    taken: dict[str, str] = field(default_factory=dict)
    drift: list[str] = field(default_factory=list)
    _left: dict[str, Command] = field(default_factory=dict)
    _same: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._same = {id: same(one) for id, one in self._left.items()}

    @classmethod
    def of(cls, base: Snapshot, entries: Sequence[Entry]) -> Recording:
        """The calls of a journal, those open before it included."""
        commands: dict[str, Command] = {id: one.command for id, one in base.pending.items()}
        commands |= {wait.gate: wait.ask for wait in base.waits}
        commands |= {one.invocation_id: one.command for entry in entries for one in entry.commands}
        # A call without an outcome is taken, too: the run at hand then stops where the recorded one stood.
        left: dict[str, Command] = {
            id: one for id, one in commands.items() if not isinstance(one, AskUser | AskApproval)
        }
        return cls(commands=commands, _left=left)

    def take(self, invocation_id: str, command: Command, *, exact: bool) -> str | None:
        """The id of the recorded call that answers a call; None if none is left.

        Args:
            invocation_id: The call's id in the run at hand.
            command: The call.
            exact: Only a call with equal arguments.
        """
        wanted, name = same(command), named(command)
        equal = [id for id in self._left if self._same[id] == wanted]
        found = invocation_id if invocation_id in equal else next(iter(equal), None)
        if found is None and not exact:
            found = next((id for id, one in self._left.items() if named(one) == name), None)
            if found is not None and not isinstance(command, MODEL_CALLS):
                was, now = parted(_shown(self._left[found]), _shown(command))
                self.drift.append(f"{command.kind} {command.subject} {now}; recorded: {was}")
        if found is not None:
            del self._left[found]
            self.taken[found] = invocation_id
        return found

    def unused(self) -> list[Command]:
        """Recorded calls of tools, skills, activities and workflows that nobody asked for, in the order recorded."""
        return [one for one in self._left.values() if not isinstance(one, (*MODEL_CALLS, Sleep, Notify))]
