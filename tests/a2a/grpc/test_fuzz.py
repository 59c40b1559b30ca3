"""Thousands of wrong calls over gRPC: messages of every shape, and bytes that are none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from google.protobuf.struct_pb2 import Value
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.a2a import Security, WebhookPush
from refold.a2a.security.api_keys import api_keys
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.grpc.test_binding import V1, gateway, message
from tests.a2a.test_fuzz import ANY_SPEED, EXAMPLES, INSIDE, MOST, PUBLIC, SECRET, Screened
from tests.sweeps import LONG_S

SERVICE = "/lf.a2a.v1.A2AService"
OURS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED}

ids = st.sampled_from(["TASK", "OPEN", "THEIRS", "none", "", "x" * 1001, "a\r\nb", "\x00"]) | st.text(max_size=5)
numbers = st.sampled_from([0, -1, 1, 5, 101, 2**31 - 1, -(2**31)])
doubles = st.floats() | st.integers(-(2**70), 2**70).map(float)


@st.composite
def data(draw: st.DrawFn) -> Value:
    """Values that JSON cannot say: infinite, of no kind, and as deep as protobuf copies (three messages a level)."""
    value = draw(
        st.builds(Value, number_value=doubles)
        | st.builds(Value, string_value=st.text(max_size=5))
        | st.just(Value())
        | st.just(Value(null_value=0))  # type: ignore[arg-type]  # the enum's only number
    )
    for as_list in draw(st.lists(st.booleans(), max_size=30)):
        outer = Value()
        if as_list:
            outer.list_value.values.add().MergeFrom(value)
        else:
            outer.struct_value.fields["a"].MergeFrom(value)
        value = outer
    return value


parts = (
    st.builds(Part, text=st.text(max_size=5), media_type=ids)
    | st.builds(Part, raw=st.binary(max_size=5), filename=ids)
    | st.builds(Part, url=ids)
    | st.builds(Part, data=data())
    | st.just(Part())
)


@st.composite
def sends(draw: st.DrawFn) -> SendMessageRequest:
    said = Message(
        message_id=draw(ids),
        context_id=draw(ids),
        task_id=draw(st.just("") | ids),
        role=draw(st.sampled_from([Role.ROLE_USER, Role.ROLE_USER, Role.ROLE_AGENT, Role.ROLE_UNSPECIFIED])),
        parts=draw(st.lists(parts, max_size=3)),
        reference_task_ids=draw(st.lists(ids, max_size=2)),
    )
    request = SendMessageRequest(message=said, tenant=draw(st.sampled_from(["", "", "echo", "none"])))
    request.metadata.update({"skill": draw(st.sampled_from(["echo", "ask", "buy", "files", "none"]))})
    if draw(st.booleans()):
        request.configuration.history_length = draw(numbers)
        request.configuration.accepted_output_modes.extend(draw(st.lists(ids, max_size=2)))
    return request


calls = st.one_of(
    st.tuples(st.sampled_from(["SendMessage", "SendStreamingMessage"]), sends()),
    st.tuples(st.just("GetTask"), st.builds(GetTaskRequest, id=ids, history_length=numbers)),
    st.tuples(st.just("CancelTask"), st.builds(CancelTaskRequest, id=ids)),
    st.tuples(st.just("SubscribeToTask"), st.builds(SubscribeToTaskRequest, id=ids)),
    st.tuples(
        st.just("ListTasks"),
        st.builds(ListTasksRequest, context_id=ids, page_size=numbers, page_token=ids, history_length=numbers),
    ),
    st.tuples(
        st.just("CreateTaskPushNotificationConfig"),
        st.builds(TaskPushNotificationConfig, task_id=ids, id=ids, url=st.sampled_from([PUBLIC, *INSIDE]) | ids),
    ),
    st.tuples(
        st.just("GetTaskPushNotificationConfig"), st.builds(GetTaskPushNotificationConfigRequest, task_id=ids, id=ids)
    ),
    st.tuples(
        st.just("ListTaskPushNotificationConfigs"),
        st.builds(ListTaskPushNotificationConfigsRequest, task_id=ids, page_size=numbers, page_token=ids),
    ),
    st.tuples(
        st.just("DeleteTaskPushNotificationConfig"),
        st.builds(DeleteTaskPushNotificationConfigRequest, task_id=ids, id=ids),
    ),
)


@st.composite
def broken(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes, some of them changed or gone."""
    found = bytearray(content)
    for _ in range(draw(st.integers(0, 3))):
        if found:
            found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
    return bytes(found[: draw(st.integers(0, len(found)))]) if draw(st.integers(0, 3)) == 0 else bytes(found)


ADA, BOB = ("x-api-key", "0123456789abcdef"), ("x-api-key", "fedcba9876543210")
KEYS = "ada=0123456789abcdef,bob=fedcba9876543210"


async def called(channel: Any, method: str, content: bytes) -> tuple[grpc.StatusCode, bytes]:
    """The status of a call of Bob's, and what was said; of a stream, after its first event."""
    streams = method in ("SendStreamingMessage", "SubscribeToTask")
    make = channel.unary_stream if streams else channel.unary_unary
    call = make(f"{SERVICE}/{method}")(content, metadata=[V1, BOB], timeout=20)
    try:
        if not streams:
            return grpc.StatusCode.OK, await call
        if (first := await call.read()) is grpc.aio.EOF:
            return grpc.StatusCode.OK, b""
        call.cancel()
        return grpc.StatusCode.OK, first
    except grpc.aio.AioRpcError as error:
        return error.code(), (error.details() or "").encode()


@dataclass
class Target:
    """A gateway, and the tasks that it has.

    Attributes:
        channel: To the gateway.
        tasks: A task that has ended, one that asks, and one of another caller, by the names they have above.
        hooks: The webhooks of all tasks.
    """

    channel: Any
    tasks: dict[str, str]
    hooks: Screened


@pytest.fixture(scope="module")
async def target() -> AsyncIterator[Target]:
    """A gateway on a port."""
    security = Security(keys=api_keys(KEYS), anonymous=None)
    hooks = Screened()
    async with (
        gateway(FakeEngine(skills.ALL), security=security, push=WebhookPush(hooks)) as served,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        ended = await served.stub.SendMessage(message("x", skill="echo"), metadata=[V1, BOB])
        asks = await served.stub.SendMessage(message("x", skill="ask"), metadata=[V1, BOB])
        theirs = await served.stub.SendMessage(message(SECRET, skill="ask"), metadata=[V1, ADA])
        yield Target(channel, {"TASK": ended.task.id, "OPEN": asks.task.id, "THEIRS": theirs.task.id}, hooks)


async def is_told(target: Target, method: str, request: Any, drawn: st.DataObject) -> None:
    """No internal error, no hang, no word of another caller's; and the list answers."""
    for where in (request, getattr(request, "message", None)):
        for field in ("id", "task_id", "context_id"):
            if (named := target.tasks.get(getattr(where, field, ""))) is not None:
                setattr(where, field, named)
    content = drawn.draw(broken(request.SerializeToString()))
    status, answer = await called(target.channel, method, content)
    everything = ListTasksRequest(include_artifacts=True, history_length=9, page_size=20)
    listed, tasks = await called(target.channel, "ListTasks", everything.SerializeToString())

    assert status not in OURS
    assert listed is grpc.StatusCode.OK
    assert SECRET.encode() not in answer + tasks
    assert b"Traceback" not in answer
    assert not {hook.url for hooks in target.hooks.by_task.values() for hook in hooks.values()} & set(INSIDE)
    assert target.tasks["THEIRS"] not in target.hooks.by_task


@pytest.mark.slow
@settings(max_examples=EXAMPLES, **ANY_SPEED)
@given(call=calls, drawn=st.data())
async def test_a_wrong_call_is_told_what_is_wrong_with_it(
    target: Target, call: tuple[str, Any], drawn: st.DataObject
) -> None:
    """
    See `is_told`.
    """
    await is_told(target, *call, drawn)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@settings(max_examples=MOST, **ANY_SPEED)
@given(call=calls, drawn=st.data())
async def test_thousands_of_wrong_calls(target: Target, call: tuple[str, Any], drawn: st.DataObject) -> None:
    """
    See `is_told`.
    """
    await is_told(target, *call, drawn)
