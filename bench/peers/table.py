"""Which engines are compared, each with the settings that it has here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from bench.peers import servers
from bench.peers.servers import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One engine in one configuration.

    Attributes:
        key: For programs.
        name: For people.
        module: Its file in `bench.peers.sides`.
        variant: What `serving` of it is given.
        server: What it needs beside its own process.
        environment: Its environment of `bench.peers.setup`; None for refold's own.
        settings: Its configuration, for people who check whether the comparison is fair.
        fsyncs: How often a step waits for the disk while one task runs: `fsync` and `fdatasync` of the engine's process
            and of its server, as strace counts them; None if that was not done.
        kill_only: Differs from another side in what happens after a kill, so nothing else of it is measured.
    """

    key: str
    name: str
    module: str
    variant: str = ""
    server: Callable[[Path], AbstractAsyncContextManager[Server]] = servers.none
    environment: str | None = None
    settings: str
    fsyncs: float | None = None
    kill_only: bool = False


_TUNED = (
    "`temporal server start-dev` with SQLite as `refold dev` starts it (WAL, `synchronous=FULL`, 2,000 dispatches a "
    "second); autoscaling pollers"
)

SIDES = (
    Side(
        key="refold",
        name="refold",
        module="refold",
        variant="history",
        server=servers.temporal_tuned,
        settings=f"{_TUNED}; steps are `idempotent` tools; the sandbox is on; recovery as by default",
        fsyncs=7.0,
    ),
    Side(
        key="refold-ledger",
        name='refold, `durability="ledger"`',
        module="refold",
        variant="ledger",
        server=servers.temporal_tuned,
        settings="the same; outcomes first in a ledger file (SQLite, WAL, an fsync each), then in history",
        fsyncs=1.6,
    ),
    Side(
        key="refold-fast",
        name="refold, `fast-recovery`",
        module="refold",
        variant="fast-recovery",
        server=servers.temporal_tuned,
        settings="as refold, with the profile `fast-recovery`: heartbeat and sticky timeouts of 1 s",
        kill_only=True,
    ),
    Side(
        key="refold-once",
        name="refold, `at_most_once`",
        module="refold",
        variant="at_most_once",
        server=servers.temporal_tuned,
        settings="as `fast-recovery`; steps are `at_most_once` tools with a probe, receipts in a ledger file",
        kill_only=True,
    ),
    Side(
        key="hand-plain",
        name="Temporal by hand, plain",
        module="temporal",
        variant="plain",
        server=servers.temporal_default,
        settings="`temporal server start-dev` with SQLite as it is; the worker's defaults; start-to-close timeout 10 s",
        fsyncs=24.9,
    ),
    Side(
        key="hand-tuned",
        name="Temporal by hand, tuned",
        module="temporal",
        variant="tuned",
        server=servers.temporal_tuned,
        settings=f"{_TUNED}; start-to-close timeout 10 s, first retry after 100 ms",
        fsyncs=6.8,
    ),
    Side(
        key="hand-fast",
        name="Temporal by hand, fast recovery",
        module="temporal",
        variant="fast",
        server=servers.temporal_tuned,
        settings="as tuned, with heartbeat and sticky timeouts of 1 s",
        kill_only=True,
    ),
    Side(
        key="hand-local",
        name="Temporal by hand, local activities",
        module="temporal",
        variant="local",
        server=servers.temporal_tuned,
        settings="as tuned, with steps as local activities",
        fsyncs=0.3,
    ),
    Side(
        key="dbos",
        name="DBOS",
        module="dbos",
        server=servers.postgres,
        environment="dbos",
        settings="its defaults on PostgreSQL with its defaults (`fsync`, `synchronous_commit` on), over a Unix socket",
        fsyncs=1.0,
    ),
    Side(
        key="restate",
        name="Restate",
        module="restate",
        server=servers.restate,
        environment="restate",
        settings="`restate-server` as it is, one node, its log flushed by fsync; the service on hypercorn, HTTP/2",
        fsyncs=2.1,
    ),
    Side(
        key="langgraph",
        name="LangGraph",
        module="langgraph",
        variant="plain",
        environment="langgraph",
        settings='`AsyncSqliteSaver` (WAL, `synchronous=FULL`), `durability="sync"`, the list with `operator.add`',
        fsyncs=2.1,
    ),
    Side(
        key="langgraph-delta",
        name="LangGraph, `DeltaChannel`",
        module="langgraph",
        variant="delta",
        environment="langgraph",
        settings="the same, the list in a `DeltaChannel` (in beta)",
        fsyncs=2.1,
    ),
    Side(
        key="burr",
        name="Burr",
        module="burr",
        environment="burr",
        settings="`AsyncSQLitePersister`, `synchronous=FULL`; WAL set by us (one fsync a commit instead of several)",
        fsyncs=1.0,
    ),
)
BY_KEY = {side.key: side for side in SIDES}
