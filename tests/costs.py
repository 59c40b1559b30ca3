"""What each file of tests costs, told at the end of a long run, so that whoever adds to one sees what it is by now.

CPU is that of the process and of the children that ended in it: what a busy machine does not change. The time beside it
has the waits in it.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

from tests.services.nursery import Child

LONG_S = 60.0
"""Shorter runs are not worth a table."""
SHOWN = 10

CPU = "cpu_s"
_last = pytest.StashKey[float]()


def cpu_s() -> float:
    """CPU seconds of this process and its children so far."""
    return sum(os.times()[:4]) + Child.spent_s


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_last] = cpu_s()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Each phase of a test has what was spent since the phase before."""
    report = yield
    now = cpu_s()
    report.user_properties.append((CPU, now - item.config.stash[_last]))
    item.config.stash[_last] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The files that cost most."""
    spent: dict[str, float] = defaultdict(float)
    took: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                took[file] += report.duration
                spent[file] += sum(float(str(value)) for name, value in report.user_properties if name == CPU)
    if sum(took.values()) < LONG_S:
        return
    terminalreporter.section(f"{sum(spent.values()):.0f} s of CPU; the files that take most")
    for file in sorted(spent, key=lambda file: spent[file], reverse=True)[:SHOWN]:
        terminalreporter.write_line(f"{spent[file]:6.1f} s of CPU in {took[file]:6.1f} s  {file}")
