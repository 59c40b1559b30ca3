"""What was counted, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from temporalio.runtime import Runtime

from refold.seen import meters
from refold.seen.metrics import BUCKETS

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A metric's name, and its labels in the order of their names."""


@dataclass
class InMemory:
    """A recorder that keeps everything.

    Attributes:
        values: The sum of what was added or recorded, and the last level of gauges, by series.
        times: How often each series was written.
    """

    values: dict[Series, float] = field(default_factory=dict)
    times: Counter[Series] = field(default_factory=Counter)

    def create_counter(self, name: str, description: str | None = None) -> _Made:
        return _Made(self, name)

    create_histogram_float = create_gauge_float = create_counter

    def of(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric with these labels; others may differ."""
        wanted = set(labels.items())
        return sum(value for (one, has), value in self.values.items() if one == name and wanted <= set(has))

    def all_of(self, name: str) -> dict[tuple[str, ...], float]:
        """The series of a metric that are not 0, by their labels' values in the order of their names."""
        return {
            tuple(value for _, value in has): value
            for (one, has), value in self.values.items()
            if one == name and value
        }

    def series(self) -> int:
        """How many series Prometheus would have: each bucket of a histogram is one, its sum and its count are two."""
        return sum(len(BUCKETS[name]) + 3 if name in BUCKETS else 1 for name, _ in self.values)


class _Made:
    def __init__(self, kept: InMemory, name: str, labels: Mapping[str, str] | None = None) -> None:
        self._kept = kept
        self._series = (name, tuple(sorted((labels or {}).items())))

    def with_additional_attributes(self, labels: Mapping[str, str]) -> _Made:
        return _Made(self._kept, self._series[0], labels)

    def add(self, value: float) -> None:
        self._kept.values[self._series] = self._kept.values.get(self._series, 0) + value
        self._kept.times[self._series] += 1

    record = add

    def set(self, value: float) -> None:
        self._kept.values[self._series] = value
        self._kept.times[self._series] += 1


@contextmanager
def counting() -> Iterator[InMemory]:
    """Keep in memory what this process counts inside the block."""
    kept = InMemory()
    meters.use(kept)
    try:
        yield kept
    finally:
        meters.use(None)


@contextmanager
def unmeasured() -> Iterator[None]:
    """Take back what is set up inside the block to measure this process."""
    before = Runtime.default()
    try:
        yield
    finally:
        meters.use(None)
        Runtime.set_default(before, error_if_already_set=False)
