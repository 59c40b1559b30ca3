"""Hypothesis strategies: plausible events for a snapshot, and whole histories of a skill.

Plausible means: results and failures of open commands, answers to open questions, decisions at gates, timers, messages
sent before the task asks, an operator's resolution of a blocked command; and now and then a cancel, a repeated
delivery, a result that no command awaits, a stale or late timer, an answer that does not fit, or a decision of a person
who may not decide. A *lineage* is a task, and tasks that are recovered or forked from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from hypothesis import strategies as st
from pydantic import JsonValue

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live, Skill
from refold.core.authoring.tool import tool_spec
from refold.core.chat import Frame, Reply, ToolCall
from refold.core.commands import (
    AskApproval,
    AskUser,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Effect,
    Notify,
    Sleep,
)
from refold.core.content import Artifact, Content
from refold.core.errors import RefoldError
from refold.core.events import (
    EVENT,
    ActivityResult,
    BackoffOver,
    CancelRequested,
    ChatResult,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    GraceOver,
    LlmResult,
    Notified,
    Recovered,
    ReminderDue,
    SkillOutcome,
    SkillResult,
    TimerFired,
    ToolResult,
    UserMessage,
    WorkflowResult,
)
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Given, Pending, Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, finished, wanted
from refold.core.gates import DecisionMade, GatePolicy
from refold.core.lifecycle import TaskState
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import Schema
from refold.core.waits import Unresolved, Wait
from refold.lineage.fork import fork
from refold.lineage.recover import recover
from refold.testing.play import START
from refold.testing.values import TEXTS, Values, any_json, values_for, values_of_schema

Draw = st.DrawFn
Recipe = Callable[[Draw], Event]


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a history, and its time."""

    event: Event
    at: datetime

    def __str__(self) -> str:
        return f"{self.at.isoformat()} {self.event!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a task is made from the previous task of a lineage.

    Attributes:
        how: Whether it is recovered or forked.
        task_id: Its id.
        at: When it is made.
        seq: The entry that a fork begins at.
        live: Whether the effects of a fork take place.
    """

    how: Literal["recovered", "forked"]
    task_id: str
    at: datetime
    seq: int = 0
    live: bool = False

    def of(self, skill: Skill, base: Snapshot, entries: Sequence[Entry]) -> tuple[Snapshot, Event]:
        """The task and its first event, made from the previous task's base and journal.

        Raises:
            InputRejected: The previous task cannot be recovered, or forked there.
        """
        if self.how == "recovered":
            return recover(skill, base, entries, self.task_id, self.at, by="Ops")
        return fork(skill, base, entries, self.task_id, self.at, seq=self.seq, live=self.live)

    def __str__(self) -> str:
        where = f" at entry {self.seq}{', live' if self.live else ''}" if self.how == "forked" else ""
        return f"{self.at.isoformat()} {self.how} as {self.task_id!r}{where}"


@dataclass(frozen=True, slots=True)
class Life:
    """One task of a lineage: how it is made from the previous task, None for the first; and its history."""

    made: Made | None
    history: list[Happening]


failures: st.SearchStrategy[Failure] = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    type=st.sampled_from(["http_503", "ValueError"]),
    message=TEXTS,
    retry_after=st.none() | st.floats(min_value=0, max_value=100),
)
"""Failures of all kinds."""

contents: st.SearchStrategy[Content] = TEXTS.map(Content.from_text) | any_json.filter(
    lambda value: value is not None
).map(Content.from_data)
"""Any message of a user."""

outcomes: st.SearchStrategy[SkillOutcome] = st.builds(
    SkillOutcome,
    task_id=st.just("C"),
    text=TEXTS,
    artifacts=st.lists(st.builds(Artifact.from_text, st.just("a"), TEXTS), max_size=1).map(tuple),
)
"""Any outcome of a child task."""

OWNER = "Olga"
"""The task's owner, in each history."""

_PEOPLE = (OWNER, "Ann", "Bob", " ")
_DELIVERIES = st.none() | st.sampled_from(["d1", "d2"])
_SHARES = st.integers(0, 99)
# A worker's clock may be behind that of the previous worker; and after an outage, timers fire late.
_PASSED = st.sampled_from([0, 1, 7, -3] * 5 + [4000])
_ODD_RETRIES = st.integers(0, 4)


def strategies_of(
    values: Mapping[str, Any] | None = None, tools: Iterable[Callable[..., Any]] = ()
) -> dict[str, Values]:
    """Strategies for the results of commands, by id or by what they call.

    Args:
        values: Types, or strategies of JSON values, by a command's id or by what it calls.
        tools: Tools, whose declared return types say the same.
    """
    declared = {spec.name: spec.returns for function in tools if (spec := tool_spec(function)) is not None}
    return {name: values_for(expected) for name, expected in {**declared, **(values or {})}.items()}


@st.composite
def events(
    draw: Draw,
    skill: Any,
    snapshot: Snapshot,
    *,
    values: Mapping[str, Values] | None = None,
    past: Sequence[Event] = (),
) -> Event:
    """A plausible next event; mostly one that the task accepts.

    Args:
        draw: From Hypothesis.
        skill: The task's skill.
        snapshot: The task as it is.
        values: Strategies for results, from `strategies_of`; otherwise anything that fits `expect`.
        past: Earlier events; one may be delivered again.
    """
    return _event(draw, skill_of(skill), snapshot, values or {}, past)


@st.composite
def histories(
    draw: Draw,
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_events: int = 20,
    task_id: str = "T",
    honest: bool = False,
) -> list[Happening]:
    """A history of one task of a skill, from its first message on, with up to two events after its end.

    Args:
        draw: From Hypothesis.
        skill: A skill's class, a table, or a compiled skill.
        values: Results of commands, by their id or by what they call: a type or a strategy of JSON values.
        tools: Tools, whose declared return types say the same.
        max_events: Length of the longest history.
        task_id: The task's id.
        honest: Every result fits what its command expects, as workers ensure for models.
    """
    compiled = skill_of(skill)
    base = first_of(compiled, task_id)
    return _history(draw, compiled, base, None, strategies_of(values, tools), max_events, honest=honest)[0]


def first_of(skill: Skill, task_id: str = "T") -> Snapshot:
    """A new task of the skill, as every history and lineage begins with."""
    return planned(skill, task_id, START, owner=OWNER)


@st.composite
def lineages(
    draw: Draw,
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_events: int = 20,
) -> list[Life]:
    """A task's history, and sometimes the histories of tasks recovered or forked from it, at most three in all.

    The arguments are those of `histories`; `max_events` is the limit for all histories together.
    """
    compiled = skill_of(skill)
    known = strategies_of(values, tools)
    base, first, made = first_of(compiled), None, None
    lives: list[Life] = []
    tasks = draw(st.sampled_from([1, 1, 2, 3]))
    share = max(1, max_events // tasks)
    for number in range(1, tasks + 1):
        # Half of the tasks that another one follows are canceled, so that it can be recovered from them.
        cancel_at = share // 2 if number < tasks and draw(st.booleans()) else None
        history, entries = _history(draw, compiled, base, first, known, share, cancel_at=cancel_at)
        lives.append(Life(made, history))
        if len(entries) < len(history):
            break
        made = _making(draw, entries, f"T{number + 1}")
        try:
            base, first = made.of(compiled, base, entries)
        except RefoldError:
            break
    return lives


def _making(draw: Draw, entries: Sequence[Entry], task_id: str) -> Made:
    last = entries[-1]
    if any(entry.ends for entry in entries) and draw(st.integers(0, 3)):
        return Made(how="recovered", task_id=task_id, at=last.at)
    seq = draw(st.integers(entries[0].seq, last.seq))
    return Made(how="forked", task_id=task_id, at=last.at, seq=seq, live=draw(st.booleans()))


def _history(
    draw: Draw,
    skill: Skill,
    snapshot: Snapshot,
    first: Event | None,
    known: Mapping[str, Values],
    max_events: int,
    *,
    honest: bool = False,
    cancel_at: int | None = None,
) -> tuple[list[Happening], list[Entry]]:
    """A history of one task, which begins with `first`; and its journal, which is shorter where an event raised."""
    history: list[Happening] = []
    entries: list[Entry] = []
    at, after_end, live = snapshot.at, 0, Live()
    while len(history) < max_events and after_end < 2:
        past = [happening.event for happening in history]
        event = _event(draw, skill, snapshot, known, past, honest) if first is None else first
        if len(history) == cancel_at and first is None:
            event = CancelRequested()
        first = None
        due = [want.due_at for want in wanted(snapshot).values() if isinstance(want, Alarm) and want.event == event]
        at = max([at + timedelta(seconds=draw(_PASSED)), *due])
        # Events reach a task through JSON.
        event = EVENT.validate_json(EVENT.dump_json(event))
        history.append(Happening(event, at))
        try:
            # A copy, so that the skill cannot change the history by writing into an event.
            snapshot, entry = advance(skill, snapshot, event.model_copy(deep=True), at, live=live)
        except Exception:  # noqa: BLE001 - the law says that this never happens, and its check is who tells of it
            break
        entries.append(entry)
        after_end += finished(snapshot)
    return history, entries


def _event(
    draw: Draw,
    skill: Skill,
    snapshot: Snapshot,
    values: Mapping[str, Values],
    past: Sequence[Event],
    honest: bool = False,
) -> Event:
    share = draw(_SHARES)
    likely = _likely(skill, snapshot, values)
    if share >= 97:
        return CancelRequested(reason=draw(TEXTS))
    if likely and share < 80:
        return _one_of(draw, likely)(draw)
    odd = _garbage(snapshot)
    for pending in snapshot.pending.values():
        odd += _odd(pending)
        if not honest:
            odd += _misfits(pending)
    if past:
        odd += [lambda draw: draw(st.sampled_from(past))] * 3
    return _one_of(draw, odd)(draw)


def _one_of(draw: Draw, recipes: Sequence[Recipe]) -> Recipe:
    # By number: a strategy over functions would be a new one each time.
    return recipes[draw(st.integers(0, len(recipes) - 1))]


def _likely(skill: Skill, snapshot: Snapshot, values: Mapping[str, Values]) -> list[Recipe]:
    """Events that the task accepts: results and failures of open commands, due timers, answers to open questions."""
    if snapshot.lifecycle is TaskState.PLANNED:
        return [lambda draw: UserMessage(content=_start(draw, skill), delivery_id=draw(_DELIVERIES))]
    recipes: list[Recipe] = []
    for want in wanted(snapshot).values():
        match want:
            case Perform(invocation_id=id, command=command, given=Given(outcome=outcome)):
                recipes += [_receipt(command.id, id, outcome)] * 3
                recipes.append(_failure(command.id, id))
            case Perform(invocation_id=id, command=command):
                recipes += [_result(command, id, values)] * 3
                recipes.append(_failure(command.id, id))
                if isinstance(command, CallSkill):
                    recipes.append(_child_asks(id))
            case SendAnswer(task_id=id):
                recipes.append(_child_asks(id))
            case Alarm(event=event):
                times = 1 if isinstance(event, GateTimedOut) else 2
                recipes += [lambda _, event=event: event] * times  # type: ignore[misc]  # bound to this round's event
    for wait in snapshot.open_waits:
        recipes += [_answer(wait, wait.ask)] * 3 if isinstance(wait.ask, AskUser) else [_decision(wait, wait.ask)] * 6
    if not (snapshot.ended or snapshot.open_waits):
        recipes.append(
            lambda draw: UserMessage(content=draw(contents), early=draw(_EARLY), delivery_id=draw(_DELIVERIES))
        )
    grace = snapshot.grace
    if grace is not None:
        recipes += [_grant(grace.gate, grace.digest, grace.policy)] * 2
    for pending in snapshot.pending.values():
        if pending.blocked:
            recipes += [_resolution(pending, values)] * 2
    return recipes


def _decision(wait: Wait, ask: AskApproval) -> Recipe:
    """A grant or a denial; mostly by a person who may decide."""

    def recipe(draw: Draw) -> DecisionMade:
        decision = _decided(draw, wait.gate, ask.digest, ask.policy, draw(_WORDS))
        if not ask.editable or draw(st.integers(0, 3)):
            return decision
        return decision.model_copy(update={"changes": {draw(st.sampled_from([*ask.editable, "else"])): draw(TEXTS)}})

    return recipe


def _grant(gate: str, digest: str, policy: GatePolicy) -> Recipe:
    return lambda draw: _decided(draw, gate, digest, policy, "approved")


_EARLY: st.SearchStrategy[Any] = st.sampled_from(["interrupt", True])
_WORDS: st.SearchStrategy[Any] = st.sampled_from([*["approved"] * 5, "denied"])
_VOUCHERS = st.sampled_from([*["key"] * 5, None])


def _decided(draw: Draw, gate: str, digest: str, policy: GatePolicy, decision: Any) -> DecisionMade:
    known = [*policy.approvers] * 4 or ["Ann"]
    return DecisionMade(
        gate=gate,
        digest=draw(st.sampled_from([*[digest] * 7, "stale"])),
        decision=decision,
        approver=draw(st.sampled_from([*known, *_PEOPLE])),
        asserted_by=draw(_VOUCHERS),
        comment=draw(TEXTS),
    )


def _resolution(pending: Pending, values: Mapping[str, Values]) -> Recipe:
    """An operator's resolution of a blocked command: perform it again, or its outcome."""
    result = _result(pending.command, pending.invocation_id, values)

    def recipe(draw: Draw) -> Event:
        id = draw(st.sampled_from([None, pending.invocation_id]))
        if draw(st.booleans()):
            return DependencyResolved(invocation_id=id, retry=True, by="Ops")
        value = getattr(result(draw), "value", None)
        return DependencyResolved(invocation_id=id, outcome=value, comment=draw(TEXTS))

    return recipe


def _start(draw: Draw, skill: Skill) -> Content:
    if skill.options.input is None:
        return draw(contents)
    value = draw(_values_of(skill.options.input))
    return Content.from_data({} if value is None else value)


@lru_cache(maxsize=256)
def _values_of(kind: Any) -> Values:
    return values_for(kind)


@lru_cache(maxsize=256)
def _values_expected(schema: str) -> Values:
    return values_of_schema(json.loads(schema))


def _expected(schema: Schema | None) -> Values:
    return TEXTS if schema is None else _values_expected(json.dumps(schema))


def _result(command: Effect, id: str, values: Mapping[str, Values]) -> Recipe:
    """A result that fits what the command expects."""

    def recipe(draw: Draw) -> Event:
        known = next((values[name] for name in (command.id, command.subject) if name in values), any_json)
        match command:
            case CallLlm(expect=expect):
                fitting = _expected(expect) if known is any_json else known
                return LlmResult(id=command.id, invocation_id=id, value=draw(fitting))
            case CallChat():
                reply = draw(replies(command.frame or Frame()))
                return ChatResult(id=command.id, invocation_id=id, reply=reply)
            case CallTool():
                return ToolResult(id=command.id, invocation_id=id, value=draw(known))
            case CallActivity():
                return ActivityResult(id=command.id, invocation_id=id, value=draw(known))
            case CallWorkflow():
                return WorkflowResult(id=command.id, invocation_id=id, value=draw(known))
            case CallSkill():
                return SkillResult(id=command.id, invocation_id=id, outcome=draw(outcomes))
            case Sleep():
                return TimerFired(id=command.id, invocation_id=id)
            case Notify():
                return Notified(id=command.id, invocation_id=id)

    return recipe


def _receipt(name: str, id: str, outcome: JsonValue) -> Recipe:
    """The outcome that an operator gave, once its receipt is written."""
    return lambda _: ToolResult(id=name, invocation_id=id, value=outcome)


def replies(frame: Frame) -> st.SearchStrategy[Reply]:
    """A reply of a model: calls of the offered tools, or an answer that fits."""
    names = [offer.name for offer in frame.tools]
    final = (
        st.builds(Reply, text=TEXTS, stop=st.sampled_from(["end", "length"]))
        if frame.expect is None
        else st.builds(Reply, value=_expected(frame.expect))
    )
    if not names:
        return final
    wishes = st.builds(ToolCall, id=_CALL_IDS, name=st.sampled_from(names), args=st.dictionaries(TEXTS, any_json))
    calling = st.builds(
        Reply, text=TEXTS, tool_calls=st.lists(wishes, min_size=1, max_size=3).map(tuple), stop=st.just("tools")
    )
    return final | calling


_CALL_IDS = st.sampled_from(["c1", "c2", "c3"])


def _failure(name: str, id: str) -> Recipe:
    return lambda draw: CommandFailed(id=name, invocation_id=id, failure=draw(failures))


def _child_asks(id: str) -> Recipe:
    """A part of the task says what it asks now: nothing, questions, gates, or both; some with a timeout of its own."""

    def recipe(draw: Draw) -> Event:
        gates = draw(st.sampled_from([(), (1,), (1, 2), (2,), (2, 3)]))
        said = Content.from_text("Well?")
        asks: dict[int, AskUser | AskApproval] = {
            1: AskUser(id="child", message=said),
            2: AskApproval(id="gate", message=said, show=1),
            3: AskUser(id="size", message=said, expect={"type": "integer"}, timeout_s=60),
        }
        waits = tuple(Wait(gate=f"{id}/1.{gate}", ask=asks[gate], since=START) for gate in gates)
        stuck = Unresolved(task_id=id, invocation_id=f"{id}/1.9", command="tool pay", failure="nobody knows")
        unresolved = draw(st.sampled_from([(), (), (stuck,)]))
        return ChildAsked(invocation_id=id, waits=waits, unresolved=unresolved)

    return recipe


def _answer(wait: Wait, ask: AskUser) -> Recipe:
    """A reply that fits."""

    def recipe(draw: Draw) -> Event:
        content = draw(contents) if ask.expect is None else _reply(draw(_expected(ask.expect)))
        slot = draw(st.sampled_from([ask.slot, wait.gate, None]))
        return UserMessage(content=content, slot=slot, delivery_id=draw(_DELIVERIES))

    return recipe


def _reply(value: JsonValue) -> Content:
    if isinstance(value, str):
        return Content.from_text(value)
    return Content.from_data({} if value is None else value)


def _garbage(snapshot: Snapshot) -> list[Recipe]:
    """Events that the task does not await: with other ids, with other slots, of old timers."""
    id = f"{snapshot.task_id}/1.1"
    return [
        lambda draw: UserMessage(content=draw(contents), delivery_id=draw(_DELIVERIES)),
        lambda draw: UserMessage(content=draw(contents), slot="nobody"),
        lambda draw: UserMessage(content=draw(contents), early=True),
        lambda draw: LlmResult(id="x", invocation_id=id, value=draw(any_json)),
        lambda _: TimerFired(id="x", invocation_id="X/1.1"),
        _failure("x", id),
        _child_asks(id),
        lambda draw: BackoffOver(invocation_id=id, retry=draw(_ODD_RETRIES)),
        lambda draw: _decided(draw, draw(_gates(snapshot)), "stale", GatePolicy(), draw(_WORDS)),
        lambda draw: ReminderDue(gate=draw(_gates(snapshot))),
        lambda draw: GateTimedOut(gate=draw(_gates(snapshot))),
        lambda draw: GraceOver(gate=draw(_gates(snapshot))),
        lambda draw: DependencyResolved(invocation_id=draw(st.sampled_from([None, id])), outcome=draw(any_json)),
        lambda _: Recovered(task_id="T0"),
        lambda _: Forked(task_id="T0", seq=1),
        lambda draw: UserMessage(content=Content.from_text("approval granted"), slot=draw(_gates(snapshot))),
    ]


def _gates(snapshot: Snapshot) -> st.SearchStrategy[str]:
    """Ids and names of open commands and questions, and of others."""
    waits = snapshot.open_waits
    grace = [snapshot.grace.gate] if snapshot.grace is not None else []
    names = [wait.gate for wait in waits] + [wait.slot for wait in waits]
    return st.sampled_from([*names, *grace, f"{snapshot.task_id}/1.1"])


def _odd(pending: Pending) -> list[Recipe]:
    """Outcomes of a command that may not be open, or may be no sleep, or may not be blocked."""
    name, id = pending.command.id, pending.invocation_id
    return [
        lambda _: TimerFired(id=name, invocation_id=id),
        lambda _: Notified(id=name, invocation_id=id),
        lambda draw: DependencyResolved(invocation_id=id, retry=draw(st.booleans()), outcome=draw(any_json)),
        _failure(name, id),
        lambda draw: BackoffOver(invocation_id=id, retry=draw(_ODD_RETRIES)),
    ]


def _misfits(pending: Pending) -> list[Recipe]:
    """Any value for a command, whatever it expects."""
    name, id = pending.command.id, pending.invocation_id
    return [
        lambda draw: LlmResult(id=name, invocation_id=id, value=draw(any_json)),
        lambda draw: ToolResult(id=name, invocation_id=id, value=draw(any_json)),
    ]
