"""The signals that tell a process of refold's to finish what it does, and leave."""

from __future__ import annotations

import signal


def signals_to_leave() -> list[signal.Signals]:
    """SIGINT (Ctrl-C), SIGTERM, and SIGHUP, unless the process ignores the end of its terminal (`nohup`)."""
    leave = [signal.SIGINT, signal.SIGTERM]
    return leave if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*leave, signal.SIGHUP]
