"""The SDK's runtime with metrics on: a Prometheus endpoint of this process, or an OpenTelemetry collector.

The SDK's own metrics (`temporal_…`) and refold's come out at the same place.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.runtime import OpenTelemetryConfig, PrometheusConfig, Runtime, TelemetryConfig

from refold.core.errors import DefinitionError
from refold.core.lifecycle import Ending
from refold.engine.arguments import defining, takes
from refold.seen import meters, metrics

METRICS_ENV = "REFOLD_METRICS"
HEALTH_ENV = "REFOLD_HEALTH"

_WAY_OUT = "give HOST:PORT for Prometheus, such as 127.0.0.1:9464, or the URL of an OpenTelemetry collector"


@takes(defining("measure", "setting"))
def measure(where: str | None, *, said_as: str = "--metrics") -> str | None:
    """Turn this process's metrics on, before it makes its first client.

    Args:
        where: `HOST:PORT`, at which Prometheus finds them under `/metrics`; or `http://…` of an OpenTelemetry
            collector: with a path, such as `:4318/v1/metrics`, by HTTP, and without by gRPC. None takes
            `REFOLD_METRICS`; if that is unset, the program's own runtime counts, if it measures.
        said_as: What the errors call the setting.

    Returns:
        Where the metrics are, for people; None if they are off.

    Raises:
        DefinitionError: It is no such place, or the port is in use.
    """
    given = (where or os.environ.get(METRICS_ENV, "")).strip()
    if not given:
        return None
    name = said_as if where else METRICS_ENV
    runtime, shown = _runtime(given, name)
    # Clients of earlier runtimes stay on theirs.
    Runtime.set_default(runtime, error_if_already_set=False)
    meters.use(runtime.metric_meter)
    return shown


def _runtime(given: str, name: str) -> tuple[Runtime, str]:
    if "://" in given:
        config: OpenTelemetryConfig | PrometheusConfig = _collector(given, name)
        shown = given
    else:
        host, port = address(given, name)
        bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # The names that Prometheus recommends: `_total` behind counters, `_seconds` behind durations in seconds.
        config = PrometheusConfig(
            bind_address=bind,
            counters_total_suffix=True,
            unit_suffix=True,
            durations_as_seconds=True,
            histogram_bucket_overrides=meters.buckets(),
        )
        shown = f"http://{bind}/metrics"
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=config, attach_service_name=False)), shown
    except ValueError as error:
        raise DefinitionError(name, [f"{given!r}: {error}; {_WAY_OUT}"], what="setting") from None


def _collector(given: str, name: str) -> OpenTelemetryConfig:
    try:
        url = urlsplit(given)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.hostname:
        raise DefinitionError(name, [f"{given!r} is no URL of a collector; {_WAY_OUT}"], what="setting")
    # The SDK reads OTEL_EXPORTER_OTLP_HEADERS itself.
    return OpenTelemetryConfig(
        url=given,
        durations_as_seconds=True,
        http=url.path not in ("", "/"),
        histogram_bucket_overrides=meters.buckets(),
    )


def address(given: str, name: str, *, free: bool = False) -> tuple[str, int]:
    """`HOST:PORT` as the host's IP address and the port.

    Args:
        given: What was said.
        name: What the errors call the setting.
        free: Whether port 0, a free one, is allowed.

    Raises:
        DefinitionError: It is no such address, or the host is not known.
    """
    host, _, port = given.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    lowest = 0 if free else 1
    if not (host and port.isascii() and port.isdigit() and lowest <= int(port) <= 65535):
        said = f"{given!r} is no HOST:PORT with a port from {lowest} to 65535, such as 127.0.0.1:9464"
        raise DefinitionError(name, [said], what="setting")
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of a name that could be none
        why = error.strerror if isinstance(error, OSError) else "it has an empty or too long part between dots"
        raise DefinitionError(name, [f"host {host!r} is not known: {why}"], what="setting") from None
    # localhost may be both; Prometheus and probes ask the older one first.
    ip = min((str(one[4][0]) for one in found), key=lambda one: ":" in one)
    return ip, int(port)


def follow(client: Client) -> None:
    """Record refold's metrics where the client's runtime records the SDK's; nothing if it records none."""
    runtime = client.service_client.config.runtime or Runtime.default()
    if runtime.metric_meter is not MetricMeter.noop:
        meters.use(runtime.metric_meter)


def begin_at_zero(skills: Iterable[str]) -> None:
    """Show a worker's counters that alerts look at, at 0: Prometheus sees no increase in a counter that is new.

    Args:
        skills: The ids of the skills that the worker serves.
    """
    for skill in skills:
        for one in (metrics.HIGH_RETRIES, metrics.INVALID_MOVES, metrics.NEEDS_PERSON):
            meters.count(one, skill, by=0)
        for ending in Ending:
            meters.count(metrics.TASKS_ENDED, skill, ending.value, by=0)
        for outcome in metrics.UNDOING:
            meters.count(metrics.COMPENSATIONS, skill, outcome, by=0)
    for event in metrics.LEDGER:
        meters.count(metrics.LEDGER_ANSWERS, event, by=0)
    for one in (metrics.CODE_DIFFERS, metrics.STORAGE_AWAITED, metrics.REFUSALS_LOST):
        meters.count(one, by=0)
