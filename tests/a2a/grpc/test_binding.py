"""gRPC, with the official client and with raw bytes: the same tasks, callers, streams and limits as over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.types.a2a_pb2_grpc import A2AServiceStub
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError, TaskNotFoundError
from google.protobuf.struct_pb2 import Value
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from refold.a2a import Security, Settings, WebhookPush, a2a_app
from refold.a2a.data import value_of
from refold.a2a.grpc import server
from refold.a2a.grpc.server import GrpcServer
from refold.a2a.security.api_keys import api_keys
from refold.a2a.settings import TIMELINE
from refold.engine import Engine
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import Calls, free_socket, serving
from tests.a2a.security.guarding import BROKEN, token
from tests.a2a.tasks.test_push import Kept
from tests.seen.recorded import counting

V1 = ("a2a-version", "1.0")


@dataclass
class Served:
    """A gateway on two ports.

    Attributes:
        stub: Calls without a client in between.
        calls: Calls over HTTP.
        target: Where gRPC is.
        stop: Stops gRPC.
    """

    stub: Any
    calls: Calls
    target: str
    stop: asyncio.Event


@contextlib.asynccontextmanager
async def gateway(
    engine: Engine, *, offered: list[Any] = skills.ALL, drain_s: float = 5, **settings: Any
) -> AsyncIterator[Served]:
    """A gateway with gRPC, on ports that are free."""
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    held = free_socket()
    port = held.getsockname()[1]
    held.close()
    security = settings.pop("security", None)
    push, tracer = settings.pop("push", None), settings.pop("tracer", None)
    told = Settings(url=url, grpc_url=f"127.0.0.1:{port}", **settings)
    app = a2a_app(engine, offered, told, security=security, push=push, tracer=tracer)
    bound = GrpcServer(security)
    assert bound.bind("127.0.0.1", port) == port
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(bound.serve(app, stop, ready=ready.set, drain_s=drain_s))
    await ready.wait()
    try:
        async with (
            serving(app, sock),
            httpx.AsyncClient(timeout=60) as http,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub: Any = A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            yield Served(stub, Calls(http, url), f"127.0.0.1:{port}", stop)
    finally:
        stop.set()
        await running


@pytest.fixture
async def served(fake: FakeEngine) -> AsyncIterator[Served]:
    """A gateway to all skills."""
    async with gateway(fake) as one:
        yield one


async def client_of(served: Served, path: str = "") -> Client:
    """The official client, over gRPC, by the card alone."""
    config = ClientConfig(
        httpx_client=served.calls.http,
        supported_protocol_bindings=["GRPC"],
        grpc_channel_factory=grpc.aio.insecure_channel,
    )
    return await create_client(f"{served.calls.base}{path}", config)


def message(text: str = "Hello", *, skill: str = "", **fields: Any) -> SendMessageRequest:
    parts = fields.pop("parts", [Part(text=text)])
    request = SendMessageRequest(message=Message(message_id="m", role=Role.ROLE_USER, parts=parts, **fields))
    if skill:
        request.metadata.update({"skill": skill})
    return request


async def events_of(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


# --- the methods


async def test_send_stream_answer_and_read(served: Served) -> None:
    """
    The task is that of the other bindings.
    """
    client = await client_of(served)
    asked = (await events_of(client, message("Hi", skill="ask")))[0].task
    number = Value()
    number.struct_value.update({"number": 7})
    await events_of(client, message("Ada", task_id=asked.id))
    done = await events_of(client, message(task_id=asked.id, parts=[Part(data=number)]))
    read = await client.get_task(GetTaskRequest(id=asked.id))
    over_http = await served.calls.result("GetTask", {"id": asked.id})

    assert asked.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    assert done[-1].task.status.state or done[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert read.status.message.parts[0].text == over_http["status"]["message"]["parts"][0]["text"] == "Ada: 7"


async def test_a_skills_card_leads_to_the_skill(served: Served) -> None:
    """
    By the tenant: gRPC has no paths.
    """
    client = await client_of(served, "/echo")
    task = (await events_of(client, message("Hello")))[0].task
    await served.calls.send("x", metadata={"skill": "picky"})
    listed = await client.list_tasks(ListTasksRequest())

    assert [one.id for one in listed.tasks] == [task.id]
    assert task.id.startswith("echo-")


async def test_cancel_list_and_subscribe(served: Served, fake: FakeEngine) -> None:
    """
    A subscription goes on where the last event was, as over HTTP.
    """
    request = message("x", skill="wait")
    request.configuration.return_immediately = True
    task = (await served.stub.SendMessage(request, metadata=[V1])).task
    other = (await served.stub.SendMessage(request, metadata=[V1])).task
    canceled = await served.stub.CancelTask(CancelTaskRequest(id=other.id), metadata=[V1])
    listed = await served.stub.ListTasks(ListTasksRequest(page_size=1), metadata=[V1])
    stream = served.stub.SubscribeToTask(SubscribeToTaskRequest(id=task.id), metadata=[V1, ("last-event-id", "0.0")])
    events = aiter(stream)
    first = await anext(events)
    await fake.reply(task.id, "held", "x")
    rest = [event async for event in events]

    assert canceled.status.state == TaskState.TASK_STATE_CANCELED
    assert (len(listed.tasks), listed.total_size, bool(listed.next_page_token)) == (1, 2, True)
    assert first.task.status.state == TaskState.TASK_STATE_SUBMITTED
    ids = [event.status_update.metadata["refold"]["id"] for event in rest]
    assert ids == ["1.1", "1.2", "2.1"]
    assert rest[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_an_answer_names_the_extensions_that_its_call_activated(fake: FakeEngine) -> None:
    """
    In the metadata that comes first, of answers, streams and errors alike; those that are not declared are left out.
    """
    asked = ("a2a-extensions", f"urn:unknown,{TIMELINE}")
    async with gateway(fake, timeline="status") as one:
        sent = one.stub.SendMessage(message(skill="ask"), metadata=[V1, asked])
        task = (await sent).task
        streamed = one.stub.SubscribeToTask(SubscribeToTaskRequest(id=task.id), metadata=[V1, asked])
        missing = one.stub.GetTask(GetTaskRequest(id="none"), metadata=[V1, asked])
        plain = one.stub.GetTask(GetTaskRequest(id=task.id), metadata=[V1])
        told = [dict(await call.initial_metadata()) for call in (sent, streamed, missing, plain)]
        streamed.cancel()

    assert [one.get("a2a-extensions") for one in told] == [TIMELINE] * 3 + [None]
    assert await missing.code() is grpc.StatusCode.NOT_FOUND


async def test_an_error_before_a_call_shows_nothing_of_our_insides(fake: FakeEngine) -> None:
    """
    A caller that cannot be checked gets a number of the log, as over HTTP.
    """
    async with gateway(fake, security=Security(tokens=BROKEN, anonymous=None)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.stub.SendMessage(message(skill="ask"), metadata=[V1, ("authorization", f"Bearer {token()}")])

    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert "in the log as" in str(failed.value.details())
    assert "hunter2" not in str(failed.value)


async def test_webhooks_and_the_extended_card(fake: FakeEngine) -> None:
    """
    Create, get, list, delete; the card for callers that are known.
    """
    security = Security(keys=api_keys("ada=0123456789abcdef"), anonymous=None)
    key = ("x-api-key", "0123456789abcdef")
    async with gateway(fake, push=WebhookPush(Kept()), private=("files",), security=security) as served:
        task = (await served.stub.SendMessage(message(skill="ask"), metadata=[V1, key])).task
        config = TaskPushNotificationConfig(task_id=task.id, id="w", url="https://example.org")
        made = await served.stub.CreateTaskPushNotificationConfig(config, metadata=[V1, key])
        which = GetTaskPushNotificationConfigRequest(task_id=task.id, id="w")
        read = await served.stub.GetTaskPushNotificationConfig(which, metadata=[V1, key])
        all_of = ListTaskPushNotificationConfigsRequest(task_id=task.id)
        listed = await served.stub.ListTaskPushNotificationConfigs(all_of, metadata=[V1, key])
        gone = DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="w")
        await served.stub.DeleteTaskPushNotificationConfig(gone, metadata=[V1, key])
        after = await served.stub.ListTaskPushNotificationConfigs(all_of, metadata=[V1, key])
        card = await served.stub.GetExtendedAgentCard(GetExtendedAgentCardRequest(), metadata=[V1, key])

    assert made.url == read.url == listed.configs[0].url == "https://example.org"
    assert len(after.configs) == 0
    assert "files" in [skill.id for skill in card.skills]


@pytest.mark.parametrize(
    ("request_of", "error"),
    [
        pytest.param(message("x", task_id="none"), TaskNotFoundError, id="no such task"),
        pytest.param(message("x"), InvalidParamsError, id="no skill"),
        pytest.param(
            message(skill="echo", parts=[Part(url="https://x", media_type="image/png")]),
            ContentTypeNotSupportedError,
            id="an image",
        ),
    ],
)
async def test_an_error_is_the_same_error(served: Served, request_of: SendMessageRequest, error: type) -> None:
    """
    The official client raises it by its name.
    """
    client = await client_of(served)
    with pytest.raises(error):
        await events_of(client, request_of)


# --- callers


async def test_callers_are_those_of_http(fake: FakeEngine) -> None:
    """
    By key or as bearer; a task of another is not there; nobody without a key.
    """
    keys = api_keys("ada=0123456789abcdef,bob=fedcba9876543210")
    async with gateway(fake, security=Security(keys=keys, anonymous=None)) as served:
        ada, bob = ("x-api-key", "0123456789abcdef"), ("authorization", "Bearer fedcba9876543210")
        task = (await served.stub.SendMessage(message(skill="ask"), metadata=[ada])).task
        codes = []
        for shown in ([ada], [bob], [], [("x-api-key", "wrong-wrong-wrong")]):
            try:
                await served.stub.GetTask(GetTaskRequest(id=task.id), metadata=shown)
                codes.append("OK")
            except grpc.aio.AioRpcError as refused:
                codes.append(refused.code().name)
        stream = served.stub.SubscribeToTask(SubscribeToTaskRequest(id=task.id), metadata=[bob])
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            await stream.read()

    assert codes == ["OK", "NOT_FOUND", "UNAUTHENTICATED", "UNAUTHENTICATED"]
    assert hidden.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_who_may_not_call_is_refused_before_the_message(fake: FakeEngine, method: str) -> None:
    """
    The gateway neither waits for the message of a stranger nor reads it.
    """

    security = Security(keys=api_keys("ada=0123456789abcdef"), anonymous=None)
    async with (
        gateway(fake, security=security) as served,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        call = channel.stream_stream(f"/lf.a2a.v1.A2AService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(call(never(), metadata=[V1], timeout=5)))

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_message_that_never_comes_is_given_up(fake: FakeEngine, method: str) -> None:
    """
    As a body over HTTP, and the call counts no more as open: callers could take the place of all others.
    """
    async with (
        gateway(fake, security=Security(body_seconds=1, connections=1)) as served,
        grpc.aio.insecure_channel(served.target) as channel,
    ):
        call = channel.stream_stream(f"/lf.a2a.v1.A2AService/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await anext(aiter(call(never(), metadata=[V1], timeout=10)))
        listed = await served.stub.ListTasks(ListTasksRequest(), metadata=[V1])

    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "took longer than 1 seconds" in str(refused.value.details())
    assert listed.total_size == 0


async def never() -> AsyncIterator[bytes]:
    """The messages of a call that sends none, and does not end."""
    await asyncio.Future()
    yield b""


async def test_a_call_without_a_message_is_the_callers_mistake(served: Served) -> None:
    """
    As a message that cannot be read.
    """
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = channel.stream_unary("/lf.a2a.v1.A2AService/SendMessage")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(iter(()), metadata=[V1], timeout=5)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_forwarded_call_is_no_call_of_this_machine(served: Served) -> None:
    """
    As over HTTP: a proxy may have let it in from anywhere.
    """
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.stub.ListTasks(ListTasksRequest(), metadata=[V1, ("x-forwarded-for", "203.0.113.7")])

    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_calls_are_counted_over_all_bindings(fake: FakeEngine) -> None:
    """
    Three calls are three calls, wherever they come in.
    """
    async with gateway(fake, security=Security(rate="3/hour")) as served:
        await served.calls.result("ListTasks")
        await served.stub.ListTasks(ListTasksRequest(), metadata=[V1])
        await served.calls.result("ListTasks")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.ListTasks(ListTasksRequest(), metadata=[V1])

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert dict(refused.value.trailing_metadata())["retry-after"]


# --- limits


def bytes_of_depth(levels: int) -> bytes:
    """A message to `echo` with data of so many levels, as no client would write it."""
    inner = Value(number_value=1).SerializeToString()
    for _ in range(levels):
        # Value.list_value = 6, ListValue.values = 1
        inner = _field(6, _field(1, inner))
    part = _field(4, inner)
    request = message(skill="echo", parts=[])
    return request.SerializeToString() + _field(2, _field(5, part))


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


@pytest.mark.parametrize("levels", [31, 40, 48, 200])
async def test_deep_data_is_refused(served: Served, levels: int) -> None:
    """
    At the depth that all bindings have, and far beyond protobuf's; the list answers.
    """
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await raw(served, "SendMessage", bytes_of_depth(levels))

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await served.calls.result("ListTasks"))["totalSize"] == 0


async def raw(served: Served, method: str, content: bytes) -> bytes:
    """A call of bytes."""
    async with grpc.aio.insecure_channel(served.target) as channel:
        call = channel.unary_unary(f"/lf.a2a.v1.A2AService/{method}")
        answer: bytes = await call(content, metadata=[V1], timeout=20)
        return answer


@pytest.mark.parametrize("content", [b"\xff", b"\x0a\xff", b"\x0a\x02\xff\xfe", b"x" * 1000])
async def test_what_is_no_message_is_the_callers_mistake(served: Served, content: bytes) -> None:
    """
    Not an error of ours.
    """
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await raw(served, "SendMessage", content)

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_has_a_largest_size(fake: FakeEngine) -> None:
    """
    That of a body over HTTP.
    """
    async with gateway(fake, security=Security(body_bytes=10_000)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.SendMessage(message("x" * 10_001, skill="echo"), metadata=[V1])

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("where", ["list", "object", "metadata"])
async def test_a_message_has_a_greatest_number_of_values(fake: FakeEngine, where: str) -> None:
    """
    It is refused before any is converted; texts as long as they like are one.
    """
    many: dict[str, Any] = {str(number): number for number in range(100)}
    async with gateway(fake, security=Security(values=50)) as served:
        request = message("x" * 10_000, skill="echo")
        await served.stub.SendMessage(request, metadata=[V1])
        if where == "metadata":
            request.metadata.update({"deep": [many]})
        else:
            request.message.parts.append(Part(data=value_of(list(many.values()) if where == "list" else [many])))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.SendMessage(request, metadata=[V1])

    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "at most 50 values" in refused.value.details()


async def test_open_calls_have_a_limit(fake: FakeEngine) -> None:
    """
    One more is told to come again.
    """
    async with gateway(fake, security=Security(connections=1)) as served:
        asked = (await served.stub.SendMessage(message(skill="ask"), metadata=[V1])).task
        stream = served.stub.SubscribeToTask(SubscribeToTaskRequest(id=asked.id), metadata=[V1])
        await stream.read()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.stub.ListTasks(ListTasksRequest(), metadata=[V1])

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_another_version_is_refused(served: Served) -> None:
    """
    By the protocol's own error; the version needs no minor number.
    """
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await served.stub.ListTasks(ListTasksRequest(), metadata=[("a2a-version", "0.3")])
    await served.stub.ListTasks(ListTasksRequest(), metadata=[("a2a-version", "1")])

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_page_fits_a_message_of_grpc(served: Served) -> None:
    """
    A client that takes 4 MiB reads every page.
    """
    for size in (1_500_000, 1_500_000, 1_500_000, 5_000_000):
        request = message("x" * size, skill="wait")
        request.configuration.return_immediately = True
        request.configuration.history_length = 0
        await served.stub.SendMessage(request, metadata=[V1])
    token, found = "", list[Task]()
    while True:
        asked = ListTasksRequest(page_token=token, history_length=10)
        page = await served.stub.ListTasks(asked, metadata=[V1])
        found += page.tasks
        token = page.next_page_token
        if not token:
            break

    assert len({task.id for task in found}) == 4


# --- the end


async def test_a_gateway_that_stops_ends_its_streams(fake: FakeEngine) -> None:
    """
    With `UNAVAILABLE`, so that clients go to another one; calls that are being answered are answered.
    """
    async with gateway(fake) as served:
        asked = (await served.stub.SendMessage(message(skill="ask"), metadata=[V1])).task
        stream = served.stub.SubscribeToTask(SubscribeToTaskRequest(id=asked.id), metadata=[V1])
        await stream.read()
        answer = asyncio.ensure_future(served.stub.SendMessage(message("x", skill="wait"), metadata=[V1]))
        found: list[str] = []
        while not found:
            found = [view.task_id async for view in fake.list() if view.task_id.startswith("wait")]
            await asyncio.sleep(0)
        served.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await stream.read()
        await fake.reply(found[0], "held", "x")

        assert (await answer).task.status.state == TaskState.TASK_STATE_COMPLETED
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_goes_ends_its_stream_and_not_the_task(served: Served, fake: FakeEngine) -> None:
    """
    The work goes on.
    """
    stream = served.stub.SendStreamingMessage(message("x", skill="wait"), metadata=[V1])
    task = (await stream.read()).task
    stream.cancel()
    await fake.reply(task.id, "held", "x")

    assert (await fake.record(task.id)).status.value == "completed"


async def test_a_port_that_is_taken_is_said_so() -> None:
    """
    As over HTTP.
    """
    with free_socket() as sock, pytest.raises(OSError, match="address"):
        GrpcServer().bind("127.0.0.1", sock.getsockname()[1])


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_a_call_is_seen(fake: FakeEngine) -> None:
    """
    Each call is a span below its caller's own and is counted once, as over HTTP: answered, streamed or refused. What
    was said is in none; what the call does stands below its span.
    """
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    current: list[int] = []
    real = fake.start

    async def start(*args: Any, **options: Any) -> Any:
        current.append(get_current_span().get_span_context().span_id)
        return await real(*args, **options)

    fake.start = start  # type: ignore[method-assign]  # as the tracing client does, it looks at the current span
    with counting() as counted:
        async with gateway(fake, tracer=provider.get_tracer("test")) as served:
            above = (V1, ("traceparent", TRACE))
            await served.stub.SendMessage(message("SECRET", skill="echo"), metadata=above)
            streamed = served.stub.SendStreamingMessage(message("SECRET", skill="echo"), metadata=above)
            assert [event async for event in streamed]
            with pytest.raises(grpc.aio.AioRpcError):
                await served.stub.GetTask(GetTaskRequest(id="SECRET"), metadata=above)
    spans = kept.get_finished_spans()

    service = "lf.a2a.v1.A2AService"
    assert [one.name for one in spans] == [f"{service}/{name}" for name in SEEN]
    assert {f"{one.parent.trace_id:032x}-{one.parent.span_id:016x}" for one in spans if one.parent} == {TRACE[3:52]}
    assert [dict(one.attributes or {})["rpc.grpc.status_code"] for one in spans] == [0, 0, 5]
    assert current == [one.context.span_id for one in spans[:2] if one.context]
    assert "SECRET" not in "".join(one.to_json() for one in spans)
    assert counted.all_of("refold_gateway_calls") == {("2xx",): 2, ("4xx",): 1}


SEEN = ("SendMessage", "SendStreamingMessage", "GetTask")


# --- pings

SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 that belongs to no stream."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 0]) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """The next frame's kind, flags and payload."""
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))


async def test_a_client_may_ping_while_nothing_happens(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A stream of a task that waits is silent for long, and clients keep their connections by pings: every few seconds,
    of which gRPC takes no more than two.
    """
    assert server.PINGED_MS <= 5_000
    monkeypatch.setattr(server, "PINGED_MS", 0)
    async with gateway(fake) as served:
        reader, writer = await asyncio.open_connection(*served.target.split(":"))
        pings = [number.to_bytes(8, "big") for number in range(10)]
        writer.write(PREFACE + frame(SETTINGS) + b"".join(frame(PING, one) for one in pings))
        answered: list[bytes] = []
        while len(answered) < len(pings):
            kind, flags, payload = await read_frame(reader)
            assert kind != GOAWAY
            answered += [payload] if (kind, flags) == (PING, ACK) else []
        writer.write(frame(PING, b"and more"))
        while (told := await read_frame(reader)) != (PING, ACK, b"and more"):
            assert told[0] != GOAWAY
        writer.close()

    assert answered == pings


async def test_a_silent_client_is_pinged(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    So that the gateway learns that one is gone, and streams are not idle for proxies.
    """
    assert server.PING_MS <= 30_000
    monkeypatch.setattr(server, "PING_MS", 100)
    async with gateway(fake) as served:
        reader, writer = await asyncio.open_connection(*served.target.split(":"))
        writer.write(PREFACE + frame(SETTINGS))
        async with asyncio.timeout(60):
            while (await read_frame(reader))[:2] != (PING, 0):
                pass
        writer.close()
