"""What is saved says in which format; older formats are read, newer ones are left to newer releases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from refold import formats
from refold.core.commands import COMMAND
from refold.core.events import EVENT
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Pending, Snapshot
from refold.core.waits import Wait
from refold.export import DamagedExport, read_export, verify
from refold.export.layout import Line, sealed
from refold.formats import FORMAT, NewerFormat, current, numbered
from refold.temporal.data.inputs import AnotherRelease, start_from
from refold.temporal.data.marks import packed, unpacked
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.data.wire import Segment, Stopped, TaskResult, TaskStart
from refold.temporal.replay.asked import left_behind, recorded_in
from refold.temporal.replay.values import clear, data_in
from refold.temporal.worker.task.workflow import SkillWorkflow
from tests.records import replaying
from tests.temporal.chat_skills import ChatsWorkflow
from tests.temporal.order_skills import MingledPartWorkflow
from tests.temporal.worker.activated import Activated, failed, performed
from workflows.hello import HelloWorkflow


class Failed(NamedTuple):
    """What an effect failed with."""

    detail: Mapping[str, Any]
    type: str = "http_503"


AT = "2026-01-01T00:00:00Z"
SNAPSHOT = {"task_id": "T", "skill": "s", "at": AT}


def old(**fields: Any) -> dict[str, Any]:
    """A segment of a made-up older format: commands and events have other fields, entries are counted elsewhere."""
    command = {"kind": "llm", "id": "a", "ask_for": "Greet."}
    pending = {"invocation_id": "T/1.1", "command": command}
    entry = {
        "number": 1,
        "at": AT,
        "event": {"kind": "user_message", "said": {"parts": [{"text": "go"}]}},
        "commands": [{"invocation_id": "T/1.1", "command": command}],
    }
    held = {"kind": "user_message", "said": {"parts": [{"text": "later"}]}}
    return {"base": {**SNAPSHOT, "pending": {"T/1.1": pending}, "held": [held]}, "entries": [entry], **fields}


def renamed(before: str, after: str) -> formats.Upcast:
    return lambda data: {after if key == before else key: value for key, value in data.items()}


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose format is 2."""
    casts = {
        "command": renamed("ask_for", "prompt"),
        "event": renamed("said", "content"),
        "entry": renamed("number", "seq"),
    }
    monkeypatch.setattr(formats, "FORMAT", 2)
    monkeypatch.setattr(formats, "UPCASTERS", {1: casts})


def test_an_older_format_is_read(second: None) -> None:
    """
    Every command, event and entry in a segment is brought up, wherever it stands; without a number it is of format 1.
    """
    found = Segment.model_validate_json(json.dumps(old()))
    start = start_from([{"refold": "start/1", "recover": old()}])

    assert found.base.pending["T/1.1"].command.model_dump()["prompt"] == "Greet."
    assert found.base.held[0].model_dump()["content"]["parts"][0]["text"] == "later"
    assert (found.entries[0].seq, found.entries[0].commands[0].command.id) == (1, "a")
    assert start.recover == found


def test_a_start_is_brought_up_with_what_it_holds(second: None) -> None:
    """
    The number of a start is that of its message and its snapshot, too.
    """
    said = {"kind": "user_message", "said": {"parts": [{"text": "go"}]}}
    start = start_from([{"refold": "start/1", "message": said, "snapshot": old()["base"]}])

    assert start.message is not None
    assert start.message.content.text == "go"
    assert start.snapshot is not None
    assert start.snapshot.pending["T/1.1"].command.model_dump()["prompt"] == "Greet."


async def test_a_snapshot_that_is_stored_alone_is_brought_up(second: None) -> None:
    """
    The number of a result is that of the snapshot that is stored beside it.
    """
    assert current("snapshot", old()["base"], 1)["pending"]["T/1.1"]["command"]["prompt"] == "Greet."


def test_what_an_entry_said_is_brought_up(second: None) -> None:
    """
    In the short form in which history keeps it; a later format is written beside.
    """
    command = {"id": "a", "ask_for": "Greet.", "kind": "llm"}
    [old_one] = unpacked([{"commands": {"1.1": command}}], 1, "T")
    [new] = packed([old_one], 1, "T")

    assert old_one.commands[0].command.model_dump()["prompt"] == "Greet."
    assert (new["format"], new["commands"]["1.1"]["prompt"]) == (2, "Greet.")
    assert unpacked([new], 1, "T") == (old_one,)


def test_what_a_stopped_task_shows_is_brought_up(second: None) -> None:
    """
    Its snapshot, which has no number of its own, and its journal, which has.
    """
    base = old()["base"]
    shown = Stopped.model_validate({"snapshot": {"value": base}, "journal": {"value": old()}, "differs": "it does"})

    assert shown.snapshot.value is not None
    assert shown.snapshot.value.pending["T/1.1"].command.model_dump()["prompt"] == "Greet."
    assert shown.journal.value is not None
    assert shown.journal.value.entries[0].seq == 1


EXPORT = Path(__file__).parent / "export" / "format-1.jsonl"
"""What `refold export --parts --receipts --history` wrote in the first format."""


def test_an_export_of_an_older_format_is_read(second: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its digests are those of what was written; its entries and snapshots are brought up.
    """
    casts = {"entry": lambda data: {**data, "note": f"brought up: {data['seq']}"}, "snapshot": lambda data: data}
    monkeypatch.setattr(formats, "UPCASTERS", {1: casts})

    tasks = read_export(EXPORT)

    assert [entry.note for entry in tasks[0].entries] == [f"brought up: {entry.seq}" for entry in tasks[0].entries]


def test_an_export_of_the_first_format_verifies() -> None:
    """
    As it did when it was written.
    """
    with EXPORT.open("rb") as lines:
        found = verify(lines)

    assert (found.whole, found.seal) == (True, "1e260f02c03569b073219589")
    assert [one.task_id for one in found.tasks] == ["s1", "s1/1.1"]


def test_an_export_of_a_newer_format_is_refused() -> None:
    """
    At the first line that it cannot read, with what to do.
    """
    header, *others = EXPORT.read_bytes().splitlines(keepends=True)
    newer = header.replace(b'"version":', b'"format":2,"version":', 1)
    seal, lines = b"", []
    for number, raw in enumerate([newer, *others], 1):
        line = Line.read(number, raw)
        seal = sealed(seal, line.kind, line.body)
        lines.append(raw if line.kind == "entry" else line.with_digest(seal).written())

    with pytest.raises(DamagedExport, match=r"line 3: this snapshot was saved in format 2.* or a newer one"):
        verify(lines)


@pytest.mark.parametrize("number", [FORMAT + 1, 0, "2", None])
def test_a_format_that_nobody_here_knows_is_refused(number: Any) -> None:
    """
    A newer one is not guessed at, and one that never was is none; the message says which formats are read.
    """
    with pytest.raises(NewerFormat, match=f"segment was saved in format {number}.* formats up to {FORMAT}: use the"):
        Segment.model_validate({"format": number, "base": SNAPSHOT, "entries": []})
    with pytest.raises(NewerFormat, match="this result was saved in format"):
        TaskResult.model_validate({"format": number, "task": {}, "journal": {}})


def test_a_worker_leaves_newer_formats_to_others() -> None:
    """
    As it leaves a start that it cannot read: the task waits for a worker that can.
    """
    newer = {"format": FORMAT + 1, "base": SNAPSHOT, "entries": []}
    with pytest.raises(AnotherRelease, match=rf"\(start/{FORMAT + 1}\); this worker knows start/{FORMAT}"):
        start_from([{"refold": f"start/{FORMAT + 1}", "anything": 1}])
    with pytest.raises(AnotherRelease, match=f"this segment was saved in format {FORMAT + 1}"):
        start_from([{"refold": f"start/{FORMAT}", "recover": newer}])


@pytest.mark.parametrize("run_before", ["run-1", None])
async def test_a_worker_leaves_a_run_with_fields_that_it_does_not_know_to_others(run_before: str | None) -> None:
    """
    A newer release may have added one, and a task may go on in a new run where an older worker is left. A client's
    start is refused: nobody else could take it.
    """
    task = Activated(HelloWorkflow, "t", run_before=run_before)
    saved = {"refold": f"start/{FORMAT}", "snapshot": {**SNAPSHOT, "skill": "hello", "newer_field": 1}}
    done = task.activated(3, task.initialized(saved))

    if run_before is None:
        assert "newer_field" in done.successful.commands[-1].fail_workflow_execution.failure.message
    else:
        assert "another release of refold saved this task's run before" in done.failed.failure.message
        assert "newer_field" in done.failed.failure.message


FAILED = {"kind": "transient", "type": "http_503", "message": "busy"}


@pytest.mark.parametrize("replaying", [False, True])
@pytest.mark.parametrize(
    ("kind", "brought", "unknown"),
    [
        pytest.param(HelloWorkflow, {"value": "Hello!", "newer_field": 1}, "newer_field", id="a field"),
        pytest.param(ChatsWorkflow, {"text": "Hello!", "stop": "newer"}, "stop", id="a value"),
        pytest.param(
            ChatsWorkflow, {"text": "Hello!", "files": [{"text": "", "newer": 1}]}, "files", id="a field within"
        ),
        pytest.param(HelloWorkflow, Failed({**FAILED, "newer_field": 1}), "newer_field", id="a field of a failure"),
        pytest.param(HelloWorkflow, Failed({**FAILED, "kind": "newer"}), "kind", id="a kind of failure"),
        pytest.param(
            MingledPartWorkflow,
            Failed({**FAILED, "type": "unknown_activity", "newer_field": 1}, "unknown_activity"),
            "newer_field",
            id="a field of what a worker says that has no such activity",
        ),
    ],
)
async def test_a_worker_leaves_what_an_effect_of_a_newer_release_came_to_to_others(
    kind: type[SkillWorkflow], brought: Any, unknown: str, replaying: bool
) -> None:
    """
    The effect was performed, by a worker of a newer release, and one of these can take its outcome; a failure that it
    would retry is no reason to fail. What was recorded stays: an earlier release failed the command.
    """
    task = Activated(kind, "t")
    [asked] = [
        one.schedule_activity
        for one in task.activated(3, task.initialized("Ada"), replaying=replaying).successful.commands
        if one.HasField("schedule_activity")
    ]
    has_failed = isinstance(brought, Failed)
    came = failed(asked.seq, brought.type, brought.detail) if has_failed else performed(asked.seq, brought)
    done = task.activated(6, came, replaying=replaying)

    if replaying:
        assert done.successful.commands[-1].HasField("fail_workflow_execution")
    else:
        assert "another release of refold" in done.failed.failure.message
        assert unknown in done.failed.failure.message


@pytest.mark.parametrize("kind", [HelloWorkflow, MingledPartWorkflow])
async def test_a_failure_in_another_programs_form_fails_its_command(kind: type[SkillWorkflow]) -> None:
    """
    Whoever fails an activity, in another language or by hand, has a form of its own, which has our fields by chance:
    no release could read it, and a task that waited for one would wait for ever.
    """
    task = Activated(kind, "t")
    [asked] = [
        one.schedule_activity
        for one in task.activated(3, task.initialized("Ada")).successful.commands
        if one.HasField("schedule_activity")
    ]
    form = {"kind": "declined", "type": "card", "message": "no money", "code": 51}

    done = task.activated(6, failed(asked.seq, "CardError", form))

    assert not done.HasField("failed"), done.failed.failure.message


def test_a_worker_leaves_the_state_of_newer_skills_to_others() -> None:
    """
    In a rolling deployment, a worker with the old code is offered a task that the new code has saved.
    """
    held = {"refold": f"start/{FORMAT}", "snapshot": {**SNAPSHOT, "skill_version": 3}}
    saved = {**held, "snapshot": {**SNAPSHOT, "skill_version": 3, "lifecycle": "running", "state": "begun"}}

    assert start_from([saved], 3).snapshot is not None
    assert start_from([held], 2).snapshot is not None, "it has no state yet"
    with pytest.raises(
        AnotherRelease, match="version 3 of its skill saved this task's state; this worker has version 2"
    ):
        start_from([saved], 2)


def test_the_first_format_writes_no_number() -> None:
    """
    History pays for each byte; a later format is written.
    """

    class Later(BaseModel):
        format: int = numbered(2)

    segment = Segment(base=Snapshot.model_validate(SNAPSHOT), entries=())

    assert "format" not in segment.model_dump_json()
    assert numbered(1).exclude_if(1)
    assert Later().model_dump() == {"format": 2}


# --- every format that ever was


SAMPLES = {1: sorted(replaying.HISTORIES.glob("*.json.gz"))}
"""What was saved in each format, by its number."""


async def test_each_format_that_ever_was_is_read() -> None:
    """
    The starts, results and journals in recorded histories are read by today's code, and written as they were read.
    """
    converter = data_converter(Folder(replaying.VALUES))
    read: set[str] = set()
    again: TaskStart | TaskResult
    for path in [path for number in range(1, FORMAT + 1) for path in SAMPLES[number]]:
        history, _ = replaying.read(path)
        started = history.events[0].workflow_execution_started_event_attributes.input.payloads
        left = left_behind(list(recorded_in(history.events)))
        payloads = await clear([*started, *([] if left is None else [left])], converter)
        for data in map(data_in, payloads):
            if isinstance(data, dict) and "refold" in data:
                again = start_from([data])
                read |= again.model_fields_set
            elif isinstance(data, dict) and "journal" in data:
                again = TaskResult.model_validate(data)
                read |= again.model_fields_set
            else:
                continue
            assert json.loads(again.model_dump_json()) == data, path

    assert {"message", "snapshot", "recover", "fork", "earlier", "task", "journal"} <= read


EVENTS, COMMANDS = (get_args(get_args(adapter._type)[0]) for adapter in (EVENT, COMMAND))
KINDS: dict[type, str] = {Snapshot: "snapshot", Entry: "entry", Pending: "pending", Wait: "wait", Segment: "segment"}
KINDS |= {**dict.fromkeys(EVENTS, "event"), **dict.fromkeys(COMMANDS, "command")}
UNTYPED = {"event": {"again": "event"}}
"""Kept as JSON data, so that no type tells it."""


@pytest.mark.parametrize(
    ("kind", "models"),
    [
        ("start", [TaskStart]),
        ("segment", [Segment]),
        ("snapshot", [Snapshot]),
        ("pending", [Pending]),
        ("wait", [Wait]),
        ("entry", [Entry]),
        ("event", EVENTS),
        ("command", COMMANDS),
    ],
)
def test_nothing_inside_is_overlooked(kind: str, models: Sequence[type[BaseModel]]) -> None:
    """
    The table of what holds what names each field whose type holds an event, a command, an entry or a snapshot.
    """
    found = {path: part for model in models for path, part in _inside(model)}
    numbered_alone = {path for path, part in found.items() if part == "segment"}

    assert {path: part for path, part in found.items() if path not in numbered_alone} | UNTYPED.get(kind, {}) == (
        formats.PARTS[kind]
    )


def _inside(model: type[BaseModel], path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    model.model_rebuild()  # where nothing has used it yet, a class that stands below it is only named
    for name, field in model.model_fields.items():
        yield from _of_type(field.annotation, f"{path}{field.alias or name}", depth)


def _of_type(kind: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from _of_type(args[0], path, depth)
    elif origin in (Union, UnionType):
        for one in args:
            yield from _of_type(one, path, depth)
    elif origin is tuple:
        yield from _of_type(args[0], f"{path}.*", depth)
    elif origin in (dict, Mapping):
        yield from _of_type(args[1], f"{path}.*", depth)
    elif kind in KINDS:
        yield path, KINDS[kind]
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and depth < 4:
        yield from _inside(kind, f"{path}.", depth + 1)
