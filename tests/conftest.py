"""What every test is kept from: the receipts of whoever runs the tests, the logs of the test before, and the clock."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from functools import cache

import pytest
import structlog
from hypothesis import HealthCheck, settings
from typer.main import get_command

from refold.seen.logs import texts_of_lines

pytest_plugins = ["tests.costs", "tests.ended", "tests.left", "tests.servers"]

# Five thousand tests are a million objects that live until the end: not looked through again and again for garbage.
gc.disable()

# Started in the background or by nohup, this process ignores signals, and processes that tests start would ignore them
# too, which are sent them. A handler is not passed on.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# How long an example takes says nothing on a machine that others share. Each run draws other examples; where the
# environment says that it is CI, Hypothesis would draw the same ones each time.
settings.register_profile("tests", deadline=None, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_collection_finish() -> None:
    """All tests are there; what they leave behind is collected as ever."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def receipts_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tools that keep receipts keep them in a file of this run's own, in the processes that tests start too; workers
    that are stopped under an effect that never ends are gone soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_GRACE", "5")
        patch.setenv("GOGC", "300")  # Temporal servers of a few minutes: less of their CPU for garbage, more memory
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("receipts") / "ledger.db"))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_command_line() -> Iterator[None]:
    """A thousand tests call `refold`, and typer would put its verbs together for each: 40 ms of CPU a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", cache(get_command))
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were() -> Iterator[None]:
    """A command line that was run sets up logs for its own output, which is gone when the test is over."""
    yield
    structlog.reset_defaults()
    texts_of_lines(kept=True)


@pytest.fixture
def collected() -> Iterator[None]:
    """What a test leaves behind is collected along with it: a later one would not forgive the warnings of it."""
    yield
    gc.collect()
