"""Counts, levels and durations of this process, for whoever records them: the SDK's metrics, or nobody.

Rule 1: without a recorder a call costs one look at a variable.
Rule 2: a label tells apart only so many values in one process; the rest count as `other`. So no caller can make the
number of series grow, and no metric can be lost for the sake of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from refold.seen.metrics import BUCKETS, METRICS, OTHER, Kind, Label, Metric


class Recorder(Protocol):
    """Makes instruments; `temporalio.common.MetricMeter` is one.

    An instrument has `with_additional_attributes(labels)`, which returns the instrument for these labels, and `add`,
    `record` or `set` for a value.
    """

    def create_counter(self, name: str, description: str | None = None) -> Any:
        """A counter."""

    def create_histogram_float(self, name: str, description: str | None = None) -> Any:
        """A histogram."""

    def create_gauge_float(self, name: str, description: str | None = None) -> Any:
        """A gauge."""


class _Instrument:
    def __init__(self, metric: Metric, recorder: Recorder) -> None:
        self._metric = metric
        match metric.kind:
            case Kind.COUNTER:
                self._made = recorder.create_counter(metric.name, metric.help)
            case Kind.HISTOGRAM:
                self._made = recorder.create_histogram_float(metric.name, metric.help)
            case Kind.GAUGE:
                self._made = recorder.create_gauge_float(metric.name, metric.help)
        self._known: list[set[str]] = [set() for _ in metric.labels]
        self._series: dict[tuple[str, ...], Any] = {}

    def of(self, values: tuple[str, ...]) -> Any:
        """The series with these label values."""
        found = self._series.get(values)
        return self._bounded(values) if found is None else found

    def _bounded(self, values: tuple[str, ...]) -> Any:
        labels = self._metric.labels
        if len(values) != len(labels):
            names = ", ".join(label.name for label in labels) or "none"
            raise ValueError(f"metric {self._metric.name} has the labels {names}, and was given {len(values)} values")
        kept = tuple(_kept(*one) for one in zip(labels, self._known, values, strict=True))
        found = self._series.get(kept)
        if found is None:
            attributes = dict(zip((label.name for label in labels), kept, strict=True))
            found = self._made.with_additional_attributes(attributes) if attributes else self._made
            self._series[kept] = found
        return found


def _kept(label: Label, known: set[str], value: str) -> str:
    if label.values:
        return value if value in label.values else OTHER
    if value not in known and value != OTHER:
        if len(known) >= label.most:
            return OTHER
        known.add(value)
    return value


class _Process:
    recorder: Recorder | None = None
    instruments: Mapping[str, _Instrument] | None = None


_process = _Process()


def use(recorder: Recorder | None) -> None:
    """Record the metrics of this process with `recorder` from now on; None records nothing."""
    if recorder is _process.recorder:
        return
    made = None if recorder is None else {metric.name: _Instrument(metric, recorder) for metric in METRICS}
    _process.recorder, _process.instruments = recorder, made


def recording() -> bool:
    """Whether anything is recorded, for callers that must compute what they record."""
    return _process.instruments is not None


def count(metric: Metric, *values: str, by: int = 1) -> None:
    """Add to a counter.

    Args:
        metric: The counter.
        values: Its labels' values, in their order.
        by: 0 shows the series before anything has happened, so that the first event is an increase. A number that no
            counter takes, such as tokens below 0 or beyond 64 bits, counts as 0.
    """
    if _process.instruments is not None:
        _process.instruments[metric.name].of(values).add(by if 0 <= by < 2**63 else 0)


def observe(metric: Metric, seconds: float, *values: str) -> None:
    """Add a duration to a histogram; a negative one, of clocks that differ, counts as 0."""
    if _process.instruments is not None:
        _process.instruments[metric.name].of(values).record(max(0.0, seconds))


def level(metric: Metric, value: float, *values: str) -> None:
    """Set a gauge."""
    if _process.instruments is not None:
        _process.instruments[metric.name].of(values).set(value)


def buckets() -> dict[str, list[float]]:
    """The buckets of all histograms, as a recorder's settings take them."""
    return {name: list(bounds) for name, bounds in BUCKETS.items()}
