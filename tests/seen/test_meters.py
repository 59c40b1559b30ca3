"""Labels stay few, whatever comes."""

from __future__ import annotations

import pytest

from refold.seen import metrics
from refold.seen.meters import count, level, observe, recording
from refold.seen.metrics import BUCKETS, METRICS, Kind
from tests.seen.recorded import counting


def test_nothing_is_recorded_without_a_recorder() -> None:
    """
    A process that was not told to measure counts nothing, and raises nothing.
    """
    assert not recording()
    count(metrics.TASKS_ENDED, "refund", "completed")
    observe(metrics.STATE_SECONDS, 1.0, "refund", "running")
    level(metrics.STREAMS, 3)


def test_a_value_outside_the_list_is_other() -> None:
    """
    A label with listed values shows no other one.
    """
    with counting() as kept:
        count(metrics.RETRIES, "refund", "tool", "SomeException of a library")

    assert kept.all_of("refold_retries") == {("tool", "other", "refund"): 1}


def test_the_first_names_are_told_apart() -> None:
    """
    Of ten thousand names the first ones have a series each; the rest is counted together, and none is lost.
    """
    with counting() as kept:
        for number in range(10_000):
            count(metrics.HIGH_RETRIES, f"skill-{number}")
            count(metrics.HIGH_RETRIES, "skill-0")

    found = kept.all_of("refold_high_retries")
    assert len(found) == metrics.SKILL.most + 1
    assert found["skill-0",] == 10_001
    assert sum(found.values()) == 20_000


def test_clocks_that_differ_give_no_negative_duration() -> None:
    """
    A task that left a state before it came to it, by the clocks of two machines, was there for 0 s.
    """
    with counting() as kept:
        observe(metrics.STATE_SECONDS, -2.0, "refund", "running")

    assert kept.of("refold_state_seconds") == 0


@pytest.mark.parametrize("tokens", [-1, 2**64])
def test_a_number_that_no_counter_takes_counts_as_0(tokens: int) -> None:
    """
    A provider may say anything of its tokens. The SDK's counter raises, and what else the reply counts would be lost.
    """
    with counting() as kept:
        count(metrics.TOKENS, "refund", "a:one", "input", by=tokens)
        count(metrics.TOKENS, "refund", "a:one", "input", by=5)

    assert kept.of("refold_tokens") == 5


def test_too_few_labels_are_a_mistake() -> None:
    """
    A counter that is given other labels than it has says which it has.
    """
    with counting(), pytest.raises(ValueError, match="refold_tasks_ended has the labels skill, ending"):
        count(metrics.TASKS_ENDED, "refund")


def test_each_metric_says_what_it_is() -> None:
    """
    Each has a help text of one sentence; a duration is in seconds and says so; only histograms have buckets.
    """
    for one in METRICS:
        assert one.name.startswith("refold_"), one.name
        assert one.help.endswith("."), one.name
        assert (one.kind is Kind.HISTOGRAM) == bool(one.buckets) == (one.name in BUCKETS), one.name
        assert one.kind is not Kind.HISTOGRAM or one.name.endswith("_seconds"), one.name
        assert list(one.buckets) == sorted(one.buckets), one.name
        assert {label.name for label in one.labels}.isdisjoint({"task_id", "owner", "context"}), one.name
