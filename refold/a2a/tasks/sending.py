"""What a message does: it starts a task, answers a waiting one, or gets a reply without a task."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, takewhile
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import Message as A2AMessage
from a2a.types import Role, SendMessageRequest, TaskPushNotificationConfig
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from a2a.utils.task import validate_history_length
from pydantic import JsonValue

from refold.a2a.caller import caller_of, owns
from refold.a2a.calls import tenant_of, while_connected
from refold.a2a.card import modes
from refold.a2a.convert import content_of, context_of
from refold.a2a.data import data_of
from refold.a2a.errors import ALONE, as_a2a, sent_to, taken_by
from refold.a2a.streams.patience import answered
from refold.a2a.tasks import idempotency
from refold.a2a.tasks.deciding import DecisionPart, decide, decisions_in, were_made
from refold.a2a.tasks.push import Push
from refold.a2a.tasks.reading import Reader
from refold.a2a.tasks.routing import FirstMessage, Routing, metadata_in
from refold.core.authoring.skill import Skill, skill_id, unfit_start
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.events import Early
from refold.core.lifecycle import TERMINAL
from refold.engine import Engine, EngineError, NotConnected, TaskExists, TaskFilter, TaskNotFound
from refold.record import TaskRecord

LOOKED_BACK = 20
"""How many of a conversation's newest tasks are looked at: the index may still list one as open that has ended."""

MOST_PARTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that a task accepted.

    Attributes:
        record: The task after it; for an approver, all that it may see of the task.
        after: The newest entry's number before the message; for a decision that is sent again, one less than the
            newest entry's.
    """

    record: TaskRecord
    after: int


class Sender:
    """Delivers messages to tasks."""

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        routing: Routing,
        push: Push,
        *,
        may_vouch: Collection[str] = (),
        most_parts: int = MOST_PARTS,
        early: Early = False,
    ) -> None:
        self.engine = engine
        self.reader = reader
        self.routing = routing
        self.push = push
        self.may_vouch = may_vouch
        self.most_parts = most_parts
        self.early = early

    async def send(self, request: SendMessageRequest, context: ServerCallContext, *, stream: bool) -> Sent | A2AMessage:
        """Deliver a message to its task, which may be a new one; or return the router's reply, without a task.

        Args:
            request: The message, and how it is to be answered.
            context: The caller and the call's headers.
            stream: Whether to stream the model's text while it is written.

        Raises:
            A2AError: The message is refused, and nothing was done.
        """
        validate_history_length(request.configuration)
        if request.message.role != Role.ROLE_USER:
            raise InvalidParamsError("a message to an agent has the role ROLE_USER")
        if len(request.message.parts) > self.most_parts:
            raise InvalidParamsError(
                f"a message holds at most {self.most_parts} parts; got {len(request.message.parts)}"
            )
        content = content_of(request.message)
        if request.message.task_id:
            return await self._answer(request, content, context)
        return await self._start(request, content, context, stream=stream)

    # --- a new task

    async def _start(
        self, request: SendMessageRequest, content: Content, context: ServerCallContext, *, stream: bool
    ) -> Sent | A2AMessage:
        caller, message = caller_of(context), request.message
        conversation = message.context_id or uuid4().hex
        first = FirstMessage(
            content=content,
            context=conversation,
            message_id=message.message_id,
            metadata=metadata_in(request),
            caller=caller,
            references=tuple(message.reference_task_ids),
            extensions=frozenset(context.requested_extensions),
            key=idempotency.key_of(context),
        )
        chosen = await while_connected(self.routing.choose(request, first, tenant=tenant_of(context)), context)
        if chosen is None:
            raise InternalError("the caller has gone before a skill was chosen")
        if isinstance(chosen, A2AMessage):
            return chosen
        skill = skill_id(chosen)
        modes.check_input(chosen.options.card, content)
        modes.check_output(chosen.options.card, request.configuration.accepted_output_modes)
        if problem := unfit_start(chosen, content):
            raise InvalidParamsError(problem)
        batch = batch_in(first.metadata)
        delivery = None if first.key is None else idempotency.delivery_of(caller, skill, first.key)
        task_id = f"{skill}-{delivery or uuid4().hex}"
        config = _push_config_in(request, task_id)
        if config is not None and (delivery is None or not await self._exists(task_id)):
            # Before the start, so that a process which ends between the two loses no webhook of a running task.
            await self.push.keep(config, context, new_task=True)
        previous = await self._before(chosen, caller, message.context_id)
        try:
            with sent_to(task_id):
                await self.engine.start(
                    skill,
                    content,
                    task_id=task_id,
                    stream=stream,
                    owner=caller,
                    context=conversation,
                    message_id=message.message_id or None,
                    delivery_id=delivery,
                    previous=previous,
                    batch=batch,
                )
        except TaskExists:
            if delivery is None:
                raise
        with taken_by(task_id):
            record = await self.reader.own(task_id, caller)
        idempotency.taken(record, delivery, content)
        return Sent(record=record, after=0)

    async def _exists(self, task_id: str) -> bool:
        with suppress(TaskNotFound):
            await self.engine.look(task_id)
            return True
        return False

    async def _before(self, skill: Skill, caller: str | None, context: str) -> str | None:
        """The newest ended task of the same conversation, for a skill that continues conversations."""
        if not context or not skill.options.is_agent:
            return None
        wanted = TaskFilter(skill=skill_id(skill), owner=caller or "", context=context)
        listed = await self.engine.find(wanted, limit=LOOKED_BACK)
        # The index lags behind: the task whose answer the caller has just read may be listed as open.
        newer = [one.task_id for one in takewhile(lambda one: one.lifecycle not in TERMINAL, listed)]
        over = await asyncio.gather(*map(self._has_ended, newer))
        ended = [*compress(newer, over), *(one.task_id for one in listed if one.lifecycle in TERMINAL)]
        if ended or len(listed) < LOOKED_BACK:
            return next(iter(ended), None)
        # All of the newest are open: the newest that has ended is asked for by its state.
        in_state = [wanted.model_copy(update={"lifecycle": one}) for one in TERMINAL]
        older = await asyncio.gather(*(self.engine.find(one, limit=1) for one in in_state))
        newest = max((one for found in older for one in found), key=lambda one: one.status_at, default=None)
        return None if newest is None else newest.task_id

    async def _has_ended(self, task_id: str) -> bool:
        with suppress(TaskNotFound):  # purged, of which the index hears late, too
            return (await self.engine.look(task_id)).lifecycle in TERMINAL
        return False

    # --- an answer

    async def _answer(self, request: SendMessageRequest, content: Content, context: ServerCallContext) -> Sent:
        caller, message = caller_of(context), request.message
        key = idempotency.key_of(context)
        decisions = decisions_in(content)
        try:
            record = await self.reader.record(message.task_id, caller)
        except TaskNotFoundError:
            if key is None or (found := await self._decided(message.task_id, decisions, caller)) is None:
                raise
            return Sent(record=found, after=found.seq - 1)
        if message.context_id and message.context_id != context_of(record):
            raise InvalidParamsError(f"task {record.task_id!r} belongs to another context than {message.context_id!r}")
        delivery = None if key is None else idempotency.delivery_of(caller, record.task_id, key)
        config = _push_config_in(request, record.task_id)
        if key is not None or decisions:
            # Only its worker knows what the task has taken already, and which gates need a signature.
            with sent_to(record.task_id, registers=config is not None):
                record = await answered(self.engine, record)
        if (before := idempotency.taken(record, delivery, content)) is not None:
            await self._register(config, context, once=True)
            return Sent(record=record, after=before.seq - 1)
        try:
            self._check_taker(record, caller, decides=bool(decisions), registers=config is not None)
            if not decisions:
                self._check_modes(record.skill, content, request)
            if config is not None:
                await self.push.check(config, context)
            with sent_to(record.task_id, registers=config is not None):
                if decisions:
                    await decide(self.engine, record, decisions, caller, vouches=caller in self.may_vouch)
                else:
                    await self._say(record, content, message, delivery, caller)
        except (InputRejected, UnsupportedOperationError):
            # A decision is journaled without a key: the same one of the same caller is this one, sent before.
            if delivery is None or not await were_made(self.engine, record, decisions, caller):
                raise
            if owns(caller, record):
                await self._register(config, context, once=True)
            return Sent(record=await self.reader.after(record, caller), after=record.seq - 1)
        with taken_by(record.task_id, registers=config is not None):
            after = await self.reader.after(record, caller)
        # Another call with the same key may have been faster.
        idempotency.taken(after, delivery, content)
        await self._register(config, context)
        return Sent(record=after, after=record.seq)

    async def _decided(self, task_id: str, decisions: Sequence[DecisionPart], caller: str | None) -> TaskRecord | None:
        """The task in which the caller, in their own name, made these decisions, as of the entry that closed their last
        gate: from then on, another owner's task is shown to its approvers no more. None if there is none.
        """
        if caller is None or any(one.approver not in (None, caller) for one in decisions):
            return None
        try:
            record = await self.engine.record(task_id)
            if await were_made(self.engine, record, decisions, caller):
                return await self.reader.shown_to(caller, task_id)
        except NotConnected:
            raise
        except EngineError:
            pass  # an error that says more of this task than of none would tell a stranger that it is there
        return None

    def _check_taker(self, record: TaskRecord, caller: str | None, *, decides: bool, registers: bool) -> None:
        """Check that the task accepts this message of this caller now."""
        if record.ended:
            raise UnsupportedOperationError(
                f"task {record.task_id!r} has ended ({record.status}); send the message without a task id"
            )
        if not owns(caller, record) and (registers or not decides):
            raise UnsupportedOperationError(
                f"{caller} may decide at a gate of this task, and do nothing else there, such as register a webhook"
            )
        if not record.paused and (decides or not self.early):
            raise UnsupportedOperationError(
                f"task {record.task_id!r} is at work ({record.status}); it accepts a message when it asks for one"
            )

    def _check_modes(self, skill: str, content: Content, request: SendMessageRequest) -> None:
        served = self.routing.skills.get(skill)
        if served is not None:
            modes.check_input(served.options.card, content)
            modes.check_output(served.options.card, request.configuration.accepted_output_modes)

    async def _say(
        self, record: TaskRecord, content: Content, message: A2AMessage, delivery: str | None, caller: str | None
    ) -> None:
        await self.engine.send(
            record.task_id,
            content,
            slot=slot_in(message),
            delivery_id=delivery,
            message_id=message.message_id or None,
            sender=caller,
            early=self.early,
        )

    async def _register(
        self, config: TaskPushNotificationConfig | None, context: ServerCallContext, *, once: bool = False
    ) -> None:
        """Keep the webhook, if there is one, of a message that the task has taken; its first update is the task as it
        is then.

        Args:
            config: The webhook.
            context: The call's.
            once: The message is sent again: the webhook is kept only if the first call ended before it was.

        Raises:
            A2AError: The webhook could not be kept.
        """
        if config is None:
            return
        try:
            await (self.push.keep_once(config, context) if once else self.push.keep(config, context))
        except (A2AError, EngineError) as error:
            told = as_a2a(error)
            raise type(told)(f"the task has taken the message, but not its webhook; {ALONE}: {told}") from error


def _push_config_in(request: SendMessageRequest, task_id: str) -> TaskPushNotificationConfig | None:
    """The webhook config of a message, for this task; None if it has none."""
    if not request.configuration.HasField("task_push_notification_config"):
        return None
    config = request.configuration.task_push_notification_config
    config.task_id = task_id
    return config


def batch_in(metadata: Mapping[str, JsonValue]) -> bool:
    """Whether a new task is a batch, for which nobody waits, by the metadata of its message or request.

    Raises:
        InvalidParamsError: The metadata's `batch` is neither true nor false.
    """
    batch = metadata.get("batch", False)
    if not isinstance(batch, bool):
        raise InvalidParamsError(f"metadata.batch says whether nobody waits for the task, true or false; got {batch!r}")
    return batch


def slot_in(message: A2AMessage) -> str | None:
    """The question that a message answers, if its metadata names one.

    Raises:
        InvalidParamsError: The metadata's `slot` is not a name.
    """
    said = data_of(message.metadata, "message.metadata")
    slot = said.get("slot") if isinstance(said, dict) else None
    if slot is not None and not isinstance(slot, str):
        raise InvalidParamsError(f"metadata.slot names a question; got {slot!r}")
    return slot
