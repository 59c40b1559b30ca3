"""A2A's methods, each handed to the part that implements it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from dataclasses import dataclass

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import PushNotificationNotSupportedError, TaskNotCancelableError, UnsupportedOperationError
from a2a.utils.task import apply_history_length, validate_history_length, validate_page_size

from refold.a2a.caller import caller_of, owns
from refold.a2a.calls import status_asked_for, tenant_of, while_connected
from refold.a2a.card.card import Cards
from refold.a2a.convert import reply_of, task_of
from refold.a2a.errors import method, method_that_yields, taken_by
from refold.a2a.extensions import Timeline
from refold.a2a.streams.follow import Streams, seen_by
from refold.a2a.streams.updates import EventId, whole
from refold.a2a.tasks.listing import Listing, check_status
from refold.a2a.tasks.push import Push, shape_of
from refold.a2a.tasks.reading import Reader
from refold.a2a.tasks.sending import Sender, Sent
from refold.core.errors import InputRejected
from refold.engine import Engine
from refold.record import TaskRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts that implement the handler's methods; a test can replace each.

    Attributes:
        reader: Reads tasks for callers.
        sender: Delivers messages to tasks.
        streams: Streams the events of tasks.
        push: Stores webhook configs.
        listing: Lists tasks.
        cards: The agent's cards.
        timeline: Adds a task's past.
        direct: Ids of the skills that answer with a message, if they complete without a question.
    """

    reader: Reader
    sender: Sender
    streams: Streams
    push: Push
    listing: Listing
    cards: Cards
    timeline: Timeline
    direct: Collection[str] = ()


class Gateway(RequestHandler):
    """Implements A2A's methods on an engine. Stores nothing: any gateway serves any task."""

    def __init__(self, engine: Engine, parts: Parts) -> None:
        self.engine = engine
        self.parts = parts
        extensions = parts.cards.public.capabilities.extensions
        self.required_extensions = {extension.uri for extension in extensions if extension.required}

    # --- messages

    @method
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Send a message to a task; returns when the task has ended or waits, or at once if the caller asked so."""
        sent = await self.parts.sender.send(params, context, stream=False)
        if isinstance(sent, Message):
            return sent
        record = sent.record
        if not params.configuration.return_immediately:
            record = await self._settled(record, context)
        if self._is_direct(sent) and (reply := reply_of(record)) is not None:
            return reply
        task = apply_history_length(task_of(record), params.configuration)
        return await self.parts.timeline.add(task, record, context)

    @method_that_yields
    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Send a message to a task, and stream the task's events."""
        sent = await self.parts.sender.send(params, context, stream=True)
        if isinstance(sent, Message):
            yield sent
            return
        record = sent.record
        if not owns(caller_of(context), record):  # an approver sees no more of the task than this
            yield apply_history_length(whole(record), params.configuration)
            return
        if self._is_direct(sent):
            # A stream is of one message or of a task's events; which of them, is known when the task has settled.
            record = await self._settled(record, context)
            if (reply := reply_of(record)) is not None:
                yield reply
                return
        events = self.parts.streams.follow(record, after=sent.after, over_pauses=False)
        with taken_by(record.task_id):
            async with aclosing(events):
                async for event in events:
                    yield apply_history_length(event, params.configuration) if isinstance(event, Task) else event

    async def _settled(self, record: TaskRecord, context: ServerCallContext) -> TaskRecord:
        """A task that has taken a message, once it has ended or waits; as it was, if the caller disconnects before, or
        is an approver, who sees no more of the task.
        """
        if not owns(caller_of(context), record):
            return record
        with taken_by(record.task_id):
            return await while_connected(self.parts.reader.settled(record), context) or record

    def _is_direct(self, sent: Sent) -> bool:
        """Whether a message that started a task may be answered without it."""
        return sent.after == 0 and sent.record.skill in self.parts.direct

    # --- tasks

    @method
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task | None:
        """Get one task."""
        validate_history_length(params)
        record = await self.parts.reader.record(params.id, caller_of(context))
        return await self.parts.timeline.add(apply_history_length(task_of(record), params), record, context)

    @method
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """List the caller's tasks, by page."""
        validate_history_length(params)
        if params.HasField("page_size"):
            validate_page_size(params.page_size)
        check_status(params, await status_asked_for(context))
        return await self.parts.listing.page(params, caller_of(context), tenant=tenant_of(context))

    @method
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task | None:
        """Cancel a task."""
        record = await self.parts.reader.own(params.id, caller_of(context))
        if record.ended:
            raise TaskNotCancelableError(f"task {record.task_id!r} has ended ({record.status})")
        try:
            await self.engine.cancel(record.task_id, reason="canceled over A2A", by=caller_of(context))
        except InputRejected as error:  # the task has ended meanwhile
            raise TaskNotCancelableError(error.reason) from None
        return task_of(await self.parts.reader.own(params.id, caller_of(context)))

    @method_that_yields
    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Stream a task and its further events until it ends; after the caller's last event, if it names one."""
        record = await self.parts.reader.own(params.id, caller_of(context))
        seen = seen_by(context)
        if record.ended and seen in (None, EventId(record.seq)):
            raise UnsupportedOperationError(f"task {record.task_id!r} has ended ({record.status}); get it instead")
        # A 0.3 client learns from the stream's end that the task asks a question.
        over_pauses = shape_of(context) != "0.3"
        if seen is None:
            # A question that stands is news for the client; without its worker, nobody knows whether it stands.
            after = record.seq if over_pauses or record.note else record.seq - 1
            events = self.parts.streams.follow(record, after=after, over_pauses=over_pauses)
        else:
            events = self.parts.streams.resume(record, seen, over_pauses=over_pauses)
        async with aclosing(events):
            async for event in events:
                yield event

    # --- webhooks

    @method
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Register a webhook for a task."""
        await self._own_with_webhooks(params.task_id, context)
        return await self.parts.push.keep(params, context)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Get one of a task's webhook configs. A 0.3 client may omit the id, if it registered without one."""
        if shape_of(context) == "0.3":
            params.id = params.id or params.task_id
        return await self._get_push_config(params, context)

    @method
    async def _get_push_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        await self._own_with_webhooks(params.task_id, context)
        return await self.parts.push.get(params, context)

    @method
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """List a task's webhook configs."""
        await self._own_with_webhooks(params.task_id, context)
        return await self.parts.push.list(params, context)

    @method
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete one of a task's webhook configs."""
        await self._own_with_webhooks(params.task_id, context)
        await self.parts.push.delete(params, context)

    async def _own_with_webhooks(self, task_id: str, context: ServerCallContext) -> None:
        if not self.parts.push.supported:
            raise PushNotificationNotSupportedError
        await self.parts.reader.own(task_id, caller_of(context))

    # --- the card

    @method
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """Get the card for authenticated callers; under a private skill's tenant, that skill's own."""
        cards = self.parts.cards
        extended = cards.extended_of_skills.get(params.tenant or tenant_of(context), cards.extended)
        if extended is None:
            raise UnsupportedOperationError("there is no other card than the one that everybody reads")
        if caller_of(context) is None:
            raise UnsupportedOperationError("the extended card is for callers that are known; say who calls")
        return extended
