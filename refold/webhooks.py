"""Webhooks, as their callers see them: where a task's updates are posted, and who stores that.

`Webhooks` follows tasks and posts updates; the gateway defines the form of an update, as a `Feed`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from refold.core.values import Value, lean

Shape = Literal["1.0", "0.3"]
"""The version of A2A in whose format a receiver gets updates."""

START = "0.0"
"""The cursor before a task's first update. The feed defines all other cursors."""


class Webhook(Value):
    """An address to which a task's updates are posted. Its `repr` contains no secret.

    Source: A2A specification 1.0, TaskPushNotificationConfig.

    Attributes:
        id: Unique within the task.
        url: The address, http or https.
        token: Sent as `X-A2A-Notification-Token`.
        scheme: The first word of `Authorization`. `StandardWebhooks` means that the credentials sign, and are not sent.
        credentials: The rest of `Authorization`.
        shape: The format of the updates.
    """

    id: str
    url: str = lean("", repr=False)  # its path and query may contain a secret of the receiver
    token: str = lean("", repr=False)
    scheme: str = lean("", repr=False)
    credentials: str = lean("", repr=False)
    shape: Shape = lean("1.0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One update for a receiver.

    Attributes:
        id: Unique within the task, the same in every attempt to deliver it, so that receivers recognise a repetition.
        cursor: Where to continue after it is delivered.
        body: The JSON to post.
    """

    id: str
    cursor: str
    body: bytes


class Feed(Protocol):
    """Yields a task's updates in a receiver's format. Called in any process that delivers."""

    def __call__(self, task_id: str, shape: Shape, after: str | None) -> AsyncGenerator[Update, None]:
        """The updates after a cursor, as they come, in order, to the task's end; pauses do not end it.

        Args:
            after: A cursor. None begins with the whole task as it is.

        Raises:
            TaskNotFound: There is no such task.
            EngineError: It cannot be followed at the moment; the caller tries again from the last cursor.
        """
        ...


class Webhooks(Protocol):
    """Stores webhooks, and delivers to them even if this process ends.

    Every method raises `NotConnected` if no server answers, and `NoWorker` if no gateway delivers.
    """

    async def check(self, task_id: str, webhook: Webhook) -> None:
        """Check a webhook before anything is stored or started.

        Raises:
            InputRejected: It cannot be used, posting to its address is not allowed, or the task has too many; the
                message contains no secrets.
        """
        ...

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        """Store a webhook; one of the same id is changed, and its delivery continues where it was.

        Args:
            task_id: The task, which need not have started.
            webhook: The address and the credentials.
            after: Where its updates begin; see `Feed`.

        Raises:
            InputRejected: As `check`.
        """
        ...

    async def get(self, task_id: str, id: str) -> Webhook | None:
        """A webhook; None if there is none of this id."""
        ...

    async def known(self, task_id: str, id: str) -> bool:
        """Whether the task has, or has had, a webhook of this id; a removed one is known for as long as the server
        retains what has ended.
        """
        ...

    async def of_task(self, task_id: str) -> list[Webhook]:
        """All webhooks of a task, by id."""
        ...

    async def remove(self, task_id: str, id: str) -> None:
        """Delete a webhook: nothing more is posted. It is no error if there is none."""
        ...
