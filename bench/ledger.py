"""What a receipt costs: an effect with a receipt, compared with the same effect without one.

Both are tools that do nothing, called as a worker calls them, in turn; between them a plain commit: one row into an
SQLite file beside the ledger, WAL, `synchronous=FULL`, by `sqlite3` alone. The plain commit is made in a thread beside
the event loop, as every commit of a worker must be; a commit on the loop, which would block it, is shown as well,
without a limit. A receipt takes two such commits, one before the effect and one after it.

Each round takes the lower quartile of each kind: higher values are mostly due to other processes' use of the disk and
the processor. Milliseconds are those of the round in which a plain commit was fastest.

The disk must be a real one: if `fsync` costs nothing, "four commits" cost nothing either.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from bench.logs import quiet_logs
from bench.report import Check, Report, figure
from refold.core.authoring.tool import tool
from refold.core.commands import CallTool
from refold.effects.http.client import open_client
from refold.effects.invocation import Invocation
from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.thread_pool import ThreadPool
from refold.effects.threads import Threads
from refold.effects.tools import tools_of

EXTRA_LIMIT_MS = 2.0
COMMITS_LIMIT = 4.0

ROOT = Path(__file__).parents[1]


@tool(effect="at_least_once")
async def plain(order: str, cents: int) -> dict[str, str]:
    return {"id": f"charge-{order}", "status": "succeeded"}


@tool(effect="at_most_once")
async def ledgered(order: str, cents: int) -> dict[str, str]:
    return {"id": f"charge-{order}", "status": "succeeded"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Lower quartiles of one round, in milliseconds."""

    plain: float
    ledgered: float
    commit: float
    bare: float

    @property
    def extra(self) -> float:
        """Measure the cost of the receipt."""
        return self.ledgered - self.plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--rounds", type=int, default=11, help="rounds (default: 11)")
    parser.add_argument("--calls", type=int, default=100, help="calls of each kind in a round (default: 100)")
    parser.add_argument("--folder", type=Path, default=ROOT, help="on the disk to measure (default: this checkout)")


def run(options: argparse.Namespace) -> Report:
    """Measure; takes some seconds."""
    quiet_logs()
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.folder) as folder:
        rounds = asyncio.run(_rounds(Path(folder), options.rounds, options.calls))
    report = Report(benchmark="ledger", settings={"rounds": options.rounds, "calls": options.calls})
    extra = min(rounds, key=lambda one: one.commit).extra
    report.figures.append(
        figure("ledgered / plain", "call", "ms", [(one.ledgered, one.plain) for one in rounds]),
    )
    report.figures.append(
        figure("receipt / commit", "commits", "ms", [(one.extra, one.commit) for one in rounds], limit=COMMITS_LIMIT)
    )
    report.figures.append(
        figure("receipt / commit on the loop", "bare_commits", "ms", [(one.extra, one.bare) for one in rounds])
    )
    report.checks.append(
        Check(
            name=f"a receipt costs at most {EXTRA_LIMIT_MS:g} ms",
            key="extra_ms",
            passed=extra <= EXTRA_LIMIT_MS,
            found=f"{extra:.3f} ms",
        )
    )
    return report


async def _rounds(folder: Path, rounds: int, calls: int) -> list[Round]:
    commit = _committer(folder / "plain.db")
    http, pool = open_client(), ThreadPool(1, "commits")
    with Ledger(str(folder / "ledger.db")) as ledger, closing(Threads(1, "tools")) as threads:
        tools = tools_of([plain, ledgered])

        async def call(name: str, number: int) -> None:
            command = CallTool(id="c", name=name, args={"order": f"A{number}", "cents": 500})
            invocation = Invocation(
                task_id="t", invocation_id=f"t/{number}.1", idempotency_key=f"{number:064}", attempt=1, http=http
            )
            await tools[name].call(command, invocation, threads, ledger)

        async def one_round(first: int) -> Round:
            spent: dict[str, list[float]] = {"plain": [], "ledgered": [], "commit": [], "bare": []}
            for number in range(first, first + calls):
                for name in ("plain", "ledgered"):
                    began = time.perf_counter()
                    await call(name, number)
                    spent[name].append(1000 * (time.perf_counter() - began))
                began = time.perf_counter()
                await pool.run(commit, 2 * number)
                spent["commit"].append(1000 * (time.perf_counter() - began))
                began = time.perf_counter()
                commit(2 * number + 1)
                spent["bare"].append(1000 * (time.perf_counter() - began))
            return Round(**{name: quantiles(times, n=4)[0] for name, times in spent.items()})

        await one_round(0)  # opens files, compiles statements
        found = [await one_round(calls * number) for number in range(1, rounds + 1)]
    pool.close()
    await http.aclose()
    return found


def _committer(file: Path) -> Callable[[int], None]:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE plain (key TEXT PRIMARY KEY, value TEXT)")

    def commit(number: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO plain VALUES (?, ?)", (f"{number:064}", "x" * 300))
        connection.execute("COMMIT")

    return commit
