"""The log of workers and gateways."""

import pytest
import structlog
from structlog.testing import capture_logs

from refold.seen.logs import logger


def unwritable(*_: object) -> dict[str, object]:
    raise BrokenPipeError(32, "Broken pipe")


def test_a_line_that_cannot_be_written_stops_nothing() -> None:
    """
    Nobody reads stderr any more, or the disk is full: the line is dropped, with an error's traceback, too.
    """
    log = logger("refold.test")
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[unwritable])
    try:
        log.info("done", number=1)
        log.bind(task_id="t1").warning("done")
        try:
            raise ValueError
        except ValueError:
            log.exception("failed")
    finally:
        structlog.configure(processors=before)


def test_a_line_is_the_applications_affair() -> None:
    """
    Name, level and fields reach structlog as it is set up when the line is written.
    """
    log = logger("refold.test").bind(task_id="t1")
    with capture_logs() as lines:
        log.warning("stopped", seq=3)

    assert lines == [{"event": "stopped", "log_level": "warning", "task_id": "t1", "seq": 3}]


def test_a_level_that_is_none_is_a_mistake() -> None:
    """
    A misspelt level is no dropped line.
    """
    with pytest.raises(AttributeError):
        logger("refold.test").wanring("stopped")
