"""A name server that answers when the test says so."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

PATIENCE_S = 60.0


class SlowNames:
    """Takes the place of `socket.getaddrinfo`: names that begin with `slow` wait, others resolve to this machine.

    Attributes:
        asked: The names that were asked for, oldest first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self._changed = threading.Condition()
        self._answers = 0
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def answer(self, names: int = 1_000) -> None:
        """Let names that wait, or will wait, resolve."""
        with self._changed:
            self._answers += names
            self._changed.notify_all()

    def until(self, asked: int) -> None:
        """Wait until so many names were asked for; blocks the thread."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= asked, PATIENCE_S)

    def _look_up(self, host: str, port: int, **_: Any) -> list[Any]:
        with self._changed:
            self.asked.append(host)
            self._changed.notify_all()
            if host.startswith("slow"):
                assert self._changed.wait_for(lambda: self._answers > 0, PATIENCE_S)
                self._answers -= 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
