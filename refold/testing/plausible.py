"""Plausible events for a snapshot, for Hypothesis.

Plausible means: results and failures of open commands, answers to open questions, decisions at gates, timers, messages
sent before the task asks, an operator's resolution of a blocked command; and now and then a cancel, a repeated
delivery, a result that no command awaits, a stale or late timer, an answer that does not fit, or a decision of a person
who may not decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st
from pydantic import JsonValue

from refold.callbacks.address import slot_of
from refold.core.authoring.skill import Skill
from refold.core.authoring.tool import tool_spec
from refold.core.chat import Frame, Reply, ToolCall, text_hash
from refold.core.commands import (
    AskApproval,
    AskUser,
    CallActivity,
    Callback,
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
from refold.core.events import (
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
from refold.core.fold.snapshot import Given, Pending, Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, wanted
from refold.core.gates import DecisionMade, GatePolicy
from refold.core.lifecycle import TaskState
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import Schema
from refold.core.waits import Unresolved, Wait
from refold.testing.answers import outcome
from refold.testing.callbacks import is_callback, made
from refold.testing.play import START
from refold.testing.values import TEXTS, Values, any_json, values_for, values_of_schema

Draw = st.DrawFn
Recipe = Callable[[Draw], Event]

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
_ODD_RETRIES = st.integers(0, 4)
_EARLY: st.SearchStrategy[Any] = st.sampled_from(["interrupt", True])
_DECISIONS: st.SearchStrategy[Any] = st.sampled_from([*["approved"] * 5, "denied"])
_VOUCHERS = st.sampled_from([*["key"] * 5, None])
_CALL_IDS = st.sampled_from(["c1", "c2", "c3"])


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


def plausible_event(
    draw: Draw,
    skill: Skill,
    snapshot: Snapshot,
    values: Mapping[str, Values],
    past: Sequence[Event] = (),
    honest: bool = False,
) -> Event:
    """A plausible next event; mostly one that the task accepts.

    Args:
        draw: From Hypothesis.
        skill: The task's skill.
        snapshot: The task as it is.
        values: Strategies for results, from `strategies_of`; otherwise anything that fits `expect`.
        past: Earlier events; one may be delivered again.
        honest: Every result fits what its command expects.
    """
    share = draw(_SHARES)
    likely = _likely(skill, snapshot, values, past)
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


def _likely(skill: Skill, snapshot: Snapshot, values: Mapping[str, Values], past: Sequence[Event]) -> list[Recipe]:
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
    slots = _addresses(snapshot, past)
    for wait in snapshot.open_waits:
        ask = wait.ask
        recipes += [_answer(wait, ask, slots)] * 3 if isinstance(ask, AskUser) else [_decision(wait, ask)] * 6
    if not (snapshot.ended or snapshot.open_waits):
        recipes.append(
            lambda draw: UserMessage(content=draw(contents), early=draw(_EARLY), delivery_id=draw(_DELIVERIES))
        )
        recipes += [_call(slot, lambda draw: draw(contents)) for slot in slots.values()]
    grace = snapshot.grace
    if grace is not None:
        recipes += [_grant(grace.gate, grace.digest, grace.policy)] * 2
    for pending in snapshot.pending.values():
        if pending.blocked:
            recipes += [_resolution(pending, values)] * 2
    return recipes


def _addresses(snapshot: Snapshot, past: Sequence[Event]) -> dict[str, str]:
    """The slots of calls to the addresses that the task was given, by the address's digest."""
    given = [event.value for event in past if isinstance(event, ActivityResult)]
    given += [receipt.outcome for receipt in snapshot.receipts.values()]
    found: dict[str, str] = {}
    for value in given:
        with suppress(ValueError):
            if (callback := Callback.model_validate(value)).url:
                found[callback.digest] = slot_of(callback)
    return found


def _decision(wait: Wait, ask: AskApproval) -> Recipe:
    """A grant or a denial; mostly by a person who may decide."""

    def recipe(draw: Draw) -> DecisionMade:
        decision = _decided(draw, wait.gate, ask.digest, ask.policy, draw(_DECISIONS))
        if not ask.editable or draw(st.integers(0, 3)):
            return decision
        return decision.model_copy(update={"changes": {draw(st.sampled_from([*ask.editable, "else"])): draw(TEXTS)}})

    return recipe


def _grant(gate: str, digest: str, policy: GatePolicy) -> Recipe:
    return lambda draw: _decided(draw, gate, digest, policy, "approved")


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
            case CallActivity() if known is any_json and is_callback(command):
                return outcome(command, id, made(command, id.rpartition("/")[0], id, START))
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


def _answer(wait: Wait, ask: AskUser, slots: Mapping[str, str]) -> Recipe:
    """A reply that fits; where the question has an address, a call to it."""

    def fitting(draw: Draw) -> Content:
        return draw(contents) if ask.expect is None else _reply(draw(_expected(ask.expect)))

    def recipe(draw: Draw) -> Event:
        slot = draw(st.sampled_from([ask.slot, wait.gate, None]))
        return UserMessage(content=fitting(draw), slot=slot, delivery_id=draw(_DELIVERIES))

    called = None if ask.callback is None else slots.get(ask.callback.digest)
    return recipe if called is None else _call(called, fitting)


def _call(slot: str, said: Callable[[Draw], Content]) -> Recipe:
    """A call to the address of a callback, as a gateway sends it: with the same id each time."""
    return lambda draw: UserMessage(content=said(draw), slot=slot, delivery_id=text_hash(slot), early=True)


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
        lambda draw: _decided(draw, draw(_gates(snapshot)), "stale", GatePolicy(), draw(_DECISIONS)),
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
