"""The ReAct skill: its paths, its permissions, its moves and its audit. Source: S1."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from refold import (
    ErrorRecord,
    IllegalMoveError,
    Invariant,
    Move,
    StatePatch,
    StateTransitionEvent,
    StateValidator,
    TaskState,
    flow_skill,
    skill_of,
    step,
)
from refold.core.contracts.contract import StepContract
from refold.core.fold.apply import fold
from refold.record import explain
from refold.testing import Played, fails, laws_of, permanent, play, reply, transient, user
from refold.testing.play import START
from tests.sweeps import examples
from workflows.react import (
    REACT,
    ActionState,
    AgentState,
    LifecycleState,
    ObservationState,
    React,
    SessionId,
    ThoughtState,
    next_round,
)

EBB = {"intent": "define ebb", "suggested_tools": [{"tool": "define_word", "about": "ebb"}]}
PLAIN = {"intent": "greet the user"}
MORE = {"summary": "not yet clear", "need_loop": True}
ENOUGH = {"summary": "it is the tide going out"}
FIELDS = ("lifecycle", "session_id", "user_input", "iteration", "thought", "action", "observation", "last_error")


class Reviewed(AgentState):
    """With one more field, and one more state."""

    lifecycle: str = "initialized"  # type: ignore[assignment]  # one more than the enum has
    reviewed: bool = False


def audit(story: Played) -> list[StateTransitionEvent]:
    return [event for entry in story.entries for event in entry.audit]


def path(story: Played) -> list[str]:
    """The states that the agent went through."""
    return [event.to_state for event in audit(story) if event.err is None]


def state(story: Played, seq: int = -1) -> AgentState:
    snapshot: Any = story.snapshots[seq].state
    return AgentState.model_validate(snapshot["state"])


# --- the paths


def test_with_a_tool() -> None:
    """
    Think, act, observe, and an answer.
    """
    story = play(
        React,
        "What is an ebb?",
        reply("think", EBB),
        reply("define_word", "the tide going out"),
        reply("observe", ENOUGH),
        reply("answer", "An ebb is the tide going out."),
    )

    assert story.status == "completed"
    assert story.said == ("An ebb is the tide going out.",)
    assert path(story) == ["initialized", "thinking", "acting", "observing", "finished"]
    assert state(story).action == ActionState.model_validate(
        {
            "requested_tools": [{"tool": "define_word", "about": "ebb"}],
            "tool_outputs": [{"tool": "define_word", "value": "the tide going out"}],
        }
    )


def test_without_a_tool() -> None:
    """
    A thought that needs no tool leads to the answer at once.
    """
    story = play(React, "Hello", reply("think", PLAIN), reply("answer", "Hello!"))

    assert story.status == "completed"
    assert path(story) == ["initialized", "thinking", "observing", "finished"]


def test_with_two_iterations() -> None:
    """
    A loop counts one more, keeps the observation, and forgets the thought and action before it.
    """
    story = play(
        React,
        "What is an ebb?",
        reply("think", EBB),
        reply("define_word", "a reflux"),
        reply("observe", MORE),
        reply("think", EBB),
        reply("define_word", "the tide going out"),
        reply("observe", ENOUGH),
        reply("answer", "The tide going out."),
    )
    looped = state(story, 4)

    assert path(story)[:6] == ["initialized", "thinking", "acting", "observing", "thinking", "acting"]
    assert (looped.iteration, looped.thought, looped.action) == (1, None, None)
    assert looped.observation == ObservationState(summary="not yet clear", need_loop=True)
    assert "not yet clear" in str(story.asked[3])
    assert state(story).iteration == 1


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_model_that_never_stops_is_made_to_answer(rounds: int) -> None:
    """
    After the last round an answer is asked for, without tools and whatever the model wants.
    """
    story = play(
        React,
        user({"text": "Why?", "settings": {"max_iterations": rounds}}),
        answers={"think": EBB, "define_word": "hm", "observe": MORE, "answer": "That is all I found."},
    )

    assert story.said == ("That is all I found.",)
    assert path(story).count("thinking") == rounds
    assert state(story).lifecycle is LifecycleState.FINISHED


def test_a_model_that_never_stops_may_fail_the_task() -> None:
    """
    So the task's settings may say instead.
    """
    story = play(
        React,
        user({"text": "Why?", "settings": {"max_iterations": 2, "when_exhausted": "fail"}}),
        answers={"think": EBB, "define_word": "hm", "observe": MORE},
    )

    assert (story.status, story.reason) == ("failed", "no answer after 2 rounds")
    assert state(story).lifecycle is LifecycleState.FAILED
    assert state(story).last_error == ErrorRecord(
        type="failed", message="no answer after 2 rounds", stage="observe", at=START, lifecycle="observing"
    )


def test_a_stage_is_added_without_a_change_to_the_others() -> None:
    """
    What lies between acting and observing is in the moves; the stages themselves do not know.
    """

    @flow_skill(
        id="react",
        contract=replace(
            REACT,
            state=Reviewed,
            begins=lambda content, ctx: Reviewed(session_id=SessionId(ctx.task_id), user_input=content.text),
            moves=[
                *(one for one in REACT.moves if (one.source, one.target) != ("acting", "observing")),
                Move("acting", "reviewing"),
                Move("reviewing", "observing"),
            ],
        ),
    )
    class Reviews(React):
        @step(enters="reviewing", reads=["action"], writes=["reviewed"])
        def review(self, state: Reviewed) -> StatePatch:
            return StatePatch(reviewed=state.action is not None)

    story = play(
        Reviews,
        "What is an ebb?",
        answers={"think": EBB, "define_word": "out", "observe": ENOUGH, "answer": "It goes out."},
    )

    assert path(story) == ["initialized", "thinking", "acting", "reviewing", "observing", "finished"]


# --- errors of tools and models


def test_what_a_tool_refuses_the_model_can_read() -> None:
    """
    A final "no" is an output with an error, and the others' outputs are there.
    """
    both = {**EBB, "suggested_tools": [*EBB["suggested_tools"], {"tool": "define_word", "about": "flow"}]}
    story = play(
        React,
        "What is an ebb?",
        reply("think", both),
        fails("define_word", permanent("127.0.0.1 answered 404", type="http_404")),
        reply("define_word.2", "moving along"),
        reply("observe", ENOUGH),
        reply("answer", "I do not know."),
    )

    action = state(story).action
    assert action is not None
    assert [(one.value, one.error) for one in action.tool_outputs] == [
        (None, "127.0.0.1 answered 404"),
        ("moving along", None),
    ]
    assert story.status == "completed"


@pytest.mark.parametrize(
    ("script", "stage", "type"),
    [
        pytest.param([fails("think", permanent("no", type="http_401"))], "think", "http_401", id="model"),
        pytest.param(
            [reply("think", EBB), *[fails("define_word", transient("down", type="http_503"))] * 4],
            "act",
            "http_503",
            id="tool-that-stays-down",
        ),
        pytest.param([reply("think", PLAIN), fails("answer", permanent("no", type="x"))], "observe", "x", id="answer"),
    ],
)
def test_what_cannot_be_handled_ends_in_failed(script: list[Any], stage: str, type: str) -> None:
    """
    From thinking, acting and observing there is a move to failed, and the handler says what it was.
    """
    story = play(React, "What is an ebb?", *script)
    *_, failed, handled = audit(story)

    assert story.status == "failed"
    assert (failed.stage, failed.patch) == (stage, {})
    assert failed.err is not None
    assert (failed.err.type, failed.err.retryable) == (type, type == "http_503")
    assert (handled.stage, handled.from_state, handled.to_state) == ("handle_error", failed.from_state, "failed")
    assert state(story).last_error == failed.err


def test_a_question_without_words_is_rejected() -> None:
    """
    No move leads from initialized to failed: a task that cannot begin is declined.
    """
    story = play(React, "  ")

    assert story.status == "rejected"
    assert "a task begins with a question" in story.reason


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"settings": {"max_iterations": 0}}, "settings.max_iterations"),
        ({"settings": {"max_iter": 2}}, "settings.max_iter"),
        ({"sesion_id": "s1"}, "sesion_id"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(sent: dict[str, Any], field: str) -> None:
    """
    What was sent is told, and no task goes on with it: a name that is misspelt is not left out in silence.
    """
    story = play(React, user({"text": "Why?", **sent}))

    assert story.status == "rejected"
    assert story.reason.startswith(f"the value does not fit Question: {field}:")


# --- sessions


def test_earlier_turns_of_the_session_are_told_to_the_model() -> None:
    """
    The question is recorded when thinking begins, the turn is closed with the answer.
    """
    story = play(
        React,
        user({"text": "And a flood?", "session_id": "s1", "settings": {"window": 2}}),
        reply("open_turn", [{"asked": "What is an ebb?", "answered": "The tide going out."}]),
        reply("think", PLAIN),
        reply("answer", "The tide coming in."),
        reply("close_turn", None),
    )

    opened, think, _, closed = story.asked
    assert opened.model_dump(exclude_defaults=True)["args"] == {"session_id": "s1", "asked": "And a flood?", "last": 2}
    assert "What is an ebb? - The tide going out." in str(think)
    assert closed.model_dump()["args"] == {"session_id": "s1", "answered": "The tide coming in."}


def test_prompts_never_get_into_the_state() -> None:
    """
    What the model is told is put together when it is asked, and kept nowhere.
    """
    story = play(React, "Hello", reply("think", PLAIN), reply("answer", "Hello!"))

    assert [str(snapshot.state).count("You a") for snapshot in story.snapshots] == [0, 0, 0, 0]


# --- permissions

READS = {
    "think": {"session_id", "user_input", "iteration", "observation"},
    "act": {"session_id", "iteration", "thought"},
    "observe": {"session_id", "iteration", "thought", "action"},
    "handle_error": set(FIELDS),
}
WRITES = {
    "think": {"thought", "lifecycle"},
    "act": {"action", "lifecycle"},
    "observe": {"observation", "lifecycle"},
    "handle_error": {"last_error", "lifecycle"},
}
TO_THE_STAGE: dict[str, list[Any]] = {
    "think": [],
    "act": [reply("think", EBB)],
    "observe": [reply("think", PLAIN)],
    "handle_error": [fails("think", permanent("no"))],
}
AFTER = {"think": "observing", "act": "observing", "observe": "finished", "handle_error": "failed"}
WRITTEN: dict[str, Any] = {
    "session_id": SessionId("other"),
    "user_input": "other",
    "iteration": 7,
    "thought": ThoughtState(intent="probe"),
    "action": ActionState(requested_tools=(), tool_outputs=()),
    "observation": ObservationState(final_answer="probe"),
    "last_error": ErrorRecord(type="probe", message="probe", stage="probe", at=START),
}
PROBES = pytest.mark.parametrize(("stage", "field"), [*itertools.product(READS, FIELDS)])


def probed(stage: str, body: Callable[[AgentState], StatePatch], contract: Any = REACT) -> Any:
    """The skill with another body for one stage, under the same terms."""

    def written(self: Any, state: AgentState) -> StatePatch:
        return body(state)

    return flow_skill(id="react", contract=contract)(type("Probed", (React,), {stage: written}))


def verdict(story: Played, stage: str) -> ErrorRecord | None:
    """What the audit holds against a stage."""
    return next((event.err for event in audit(story) if event.stage == stage and event.err is not None), None)


def rest_of(stage: str, field: str) -> StatePatch:
    """What the stage writes so that the task can go on from it."""
    usual = {"think": "thought", "act": "action", "observe": "observation", "handle_error": "last_error"}[stage]
    return StatePatch(**{usual: WRITTEN[usual]})


@PROBES
def test_a_stage_reads_what_it_declares_and_nothing_else(stage: str, field: str) -> None:
    """
    32 probes: another field is not there, and asking for it stops the task, even where the stage catches the error.
    """

    def reads(state: AgentState) -> StatePatch:
        with suppress(Exception):
            getattr(state, field)
        return rest_of(stage, field)

    story = play(probed(stage, reads), "What is an ebb?", *TO_THE_STAGE[stage], unfinished=True)
    found = verdict(story, stage)

    if field in READS[stage]:
        assert found is None
        return
    assert found is not None
    assert (found.type, found.field, found.stage) == ("UnauthorizedReadError", field, stage)
    assert_stopped(story, stage, found)


@PROBES
def test_a_stage_writes_what_it_declares_and_nothing_else(stage: str, field: str) -> None:
    """
    32 probes: a patch with another field stops the task, and nothing of the patch is merged.
    """
    patch = {**rest_of(stage, field).fields, field: AFTER[stage] if field == "lifecycle" else WRITTEN[field]}
    story = play(probed(stage, lambda _: StatePatch(**patch)), "What is an ebb?", *TO_THE_STAGE[stage], unfinished=True)
    found = verdict(story, stage)

    if field in WRITES[stage]:
        assert found is None
        return
    assert found is not None
    assert (found.type, found.field, found.stage) == ("UnauthorizedWriteError", field, stage)
    assert_stopped(story, stage, found)


def assert_stopped(story: Played, stage: str, found: ErrorRecord) -> None:
    """The task stopped in that very entry; its state is as the stage found it, but for the error; the journal tells."""
    entry = story.entries[-1]
    assert story.status == "failed"
    assert entry.moves[-1].to_state is TaskState.FAILED
    for word in (stage, found.lifecycle, found.field, found.rule):
        assert word in found.message
    if stage != "handle_error":
        assert found.message == story.reason == entry.note
    after = state(story)
    (event,) = [one for one in entry.audit if one.err == found]
    assert event.patch == {}
    untouched = {"think": after.thought, "act": after.action, "observe": after.observation}
    assert untouched.get(stage) is None
    assert (after.session_id, after.user_input, after.iteration) == ("T", "What is an ebb?", 0)


# --- invariants


def spoilt(**changes: Any) -> Any:
    return replace(REACT, **changes)


def counts_two(state: AgentState) -> StatePatch:
    return StatePatch(iteration=state.iteration + 2, thought=None, action=None)


@pytest.mark.parametrize(
    ("skill", "script", "step", "field", "rule"),
    [
        pytest.param(
            flow_skill(
                id="react",
                contract=spoilt(
                    begins=lambda content, ctx: AgentState(
                        session_id=SessionId("s"), user_input="x", thought=ThoughtState(intent="old")
                    )
                ),
            )(type("Begun", (React,), {})),
            [],
            "orchestrator",
            "thought",
            "a task begins with nothing thought, done or seen",
            id="initialized",
        ),
        pytest.param(
            React, [reply("think", {**EBB, "intent": ""})], "think", "thought", "acting needs a thought with an intent",
            id="acting",
        ),
        pytest.param(
            probed("act", lambda _: StatePatch()), [reply("think", EBB)], "act", "action",
            "after acting there is an action", id="observing",
        ),
        pytest.param(
            React, [reply("think", PLAIN), reply("answer", "")], "observe", "observation",
            "who has finished has an answer", id="finished",
        ),
        pytest.param(
            probed(
                "observe",
                lambda _: StatePatch(observation=ObservationState(need_loop=True)),
                spoilt(
                    moves=[
                        Move(one.source, one.target, counts_two if one.then is next_round else None)
                        for one in REACT.moves
                    ]
                ),
            ),
            [reply("think", PLAIN)],
            "observe",
            "iteration",
            "each new round counts one more",
            id="iteration",
        ),
    ],
)  # fmt: skip
def test_a_broken_invariant_stops_the_task(skill: Any, script: list[Any], step: str, field: str, rule: str) -> None:
    """
    At once, with step, field and rule; nothing is merged, and the journal says so.
    """
    story = play(skill, "What is an ebb?", *script)

    assert story.status == ("rejected" if step == "orchestrator" else "failed")
    for word in (step, field, rule):
        assert repr(word) in story.reason or word in story.reason
    assert story.reason == story.entries[-1].note
    if step != "orchestrator":
        found = verdict(story, step)
        assert found is not None
        assert (found.type, found.field, found.rule) == ("InvariantError", field, rule)
        assert getattr(state(story), field) in (None, 0)


# --- moves

LEGAL = {
    ("initialized", "thinking"),
    ("thinking", "acting"),
    ("thinking", "observing"),
    ("acting", "observing"),
    ("observing", "finished"),
    ("observing", "thinking"),
    ("thinking", "failed"),
    ("acting", "failed"),
    ("observing", "failed"),
}
STATES = tuple(state.value for state in LifecycleState)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(STATES, STATES)])
def test_nine_moves_are_legal_and_no_other(source: str, target: str) -> None:
    """
    Of 36 ordered pairs, 27 are refused, whatever a step declares.
    """
    anything = StepContract(exits=STATES)

    def move() -> None:
        StateValidator(REACT).check_move("probe", anything, source, target, StatePatch())

    if (source, target) in LEGAL:
        move()
        return
    with pytest.raises(IllegalMoveError) as caught:
        move()
    assert (caught.value.step, caught.value.lifecycle, caught.value.field) == ("probe", source, "lifecycle")
    assert target in str(caught.value)


# --- the audit


def test_explain_names_step_iteration_time_and_the_thought() -> None:
    """
    Where the observation comes from: who wrote it, in which round, when, and of which thought and commands.
    """
    script = [
        reply("think", EBB),
        reply("define_word", "a reflux"),
        reply("observe", MORE),
        reply("think", {**EBB, "reasoning": "look again"}),
        reply("define_word", "the tide going out"),
        reply("observe", ENOUGH),
        reply("answer", "The tide going out."),
    ]
    story = play(React, "What is an ebb?", *script)
    found = explain(story.entries, "observation")
    sources = {source.field: source for source in found.sources}

    assert (found.step, found.seq, found.at, found.to_state) == ("observe", 8, story.entries[7].at, "finished")
    assert sources["iteration"].value == 1
    assert (sources["thought"].step, sources["thought"].seq) == ("think", 5)
    assert sources["thought"].value == {**EBB, "reasoning": "look again"}
    assert found.awaited == ("T/6.1", "T/7.1")
    assert found.earlier == (4,)
    assert explain(story.entries, "thought", upto=sources["thought"].seq).awaited == ("T/4.1",)
    assert explain(story.entries, "iteration").step == "orchestrator"


def test_the_state_after_each_entry_is_there() -> None:
    """
    Folded to any entry, the journal gives the state of that moment.
    """
    story = play(React, "Hello", reply("think", PLAIN), reply("answer", "Hello!"))

    for number in range(1, 4):
        again = fold(skill_of(React), story.snapshots[0], story.entries[:number])
        assert again == story.snapshots[number]
    assert [state(story, number).lifecycle.value for number in (1, 2, 3)] == ["thinking", "observing", "finished"]


def test_a_step_is_audited_with_its_times() -> None:
    """
    Entered in one entry and left in another: both times are theirs.
    """

    story = play(React, "Hello", answers={"think": [transient("busy"), PLAIN], "answer": "Hello!"})
    event = next(event for event in audit(story) if event.stage == "think")

    assert event.finished_at - event.started_at >= timedelta(seconds=0.5)


def test_every_rule_of_the_contract_is_about_a_field_there_is() -> None:
    """
    The eight fields are those of the source, and what a task is set to is beside them.
    """
    assert (*FIELDS, "settings") == tuple(AgentState.model_fields)
    assert all(isinstance(one, Invariant) for one in REACT.invariants)


test_laws = laws_of(React, max_examples=examples(40))
