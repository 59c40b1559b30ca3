"""What may happen to a task, for Hypothesis: plausible events for a snapshot, and whole histories of a skill.

Plausible means: results and failures of what is out, answers to what is asked, timers, and now and then a cancel, a
delivery that comes twice, a result for nobody, a timer that is stale, or an answer that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from pydantic import JsonValue

from refold.core.commands import (
    AskUser,
    CallActivity,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Effect,
    Sleep,
)
from refold.core.content import Artifact, Content
from refold.core.define import skill_of
from refold.core.events import (
    EVENT,
    ActivityResult,
    BackoffOver,
    CancelRequested,
    ChildAsked,
    CommandFailed,
    Event,
    LlmResult,
    SkillOutcome,
    SkillResult,
    TimerFired,
    ToolResult,
    UserMessage,
    WorkflowResult,
)
from refold.core.fold import advance, planned
from refold.core.lifecycle import TaskState
from refold.core.retry import Failure, FailureKind
from refold.core.schema import Schema
from refold.core.skill import Live, Skill
from refold.core.snapshot import Pending, Snapshot
from refold.core.tool import tool_spec
from refold.core.waits import Wait
from refold.core.wanted import Alarm, Perform, Tell, wanted
from refold.testing.play import START
from refold.testing.values import TEXTS, Values, any_json, values_for, values_of_schema

Draw = st.DrawFn
Recipe = Callable[[Draw], Event]


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a history, and when it was taken."""

    event: Event
    at: datetime

    def __str__(self) -> str:
        return f"{self.at.isoformat()} {self.event!r}"


failures: st.SearchStrategy[Failure] = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    type=st.sampled_from(["http_503", "ValueError"]),
    message=TEXTS,
    retry_after=st.none() | st.floats(min_value=0, max_value=100),
)
"""Failures of both kinds."""

contents: st.SearchStrategy[Content] = TEXTS.map(Content.from_text) | any_json.filter(
    lambda value: value is not None
).map(Content.from_data)
"""What anybody may say."""

outcomes: st.SearchStrategy[SkillOutcome] = st.builds(
    SkillOutcome,
    task_id=st.just("C"),
    text=TEXTS,
    artifacts=st.lists(st.builds(Artifact.from_text, st.just("a"), TEXTS), max_size=1).map(tuple),
)
"""What another skill's task may come to."""

_DELIVERIES = st.none() | st.sampled_from(["d1", "d2"])
_SHARES = st.integers(0, 99)
_PASSED = st.sampled_from([0, 1, 7, -3])  # a worker's clock may be behind that of the one before it
_ODD_RETRIES = st.integers(0, 4)


def strategies_of(
    values: Mapping[str, Any] | None = None, tools: Iterable[Callable[..., Any]] = ()
) -> dict[str, Values]:
    """What commands come back with, by id or by what they call.

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
    """An event that may well come next; mostly one that the task can take.

    Args:
        draw: Given by Hypothesis.
        skill: The task's skill.
        snapshot: The task as it is.
        values: What commands come back with, as `strategies_of` gives it; otherwise anything that fits `expect`.
        past: What happened before; it may be delivered again.
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
    """What may happen to one task of a skill, from its first message on; up to two events after its end.

    Args:
        draw: Given by Hypothesis.
        skill: A skill's class, a table, or a compiled skill.
        values: What commands come back with, by their id or by what they call: a type or a strategy of JSON values.
        tools: Tools, whose declared return types say the same.
        max_events: The longest history.
        task_id: The task's id.
        honest: Commands come back with what fits, or not at all, as a worker sees to it for models.
    """
    compiled = skill_of(skill)
    known = strategies_of(values, tools)
    snapshot = planned(compiled, task_id, START)
    history: list[Happening] = []
    at, after_end, live = START, 0, Live()
    while len(history) < max_events and after_end < 2:
        past = [happening.event for happening in history]
        event = _event(draw, compiled, snapshot, known, past, honest)
        due = [want.due_at for want in wanted(snapshot).values() if isinstance(want, Alarm) and want.event == event]
        at = max([at + timedelta(seconds=draw(_PASSED)), *due])
        # Events reach a task through JSON.
        event = EVENT.validate_json(EVENT.dump_json(event))
        history.append(Happening(event, at))
        try:
            # A copy: what the skill writes into an event must not be found in the history.
            snapshot, _ = advance(compiled, snapshot, event.model_copy(deep=True), at, live=live)
        except Exception:  # noqa: BLE001 - the law says that this never happens, and its check is who tells of it
            break
        after_end += snapshot.ended
    return history


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
    """What the task can take: results and failures of what is out, timers that are due, answers to what is asked."""
    if snapshot.lifecycle is TaskState.PLANNED:
        return [lambda draw: UserMessage(content=_start(draw, skill), delivery_id=draw(_DELIVERIES))]
    recipes: list[Recipe] = []
    for want in wanted(snapshot).values():
        match want:
            case Perform(invocation_id=id, command=command):
                recipes += [_result(command, id, values)] * 3
                recipes.append(_failure(command.id, id))
                if isinstance(command, CallSkill):
                    recipes.append(_child_asks(id))
            case Tell(task_id=id):
                recipes.append(_child_asks(id))
            case Alarm(event=event):
                recipes += [lambda _, event=event: event] * 2  # type: ignore[misc]  # bound to this round's event
    for wait in snapshot.open_waits:
        recipes += [_answer(wait)] * 2
    return recipes


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

    return recipe


def _failure(name: str, id: str) -> Recipe:
    return lambda draw: CommandFailed(id=name, invocation_id=id, failure=draw(failures))


def _child_asks(id: str) -> Recipe:
    """A part of the task says what it asks now: nothing, or some of two questions."""

    def recipe(draw: Draw) -> Event:
        gates = draw(st.sampled_from([(), (1,), (1, 2), (2,)]))
        asks = AskUser(id="child", message=Content.from_text("Well?"))
        waits = tuple(Wait(gate=f"{id}/1.{gate}", ask=asks, since=START) for gate in gates)
        return ChildAsked(invocation_id=id, waits=waits)

    return recipe


def _answer(wait: Wait) -> Recipe:
    """A reply that fits."""
    ask = wait.ask

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
    """What nobody waits for: other ids, other slots, timers of long ago."""
    id = f"{snapshot.task_id}/1.1"
    return [
        lambda draw: UserMessage(content=draw(contents), delivery_id=draw(_DELIVERIES)),
        lambda draw: UserMessage(content=draw(contents), slot="nobody"),
        lambda draw: LlmResult(id="x", invocation_id=id, value=draw(any_json)),
        lambda _: TimerFired(id="x", invocation_id="X/1.1"),
        _failure("x", id),
        _child_asks(id),
        lambda draw: BackoffOver(invocation_id=id, retry=draw(_ODD_RETRIES)),
    ]


def _odd(pending: Pending) -> list[Recipe]:
    """Outcomes of a command that may not be out, or may be no sleep, or may not be waiting."""
    name, id = pending.command.id, pending.invocation_id
    return [
        lambda _: TimerFired(id=name, invocation_id=id),
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
