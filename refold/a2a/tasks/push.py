"""Webhook configs: the addresses to which a task's updates are posted."""

from __future__ import annotations

from typing import Protocol

from a2a.server.context import ServerCallContext
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.constants import VERSION_HEADER
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError

from refold.a2a.calls import major_version
from refold.core.errors import InputRejected
from refold.engine.arguments import defining, takes
from refold.webhooks import START, Shape, Webhook, Webhooks


class Push(Protocol):
    """Stores webhook configs, and has updates delivered.

    Called for tasks that exist and belong to the caller, except `keep`: it is also called before a new task starts.

    Attributes:
        supported: Whether the card declares webhooks.
    """

    supported: bool

    async def check(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """Check a config before the message that it came with is sent.

        Raises:
            A2AError: `keep` would refuse it.
        """
        ...

    async def keep(
        self, config: TaskPushNotificationConfig, context: ServerCallContext, *, new_task: bool = False
    ) -> TaskPushNotificationConfig:
        """Store a config: a new one, or a changed one under the same id.

        Args:
            new_task: The task is about to start, and all its updates are to be delivered.
        """
        ...

    async def keep_once(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """Store a config unless the task has, or has had, one of its id."""
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
        """Delete a config; it is no error if there is none."""
        ...


class NoPush:
    """A gateway without webhooks."""

    supported = False

    async def check(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """See `Push.check`."""
        raise PushNotificationNotSupportedError

    async def keep(
        self, config: TaskPushNotificationConfig, context: ServerCallContext, *, new_task: bool = False
    ) -> TaskPushNotificationConfig:
        """See `Push.keep`."""
        raise PushNotificationNotSupportedError

    async def keep_once(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """See `Push.keep_once`."""
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


@takes(defining("WebhookPush", "webhooks"))
class WebhookPush:
    """Stores configs as webhooks, which deliver updates."""

    supported = True

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def check(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """See `Push.check`."""
        try:
            await self._webhooks.check(config.task_id, _webhook_of(config, shape_of(context)))
        except InputRejected as error:
            raise InvalidParamsError(error.reason) from None

    async def keep(
        self, config: TaskPushNotificationConfig, context: ServerCallContext, *, new_task: bool = False
    ) -> TaskPushNotificationConfig:
        """See `Push.keep`."""
        webhook = _webhook_of(config, shape_of(context))
        try:
            await self._webhooks.put(config.task_id, webhook, after=START if new_task else None)
        except InputRejected as error:
            raise InvalidParamsError(error.reason) from None
        return _config_of(config.task_id, webhook, config.tenant)

    async def keep_once(self, config: TaskPushNotificationConfig, context: ServerCallContext) -> None:
        """See `Push.keep_once`."""
        if not await self._webhooks.known(config.task_id, _webhook_of(config, shape_of(context)).id):
            await self.keep(config, context)

    async def get(
        self, request: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """See `Push.get`."""
        found = await self._webhooks.get(request.task_id, request.id)
        if found is None:
            raise TaskNotFoundError(f"task {request.task_id!r} has no webhook {request.id!r}")
        return _config_of(request.task_id, found, request.tenant)

    async def list(
        self, request: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """See `Push.list`. A page token is the id after which the page begins."""
        if request.page_size < 0:
            raise InvalidParamsError(f"a page holds one config or more, not {request.page_size}")
        found = [hook for hook in await self._webhooks.of_task(request.task_id) if hook.id > request.page_token]
        page = found[: request.page_size or None]
        return ListTaskPushNotificationConfigsResponse(
            configs=[_config_of(request.task_id, webhook, request.tenant) for webhook in page],
            next_page_token=page[-1].id if len(page) < len(found) else "",
        )

    async def delete(self, request: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext) -> None:
        """See `Push.delete`."""
        await self._webhooks.remove(request.task_id, request.id)


def _webhook_of(config: TaskPushNotificationConfig, shape: Shape) -> Webhook:
    return Webhook(
        id=config.id or config.task_id,
        url=config.url,
        token=config.token,
        scheme=config.authentication.scheme,
        credentials=config.authentication.credentials,
        shape=shape,
    )


def _config_of(task_id: str, webhook: Webhook, tenant: str) -> TaskPushNotificationConfig:
    config = TaskPushNotificationConfig(
        tenant=tenant, id=webhook.id, task_id=task_id, url=webhook.url, token=webhook.token
    )
    if webhook.scheme or webhook.credentials:
        config.authentication.CopyFrom(AuthenticationInfo(scheme=webhook.scheme, credentials=webhook.credentials))
    return config


def shape_of(context: ServerCallContext) -> Shape:
    """The protocol version of a caller and its receivers: given by JSON-RPC's methods, and over REST by the header.

    Source: A2A specification 1.0, section 3.6.2: no header means 0.3.
    """
    method = str(context.state.get("method", ""))
    if method:
        return "0.3" if "/" in method else "1.0"
    version = str(context.state.get("headers", {}).get(VERSION_HEADER.lower(), ""))
    return "1.0" if major_version(version) == "1" else "0.3"
