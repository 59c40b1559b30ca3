"""Notifies people that a gate waits for their decision.

| `REFOLD_NOTIFY_URL` | where the notification goes                                             |
| ------------------- | ----------------------------------------------------------------------- |
| unset               | the worker's log, at level warning                                      |
| `http(s)://…`       | a POST of JSON to that URL, with `Idempotency-Key`                      |

For any other channel (mail, a pager, a chat) implement `Notifier` and pass it as `RefoldPlugin(notifier=...)` or
`run_worker(notifier=...)`.
"""

from __future__ import annotations

import os
from typing import Any, Protocol
from urllib.parse import urlsplit

from refold.core.commands import Notify
from refold.core.errors import DefinitionError
from refold.core.values import Value, lean
from refold.effects.http.client import HttpClient
from refold.seen.logs import logger

ENV = "REFOLD_NOTIFY_URL"
TIMEOUT_S = 10.0

log = logger("refold.notify")


class Reminder(Value):
    """The notification for one gate.

    Attributes:
        task_id: The task that waits.
        gate: The gate's name, which a decision gives.
        message: The question, as text.
        show: The data to decide on.
        approvers: The people who may decide; empty allows anyone.
        opened: The gate has just opened; otherwise this is the reminder.
        key: The idempotency key; the same on every attempt.
    """

    task_id: str
    gate: str
    message: str
    show: Any = lean()
    approvers: tuple[str, ...] = lean(())
    opened: bool = lean(False)
    key: str

    @property
    def kind(self) -> str:
        """What a log line and a POST call it."""
        return "approval_requested" if self.opened else "approval_reminder"

    @classmethod
    def of(cls, command: Notify, key: str) -> Reminder:
        """The reminder that a command asks for."""
        return cls(
            task_id=command.gate.rpartition("/")[0],
            gate=command.gate,
            message=command.message.text,
            show=command.show,
            approvers=command.approvers,
            opened=command.opened,
            key=key,
        )


class Notifier(Protocol):
    """Sends notifications.

    The worker calls it when a gate opens, if the gate's policy says so, and for the gate's reminder; again if a worker
    dies or the call fails.
    """

    async def notify(self, reminder: Reminder) -> None:
        """Send a notification.

        Raises:
            TryLater: The channel is unavailable; the worker retries a few times within seconds.
            Exception: The notification failed. The gate keeps waiting, and the journal records the failure.
        """
        ...


class LogNotifier:
    """Writes notifications to the worker's log."""

    async def notify(self, reminder: Reminder) -> None:
        """Log one line, without `show`: more people may read the log than the gate's data."""
        log.warning(
            reminder.kind,
            task_id=reminder.task_id,
            gate=reminder.gate,
            message=reminder.message,
            approvers=list(reminder.approvers),
        )


class WebhookNotifier:
    """Posts notifications to a URL.

    Attributes:
        url: The URL.
    """

    def __init__(self, url: str, http: HttpClient) -> None:
        self.url = url
        self._http = http

    async def notify(self, reminder: Reminder) -> None:
        """POST the notification as JSON; a status below 300 counts as success."""
        body = {"kind": reminder.kind, **reminder.model_dump(mode="json", exclude={"key", "opened"})}
        headers = {"Idempotency-Key": reminder.key}
        response = await self._http.post(self.url, json=body, headers=headers, timeout=TIMEOUT_S)
        response.raise_for_status()


def notifier_from_env(http: HttpClient) -> Notifier:
    """The notifier that `REFOLD_NOTIFY_URL` chooses.

    Raises:
        DefinitionError: The setting is not an HTTP address.
    """
    url = os.environ.get(ENV, "").strip()
    if not url:
        return LogNotifier()
    if not _can_be_called(url):
        raise DefinitionError(ENV, ["it must be an http:// or https:// address, or unset"], what="notifier")
    return WebhookNotifier(url, http)


def _can_be_called(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port  # which is read only here
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
