"""The lifecycle's table is the whole lifecycle."""

from collections import deque
from itertools import product

import pytest

from refold import TRANSITION_TABLE, InputRejected, InvalidTransitionError, Status, TaskEvent, TaskState
from refold.core.lifecycle import TERMINAL, Ending, derive_status, next_state

S, E = TaskState, TaskEvent

# Written out once more, as the specification has it: the table in the code is not its own witness.
LEGAL = {
    (S.PLANNED, E.START, S.RUNNING),
    (S.RUNNING, E.PAUSE_FOR_APPROVAL, S.PAUSED),
    (S.RUNNING, E.BLOCK_ON_DEPENDENCY, S.BLOCKED),
    (S.RUNNING, E.COMPLETE, S.DONE),
    (S.RUNNING, E.FATAL_ERROR, S.FAILED),
    (S.RUNNING, E.TRANSIENT_ERROR, S.RETRYING),
    (S.PAUSED, E.APPROVAL_GRANTED, S.RUNNING),
    (S.PAUSED, E.APPROVAL_DENIED, S.FAILED),
    (S.PAUSED, E.TIMEOUT, S.FAILED),
    (S.BLOCKED, E.DEPENDENCY_RESOLVED, S.RUNNING),
    (S.BLOCKED, E.FATAL_ERROR, S.FAILED),
    (S.RETRYING, E.RETRY, S.RUNNING),
    (S.RETRYING, E.MAX_RETRIES_EXCEEDED, S.FAILED),
    (S.RETRYING, E.FATAL_ERROR, S.FAILED),
}
TARGETS = {(state, event): target for state, event, target in LEGAL}
PAIRS = list(product(TaskState, TaskEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=[f"{state}+{event}" for state, event in PAIRS])
def test_every_pair_moves_or_is_illegal(state: TaskState, event: TaskEvent) -> None:
    """
    Of the 84 pairs of state and event, fourteen move the task and seventy are errors that name both.
    """
    if (state, event) in TARGETS:
        assert next_state(state, event) is TARGETS[state, event]
    else:
        with pytest.raises(InvalidTransitionError) as caught:
            next_state(state, event)
        assert str(caught.value) == f"Invalid transition: {state.value} + {event.value}"
        assert (caught.value.state, caught.value.event) == (state, event)


def test_there_are_84_pairs_and_14_moves() -> None:
    """
    Seven states and twelve events; what runs is the table that is documented.
    """
    assert (len(TaskState), len(TaskEvent), len(PAIRS), len(TRANSITION_TABLE)) == (7, 12, 84, 14)
    assert dict(TRANSITION_TABLE) == TARGETS


def test_the_table_cannot_be_changed() -> None:
    """
    Nobody adds a move at run time.
    """
    with pytest.raises(TypeError):
        TRANSITION_TABLE[S.PLANNED, E.COMPLETE] = S.DONE  # type: ignore[index]


def test_an_illegal_move_is_the_askers_error() -> None:
    """
    Whoever asked for it can be told so, as for any input that does not fit.
    """
    assert issubclass(InvalidTransitionError, InputRejected)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (S.PLANNED, S.DONE),
        (S.PAUSED, S.DONE),
        (S.PAUSED, S.RETRYING),
        (S.BLOCKED, S.DONE),
        (S.RETRYING, S.DONE),
    ],
)
def test_shortcuts_do_not_exist(source: TaskState, target: TaskState) -> None:
    """
    These moves are absent by design.
    """
    assert target not in {to for (state, _), to in TRANSITION_TABLE.items() if state is source}


def test_the_end_is_the_end() -> None:
    """
    Nothing leads out of done or failed, and nothing but those two is an end.
    """
    assert {state for state, _ in TRANSITION_TABLE} == set(TaskState) - TERMINAL


def test_the_shape_of_the_table() -> None:
    """
    One way into done, four states that can fail, five ways out of running.
    """
    into_done = [state for (state, _), to in TRANSITION_TABLE.items() if to is S.DONE]
    into_failed = {state for (state, _), to in TRANSITION_TABLE.items() if to is S.FAILED}
    out_of_running = [event for state, event in TRANSITION_TABLE if state is S.RUNNING]

    assert into_done == [S.RUNNING]
    assert into_failed == {S.RUNNING, S.PAUSED, S.BLOCKED, S.RETRYING}
    assert len(out_of_running) == 5


def test_every_path_to_done_passes_running() -> None:
    """
    Without running, no other state leads to done.
    """
    seen, waiting = {S.PLANNED}, deque([S.PLANNED])
    while waiting:
        state = waiting.popleft()
        for (source, _), to in TRANSITION_TABLE.items():
            if source is state and to is not S.RUNNING and to not in seen:
                seen.add(to)
                waiting.append(to)

    assert S.DONE not in seen


@pytest.mark.parametrize(("state", "ending"), list(product(TaskState, [None, *Ending])))
def test_every_state_has_a_status(state: TaskState, ending: Ending | None) -> None:
    """
    The status is defined for every state and ending, and an ending is never hidden.
    """
    status = derive_status(state, ending)

    assert isinstance(status, Status)
    assert ending is None or status == str(ending)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (S.PLANNED, Status.SUBMITTED),
        (S.RUNNING, Status.WORKING),
        (S.RETRYING, Status.WORKING),
        (S.BLOCKED, Status.WORKING),
        (S.PAUSED, Status.INPUT_REQUIRED),
    ],
)
def test_what_an_open_task_looks_like_from_outside(state: TaskState, status: Status) -> None:
    """
    An open task is submitted, working or input-required.
    """
    assert derive_status(state) is status
