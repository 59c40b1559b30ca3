"""How people are told that a gate waits for them: a notifier, chosen by a setting.

| `REFOLD_NOTIFY_URL` | who is told                                                             |
| ------------------- | ----------------------------------------------------------------------- |
| unset               | the worker's log, at level warning                                      |
| `http(s)://…`       | whoever listens there: a POST of JSON, with `Idempotency-Key`           |

Anything else that can reach people (mail, a pager, a chat) is an object with `Notifier`'s one method. It is given to
`Effects(notifier=...)`.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog

from refold.core.commands import Notify
from refold.core.errors import DefinitionError
from refold.core.values import Value, lean
from refold.effects.http.client import HttpClient

ENV = "REFOLD_NOTIFY_URL"
TIMEOUT_S = 10.0

log = structlog.get_logger("refold.notify")


class Reminder(Value):
    """What people are told.

    Attributes:
        task_id: The task that waits.
        gate: Where it waits; a decision names it.
        message: What is asked, as text.
        show: What is decided on, as data.
        approvers: Who may decide; empty lets anybody.
        key: The same on every try, so that a receiver can tell a repetition.
    """

    task_id: str
    gate: str
    message: str
    show: Any = lean()
    approvers: tuple[str, ...] = lean(())
    key: str

    @classmethod
    def of(cls, command: Notify, key: str) -> Reminder:
        """The reminder that a command asks for."""
        return cls(
            task_id=command.gate.rpartition("/")[0],
            gate=command.gate,
            message=command.message.text,
            show=command.show,
            approvers=command.approvers,
            key=key,
        )


class Notifier(Protocol):
    """Tells people. Called from any task's worker, once for each gate unless a worker dies or the call fails."""

    async def notify(self, reminder: Reminder) -> None:
        """Tell them.

        Raises:
            TryLater: They cannot be reached now; tried again a few times within seconds.
            Exception: They cannot be reached. The gate waits on all the same, and the journal says so.
        """
        ...


class LogNotifier:
    """Tells whoever reads the worker's log."""

    async def notify(self, reminder: Reminder) -> None:
        """One line. What is shown stays out of it: logs are read by more people than gates."""
        log.warning(
            "approval_reminder",
            task_id=reminder.task_id,
            gate=reminder.gate,
            message=reminder.message,
            approvers=list(reminder.approvers),
        )


class WebhookNotifier:
    """Tells whoever listens at a URL.

    Attributes:
        url: Where to.
    """

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url = url
        self._http = http

    async def notify(self, reminder: Reminder) -> None:
        """A POST; any answer below 300 will do."""
        body = {"kind": "approval_reminder", **reminder.model_dump(mode="json", exclude={"key"})}
        headers = {"Idempotency-Key": reminder.key}
        response = await self._http.post(self.url, json=body, headers=headers, timeout=TIMEOUT_S)
        response.raise_for_status()


def notifier_from_env(http: HttpClient) -> Notifier:
    """The notifier that `REFOLD_NOTIFY_URL` chooses.

    Raises:
        DefinitionError: It is no HTTP address.
    """
    url = os.environ.get(ENV, "").strip()
    if not url:
        return LogNotifier()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise DefinitionError(ENV, ["it must be an http:// or https:// address, or unset"], what="notifier")
    return WebhookNotifier(url, http)
