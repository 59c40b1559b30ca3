"""The laws that hold for every skill, and a check of them for one skill, in one line of a test:

    test_laws = laws_of(Refund)

Rule 1: a fold has no memory of its own: the same events give the same journal, and recorded entries never change.
Rule 2: a task that is serialised to JSON at any event and continued has the same journal; so has a folded one.
Rule 3: no order of events raises, makes a move that is not in the lifecycle's table, or gives an underivable status.
Rule 4: a refused event changes only the number, the time and the count of refusals.
Rule 5: each lifecycle state means what it says: in retrying a command is in backoff, in paused a question is open, in
  blocked a command waits for its dependency or an operator, in running something is open, and after the end nothing is
  open but the time for a late grant, and compensations.
Rule 6: a settled command, which has its result or a failure that is not retried, is never wanted again: not before the
  end, not after it, and not in a task that was recovered from this one. The journal alone says what is settled.
Rule 7: an open task that wants nothing waits for a person; an ended task that wants nothing stays so.
Rule 8: the skill of a recovered task is not called before every compensated effect is performed again.
Rule 9: every entry and snapshot can be written as JSON, and reads back equal.
Rule 10: recovering or forking a task twice under one id gives the same task, and that task keeps these laws. Under two
  ids it gives tasks that share no id of work that begins in them, such as a compensated effect that is performed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import HealthCheck, given, settings

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live, Skill, skill_id
from refold.core.commands import Notify, Sleep
from refold.core.errors import RefoldError
from refold.core.events import BackoffOver, CommandFailed, Event, GraceOver, ToolResult, UserMessage
from refold.core.fold.apply import advance, fold
from refold.core.fold.ending import under_way
from refold.core.fold.journal import Entry
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import OPENED, UNDO, Snapshot
from refold.core.fold.wanted import UNTIL, SendAnswer, finished, wanted
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TERMINAL, Ending, Status, TaskState, next_state
from refold.engine.arguments import Count, takes
from refold.record import TaskRecord, record_of, with_entry
from refold.testing.answers import ScriptError
from refold.testing.past import Past, check_past, id_of, is_of_gate
from refold.testing.strategies import Happening, Life, Made, first_of, lineages

_ONLY_COUNTED = {"seq", "at", "refused", "patches"}


class LawBroken(RefoldError, AssertionError):
    """A skill, or the core, breaks a law.

    Attributes:
        law: The law, in one sentence.
        found: What was seen instead.
        history: The events so far.
    """

    def __init__(self, law: str, found: str, history: Sequence[Happening | Made]) -> None:
        self.law = law
        self.found = found
        self.history = tuple(history)
        happened = "".join(f"\n  {number}. {happening}" for number, happening in enumerate(history, 1))
        super().__init__(f"law broken: {law}\n{found}\nafter these events:{happened}")


@takes(ScriptError)
def laws_of(
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_examples: Count = 100,
    max_events: Count = 20,
    profile: settings | None = None,
) -> Callable[[], None]:
    """A test of the laws for a skill: `test_laws = laws_of(Refund)`.

    Args:
        skill: A skill's class, a table, or a compiled skill.
        values: Results of commands, by their id or by what they call: a type or a Hypothesis strategy of JSON values.
            Without it models answer what fits `expect`, and others anything.
        tools: Tools, whose declared return types say the same.
        max_examples: How many lineages are tried: a task, and sometimes tasks recovered or forked from it.
        max_events: Length of the longest lineage, in events.
        profile: Hypothesis's settings, instead of the profile in force without a deadline.

    The test fails, too, if no message was found with which a task of the skill could begin.
    """
    compiled = skill_of(skill)
    plausible = lineages(compiled, values=values, tools=tools, max_events=max_events)

    tolerated = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

    @(profile or settings(max_examples=max_examples, deadline=None, suppress_health_check=tolerated))
    @given(lives=plausible)
    def laws(lives: list[Life]) -> None:
        first = check_lineage(compiled, lives)[0]
        begun.add(any(isinstance(entry.event, UserMessage) and not entry.refused for entry in first))

    begun: set[bool] = set()

    def test() -> None:
        begun.clear()
        laws()
        if begun == {False}:
            raise AssertionError(
                f"no task of skill {skill_id(compiled)!r} began, so that hardly any law was checked: no message was "
                f"drawn that fits its input, {compiled.options.input!r}; check histories of your own, with "
                "`check_history`"
            )

    test.__doc__ = f"Skill {skill_id(compiled)!r} keeps the laws."
    for one in (laws, test):
        one.__name__ = one.__qualname__ = f"laws_of_{skill_id(compiled)}"
    return test


@takes(ScriptError)
def check_laws(
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_examples: Count = 100,
    max_events: Count = 20,
    profile: settings | None = None,
) -> None:
    """Check the laws for a skill; the arguments are those of `laws_of`.

    Raises:
        LawBroken: One is broken; the message has the shortest history found that shows it.
    """
    laws_of(skill, values=values, tools=tools, max_examples=max_examples, max_events=max_events, profile=profile)()


def check_lineage(skill: Any, lives: Sequence[Life]) -> list[list[Entry]]:
    """Check the laws for a task and the tasks made from it, one after the other, and return their journals.

    Raises:
        LawBroken: A law does not hold.
    """
    compiled = skill_of(skill)
    base = first_of(compiled)
    journals: list[list[Entry]] = []
    past: Past | None = None
    happened: list[Happening | Made] = []
    for life in lives:
        if life.made is not None:
            happened.append(life.made)
            base = _made(compiled, life.made, base, journals[-1], happened)
            past = past if life.made.how == "recovered" else None
        try:
            entries, past = _checked(compiled, life.history, base, past)
        except LawBroken as broken:
            raise LawBroken(broken.law, broken.found, [*happened, *broken.history]) from broken
        journals.append(entries)
        happened += life.history
    return journals


def _made(
    skill: Skill, made: Made, base: Snapshot, entries: list[Entry], history: Sequence[Happening | Made]
) -> Snapshot:
    """Recover or fork the previous task, twice: as it is, and from its base and journal read back from JSON."""
    law = "recovering or forking a task twice gives the same task"
    read = [Entry.model_validate_json(entry.model_dump_json()) for entry in entries]
    try:
        task, first = made.of(skill, base, entries)
        again, first_again = made.of(skill, Snapshot.model_validate_json(base.model_dump_json()), read)
    except Exception as error:
        raise LawBroken(law, f"{type(error).__name__}: {error}", history) from error
    once = [task.model_dump_json(), first.model_dump_json()]
    _alike(law, once, [again.model_dump_json(), first_again.model_dump_json()], history)
    other, _ = replace(made, task_id=f"{made.task_id}-other").of(skill, base, entries)
    known = {*base.pending, *(one.invocation_id for entry in entries for one in entry.commands)}
    if shared := (task.pending.keys() & other.pending.keys()) - known:
        law = "two tasks made of one task share no id of work that begins in them"
        raise LawBroken(law, f"shared: {sorted(shared)}", history)
    return task


@takes(ScriptError)
def check_history(
    skill: Any, history: Sequence[Happening], *, task_id: str = "T", base: Snapshot | None = None
) -> list[Entry]:
    """Check the laws for one history, and return its journal.

    Args:
        skill: A skill's class, a table, or a compiled skill.
        history: The events.
        task_id: The task's id.
        base: The task before the first event; None for a new one.

    Raises:
        LawBroken: A law does not hold.
    """
    compiled = skill_of(skill)
    return _checked(compiled, history, base or first_of(compiled, task_id))[0]


def _checked(
    skill: Skill, history: Sequence[Happening], base: Snapshot, earlier: Past | None = None
) -> tuple[list[Entry], Past]:
    snapshots, entries = _once(skill, history, base)
    past, going = Past(base, earlier), wanted(base)
    for number, entry in enumerate(entries):
        seen = history[: number + 1]
        before, after = snapshots[number], snapshots[number + 1]
        _check_refusal(skill, before, entry, after, seen)
        _check_entry(before, entry, after, seen)
        _check_state(skill, after, seen)
        _check_record(before, entry, after, seen)
        past.add(entry)
        is_going = wanted(after)
        law = partial(_law, after, seen)
        check_past(past, going, entry, is_going, (before.ended, after.ended), law)
        going = is_going
    _check_ids(base, entries, history)
    written = _written(entries, snapshots, history)
    _check_other_ways(skill, history, *written)
    same = [entry.model_dump_json() for entry in entries], [task.model_dump_json() for task in snapshots]
    _alike("what is recorded never changes", written[0] + written[1], same[0] + same[1], history)
    return entries, past


def _law(task: Snapshot, history: Sequence[Happening], holds: bool, said: str) -> None:
    if not holds:
        raise LawBroken(said, f"the task is {task!r}", history)


def _once(skill: Skill, history: Sequence[Happening], base: Snapshot) -> tuple[list[Snapshot], list[Entry]]:
    """Apply all events, and check after each that earlier entries have not changed."""
    snapshots = [base]
    entries: list[Entry] = []
    live = Live()
    before: list[str] = []
    for number, happening in enumerate(history):
        seen = history[: number + 1]
        try:
            snapshot, entry = advance(skill, snapshots[-1], happening.event, happening.at, live=live)
        except Exception as error:
            raise LawBroken("no event raises", f"{type(error).__name__}: {error}", seen) from error
        now = [_text(snapshots[-1], seen), *(_text(one, seen) for one in entries[-1:])]
        if before:
            _alike("what is recorded never changes", before, now, seen)
        snapshots.append(snapshot)
        entries.append(entry)
        before = [_text(snapshot, seen), _text(entry, seen)]
    return snapshots, entries


def _written(
    entries: Sequence[Entry], snapshots: Sequence[Snapshot], history: Sequence[Happening]
) -> tuple[list[str], list[str]]:
    """Entries and snapshots as JSON, checked to read back equal."""
    return [_read_back(one, history) for one in entries], [_read_back(one, history) for one in snapshots]


def _read_back(value: Entry | Snapshot, history: Sequence[Happening]) -> str:
    law, text = "entries and snapshots read back from JSON as they were", _text(value, history)
    try:
        read = type(value).model_validate_json(text)
    except ValueError as error:
        raise LawBroken(law, f"{text}\n{error}", history) from error
    if read != value:
        raise LawBroken(law, f"{value!r}\nreads back as\n{read!r}", history)
    return text


def _text(value: Entry | Snapshot, history: Sequence[Happening]) -> str:
    try:
        return value.model_dump_json()
    except Exception as error:
        law = "every entry and snapshot can be written as JSON"
        raise LawBroken(law, f"{value!r}\n{type(error).__name__}: {error}", history) from error


def _check_other_ways(skill: Skill, history: Sequence[Happening], entries: list[str], snapshots: list[str]) -> None:
    """The same events, taken in other ways: again, without running steps, cut through JSON, folded from the journal."""
    base = Snapshot.model_validate_json(snapshots[0])
    fresh = [Happening(_fresh(one), one.at) for one in history]
    again = [one.model_dump_json() for one in _once(skill, fresh, base)[1]]
    _alike("the same events give the same journal", entries, again, history)
    for law, cuts in (
        ("a task cut through JSON at each event goes on the same", range(len(history))),
        ("a task cut through JSON once goes on the same", [len(history) // 2]),
    ):
        snapshot, live = base, Live()
        for number, happening in enumerate(history):
            if number in cuts:
                snapshot, live = Snapshot.model_validate_json(snapshot.model_dump_json()), Live()
            snapshot, entry = advance(skill, snapshot, _fresh(happening), happening.at, live=live)
            _alike(law, [entries[number]], [entry.model_dump_json()], history[: number + 1])
            _alike(law, [snapshots[number + 1]], [snapshot.model_dump_json()], history[: number + 1])
    snapshot = base
    for number, written in enumerate(entries):
        snapshot = fold(skill, snapshot, [Entry.model_validate_json(written)])
        law = "the fold of a journal is the task that wrote it"
        _alike(law, [snapshots[number + 1]], [snapshot.model_dump_json()], history[: number + 1])


def _check_record(before: Snapshot, entry: Entry, after: Snapshot, history: Sequence[Happening]) -> None:
    """Check that the record of a task can be derived from its journal, without the skill."""
    kept, read = with_entry(record_of(before), entry), record_of(after)
    for name in TaskRecord.model_fields:
        if name != "status_at" and getattr(kept, name) != getattr(read, name):
            law = "the record that is kept up from the journal is the task's"
            raise LawBroken(law, f"{name}: {getattr(kept, name)!r}, not {getattr(read, name)!r}", history)


def _fresh(happening: Happening) -> Any:
    """A copy of the event, so that two runs share nothing."""
    return happening.event.model_copy(deep=True)


def _alike(law: str, one: list[str], other: list[str], history: Sequence[Happening | Made]) -> None:
    for first, second in zip(one, other, strict=True):
        if first != second:
            raise LawBroken(law, f"once: {first}\nthen: {second}", history)


def _check_refusal(skill: Skill, before: Snapshot, entry: Entry, after: Snapshot, history: Sequence[Happening]) -> None:
    law = "what is refused changes nothing but the number, the time, the count of refusals and the answers of patches"
    expected = refusal(skill, before, entry.event, entry.at)
    if entry.refused != expected:
        raise LawBroken("what is refused is what validators refuse", f"{entry.refused!r}, not {expected!r}", history)
    if before.ended and not entry.refused and not _may_come_late(before, entry.event):
        said = "nothing is taken after the end but a late grant, the end of the time for it, and what undoing comes to"
        raise LawBroken(said, "it was taken", history)
    if not entry.refused:
        if after.refused != before.refused:
            raise LawBroken(law, "the count of refusals changed without one", history)
        return
    caused = entry.model_dump(exclude={"event", *_ONLY_COUNTED}, exclude_defaults=True)
    changed = [
        name
        for name in Snapshot.model_fields
        if name not in _ONLY_COUNTED and getattr(before, name) != getattr(after, name)
    ]
    if caused or changed or after.refused != before.refused + 1:
        raise LawBroken(law, f"the entry holds {caused}; changed: {changed}; refused {after.refused}", history)


def _may_come_late(task: Snapshot, event: Event) -> bool:
    match event:
        case DecisionMade(gate=gate):
            return task.grace is not None and gate == task.grace.gate and event.approved and task.late is None
        case GraceOver(gate=gate):
            return task.grace is not None and gate == task.grace.gate
        case ToolResult(invocation_id=id) | CommandFailed(invocation_id=id) | BackoffOver(invocation_id=id):
            return id in task.pending
        case _:
            return False


def _check_entry(before: Snapshot, entry: Entry, after: Snapshot, history: Sequence[Happening]) -> None:
    numbers = (before.seq + 1, entry.seq, after.seq)
    if len(set(numbers)) != 1:
        raise LawBroken("each event has the next number", f"{numbers}", history)
    if not before.at <= entry.at == after.at:
        raise LawBroken("time never goes back", f"{before.at}, {entry.at}, {after.at}", history)
    state = before.lifecycle
    for move in entry.moves:
        try:
            legal = move.from_state is state and next_state(state, move.event) is move.to_state
        except RefoldError:
            legal = False
        if not legal:
            raise LawBroken("every move is in the lifecycle's table", f"{move!r} in {state}", history)
        state = move.to_state
    canceled = after.ending is Ending.CANCELED and before.ending is None
    if (TaskState.FAILED if canceled else state) is not after.lifecycle:
        raise LawBroken("the moves lead to the state", f"{state}, not {after.lifecycle}", history)
    if after.messages[: len(before.messages)] != before.messages:
        raise LawBroken("what was said stays said", f"{before.messages} became {after.messages}", history)


def _check_state(skill: Skill, task: Snapshot, history: Sequence[Happening]) -> None:
    law = partial(_law, task, history)
    try:
        going, status, over, _ = wanted(task), task.status, finished(task), skill.where(task.state)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
        raise LawBroken("a task can always be looked at", found, history) from error
    blocked = [one for one in task.pending.values() if one.blocked]
    backing_off = [
        one
        for one in task.pending.values()
        if one.due_at is not None and not one.blocked and not isinstance(one.command, Sleep)
    ]
    law(isinstance(status, Status), "a status can always be derived")
    retrying = task.lifecycle is TaskState.RETRYING
    law(task.ended or retrying == bool(backing_off), "retrying means that a command is in backoff")
    # A task that was canceled while a probe was out awaits its answer, which says whether there is anything to undo.
    probed = task.ended and all(under_way(one) for one in blocked)
    law(probed or (task.lifecycle is TaskState.BLOCKED) == bool(blocked), "blocked means that a command is blocked")
    law((task.lifecycle is TaskState.PAUSED) == bool(task.waits), "paused means that a question is open")
    law((task.lifecycle in TERMINAL) == task.ended, "ended means done or failed")
    law(over == (task.ended and not going), "a task is finished when it has ended and nothing goes on")
    if task.lifecycle is TaskState.PLANNED:
        law(not going, "nothing goes on for a planned task")
        made = task.recovered_from is not None or task.fork is not None
        law(made or not (task.state is not None or task.messages or task.artifacts), "planned means untouched")
    if task.lifecycle is TaskState.RUNNING:
        law(bool(task.pending), "running means that a command is pending")
        redone = any(one.background and not isinstance(one.command, Notify) for one in task.pending.values())
        law(redone or not task.held, "a running task holds nothing back, but for effects that are put back first")
        law(redone or all(one.started for one in task.pending.values()), "a running task has sent out all commands")
        law(bool(going), "running means that something goes on")
    if task.ended:
        undoing = [id for id in task.pending if id.endswith(UNDO)]
        law(not (task.waits or task.held or task.receipts), "nothing is waited for after the end")
        late = [one for id, one in task.pending.items() if id not in undoing]
        law(len(undoing) <= 1, "effects are undone one at a time")
        law(not (undoing and (task.grace or late)), "nothing is undone while a late grant may come, or a late effect")
        law(bool(task.grace or task.pending) or not task.done, "what is to be undone is being undone")
        law(over or bool(task.grace or task.pending), "an ended task that is not over waits for something, or undoes")
    elif task.done:
        law(task.grace is None and task.late is None and not task.undone, "only an ended task undoes")
    settled = {event.invocation_id for event in task.held if isinstance(event, CommandFailed)}
    once = {key: want for key, want in going.items() if not key.endswith(UNTIL)}  # a part runs beside its timeout
    ids = [id_of(want) for want in once.values() if not (is_of_gate(want) or isinstance(want, SendAnswer))]
    told = [want.task_id for want in going.values() if isinstance(want, SendAnswer)]
    law(len(ids) == len(set(ids)), "a command goes on once")
    law({*ids, *told} <= set(task.pending), "only what is pending goes on")
    missing = [id for id, one in task.pending.items() if id not in {*ids, *settled} and one.started]
    law(not missing, "what is out goes on until it comes back")


def _check_ids(base: Snapshot, entries: Sequence[Entry], history: Sequence[Happening]) -> None:
    issued = {entry.seq: entry.commands for entry in entries}
    all_ids = [one.invocation_id for commands in issued.values() for one in commands]
    undone = [id.removesuffix(UNDO) for id in all_ids if id.endswith(UNDO)]
    known = {*all_ids, *base.pending, *(done.invocation_id for done in base.done)}
    if len(all_ids) != len(set(all_ids)) or not set(undone) <= known:
        raise LawBroken("invocation ids are unique, and what is undone was done", f"{all_ids}", history)
    ids = [id for id in all_ids if not id.endswith((UNDO, OPENED))]
    own = {seq: [one for one in commands if one.invocation_id in ids] for seq, commands in issued.items()}
    expected = [f"{seq}.{n}" for seq, commands in own.items() for n in range(1, len(commands) + 1)]
    if len(ids) != len(set(ids)):
        raise LawBroken("invocation ids are unique", f"{ids}", history)
    if [id.rpartition("/")[2] for id in ids] != expected:
        raise LawBroken("an invocation id is made of its entry's number and its place", f"{ids}", history)
