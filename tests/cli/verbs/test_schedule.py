"""`refold schedule`: what it shows, and what it refuses before a server is asked."""

from __future__ import annotations

import pytest

from refold.cli.text.output import Output
from refold.cli.verb import Call
from refold.cli.verbs.schedule import _card
from refold.engine import ScheduleView
from tests.cli.conftest import Shell


@pytest.mark.parametrize("verb", [["list"], ["show", "x"], ["pause", "x"], ["run", "x"], ["delete", "x"]])
def test_only_a_temporal_server_has_schedules(refold: Shell, verb: list[str]) -> None:
    """
    An engine in memory has no clock.
    """
    done = refold("schedule", *verb)

    assert done.exit == 2
    assert "only a Temporal server has schedules" in done.err


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--overlap", "sometimes"], "--overlap takes skip, queue-one, queue-all, cancel, allow, not 'sometimes'"),
        (["--every", "soon"], "'soon' is no length of time"),
        (["--cron", "@dayly"], "the cron expression '@dayly' is none of @hourly, @daily, @midnight, @weekly"),
        (["--every", "1000000d"], "'1000000d' is too long; the longest time is 999999d"),
    ],
)
def test_a_wrong_word_is_named(refold: Shell, options: list[str], why: str) -> None:
    """
    With the words that are known.
    """
    done = refold("schedule", "create", "x", "hello", "hi", *options)

    assert (done.exit, refold.server) == (2, None)
    assert why in done.err


@pytest.mark.parametrize(
    ("waiting", "said"),
    [(0, "4"), (1, "4 (1 more waits for an open task)"), (3, "4 (3 more wait for an open task)")],
)
def test_a_schedule_says_how_many_starts_wait(waiting: int, said: str) -> None:
    """
    The server starts them one after another, each when the open task has ended; one that is held may never end.
    """
    view = ScheduleView(id="x", skill="hello", times="every 1s", started=4, running=("x-1",), waiting=waiting)

    assert f"started     {said}" in list(_card(Call(Output(json=False)), view))
