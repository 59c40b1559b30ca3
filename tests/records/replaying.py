"""Temporal histories: how they are replayed without a server, and what is looked at meanwhile.

Temporal compares only the kinds of commands. Here the runner of workflows is watched instead: every command that the
replayed code gives is kept, with all its fields, and before the workflow is forgotten it is asked for its journal.

Beside a history `NAME.json.gz` (the SDK's JSON, packed; one workflow run) stands `NAME.jsonl`: the journal's entries as
the task told them when it was recorded, then its last snapshot, field by field as hashes, then each command: its kind,
its id where it has one, and its fields as hashes. Values that Temporal did not keep itself, and that a replay reads,
are in `values/`, by the hash of what they are.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from temporalio.client import WorkflowHistory
from temporalio.plugin import SimplePlugin
from temporalio.worker import Replayer, WorkflowRunner

from refold.temporal import RefoldPlugin
from refold.temporal.data.storage import Folder
from refold.temporal.replay.watched import Given, Seen, Watching
from tests.records import served
from tests.records.tapes import compact, hash_of
from workflows import forty_steps, hello, order_desk, planner, react, refund  # isort: split

from workflows import research_loop, research_loop_steps, research_loop_table

HISTORIES = Path(__file__).parent / "histories"
VALUES = HISTORIES / "values"
SKILLS: list[Any] = [
    served, hello, planner, research_loop, research_loop_steps, research_loop_table, refund, order_desk, forty_steps,
    react,
]  # fmt: skip


def lines_of(seen: Seen) -> list[str]:
    """What was seen of a replayed workflow, as it is recorded."""
    assert seen.snapshot is not None, seen.given
    snapshot = {name: hash_of(compact(value))[:8] for name, value in seen.snapshot.items()}
    return [
        *(f'{{"entry":{compact(entry)}}}' for entry in seen.entries),
        compact({"snapshot": snapshot, "all": hash_of(compact(seen.snapshot))}),
        *map(_line, seen.given),
    ]


_NAMED = ("activity_id", "workflow_id", "patch_id", "signal_name")


def _line(given: Given) -> str:
    command = given.command
    if command is None:
        return f'{{"failed":{json.dumps(given.failure)}}}'
    kind = str(command.WhichOneof("variant"))
    said = _without_traces(command)
    inner = getattr(said, kind)
    found = {name: getattr(inner, name) for name in _NAMED if getattr(inner, name, "")}
    whole = said.SerializeToString(deterministic=True)
    named = [(inner, field) for field, _ in inner.ListFields()]
    named += [(said, field) for field, _ in said.ListFields() if field.name != kind]
    fields = {field.name: hash_of(_field(message, field).hex())[:8] for message, field in named}
    return compact({"command": kind, **found, "fields": fields, "all": hash_of(whole.hex())})


def _field(message: Any, field: FieldDescriptor) -> bytes:
    alone = type(message)()
    value = getattr(message, field.name)
    if isinstance(value, Message):
        getattr(alone, field.name).CopyFrom(value)
    elif isinstance(value, str | int | float | bool | bytes):
        setattr(alone, field.name, value)
    else:
        getattr(alone, field.name).MergeFrom(value)
    return bytes(alone.SerializeToString(deterministic=True))


def _without_traces(command: Message) -> Any:
    """A copy without stack traces, which hold the paths and lines of whoever runs it."""
    copy = type(command)()
    copy.CopyFrom(command)
    for message in _messages(copy):
        if message.DESCRIPTOR.full_name == "temporal.api.failure.v1.Failure":
            message.ClearField("stack_trace")
    return copy


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        for one in value.values() if hasattr(value, "values") else [value] if isinstance(value, Message) else value:
            if isinstance(one, Message):
                yield from _messages(one)


class Replaying:
    """A replayer for all skills that histories are recorded of.

    Args:
        folder: An empty one; replaying writes values, too.
        values: Those that the histories refer to.
    """

    def __init__(self, folder: Path, values: Path = VALUES) -> None:
        if values.is_dir():
            shutil.copytree(values, folder, dirs_exist_ok=True)
        self._seen: dict[str, Seen] = {}
        watched = SimplePlugin("records", workflow_runner=self._watching)
        plugin = RefoldPlugin(SKILLS, storage=Folder(folder))
        self._replayer = Replayer(workflows=[], plugins=[plugin, watched])

    def _watching(self, runner: WorkflowRunner | None) -> WorkflowRunner:
        assert runner is not None
        return Watching(runner, lambda run_id: self._seen.setdefault(run_id, Seen()))

    async def replay(self, *histories: WorkflowHistory) -> dict[str, Seen | Exception]:
        """What was seen of each run, by its id; or what the SDK says of a history that the code does not fit."""

        async def each() -> AsyncIterator[WorkflowHistory]:
            for history in histories:
                yield history

        results = await self._replayer.replay_workflows(each(), raise_on_replay_failure=False)
        return {**self._seen, **results.replay_failures}


def write(name: str, history: WorkflowHistory) -> None:
    """Keep a history."""
    data = {"workflow_id": history.workflow_id, "history": json.loads(history.to_json())}
    packed = gzip.compress(compact(data).encode(), mtime=0)
    (HISTORIES / f"{name}.json.gz").write_bytes(packed)


def write_seen(name: str, seen: Seen) -> None:
    """Keep what was seen of a history."""
    text = "".join(f"{line}\n" for line in lines_of(seen))
    (HISTORIES / f"{name}.jsonl").write_text(text, encoding="utf-8", newline="\n")


async def rewrite(names: Sequence[str]) -> None:
    """Write anew what is seen of recorded histories when the code as it is replays them."""
    for path in sorted(HISTORIES.glob("*.json.gz")):
        if names and not any(re.fullmatch(name, name_of(path)) for name in names):
            continue
        history, _ = read(path)
        with tempfile.TemporaryDirectory() as folder:
            seen = (await Replaying(Path(folder)).replay(history))[history.run_id]
        if isinstance(seen, Exception):
            raise seen
        write_seen(name_of(path), seen)


def name_of(path: Path) -> str:
    """What a recorded history is called."""
    return path.name.removesuffix(".json.gz")


def read(path: Path) -> tuple[WorkflowHistory, list[str]]:
    """A recorded history, and what was seen of it."""
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    lines = (path.parent / f"{name_of(path)}.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return WorkflowHistory.from_json(recorded["workflow_id"], recorded["history"]), lines


def values_in(path: Path) -> set[str]:
    """The keys of the values that a replay of this history reads: not those of journals, which it only writes."""
    text = gzip.decompress(path.read_bytes()).decode()
    payloads = b"\n".join(base64.b64decode(found) for found in re.findall(r'"data":"([A-Za-z0-9+/=]+)"', text))
    return {key.decode() for key in re.findall(rb'"claimData":{"sha256":"([0-9a-f]{64})"', payloads)}
