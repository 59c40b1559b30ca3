"""What a task that is rebuilt waits for, before it acts."""

from __future__ import annotations

from concurrent.futures import Future
from time import monotonic

import pytest

from refold.divergence import Difference
from refold.temporal.data.workflow_tasks import workflow_tasks_of
from refold.temporal.recorded.comparing import Comparison, NotReadYet
from refold.temporal.recorded.reading import Past, Run, Words
from tests.temporal.data.test_workflow_tasks import ACTIVITY, SIGNAL, Written

RUN = Run(workflow_id="task-1", run_id="run-1")


class Readings:
    """A reader whose history is there when a test says so, and which was read up to an event."""

    strict = False

    def __init__(self, written: Written, upto: int | None = None) -> None:
        self.known = Past(marks=(), workflow_tasks=workflow_tasks_of(written.events[:upto]))
        self.reading: Future[Past | None] = Future()
        self.is_completed: Future[bool] = Future()
        self.let_go = 0

    def attach(self) -> None:
        """Nothing is read."""

    def past(self, run: Run) -> Future[Past | None]:
        """The same for every attempt, as a worker keeps it."""
        return self.reading

    def words(self, run: Run) -> Future[Words | None]:
        """Nothing differs here, so nobody asks."""
        return Future()

    def completed(self, run: Run, started: int) -> Future[bool]:
        """What a test says."""
        return self.is_completed

    def done(self, run: Run, difference: Difference | None) -> None:
        """Counted."""
        self.let_go += 1


def test_a_replay_that_was_not_told_of_a_turn_is_not_acted_on() -> None:
    """
    It went on before the history was read, and took the events of two workflow tasks at one time: the next attempt
    finds the history read. Where none were merged, it goes on.
    """
    apart, together = Written((), (ACTIVITY,), (SIGNAL,), ()), Written((), (ACTIVITY,), (SIGNAL,))
    for written, lengths, fits in [(apart, (3, 7, 11), True), (together, (3, 11), False)]:
        reader = Readings(written)
        comparison = Comparison(RUN, reader)
        for length in lengths:
            comparison.workflow_tasks(length, 1, monotonic(), replaying=True)
        reader.reading.set_result(reader.known)

        if fits:
            assert comparison.workflow_tasks(14, 0, monotonic(), replaying=False) is reader.known.workflow_tasks
        else:
            with pytest.raises(NotReadYet):
                comparison.workflow_tasks(11, 1, monotonic(), replaying=False)


@pytest.mark.parametrize(
    ("upto", "length", "jobs", "fits"),
    [
        pytest.param(11, 11, 1, True, id="all"),
        pytest.param(9, 11, 1, True, id="all but the workflow task, which the server has not written"),
        pytest.param(8, 11, 1, True, id="all but what it brings"),
        pytest.param(4, 11, 2, False, id="another worker completed a workflow task since"),
    ],
)
def test_a_history_that_was_read_for_an_earlier_attempt(upto: int, length: int, jobs: int, fits: bool) -> None:
    """
    Is read again where a workflow task may have been completed since; no message makes it be read again.
    """
    reader = Readings(Written((), (ACTIVITY,), (SIGNAL,)), upto)
    reader.reading.set_result(reader.known)
    comparison = Comparison(RUN, reader)
    comparison.workflow_tasks(3, 0, monotonic(), replaying=True)

    if fits:
        comparison.workflow_tasks(length, jobs, monotonic(), replaying=False)
    else:
        with pytest.raises(NotReadYet):
            comparison.workflow_tasks(length, jobs, monotonic(), replaying=False)
    assert reader.let_go == (not fits)
