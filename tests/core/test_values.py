"""Recorded values: closed, frozen, small as JSON, and the same when they are read back."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel, ConfigDict, JsonValue, PydanticUserError, ValidationError, create_model

from refold import (
    Artifact,
    Callback,
    Cmd,
    Content,
    Ctx,
    DefinitionError,
    Event,
    Failure,
    FailureKind,
    GatePolicy,
    Message,
    Part,
    RetryPolicy,
    Step,
    Transition,
    flow_skill,
    table,
    tool,
)
from refold.core.commands import COMMAND, AskUser, Command, fingerprint
from refold.core.errors import SkillError
from refold.core.events import EVENT, LlmResult, UserMessage
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.retry_policy import LONGEST_WAIT_S
from refold.core.values import LONGEST_S, Value
from refold.record import receipts
from tests.core.byhand import START, ByHand, busy

COMMANDS: list[Command] = [
    Cmd.llm("a"),
    Cmd.llm("a", "Prompt.", "in", model="m:n", expect=dict[str, int], settings={"t": 0}, retry=RetryPolicy(base=2)),
    Cmd.tool("t", "charge", amount=3, key="refund:1", queue="gpu"),
    Cmd.skill("s", "hello", {"x": 1}),
    Cmd.activity("a", "Act", 1, [2], timeout_s=5),
    Cmd.workflow("w", "Flow", None),
    Cmd.sleep("z", 3.5),
    Cmd.ask_user("q", "Sure?", expect=Message),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.kind)
def test_commands_read_back_as_they_were(command: Command) -> None:
    """
    A command in the journal is the command that was asked for, and its fingerprint with it.
    """
    again = COMMAND.validate_json(command.model_dump_json())

    assert again == command
    assert fingerprint(again) == fingerprint(command)


def test_fingerprints_tell_commands_apart() -> None:
    """
    Kind, subject and a hash of everything else.
    """
    prints = {fingerprint(command) for command in COMMANDS}

    assert len(prints) == len(COMMANDS)
    assert fingerprint(Cmd.tool("t", "charge", amount=3)).startswith("tool:charge:")


def test_values_are_frozen_and_closed() -> None:
    """
    A recorded fact cannot be changed, and a misspelt field is an error.
    """
    event = LlmResult(id="a", invocation_id="T/1.1", value="x")

    with pytest.raises(ValidationError, match="frozen"):
        event.value = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        EVENT.validate_python({"kind": "user_message", "content": {"parts": [{"text": "x"}]}, "sloot": "a"})


IN_NO_MODULE: Any = "Scales"
Weighed = create_model("Weighed", __base__=Value, by=(IN_NO_MODULE, ...))


def test_a_value_has_the_types_of_where_it_is_defined() -> None:
    """
    Values are built when they are first used; the names of whoever uses one first are not its own.
    """
    Scales = int

    with pytest.raises(PydanticUserError, match="not fully defined"):
        Weighed.model_validate({"by": Scales(3)})


def test_defaults_stay_out_of_the_json() -> None:
    """
    What is written for ever holds no default, and 0 is not taken for False.
    """

    def fields(value: BaseModel) -> set[str]:
        return set(json.loads(value.model_dump_json()))

    assert fields(Cmd.llm("a")) == {"id", "kind"}
    assert fields(UserMessage(content=Content.from_text("x"))) == {"kind", "content"}
    assert fields(RetryPolicy()) == set()
    assert fields(RetryPolicy(max_retries=0)) == {"max_retries"}
    assert json.loads(Part(data=0).model_dump_json()) == {"data": 0}
    assert json.loads(Part(data=False).model_dump_json()) == {"data": False}


@flow_skill(id="busy")
class Busy:
    """A reducer that does a little of everything."""

    @staticmethod
    def initial() -> dict[str, int]:
        return {}

    def on_event(self, state: dict[str, int], event: Event, ctx: Ctx) -> Transition:
        state[event.kind] = state.get(event.kind, 0) + 1
        if isinstance(event, UserMessage):
            if event.slot:
                return Transition.to(state).message("thanks")
            asked = Transition.await_input("q", "Sure?", state).cmd(Cmd.llm("a")).cmd(Cmd.sleep("z", 5))
            return asked.cmd(Cmd.tool("t", "t")).status("busy")
        ctx.patched("p")
        return Transition.to(state).artifact(Artifact.from_text(event.kind, "x"))


def lively() -> ByHand:
    """A task with most things in its journal."""
    task = ByHand(Busy)
    task.say(delivery_id="d1")
    task.say("refused", slot="x")
    task.say("yes", delivery_id="d2")
    task.fail("a", busy())
    task.give("t", {"n": [1]})
    task.ring("a")
    return task


def test_snapshots_and_entries_read_back_as_they_were() -> None:
    """
    Through JSON and back, at every entry.
    """
    task = lively()
    task.fail("a", busy())

    for entry in task.journal:
        assert Entry.model_validate_json(entry.model_dump_json()) == entry
    assert Snapshot.model_validate_json(task.task.model_dump_json()) == task.task


def test_an_entry_is_small() -> None:
    """
    A plain result costs its event and what followed, nothing else.
    """
    task = ByHand(Busy)
    task.say()
    task.say("yes")
    entry = json.loads(task.give("t", 1).model_dump_json())

    assert set(entry) == {"seq", "at", "event", "artifacts", "patches"}
    assert entry["event"] == {"kind": "tool_result", "id": "t", "invocation_id": "T/1.4", "value": 1}
    assert len(json.dumps(task.base.model_dump(mode="json"))) < 200


def test_receipts_are_outcomes_not_tries() -> None:
    """
    A failure that is tried again is no receipt; what is out when the task ends was canceled.
    """
    task = lively()
    assert [(one.invocation_id, str(one.status), one.outcome) for one in receipts(task.journal)] == [
        ("T/1.4", "ok", {"n": [1]}),
    ]
    task.fail("a", busy())
    assert len(receipts(task.journal)) == 1
    task.ring("a")
    task.give("a", "words")
    assert [one.outcome for one in receipts(task.journal)] == [{"n": [1]}, "words"]
    task.cancel()

    assert [(one.invocation_id, str(one.status)) for one in receipts(task.journal)] == [
        ("T/1.4", "ok"),
        ("T/1.2", "ok"),
        ("T/1.3", "canceled"),
    ]


def test_a_final_failure_is_a_receipt() -> None:
    """
    As data: kind, type and message.
    """
    task = lively()
    task.fail("a")

    last = receipts(task.journal)[-1]

    assert (last.invocation_id, str(last.status)) == ("T/1.2", "error")
    assert last.outcome == {"kind": "permanent", "type": "http_403", "message": "forbidden"}


# --- content


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": "a", "data": 1},
        {"text": "a", "url": "u"},
        {"raw": b"a", "url": "u"},
        {"filename": "f"},
        {"data": None},
    ],
)
def test_a_part_is_exactly_one_thing(fields: dict[str, Any]) -> None:
    """
    Text, data, bytes or an address; empty text is text.
    """
    with pytest.raises(ValidationError, match="a part holds exactly one of text, data, raw, url; got"):
        Part(**fields)
    assert Part(text="").text == ""


def test_content_and_artifacts_are_not_empty() -> None:
    """
    There is always a first part.
    """
    for empty in (lambda: Content(parts=()), lambda: Artifact(name="a", parts=()), lambda: Artifact.from_text("", "x")):
        with pytest.raises(ValidationError, match="at least 1"):
            empty()


def test_bytes_are_base64_in_json_and_in_data() -> None:
    """
    A file reads back as it was from JSON text and from JSON data; text that is no base64 is refused.
    """
    part = Part(raw=b"\x00\xff\xfe", filename="f.bin")

    assert json.loads(part.model_dump_json()) == {"raw": "AP/+", "filename": "f.bin"}
    assert Part.model_validate_json(part.model_dump_json()) == part
    assert Part.model_validate(part.model_dump(mode="json")) == part
    assert Part.model_validate({"raw": "AP_-"}).raw == part.raw
    with pytest.raises(ValidationError, match="a file's bytes are written in base64"):
        Part.model_validate({"raw": "not base64!"})


def test_a_content_is_read_by_kind() -> None:
    """
    All texts, the first data, whatever stands between.
    """
    mixed = Content(parts=(Part(text="a"), Part(data={"n": 1}), Part(text="b"), Part(data=2)))

    assert (mixed.text, mixed.data, mixed.has_data) == ("a\nb", {"n": 1}, True)
    assert (Content.from_text("x").data, Content.from_data(0).data, Content.from_data(0).has_data) == (None, 0, True)
    assert f"{mixed}, {Content.from_data(1)}" == "a\nb, "
    assert Artifact.from_data("a", [1]).text == ""


# --- waiting


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        (RetryPolicy(), [1, 2, 4, 8, 16]),
        (RetryPolicy(base=0.5, factor=3, cap=10), [0.5, 1.5, 4.5, 10, 10]),
        (RetryPolicy(base=0), [0, 0, 0, 0, 0]),
    ],
)
def test_waits_grow_up_to_the_cap(policy: RetryPolicy, delays: list[float]) -> None:
    """
    Base, factor, cap.
    """
    assert [policy.delay(retry, "T/1.1") for retry in range(1, 6)] == delays


def test_jitter_is_a_hash_of_id_and_retry() -> None:
    """
    It spreads waits below their full length, differs by command and retry, and is the same on every replay.
    """
    policy = RetryPolicy(jitter=0.5, factor=1)
    delays = [policy.delay(retry, f"T/{seq}.1") for seq in range(20) for retry in (1, 2)]

    assert delays == [policy.delay(retry, f"T/{seq}.1") for seq in range(20) for retry in (1, 2)]
    assert len(set(delays)) == 40
    assert all(0.5 <= delay <= 1 for delay in delays)


@pytest.mark.parametrize("asked", [None, 0.0, -5.0, float("nan")])
def test_a_meaningless_retry_after_changes_nothing(asked: float | None) -> None:
    """
    The policy's own wait is the least.
    """
    assert RetryPolicy().delay(2, "T/1.1", asked) == 2


def test_no_wait_is_longer_than_a_month() -> None:
    """
    Neither growth without a cap nor another side's wish stops the task for ever.
    """
    assert RetryPolicy(max_retries=9999, cap=LONGEST_S).delay(5000, "T/1.1") == LONGEST_WAIT_S
    assert RetryPolicy().delay(1, "T/1.1", float("inf")) == LONGEST_WAIT_S


@pytest.mark.parametrize(
    "wrong", [{"max_retries": -1}, {"base": -1}, {"factor": 0.5}, {"cap": -1}, {"jitter": 1.5}, {"jitter": -0.1}]
)
def test_a_policy_has_bounds(wrong: dict[str, Any]) -> None:
    """
    What would wait backwards is no policy.
    """
    with pytest.raises(ValidationError):
        RetryPolicy(**wrong)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12])
def test_a_sleep_has_bounds(seconds: float) -> None:
    """
    Not into the past, and not beyond what can be written as a date.
    """
    with pytest.raises(SkillError, match="hundred years"):
        Cmd.sleep("z", seconds)


# --- what a skill is given is its own


class Raw(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_bytes="base64", val_json_bytes="base64")

    blob: bytes = b""
    free: Any = None


@pytest.mark.parametrize("cut", [False, True])
def test_states_of_any_kind_survive(cut: bool) -> None:
    """
    Bytes, extra fields and untyped values come back as they were, and who writes into them changes no record.
    """

    @flow_skill(id="raw")
    class Keeps:
        @staticmethod
        def initial() -> Raw:
            return Raw(blob=b"\xff", free={"list": [1]}, more=[1])

        def on_event(self, state: Raw, event: Event, ctx: Ctx) -> Transition:
            if isinstance(event, UserMessage):
                return Transition.to(state).cmd(Cmd.llm("a")).cmd(Cmd.llm("b"))
            assert (state.blob, state.free, state.__pydantic_extra__) == (b"\xff", {"list": [1]}, {"more": [1]})
            state.free["list"].append(2)
            state.more.append(2)  # type: ignore[attr-defined]
            return Transition.ignore()

    task = ByHand(Keeps, cut=cut)
    task.say()
    task.give("a", "x")
    task.give("b", "x")

    assert task.task.state == {"blob": "_w==", "free": {"list": [1]}, "more": [1]}
    assert task.reason.startswith("stalled")


def test_a_misuse_of_data_does_not_reach_the_journal() -> None:
    """
    An event's values, messages and decoded results are copies.
    """
    scribbled: list[JsonValue] = []

    @flow_skill(id="scribbles")
    class Scribbles:
        @staticmethod
        def initial() -> list[str]:
            return []

        def on_event(self, state: list[str], event: Event, ctx: Ctx) -> Transition:
            if isinstance(event, LlmResult):
                assert isinstance(event.value, dict)
                event.value["x"] = "written"
                scribbled.append(event.value)
            data = ctx.messages[0].content.data
            assert isinstance(data, dict)
            data["x"] = "written"
            return Transition.to(state).cmd(Cmd.llm("a"))

    task = ByHand(Scribbles)
    task.feed(UserMessage(content=Content.from_data({"n": 1})))
    before = task.journal[0].model_dump_json()
    entry = task.give("a", {"y": 1})

    assert isinstance(entry.event, LlmResult)
    assert entry.event.value == {"y": 1}
    assert task.journal[0].model_dump_json() == before
    assert task.task.messages[0].content.data == {"n": 1}
    assert scribbled == [{"y": 1, "x": "written"}]


def test_time_starts_where_the_task_was_planned() -> None:
    """
    A planned task has taken nothing: number 0, submitted, and the time it was planned at.
    """
    task = ByHand(Busy)

    assert (task.task.seq, task.task.at, str(task.status), task.task.ended) == (0, START, "submitted", False)


MAKERS: list[Callable[[], Any]] = [
    lambda: Cmd.message("x").content.text,
    lambda: Cmd.artifact(Artifact.from_text("x", "y")).artifact.name,
]


@pytest.mark.parametrize("make", MAKERS)
def test_emitting_is_a_command_without_a_result(make: Callable[[], Any]) -> None:
    """
    What is said and handed over can be written as a command, too.
    """
    assert make() == "x"


def test_what_the_fold_makes_is_what_would_be_read() -> None:
    """
    Values made without checks are equal to checked ones, as JSON text too.
    """
    task = lively()

    for entry in task.journal:
        assert Entry.model_validate_json(entry.model_dump_json()).model_dump_json() == entry.model_dump_json()
    assert Snapshot.model_validate_json(task.task.model_dump_json()).model_dump_json() == task.task.model_dump_json()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e13, -1.0])
@pytest.mark.parametrize("name", ["timeout_s", "reminder_s", "grace_s"])
def test_the_times_of_a_gate_are_times(name: str, seconds: float) -> None:
    """
    Each can be added to a date. A gate that waits for ever says None.
    """
    for_ever = name == "timeout_s" and seconds == float("inf")
    said = "write None to wait for ever" if for_ever else "from 0 to 3153600000"

    with pytest.raises(ValidationError, match=said):
        GatePolicy(**{name: seconds})
    if name == "timeout_s":
        with pytest.raises(ValidationError, match=said):
            AskUser(id="q", message=Content.from_text("?"), timeout_s=seconds)


@pytest.mark.parametrize("name", ["base", "cap", "probe_s", "factor"])
def test_a_policy_waits_for_times(name: str) -> None:
    """
    Not for ever, and not for what is no number.
    """
    for wrong in (float("inf"), float("nan"), 1e300):
        with pytest.raises(ValidationError):
            RetryPolicy(**{name: wrong})


def test_a_set_of_names_in_a_policy_is_recorded_in_one_order() -> None:
    """
    A set has another order in each process: the next worker would differ from what the first one recorded.
    """
    names = {"ann", "bob", "eve", "joe", "kim", "lee", "mia", "zoe"}
    gate = Cmd.ask_approval("pay", "Pay?", show={}, policy=GatePolicy(approvers=names), editable=names)

    assert gate.policy.approvers == gate.editable == tuple(sorted(names))
    assert RetryPolicy(fallback_on=names).fallback_on == tuple(sorted(names))


@pytest.mark.parametrize(
    ("callback", "says"),
    [
        pytest.param("https://pay.example/1", r"command 'paid' \(str\): callback: Input should be", id="an address"),
        pytest.param({"digest": "d"}, r"command 'paid' \(str\): callback.until: Field required", id="a part of one"),
    ],
)
def test_a_callback_is_one_that_was_made(callback: Any, says: str) -> None:
    """
    As any other option, it is checked where the question is asked.
    """
    with pytest.raises(SkillError, match=says):
        Cmd.ask_user("paid", "The payment.", callback=callback)


def test_a_question_has_its_callback_without_the_address() -> None:
    """
    Whoever reads the journal cannot answer it. A callback may have been saved as data.
    """
    made = Callback(url="https://pay.example/1", digest="d", until=START)
    saved: Any = made.model_dump(mode="json")

    for callback in (made, saved):
        assert Cmd.ask_user("paid", "The payment.", callback=callback).callback == Callback(digest="d", until=START)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e13])
def test_an_activity_is_given_some_time(seconds: float) -> None:
    """
    More than none, and not for ever.
    """
    with pytest.raises(SkillError, match="timeout_s"):
        Cmd.activity("a", "Act", timeout_s=seconds)
    with pytest.raises(DefinitionError, match="timeout_s"):
        tool(effect="read_only", timeout_s=seconds)(len)


def test_a_tool_takes_less_than_the_hour_after_which_the_server_ends_its_attempt() -> None:
    """
    A longer one would be ended and performed again, five times over.
    """

    async def reads() -> None: ...

    tool(effect="read_only", timeout_s=3_000)(reads)
    with pytest.raises(DefinitionError, match="at most 3000; let a tool start longer work"):
        tool(effect="read_only", timeout_s=3_600)(reads)


@pytest.mark.parametrize("asked", [float("inf"), 1e13, LONGEST_WAIT_S + 1])
def test_what_the_other_side_asks_to_wait_is_cut(asked: float) -> None:
    """
    Nobody's header wedges a task; a blocked command waits no longer than another one.
    """
    assert Failure(kind=FailureKind.TRANSIENT, type="x", message="x", retry_after=asked).retry_after == LONGEST_WAIT_S
    assert Failure(kind=FailureKind.TRANSIENT, type="x", message="x", retry_after=float("nan")).retry_after == 0

    async def begin(ctx: Ctx) -> Transition:
        return ctx.complete(await ctx.llm("a", retry=RetryPolicy(max_retries=0, on_exhausted="block")))

    task = ByHand(table("waits", Step("begin", begin).start()))
    task.say()
    task.fail("a", Failure(kind=FailureKind.TRANSIENT, type="x", message="x", retry_after=asked))

    assert task.alarms == [LONGEST_WAIT_S + 2]


@pytest.mark.parametrize("kind", [Failure, Content, UserMessage, Snapshot])
def test_what_is_registered_as_a_mapping_and_is_none_does_not_fit(kind: type[Value]) -> None:
    """
    Such as protobuf's own JSON, which Temporal's tools can send.
    """
    with pytest.raises(ValidationError, match=f"valid dictionary or instance of {kind.__name__}"):
        kind.model_validate(Struct())
