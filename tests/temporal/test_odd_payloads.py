"""Whatever Temporal's own tools send to a task: taken, or refused with a reason; never a workflow task that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from temporalio.api.common.v1 import Payload, Payloads, WorkflowExecution, WorkflowType
from temporalio.api.enums.v1 import EventType, UpdateWorkflowExecutionLifecycleStage
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    PollActivityTaskQueueRequest,
    RespondActivityTaskCompletedByIdRequest,
    RespondActivityTaskFailedRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)
from temporalio.client import WorkflowExecutionStatus
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from refold import Content, InputRejected, Status, TaskState
from refold.core.fold.journal import Entry
from refold.engine import EngineError, TaskView
from refold.temporal import TemporalEngine
from refold.temporal.data.inputs import LONGEST_ID, start_from
from refold.temporal.dev import DevServer, find_binary
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal import skills
from tests.temporal.conftest import failures_of_the_worker
from tests.temporal.test_task import collected, text

QUEUE = "tests"
PATIENCE = timedelta(seconds=60)


def payload(data: Any, encoding: str = "json/plain", **metadata: str) -> Payload:
    """One input: `data` as bytes, or written as JSON."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Payload(metadata={"encoding": encoding.encode(), **{k: v.encode() for k, v in metadata.items()}}, data=raw)


def referring(key: str) -> Payload:
    """A reference to a stored value, as refold writes one."""
    data = {"driverName": "refold", "claimData": {"sha256": key}}
    return payload(data, "json/protobuf", messageType="temporal.api.sdk.v1.ExternalStorageReference")


async def signal(engine: TemporalEngine, task_id: str, name: str, *inputs: Payload) -> None:
    """What `temporal workflow signal` sends."""
    await engine.client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=engine.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=task_id),
            signal_name=name,
            input=Payloads(payloads=inputs),
            request_id=uuid4().hex,
        ),
        retry=True,
    )


async def update(engine: TemporalEngine, task_id: str, name: str, *inputs: Payload) -> str:
    """What `temporal workflow update execute` sends; returns why it was refused, empty if it was taken."""
    answer = await engine.client.workflow_service.update_workflow_execution(
        UpdateWorkflowExecutionRequest(
            namespace=engine.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=task_id),
            wait_policy=WaitPolicy(
                lifecycle_stage=UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
            ),
            request=Request(meta=Meta(update_id=uuid4().hex), input=Input(name=name, args=Payloads(payloads=inputs))),
        ),
        retry=True,
        timeout=PATIENCE,
    )
    return answer.outcome.failure.message


async def start(engine: TemporalEngine, skill: str, *inputs: Payload, task_id: str | None = None) -> str:
    """What `temporal workflow start` sends; returns the task's id."""
    task_id = task_id or f"odd-{uuid4().hex[:8]}"
    await engine.client.workflow_service.start_workflow_execution(
        StartWorkflowExecutionRequest(
            namespace=engine.client.namespace,
            workflow_id=task_id,
            workflow_type=WorkflowType(name=skill),
            task_queue=TaskQueue(name=engine.task_queue),
            input=Payloads(payloads=inputs),
            request_id=uuid4().hex,
        ),
        retry=True,
    )
    return task_id


async def waiting(engine: TemporalEngine) -> TaskView:
    """A task that waits for an answer."""
    view = await engine.start("talk", text("go"))
    await collected(engine.watch(view.task_id))
    return await engine.look(view.task_id)


async def journal(engine: TemporalEngine, task_id: str) -> list[Entry]:
    """The task's journal; waits until its worker has taken what was sent."""
    return await collected(engine.journal(task_id))


async def unharmed(engine: TemporalEngine, task_id: str) -> None:
    """No worker has failed a workflow task of this task."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    assert not failures_of_the_worker(history.events)


async def complete(engine: TemporalEngine, task_id: str, invocation_id: str, *result: Payload) -> None:
    """What `temporal activity complete` sends."""
    await engine.client.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace=engine.client.namespace,
            workflow_id=task_id,
            activity_id=invocation_id,
            result=Payloads(payloads=result) if result else None,
        )
    )


async def fail(engine: TemporalEngine, queue: str, failure: Failure) -> None:
    """Take the next activity of a queue, and fail it."""
    service = engine.client.workflow_service
    polled = PollActivityTaskQueueRequest(namespace=engine.client.namespace, task_queue=TaskQueue(name=queue))
    task = await service.poll_activity_task_queue(polled, timeout=PATIENCE)
    await service.respond_activity_task_failed(
        RespondActivityTaskFailedRequest(namespace=engine.client.namespace, task_token=task.task_token, failure=failure)
    )


DEEP = b"[" * 200 + b"]" * 200
DIGITS = b"1" * 10_001
UNREADABLE: list[Any] = [
    pytest.param(payload(b'"\\ud800"'), id="lone-surrogate"),
    pytest.param(payload(DIGITS), id="10001-digits"),
    pytest.param(payload(DEEP), id="depth-200"),
    pytest.param(payload(b"{not json"), id="no-json"),
    pytest.param(payload(b""), id="empty"),
    pytest.param(payload(b"\x00\xff", "binary/plain"), id="binary"),
    pytest.param(payload(b"\x0a\x03abc", "binary/protobuf", messageType="nobody.Knows"), id="protobuf"),
    pytest.param(payload({"a": 1}, "json/protobuf", messageType="google.protobuf.Struct"), id="struct"),
    pytest.param(payload([1], "json/protobuf", messageType="google.protobuf.ListValue"), id="list-value"),
    pytest.param(payload(b"secret", "binary/encrypted"), id="foreign-codec"),
    pytest.param(Payload(data=b'"no encoding"'), id="no-encoding"),
    pytest.param(payload({"n": 1}, "json/external-storage-reference"), id="reference-to-nothing"),
    pytest.param(
        payload({"driver_name": "nobody", "claim_data": {}}, "json/external-storage-reference"), id="foreign-storage"
    ),
]
FORGED = [*UNREADABLE, pytest.param(referring("0" * 64), id="reference-to-no-value")]
"""What is also refused where nobody but a client can have sent it."""


@pytest.mark.parametrize("name", ["message", "decide", "child", "dependency_resolved", "mesage"])
@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([], id="nothing"),
        pytest.param([payload(None)], id="null"),
        pytest.param([payload("one"), payload("two")], id="two"),
        *(pytest.param([*one.values], id=str(one.id)) for one in FORGED),
        *(pytest.param([payload("one"), *one.values], id=f"two-{one.id}") for one in UNREADABLE),
    ],
)
async def test_a_signal_that_nobody_can_read_is_an_entry(
    engine: TemporalEngine, name: str, inputs: Sequence[Payload]
) -> None:
    """
    A signal with no input, several, or one that cannot be read is refused in the journal, which says what came and
    what is expected. The task still waits, and answers.
    """
    view = await waiting(engine)

    await signal(engine, view.task_id, name, *inputs)
    entries = await journal(engine, view.task_id)
    after = await engine.look(view.task_id)

    assert (len(entries), after.refused, after.lifecycle) == (view.seq + 1, 1, TaskState.PAUSED)
    assert entries[-1].event.kind == "unreadable"
    assert name in entries[-1].refused
    assert len(entries[-1].model_dump_json()) < 3_000
    await unharmed(engine, view.task_id)
    await engine.send(view.task_id, text("Ada"))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        pytest.param("message", "a text, or an object", id="message"),
        pytest.param("decide", "gate, digest, decision", id="decide"),
        pytest.param("resolve", "retry", id="resolve"),
        pytest.param("mesage", "not found", id="unknown"),
    ],
)
@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([], id="nothing"),
        pytest.param([payload("one"), payload("two")], id="two"),
        *(pytest.param([*one.values], id=str(one.id)) for one in FORGED),
    ],
)
async def test_an_update_that_nobody_can_read_is_refused(
    engine: TemporalEngine, name: str, why: str, inputs: Sequence[Payload]
) -> None:
    """
    Whoever sends such an update is told what is expected; the task is as it was.
    """
    view = await waiting(engine)

    refused = await update(engine, view.task_id, name, *inputs)

    assert why in refused
    assert await engine.look(view.task_id) == view
    await unharmed(engine, view.task_id)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([], id="nothing"),
        pytest.param([payload(None)], id="null"),
        pytest.param([payload("one"), payload("two")], id="two"),
        *(pytest.param([*one.values], id=str(one.id)) for one in FORGED),
        pytest.param([payload("one"), UNREADABLE[0].values[0]], id="two-lone-surrogate"),
        pytest.param([payload({"refold": "start/1"})], id="ours-without-anything"),
        pytest.param([payload({"refold": "start/1", "message": "hello"})], id="ours-misspelt"),
    ],
)
async def test_a_start_that_nobody_can_read_fails_with_what_came(
    engine: TemporalEngine, inputs: Sequence[Payload]
) -> None:
    """
    A task that was started with nothing, several inputs, or one that cannot be read fails at once, and says why.
    """
    task_id = await start(engine, "talk", *inputs)
    entries = await journal(engine, task_id)
    view = await engine.look(task_id)

    assert view.lifecycle is TaskState.FAILED
    assert view.reason.startswith("its start was refused, and its id is free: start: ")
    assert "expected: the first message" in view.reason
    record = await engine.record(task_id)  # what gateways and the page tell
    assert (record.reason, record.note) == (view.reason, "its start was refused")
    assert [entry.event.kind for entry in entries] == ["unreadable"]
    with pytest.raises(EngineError, match="cannot be recovered; start a new one: its start was refused"):
        await engine.recover(task_id)
    await unharmed(engine, task_id)


async def test_a_task_whose_id_is_too_long_fails(engine: TemporalEngine) -> None:
    """
    The ids of its commands would be too long for the server, which would refuse them again and again. A part's id
    begins with its task's, so that parts that call each other without end come to one.
    """
    longest = await start(engine, "adder", payload("go"), task_id=f"{uuid4().hex}{'x' * (LONGEST_ID - 32)}")
    too_long = await start(engine, "adder", payload("go"), task_id=f"{uuid4().hex}{'x' * 968}")
    whole = await start(engine, "calls_itself", payload("go"), task_id=f"{uuid4().hex}{'x' * (LONGEST_ID - 40)}")
    for task_id in (longest, too_long, whole):
        await collected(engine.watch(task_id))

    assert (await engine.look(longest)).status is Status.COMPLETED
    for task_id, size in ((too_long, 1_000), (whole, LONGEST_ID + 4)):
        view = await engine.look(task_id)
        assert view.status is Status.FAILED
        assert f"the task's id has {size} characters; it may have {LONGEST_ID}" in view.reason
        await unharmed(engine, task_id)


@pytest.mark.parametrize(
    ("said", "content"),
    [
        ({"text": "hello"}, Content.from_text("hello")),
        ({"data": {"text": "hello"}}, Content.from_data({"text": "hello"})),
        ({"data": {"text": "hello"}, "delivery_id": "d1"}, Content.from_data({"text": "hello"})),
        ({"text": "hello", "data": {"cents": 5}}, Content.from_text("hello")),
    ],
    ids=["text", "data", "named", "both"],
)
def test_a_start_that_reads_as_a_message_is_that_message(said: JsonValue, content: Content) -> None:
    """
    By Temporal's own tools a task is started as it is answered, so that any data can be passed under `data`.
    """
    start = start_from([said])

    assert start.message is not None
    assert start.message.content == content


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"message": "hello"},
        {"owner": "ada"},
        {"snapshot": None, "parent": "x"},
        {"refold": 1},
        {"refold": "yes", "message": {"content": {"parts": [{"text": "hello"}]}}},
        {"text": "hello", "cents": 5},
        [],
        0,
        False,
    ],
    ids=json.dumps,
)
async def test_data_with_reserved_names_is_data(engine: TemporalEngine, data: Any) -> None:
    """
    What a task is started with by Temporal's own tools is its first message. Only an object that says `text` or `data`
    as a message does is that text or data.
    """
    task_id = await start(engine, "talk", payload(data))
    await collected(engine.watch(task_id))
    record = await engine.record(task_id)

    assert record.messages[0].content.data == data
    await unharmed(engine, task_id)


async def test_a_start_by_another_release_is_left_to_its_workers(
    engine: TemporalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A worker that cannot read what a newer refold wrote does not fail the task: one of that release can go on with it.
    Its log says so in one line, without a traceback.
    """
    task_id = await start(engine, "talk", payload({"refold": "start/9", "tomorrow": True}))
    handle = engine.client.get_workflow_handle(task_id)
    async for event in handle.fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            break

    assert "start/9" in event.workflow_task_failed_event_attributes.failure.message
    description = await handle.describe()
    assert description.status is WorkflowExecutionStatus.RUNNING
    await handle.terminate()
    said = next(record for record in caplog.records if task_id in record.getMessage())
    assert "start/9" in said.getMessage()
    assert said.exc_info is None


@pytest.fixture(scope="module")
async def far(engine: TemporalEngine) -> AsyncIterator[str]:
    """The task queue of another program, which serves a workflow that returns bytes, and no activity."""
    queue, runner = f"elsewhere-{uuid4().hex[:8]}", UnsandboxedWorkflowRunner()
    async with Worker(engine.client, task_queue=queue, workflows=[skills.BytesWorkflow], workflow_runner=runner):
        yield queue


async def elsewhere(engine: TemporalEngine, queue: str, end: Callable[[str, str], Awaitable[None]]) -> TaskView:
    """A task whose four activities end as somebody else has it, given the task and the activity."""
    view = await engine.start("elsewhere", text(queue))
    for number in range(1, 5):
        await end(view.task_id, f"{view.task_id}/1.{number}")
    await collected(engine.watch(view.task_id))
    await unharmed(engine, view.task_id)
    return await engine.look(view.task_id)


async def test_a_result_that_nobody_can_read_fails_its_command(engine: TemporalEngine, far: str) -> None:
    """
    Whoever completes an activity, in another language or by hand, may return what is no answer of a model and no
    JSON. So may a workflow of another program. The command fails and says what came, and the skill may catch it.
    """
    no_json = payload(b"bytes", "binary/plain")
    results = [[], [payload(None)], [payload({"nonsense": [1, 2]})], [no_json], *(one.values for one in UNREADABLE)]
    for result in results:
        view = await elsewhere(engine, far, lambda *ids, result=result: complete(engine, *ids, *result))
        llm, chat, tool, activity, *workflows = said = view.messages[-1].text.split("\n")
        assert all(one.startswith("result: its result cannot be read: ") for one in [llm, chat, *workflows]), said
        assert tool.startswith(("result: ", "decode: ")), said
        assert activity.startswith("result: ") or activity == repr(read_as(result)), said


async def test_a_failure_of_any_form_fails_its_command(engine: TemporalEngine, far: str) -> None:
    """
    Whoever fails an activity, in another language or by hand, may say anything of it, or nothing.
    """
    final = ApplicationFailureInfo(non_retryable=True)
    long = ApplicationFailureInfo(non_retryable=True, type="y" * 100_000)
    secret = payload(b"secret", "binary/encrypted")
    deep = Failure(message="at the bottom")
    for _ in range(40):
        deep = Failure(message="above", cause=deep, application_failure_info=final)
    details = [[], [payload({"kind": "transient"})], *(one.values for one in UNREADABLE)]
    failures = [
        deep,
        Failure(message="x" * 100_000, application_failure_info=long),
        Failure(message="Encoded failure", encoded_attributes=secret, application_failure_info=final),
        *(
            Failure(application_failure_info=ApplicationFailureInfo(non_retryable=True, details=Payloads(payloads=one)))
            for one in details
        ),
    ]
    for failure in failures:
        view = await elsewhere(engine, far, lambda *_, failure=failure: fail(engine, far, failure))
        assert view.status is Status.COMPLETED, (failure, view)


def read_as(result: Sequence[Payload]) -> Any:
    """The JSON data of a result that has any."""
    return json.loads(result[0].data) if result else None


LONG = "x" * 1_900_000
DECISION = {"gate": "g", "digest": "d", "decision": "approved", "approver": "ada"}


@pytest.mark.parametrize("field", ["gate", "digest", "approver", "comment", "asserted_by", "signature"])
async def test_a_field_that_is_too_long_is_refused_in_short(engine: TemporalEngine, field: str) -> None:
    """
    A decision with an approver of nearly 2 MB is refused, by signal and by update; the refusal does not repeat it, and
    the gate takes the next decision.
    """
    view = await engine.start("gated", text("go"))
    await collected(engine.watch(view.task_id))
    long = payload({**DECISION, field: LONG})

    await signal(engine, view.task_id, "decide", long)
    entries = await journal(engine, view.task_id)
    refused = await update(engine, view.task_id, "decide", long)

    assert field in entries[-1].refused
    assert len(entries[-1].model_dump_json()) < 3_000
    assert len(refused) < 3_000
    assert (await engine.look(view.task_id)).lifecycle is TaskState.PAUSED
    await engine.decide(view.task_id, approved=True, approver="ada")
    await unharmed(engine, view.task_id)


async def test_whoever_calls_with_a_long_name_is_told_so(engine: TemporalEngine) -> None:
    """
    The client refuses what no task takes, before it sends anything.
    """
    view = await engine.start("gated", text("go"))
    await collected(engine.watch(view.task_id))

    with pytest.raises(InputRejected, match=r"approver: .* at most 5000 characters"):
        await engine.decide(view.task_id, approved=True, approver=LONG)
    with pytest.raises(InputRejected, match=r"comment: .* at most 20000 characters"):
        await engine.resolve(view.task_id, retry=True, comment=LONG)
    with pytest.raises(InputRejected, match=r"slot: .* at most 5000 characters"):
        await engine.send(view.task_id, text("hello"), slot=LONG)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param([], id="nothing"),
        pytest.param([payload(None)], id="null"),
        pytest.param([payload(LONG)], id="long"),
        pytest.param([payload({"why": "enough"}), payload(5)], id="two"),
        *(pytest.param([*one.values], id=str(one.id)) for one in FORGED),
    ],
)
async def test_a_cancel_is_never_refused_for_its_reason(engine: TemporalEngine, inputs: Sequence[Payload]) -> None:
    """
    Whoever wants a task to stop stops it, whatever reason comes along.
    """
    view = await waiting(engine)

    await signal(engine, view.task_id, "cancel", *inputs)
    await collected(engine.watch(view.task_id, follow=True))
    after = await engine.look(view.task_id)

    assert after.status is Status.CANCELED
    assert len(after.reason) < 3_000
    await unharmed(engine, view.task_id)


@pytest.mark.parametrize("name", ["message", "decide", "cancel"])
async def test_an_update_as_large_as_the_server_takes(engine: TemporalEngine, name: str) -> None:
    """
    The server takes an update of nearly 2 MiB, and the task answers it.
    """
    view = await waiting(engine)

    await update(engine, view.task_id, name, payload("x" * (2 * 1024 * 1024 - 300)))

    await unharmed(engine, view.task_id)
    await journal(engine, view.task_id)


# --- chance

RESERVED = [
    "refold",
    "message",
    "snapshot",
    "recover",
    "fork",
    "text",
    "data",
    "content",
    "slot",
    "gate",
    "digest",
    "decision",
    "approver",
    "kind",
    "retry",
    "outcome",
    "invocation_id",
    "waits",
    "delivery_id",
    "early",
]
WORDS = st.sampled_from([*RESERVED, "start/1", "approved", "user_message", "", "\x00", "é"])
SCALARS = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | WORDS | st.text(max_size=20)
JSON_DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4), max_leaves=10
)
ENCODINGS = ["json/plain", "binary/plain", "binary/null", "binary/protobuf", "json/protobuf", "binary/encrypted", "",
             "json/external-storage-reference"]  # fmt: skip
# Types that the SDK's converter knows, some of which Python takes for mappings or sequences.
MESSAGES = ["google.protobuf.Struct", "google.protobuf.ListValue", "google.protobuf.Value", "google.protobuf.Timestamp",
            "google.protobuf.FieldMask", "temporal.api.common.v1.Memo", "temporal.api.common.v1.Payload"]  # fmt: skip
PAYLOADS = st.one_of(
    st.builds(
        payload,
        JSON_DATA | st.sampled_from([{}, {"a": 1}, [1], b"", b"\n\x03\n\x01a"]),
        st.sampled_from(["json/protobuf", "binary/protobuf"]),
        messageType=st.sampled_from(MESSAGES),
    ),
    JSON_DATA.map(payload),
    st.sampled_from([one.values[0] for one in FORGED]),
    st.builds(payload, st.binary(max_size=50), st.sampled_from(ENCODINGS)),
    st.builds(payload, JSON_DATA, st.sampled_from(ENCODINGS)),
    st.integers(1, 400).map(lambda depth: payload(b"[" * depth + b"]" * depth)),
    st.integers(1, 12_000).map(lambda digits: payload(b"9" * digits)),
    st.sampled_from([100, 40_000, 1_900_000]).map(lambda size: payload("x" * size)),
)


class Sent:
    """One thing that is sent to a task."""

    # No dataclass: of these Hypothesis shows every field at full length.
    def __init__(self, skill: str, how: str, name: str, inputs: list[Payload]) -> None:
        self.skill, self.how, self.name, self.inputs = skill, how, name, inputs

    def __repr__(self) -> str:
        """All but the end of what is long."""
        return f"{self.skill} {self.how} {self.name} {[(dict(one.metadata), one.data[:200]) for one in self.inputs]}"


SENT = st.builds(
    Sent,
    st.sampled_from(["talk", "gated", "counts"]),
    st.sampled_from(["start", "signal", "signal", "signal", "update"]),
    st.sampled_from(["message", "decide", "child", "dependency_resolved", "resolve", "cancel", "other"]),
    st.lists(PAYLOADS, max_size=3) | PAYLOADS.map(lambda one: [one]),
)


async def odd(engine: TemporalEngine, sent: Sent) -> None:
    """Send it, and see that the task answers and that no workflow task of it has failed."""
    if sum(one.ByteSize() for one in sent.inputs) > 2_000_000:
        return  # the server refuses a start and a signal; of an update see docs/limits.md
    skill, how, name, inputs = sent.skill, sent.how, sent.name, sent.inputs
    if how == "start":
        task_id = await start(engine, skill, *inputs)
    else:
        task_id = (await engine.start(skill, text("go"))).task_id
        await collected(engine.watch(task_id))
        before = await engine.look(task_id)
        if how == "signal":
            await signal(engine, task_id, name, *inputs)
            entries = await journal(engine, task_id)
            assert len(entries) > before.seq, "it left no trace"
        else:
            await update(engine, task_id, name, *inputs)
    await journal(engine, task_id)
    assert "worker" not in (await engine.look(task_id)).note
    await unharmed(engine, task_id)


async def test_an_update_that_is_not_there_to_read_wedges_no_task(engine: TemporalEngine) -> None:
    """
    It is refused, or taken if it is not read, also beside another input that is so large that it is refused late.
    """
    absent, large = referring("0" * 64), await engine.client.data_converter.encode(["x" * 3_000_000])
    alone = [Sent("counts", "update", name, [absent]) for name in ("message", "decide", "resolve", "cancel")]
    beside = [Sent("counts", "update", name, [absent, *large]) for name in ("message", "cancel")]

    await asyncio.gather(*(odd(engine, sent) for sent in (*alone, *beside)))


@given(sent=SENT)
@settings(max_examples=30, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
async def test_no_payload_wedges_a_task(engine: TemporalEngine, sent: Sent) -> None:
    """
    Whatever is sent, no workflow task fails, the journal says that it came, and the task answers.
    """
    await odd(engine, sent)


THOUSAND = 1_000 if THOROUGH else 300


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@given(sent=SENT)
@settings(
    max_examples=THOUSAND,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
async def test_no_payload_of_a_thousand_wedges_a_task(engine: TemporalEngine, sent: Sent) -> None:
    """
    The same, a thousand times where there is time (REFOLD_SWEEP=all).
    """
    await odd(engine, sent)


# --- by Temporal's own command line


def _typed(chance: Random) -> str:
    """What somebody may type as an input."""
    return chance.choice(
        [
            "null", "{}", "[]", '""', "0", "true", "-1e400", "NaN", '"\\ud800"', '"\\u0000"', "[" * 200 + "]" * 200,
            "9" * chance.randint(1, 10_001), "{not json", "'", "\u200d", json.dumps({chance.choice(RESERVED): None}),
            json.dumps({one: chance.choice(RESERVED) for one in chance.sample(RESERVED, 3)}),
            json.dumps({"refold": chance.choice(["start/1", "start/2", 1, None]), chance.choice(RESERVED): "x"}),
            json.dumps("x" * chance.choice([10, 1_000, 100_000])),
        ]
    )  # fmt: skip


def typed(chance: Random, task_id: str) -> list[str]:
    """A command with odd inputs, to a task or for a new one of this id."""
    inputs = [word for _ in range(chance.choice([0, 1, 1, 1, 1, 2, 3])) for word in ("--input", _typed(chance))]
    if chance.random() < 0.3:
        inputs += ["--input-meta", f"encoding={chance.choice(ENCODINGS)}"]
    name = chance.choice(
        ["message", "decide", "child", "part_ended", "release", "resolve", "dependency_resolved", "mesage"]
    )
    match chance.choice(["signal", "signal", "update", "start"]):
        case "signal":
            how = ["signal", "--name", name]
        case "update":
            how = ["update", "execute", "--name", name]
        case _:
            how = ["start", "--type", chance.choice(["talk", "gated", "counts"]), "--task-queue", QUEUE]
            task_id = f"typed-{uuid4().hex[:8]}"
    return ["workflow", *how, "--workflow-id", task_id, *inputs]


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_nothing_that_is_typed_wedges_a_task(engine: TemporalEngine, server: DevServer) -> None:
    """
    A thousand odd inputs by `temporal workflow signal`, `update execute` and `start`: every task that got one answers,
    none has a workflow task that failed.
    """
    chance = Random(1000)
    tasks = [(await waiting(engine)).task_id for _ in range(20)]
    turns, reached = asyncio.Semaphore(8), set(tasks)

    async def run(command: list[str]) -> None:
        async with turns:
            process = await asyncio.create_subprocess_exec(
                find_binary(), *command, "--address", server.address, "--command-timeout", "60s",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if await process.wait() == 0:
                reached.add(command[command.index("--workflow-id") + 1])

    await asyncio.gather(*(run(typed(chance, chance.choice(tasks))) for _ in range(1_000)))

    assert len(reached) > 100  # the others were never sent: the command line itself refuses what is no JSON
    for task_id in reached:
        await journal(engine, task_id)
        assert "worker" not in (await engine.look(task_id)).note
        await unharmed(engine, task_id)
    assert sum([(await engine.look(task_id)).refused for task_id in tasks]) > 100
