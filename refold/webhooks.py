"""Webhooks, as everything outside sees them: where a task's updates are sent, and who keeps that.

Who follows a task and sends is behind `Webhooks`; what an update looks like to its receiver is the gateway's affair,
which gives it as a `Feed`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from refold.core.values import Value, lean

Shape = Literal["1.0", "0.3"]
"""The version of A2A whose words a receiver reads."""

START = "0.0"
"""The cursor before a task's first update. What other cursors say is the feed's affair."""


class Webhook(Value):
    """Where somebody wants a task's updates sent. Its representation holds no secret.

    Source: A2A specification 1.0, TaskPushNotificationConfig.

    Attributes:
        id: Unique within the task.
        url: Where to, http or https.
        token: Sent along as `X-A2A-Notification-Token`.
        scheme: How `Authorization` begins. `StandardWebhooks` says that the credentials sign, and are not sent.
        credentials: What stands behind it.
        shape: The words that the receiver reads.
    """

    id: str
    url: str = lean("", repr=False)  # its path and query may be a secret of the receiver's
    token: str = lean("", repr=False)
    scheme: str = lean("", repr=False)
    credentials: str = lean("", repr=False)
    shape: Shape = lean("1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What a receiver is told at once.

    Attributes:
        id: Unique within the task, the same whenever it is told; receivers know a repetition by it.
        cursor: Where to go on once it is told.
        body: As it is sent, JSON.
    """

    id: str
    cursor: str
    body: bytes


class Feed(Protocol):
    """Gives a task's updates in a receiver's words. Called in any process that delivers."""

    def __call__(self, task_id: str, shape: Shape, after: str | None) -> AsyncGenerator[Update, None]:
        """The updates after a place, as they come, in order, to the task's end; over pauses too.

        Args:
            after: A cursor. None begins with the task as it is, whole, and goes on from there.

        Raises:
            TaskNotFound: There is no such task.
            EngineError: It cannot be followed for now; tried again from the last cursor.
        """
        ...


class Webhooks(Protocol):
    """Keeps webhooks, and delivers to them whatever becomes of this process.

    Every method raises `NotConnected` where no server answers, and `NoWorker` where nobody delivers.
    """

    async def check(self, webhook: Webhook) -> None:
        """Judge a webhook before anything is kept or started.

        Raises:
            InputRejected: It cannot be used, or nothing may be sent there; without its secrets.
        """
        ...

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        """Keep a webhook; one of the same id is changed, and goes on where it was.

        Args:
            task_id: The task, which need not have started.
            webhook: Where and how.
            after: Where its updates begin; see `Feed`.

        Raises:
            InputRejected: As `check`.
        """
        ...

    async def get(self, task_id: str, id: str) -> Webhook | None:
        """A webhook; None where there is none of this id."""
        ...

    async def of_task(self, task_id: str) -> list[Webhook]:
        """All webhooks of a task, by id."""
        ...

    async def remove(self, task_id: str, id: str) -> None:
        """Forget a webhook: nothing more is sent. Nothing happens where there is none."""
        ...
