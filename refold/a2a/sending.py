"""What becomes of a message: a new task, an answer to one that waits, or a reply without a task."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import Message as A2AMessage
from a2a.types import Role, SendMessageRequest
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from a2a.utils.task import validate_history_length

from refold.a2a.caller import caller_of
from refold.a2a.convert import content_of, context_of
from refold.a2a.push import Push
from refold.a2a.reading import Reader
from refold.a2a.routing import Routing
from refold.core.content import Content
from refold.core.record import TaskRecord
from refold.core.skill import Skill, skill_id, unfit_start
from refold.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message that a task took.

    Attributes:
        record: The task since.
        after: The newest entry's number before the message was taken.
    """

    record: TaskRecord
    after: int


class Sender:
    """Gives messages to tasks."""

    def __init__(self, engine: Engine, reader: Reader, routing: Routing, push: Push) -> None:
        self.engine = engine
        self.reader = reader
        self.routing = routing
        self.push = push

    async def send(self, request: SendMessageRequest, context: ServerCallContext, *, stream: bool) -> Sent | A2AMessage:
        """Give a message to its task, which may be a new one; or a reply, where no task is made.

        Args:
            stream: Whoever sends it wants to see the answer while it is written.

        Raises:
            A2AError: The message is refused; see the tables in docs/a2a.md.
        """
        validate_history_length(request.configuration)
        if request.message.role == Role.ROLE_AGENT:
            raise InvalidParamsError("a message to an agent has the role ROLE_USER")
        content = content_of(request.message)
        if request.message.task_id:
            return await self._answer(request, content, caller_of(context), context)
        return await self._start(request, content, context, stream=stream)

    async def _start(
        self, request: SendMessageRequest, content: Content, context: ServerCallContext, *, stream: bool
    ) -> Sent | A2AMessage:
        if context.tenant and not request.tenant:
            request.tenant = context.tenant  # REST has it in its path
        chosen = await self.routing.choose(request)
        if isinstance(chosen, A2AMessage):
            return chosen
        _check_start(chosen, content)
        task_id = f"{skill_id(chosen)}-{uuid4().hex}"
        await self._keep_push_config(request, task_id, context, new_task=True)
        await self.engine.start(
            skill_id(chosen),
            content,
            task_id=task_id,
            stream=stream,
            owner=caller_of(context),
            context=request.message.context_id or uuid4().hex,
            message_id=request.message.message_id or None,
        )
        return Sent(record=await self.engine.record(task_id), after=0)

    async def _answer(
        self, request: SendMessageRequest, content: Content, caller: str | None, context: ServerCallContext
    ) -> Sent:
        message = request.message
        record = await self.reader.own(message.task_id, caller)
        if message.context_id and message.context_id != context_of(record):
            raise InvalidParamsError(f"task {record.task_id!r} belongs to another context than {message.context_id!r}")
        if record.ended:
            raise UnsupportedOperationError(
                f"task {record.task_id!r} has ended ({record.status}); send the message without a task id"
            )
        await self._keep_push_config(request, record.task_id, context)
        await self.engine.send(record.task_id, content, message_id=message.message_id or None, sender=caller)
        return Sent(record=await self.engine.record(record.task_id), after=record.seq)

    async def _keep_push_config(
        self, request: SendMessageRequest, task_id: str, context: ServerCallContext, *, new_task: bool = False
    ) -> None:
        if request.configuration.HasField("task_push_notification_config"):
            config = request.configuration.task_push_notification_config
            config.task_id = task_id
            await self.push.keep(config, context, new_task=new_task)


def _check_start(skill: Skill, content: Content) -> None:
    if problem := unfit_start(skill, content):
        raise InvalidParamsError(problem)
