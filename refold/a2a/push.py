"""Webhooks: the configs that say where a task's updates are to be sent."""

from __future__ import annotations

from typing import Protocol

from a2a.server.context import ServerCallContext
from a2a.types import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import PushNotificationNotSupportedError


class Push(Protocol):
    """Keeps webhook configs, and sees to it that updates are delivered.

    Called for tasks that exist and are the caller's own, but for `keep`: it is called before a new task starts.

    Attributes:
        supported: Whether the card says that there are webhooks.
    """

    supported: bool

    async def keep(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> TaskPushNotificationConfig:
        """Keep a config: a new one, or another one under the same id."""
        ...

    async def get(
        self, request: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """One config."""
        ...

    async def list(
        self, request: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """All configs of a task."""
        ...

    async def delete(self, request: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext) -> None:
        """Forget a config; one that does not exist is forgotten already."""
        ...


class NoPush:
    """A gateway without webhooks."""

    supported = False

    async def keep(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> TaskPushNotificationConfig:
        """See `Push.keep`."""
        raise PushNotificationNotSupportedError

    async def get(
        self, request: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """See `Push.get`."""
        raise PushNotificationNotSupportedError

    async def list(
        self, request: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """See `Push.list`."""
        raise PushNotificationNotSupportedError

    async def delete(self, request: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext) -> None:
        """See `Push.delete`."""
        raise PushNotificationNotSupportedError
