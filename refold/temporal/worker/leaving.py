"""The signals that tell a process of refold's to finish what it does, and leave."""

from __future__ import annotations

import signal


def signals_to_leave() -> list[signal.Signals]:
    """Ctrl-C, SIGTERM, and the end of the terminal; not where the process is to outlive it (`nohup`)."""
    leave = [signal.SIGINT, signal.SIGTERM]
    return leave if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*leave, signal.SIGHUP]
