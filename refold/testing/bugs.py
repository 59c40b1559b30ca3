"""Where the author's code raised: in the log that a test shows, since the journal names the function alone."""

from __future__ import annotations

import logging

from refold.core.authoring.skill import Live
from refold.core.fold.snapshot import Snapshot

log = logging.getLogger(__name__)


def tell(live: Live, task: Snapshot) -> None:
    """Log the file and line of a bug that folding an event raised, once."""
    if live.bug:
        log.error("task %r, entry %s: %s, at %s", task.task_id, task.seq, task.reason or "a bug", live.bug)
        live.bug = ""
