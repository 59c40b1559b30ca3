"""Where today's code says something else than was recorded: which entry, which field, and a task as it was recorded.

Two journals of the same events are compared: the one that the skill's code makes of them now, and what history holds of
the one that it made when they happened (`refold.digests`). Rule: what was recorded is shown, and never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from pydantic import JsonValue, TypeAdapter, ValidationError

from refold import differences
from refold.conversation import Mention, Told, mentioned
from refold.core.chat import EMPTY, Frame, Said, Thread, UserSaid
from refold.core.commands import COMMAND, CallChat, Command, Sleep
from refold.core.content import Content
from refold.core.fold.journal import Entry, Issued
from refold.core.fold.snapshot import Pending, Snapshot
from refold.core.values import Value, lean
from refold.differences import NOTHING, both
from refold.digests import BROUGHT, SAME, BeyondHistory, brought_by, with_message
from refold.record import record_of, with_entries

ONLY_HASH = "(history holds only a hash of this turn)"

Input = Mapping[str, JsonValue]
"""What history holds of a command: fields of the command as JSON, `kind` always; a chat's turns as `Told`."""


class Difference(Value):
    """The first thing that today's code says otherwise than was recorded.

    Attributes:
        task_id: The task.
        seq: The number of the entry; the first of several where nothing tells which of them differs.
        upto: The last of these; equal to `seq` where it is known.
        field: What differs, as `messages[0].parts[0].text` or `commands.charge.args.cents`; empty where history does
            not tell.
        recorded: What was recorded there, None where nothing was; without a field, the journal's digest in hex.
        now: What the code says now, None where it says nothing; likewise.
        build_id: The build that recorded it; empty where nobody knows.
        why: Why the code cannot go on after the entry, in words, where that is the difference.
    """

    task_id: str
    seq: int
    upto: int
    why: str = lean("")
    field: str = lean("")
    recorded: JsonValue = lean()
    now: JsonValue = lean()
    build_id: str = lean("")

    @property
    def found(self) -> str:
        """The entry and what differs there, for people."""
        by = f" by build {self.build_id}" if self.build_id else ""
        if self.why:
            return f"after entry {self.seq}: {self.why}"
        if self.field:
            was, now = both(_or_nothing(self.recorded), _or_nothing(self.now), chars=FOUND_CHARS)
            return f"entry {self.seq}: {self.field} was recorded{by} as {was}, and the code says {now} now"
        which = f"entry {self.seq}" if self.seq == self.upto else f"one of the entries {self.seq} to {self.upto}"
        was, now = (f" {one}" if one else "" for one in (self.recorded, self.now))
        return (
            f"{which} is another than was recorded{by}: the digest up to entry {self.upto} was{was}, and is{now} now. "
            "History has no words for what differs, as for what a step wrote to the state, or for a patch that only "
            "that build's code, or its release of refold, asks for"
        )

    def __str__(self) -> str:
        return f"{DIFFERS} of task {self.task_id!r}: {self.found}. {WAYS_OUT}"


FOUND_CHARS = 120
"""How much of each value the words of a difference quote."""

DIFFERS = "the skill's code differs from what was recorded"
"""How the words of each difference begin."""

WAYS_OUT = (
    "Nothing is lost: the task keeps what was recorded, and takes nothing until the code is put back that recorded it, "
    "or the change is made under `ctx.patched`. To change the code for good, run `refold upgrade` with the code that "
    "recorded it first, or `refold fork` the task at an entry before; where the commands differ, the fork needs that "
    "code, too"
)


def _or_nothing(value: JsonValue) -> object:
    return NOTHING if value is None else value


def first_difference(
    task_id: str,
    entries: Iterable[Entry],
    said: Mapping[int, BeyondHistory],
    inputs: Mapping[str, Input],
    *,
    build_id: str = "",
) -> Difference:
    """What differs in entries whose digest is another than was recorded.

    Args:
        task_id: The task.
        entries: As today's code writes them, from the first one that the recorded digest does not confirm; not empty.
        said: What was recorded of these entries, by their numbers.
        inputs: What was recorded of effects, by invocation id.
        build_id: The build that recorded it.
    """
    entries = tuple(entries)
    for now in entries:
        recorded = as_recorded(task_id, now, said.get(now.seq), inputs)
        if (found := difference_of(task_id, recorded, now, build_id=build_id)) is not None:
            return found
    return Difference(task_id=task_id, seq=entries[0].seq, upto=entries[-1].seq, build_id=build_id)


def difference_of(task_id: str, recorded: Entry, now: Entry, *, build_id: str = "") -> Difference | None:
    """The first field in which two entries of one number differ, what people can read first; None if they are equal."""
    found = differences.first_difference(_readable(recorded), _readable(now))
    if found is None:
        return None
    was, says = (None if one is NOTHING else one for one in (found.was, found.now))
    there = {"seq": now.seq, "upto": now.seq, "field": found.path}
    return Difference(task_id=task_id, **there, recorded=was, now=says, build_id=build_id)


def as_recorded(task_id: str, now: Entry, said: BeyondHistory | None, inputs: Mapping[str, Input]) -> Entry:
    """An entry with what was recorded of it in place of what today's code says.

    Args:
        task_id: The task.
        now: The entry as today's code writes it.
        said: What was recorded of it; None where that is nothing.
        inputs: What was recorded of effects, by invocation id.
    """
    said = said or BeyondHistory(seq=now.seq)
    if (brought := brought_by(now.event)) is not None:
        said = with_message(said, BROUGHT, brought)
    commands = {one.invocation_id: one for one in said.commands}
    says = {one.invocation_id: one.command for one in now.commands}
    own = f"{task_id}/{now.seq}."
    for id in (*says, *(id for id in inputs if id.startswith(own) and id[len(own) :].isdigit())):
        if id in inputs and (command := _recorded_command(says.get(id), inputs[id])) is not None:
            commands[id] = Issued(invocation_id=id, command=command)
    ordered = sorted(commands.values(), key=lambda one: _place(one.invocation_id))
    same = {name: getattr(said, name) for name in SAME}
    return now.changed({**same, "commands": tuple(ordered)})


def shown_as(now: Snapshot, base: Snapshot, entries: Sequence[Entry], recorded: Sequence[Entry]) -> Snapshot:
    """A snapshot with what was recorded in place of what today's code says.

    Its state is left out: history does not hold it, and what today's code makes of it never was.

    Args:
        now: The snapshot after the entries.
        base: The one before them.
        entries: As today's code writes them.
        recorded: The same entries as they were recorded.
    """
    record = with_entries(record_of(base), recorded)
    asks = {wait.gate: wait.ask for wait in record.waits}
    issued = {one.invocation_id: one.command for entry in recorded for one in entry.commands}
    waits = tuple(wait.changed({"ask": asks.get(wait.gate, wait.ask)}) for wait in now.waits)
    says = {one.invocation_id: one.command for entry in entries for one in entry.commands}
    pending = {id: _issued_as(one, issued.get(id), says.get(id)) for id, one in now.pending.items()}
    said = {"state": None, "messages": record.messages, "artifacts": record.artifacts, "progress": record.progress}
    reason = record.reason if record.ended else now.reason
    threads = _threads(now.threads, entries, issued)
    return now.changed({**said, "reason": reason, "waits": waits, "pending": pending, "threads": threads})


def opened_as(now: Snapshot, recorded: Entry) -> Snapshot:
    """A snapshot in which the questions and commands of an entry are those that were recorded.

    The next event is judged by them: a decision was made on what was shown, not on what today's code would show.

    Args:
        now: The snapshot after the entry.
        recorded: The entry as it was recorded.
    """
    issued = {one.invocation_id: one.command for one in recorded.commands}
    waits = tuple(wait.changed({"ask": issued.get(wait.gate, wait.ask)}) for wait in now.waits)
    pending = {id: one.changed({"command": issued.get(id, one.command)}) for id, one in now.pending.items()}
    return now.changed({"waits": waits, "pending": pending})


def _issued_as(now: Pending, was: Command | None, says: Command | None) -> Pending:
    """A command under way as it was recorded; a sleep then ends when the recorded one does."""
    due_at = now.due_at
    if due_at is not None and isinstance(was, Sleep) and isinstance(says, Sleep):
        due_at += timedelta(seconds=was.seconds - says.seconds)
    return now.changed({"command": was or now.command, "due_at": due_at})


def _threads(
    threads: Mapping[str, Thread], entries: Iterable[Entry], issued: Mapping[str, Command]
) -> Mapping[str, Thread]:
    """Conversations with the turns that were recorded in place of those that today's code says."""
    changed = dict(threads)
    for one in [one for entry in entries for one in entry.commands]:
        was = issued.get(one.invocation_id)
        if not isinstance(one.command, CallChat) or not isinstance(was, CallChat) or was == one.command:
            continue
        name = one.command.thread
        if name in changed:
            frame = was.frame or changed[name].frame
            turns = _replaced(changed[name].said, one.command.say, was.say)
            changed[name] = EMPTY.after(turns).changed({"frame": frame})
    return changed


def _replaced(turns: tuple[Said, ...], old: tuple[Said, ...], new: tuple[Said, ...]) -> tuple[Said, ...]:
    for place in range(len(turns) - len(old) + 1):
        if turns[place : place + len(old)] == old:
            return (*turns[:place], *new, *turns[place + len(old) :])
    return turns


def _recorded_command(now: Command | None, input: Input) -> Command | None:
    """A command as it was recorded; `now`, which is what the code says of it, where history does not tell enough."""
    # Where the code asks for nothing, the id that the author gave is not known.
    id = now.id if now is not None else str(input.get("skill") or input.get("name") or input.get("thread", "main"))
    if input["kind"] == "chat":
        return _recorded_chat(now if isinstance(now, CallChat) else CallChat(id=id), input)
    partial = now is not None and input["kind"] not in _WHOLE and input["kind"] == now.kind
    known: Input = now.model_dump(mode="json") if now is not None and partial else {"id": id}
    try:
        return COMMAND.validate_python({**known, **input})
    except ValidationError:
        return now


_WHOLE = {"llm", "tool", "notify"}
"""The kinds of command that an activity is given as they are; of the others it is given only some fields."""


def _recorded_chat(now: CallChat, input: Input) -> CallChat:
    told = _TOLD.validate_python(input.get("say", ()))
    say = [_turn(one, now.say[place] if place < len(now.say) else None) for place, one in enumerate(told)]
    frame = Frame.model_validate(input["frame"]) if input.get("frame") else now.frame
    changes = {"thread": input.get("thread", "main"), "since": input.get("since", 0), "say": tuple(say)}
    return now.changed({**changes, "frame": frame})


def _turn(told: Told, now: Said | None) -> Said:
    if not isinstance(told, Mention):
        return told
    return now if now is not None and mentioned(now) == told else UserSaid(content=Content.from_text(ONLY_HASH))


_TOLD: TypeAdapter[tuple[Told, ...]] = TypeAdapter(tuple[Told, ...])


def _place(invocation_id: str) -> list[tuple[int, str]]:
    """Sorts invocation ids as they were given."""
    parts = invocation_id.rpartition("/")[2].replace("~", ".").split(".")
    return [(int(part), "") if part.isdigit() else (0, part) for part in parts]


def _readable(entry: Entry) -> dict[str, JsonValue]:
    """An entry as JSON data, with what people can read first, and commands by the author's name for them."""
    # An old task answers False to a patch that it never asked for, and says so.
    data = entry.model_dump(mode="json", exclude={"patches", "commands"})
    names: dict[str, JsonValue] = {}
    for one in entry.commands:
        name = one.command.id if one.command.id not in names else one.invocation_id
        names[name] = one.command.model_dump(mode="json")
    return {**{name: data[name] for name in SAME if name in data}, "commands": names, **data}
