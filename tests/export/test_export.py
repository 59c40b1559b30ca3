"""An export: what it holds, that every changed byte of it is found, and what can be read from it without a server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold import (
    Artifact,
    Content,
    Ctx,
    GatePolicy,
    InputRejected,
    Status,
    TaskState,
    Transition,
    UserMessage,
    flow_skill,
    step,
)
from refold.callbacks.address import token_of
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live
from refold.core.events import ReminderDue
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.digests import DIGEST_BYTES, START, chained
from refold.engine import TaskExists, TaskNotFound, TaskView, UnknownSkill
from refold.engine.view import view_of
from refold.evals import evaluated
from refold.export import DamagedExport, ExportEngine, ExportError, read_export, verify, written
from refold.export.differs import CodeDiffers, refolded
from refold.export.layout import KINDS, Line, sealed
from refold.export.write import Source, Wanted
from refold.lineage.fork import fork
from refold.static import parts_of
from refold.temporal import workflow_for
from refold.testing import FakeEngine, histories
from refold.testing.callbacks import SETTINGS
from refold.testing.strategies import Happening, first_of
from tests.export.skills import FIRED, Buys, Order, Sends, bought, engine
from tests.sweeps import examples
from tests.temporal import callback_skills
from tests.temporal.callback_skills import Checkout, LateCheckout
from workflows.research_loop import ResearchLoop


async def lines_of(at: Source, task_id: str = "t1", **wanted: Any) -> list[bytes]:
    return [line async for line in written(at, task_id, Wanted(**wanted))]


def exported(**wanted: Any) -> list[bytes]:
    async def run() -> list[bytes]:
        at = engine()
        await bought(at)
        return await lines_of(at, **wanted)

    return asyncio.run(run())


async def _receipts(task_id: str) -> list[dict[str, Any]]:
    return [{"key": f"{task_id}-key", "tool": "pay", "result": '"paid 5"', "why": "", "holder": "host:1"}]


async def _histories(task_id: str) -> AsyncGenerator[dict[str, Any]]:
    yield {"run_id": f"{task_id}-run", "history": {"events": [{"eventId": "1"}]}}


async def _sent() -> list[bytes]:
    """An export with all that it can hold: a part, receipts, histories."""
    at = engine()
    await at.start("sends", Content.from_text("Ada"), task_id="s1")
    await at.decide("s1", approved=True, approver="grace")
    return await lines_of(at, "s1", parts=True, receipts=_receipts, histories=_histories)


FILE = exported()
WHOLE = b"".join(FILE)
FILES = {"plain": WHOLE, "redacted": b"".join(exported(redact=True)), "full": b"".join(asyncio.run(_sent()))}


def split(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True)


async def test_an_export_verifies() -> None:
    """
    Its last entry has the digest of the journal, and the header says how the task ended.
    """
    at = engine()
    await bought(at)
    digest = START
    async for entry in at.journal("t1"):
        digest = chained(digest, entry)

    found = verify(await lines_of(at))

    assert found.whole
    assert [(one.task_id, one.status, one.digest) for one in found.tasks] == [("t1", "completed", digest.hex())]
    assert json.loads(FILE[0])["header"]["status"] == "completed"


@settings(max_examples=examples(1_000))
@given(st.sampled_from(sorted(FILES)), st.integers(0, max(map(len, FILES.values())) - 1), st.integers(1, 255))
def test_every_changed_byte_is_found(name: str, place: int, change: int) -> None:
    """
    Whichever byte of the file is changed, and to whatever, the file does not verify; the line that is named is the
    changed one, or the next where it is the line's end.
    """
    whole = FILES[name]
    data, place = bytearray(whole), place % len(whole)
    data[place] ^= change
    line = whole.count(b"\n", 0, place) + 1

    with pytest.raises(DamagedExport) as caught:
        verify(split(bytes(data)))

    assert caught.value.line == line


@given(st.integers(0, len(WHOLE) - 1))
def test_a_file_that_is_cut_off_does_not_verify(end: int) -> None:
    """
    Wherever it ends too early.
    """
    with pytest.raises(DamagedExport):
        verify(split(WHOLE[:end]))


@given(st.integers(0, len(FILE) - 1), st.integers(0, len(FILE) - 1))
def test_lines_stay_in_their_order(one: int, other: int) -> None:
    """
    A line that is left out, repeated or moved is found.
    """
    left_out = FILE[:one] + FILE[one + 1 :]
    repeated = [*FILE[:one], FILE[one], *FILE[one:]]
    moved = list(FILE)
    moved[one], moved[other] = moved[other], moved[one]
    for lines in (left_out, repeated, *([moved] if one != other else [])):
        with pytest.raises(DamagedExport):
            verify(lines)


def digested(bodies: list[tuple[str, bytes]]) -> list[bytes]:
    """The lines of a file, every digest made anew."""
    seal = before = b""
    lines = []
    for number, (kind, body) in enumerate(bodies, 1):
        seal = sealed(seal, kind, body)
        if kind == "header":
            before = b""
        if kind == "entry":
            before = hashlib.sha256(before + body).digest()[:DIGEST_BYTES]
        lines.append(Line(number, kind, body, before if kind == "entry" else seal).written())
    return lines


def forged(line: int, old: str, new: str) -> list[bytes]:
    """The file with a changed line, and every digest made anew."""
    read = [Line.read(number, raw) for number, raw in enumerate(FILE, 1)]
    changed = [one.body.replace(old.encode(), new.encode()) if one.number == line else one.body for one in read]
    return digested([(one.kind, body) for one, body in zip(read, changed, strict=True)])


BODIES = [[(one.kind, one.body) for one in map(Line.read, range(1, 999), split(data))] for data in FILES.values()]


@st.composite
def forgeries(draw: st.DrawFn) -> list[bytes]:
    """Lines of a file in another order, too few or too many, with another body or none, and every digest made anew."""
    bodies = list(draw(st.sampled_from(BODIES)))
    for _ in range(draw(st.integers(1, 3))):
        place, other = (draw(st.integers(0, len(bodies) - 1)) for _ in range(2))
        match draw(st.sampled_from(["drop", "move", "repeat", "rename", "empty", "part"])):
            case "drop" if len(bodies) > 1:
                del bodies[place]
            case "move":
                bodies.insert(other, bodies.pop(place))
            case "repeat":
                bodies.insert(other, bodies[place])
            case "rename":
                bodies[place] = (draw(st.sampled_from(KINDS)), bodies[place][1])
            case "empty":
                nothing = draw(st.sampled_from([b"{}", b"[]", b"null", b"1", b"", b"\xff"]))
                bodies[place] = (bodies[place][0], nothing)
            case _:
                kind, body = bodies[place]
                fields = json.loads(body) if body.startswith(b'{"') else {}
                if fields:
                    fields.pop(draw(st.sampled_from(sorted(fields))))
                    bodies[place] = (kind, json.dumps(fields).encode())
    return digested(bodies)


def test_a_task_is_described_once() -> None:
    """
    A second description in place of a receipt, so that the number of lines fits.
    """
    full = BODIES[-1]
    receipt, task = ([kind for kind, _ in full].index(kind) for kind in ("receipt", "task"))
    assert task < receipt
    with pytest.raises(DamagedExport, match="a second `task`"):
        verify(digested([*full[:task], full[task], *full[task:receipt], *full[receipt + 1 :]]))


@settings(max_examples=examples(500))
@given(forgeries())
def test_a_forged_file_is_read_or_refused(lines: list[bytes]) -> None:
    """
    Whatever its lines say, and in whatever order: never with another error.
    """
    try:
        tasks = read_export(lines)
    except DamagedExport:
        return
    assert all(one.bases and one.view.task_id == one.task_id for one in tasks)


@pytest.mark.parametrize(
    ("line", "old", "new", "why"),
    [
        pytest.param(1, '"completed"', '"canceled"', "status of the header", id="how it ended"),
        pytest.param(1, '"t1"', '"t2"', "task_id of the header", id="which task"),
        pytest.param(1, '"export/1"', '"export/9"', "newer refold", id="another format"),
        pytest.param(2, "grace allowed it.", "olga allowed it.", "leaves out a message", id="what it said"),
        pytest.param(3, '"task_id":"t1"', '"task_id":"t9"', "task of the header", id="the base's task"),
    ],
)
def test_what_the_header_claims_is_compared(line: int, old: str, new: str, why: str) -> None:
    """
    Digests that were made anew do not help a header that says something else than the entries.
    """
    assert old.encode() in FILE[line - 1]

    with pytest.raises(DamagedExport, match=why):
        verify(forged(line, old, new))


def test_everything_that_an_export_can_hold_is_read() -> None:
    """
    Receipts and histories stand with the task that they are of.
    """
    tasks = read_export(split(FILES["full"]))

    assert [(one.task_id, one.receipts[0]["key"], list(one.histories)) for one in tasks] == [
        ("s1", "s1-key", ["s1-run"]),
        ("s1/1.1", "s1/1.1-key", ["s1/1.1-run"]),
    ]


async def test_histories_are_not_redacted() -> None:
    """
    They hold values as they were sent, so the two options exclude each other.
    """
    with pytest.raises(ExportError, match="leave --history or --redact"):
        await lines_of(engine(), redact=True, histories=_histories)


async def test_a_redacted_export_holds_no_words_and_says_so() -> None:
    """
    No text, value, or name of a person stays; ids, statuses and the digests of the entries do. It is not whole.
    """
    at = engine()
    await bought(at)
    plain, redacted_ = await lines_of(at), await lines_of(at, redact=True)
    data = b"".join(redacted_).decode()

    found = verify(redacted_)

    assert not found.whole
    assert found.tasks == verify(plain).tasks
    for word in ("Ada", "Söhne", "S\\u00f6hne", "grace", "olga", "cheap", "Thank", "paid"):
        assert word not in data
    for name in ('"t1/1.1"', '"pay"', '"price"', '"approved"', '"completed"'):
        assert name in data
    [task] = read_export(redacted_)
    assert [entry.seq for entry in task.entries] == [one["entry"]["seq"] for one in map(json.loads, plain[3:-1])]


@flow_skill(id="writes")
class Writes:
    """Hands over a letter, which it writes twice, and a bill."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Write both."""
        for name in ("letter", "bill", "letter"):
            ctx.hand_over(Artifact.from_text(f"{name} for {content.text}.txt", "Yours."))
        return ctx.complete("Written.")


async def test_a_redacted_export_has_no_names_of_artifacts() -> None:
    """
    A model may have chosen them. As many artifacts can be read as there are.
    """
    at = FakeEngine([Writes])
    await at.start("writes", Content.from_text("Ada"), task_id="w1")
    lines = await lines_of(at, "w1", redact=True)

    assert b"Ada" not in b"".join(lines)
    assert b"letter" not in b"".join(lines)
    view = await ExportEngine(read_export(lines), {}).look("w1")
    assert len({artifact.name for artifact in view.artifacts}) == 2


@flow_skill(id="pays_large")
class PaysLarge:
    """Asks two people."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask them."""
        policy = GatePolicy(needed=2, approvers=("ada", "bob"))
        await ctx.approve("pay", content, policy=policy)
        return ctx.complete("Paid.")


@pytest.mark.parametrize("skill", ["checkout", "late_checkout"])
async def test_a_redacted_export_has_no_address_of_a_callback(skill: str) -> None:
    """
    Neither what a task was given nor what came to it, also before it asked; the file can be read.
    """
    at = FakeEngine([Checkout, LateCheckout], tools=callback_skills.TOOLS)
    await at.start(skill, Content.from_text("go"), task_id="t1")
    token = token_of(callback_skills.handed["t1"])
    called = SETTINGS.read(token)
    paid = Content.from_data({"amount_cents": 5})
    await at.send("t1", paid, slot=called.slot, delivery_id=called.delivery_id, sender="callback", early=True)

    lines = await lines_of(at, redact=True)

    assert token.encode() in b"".join(await lines_of(at))
    assert token.encode() not in b"".join(lines)
    assert read_export(lines)[0].entries[-1].seq == (await at.look("t1")).seq


@flow_skill(id="mends")
class Mends:
    """Asks a question, and has a bug until somebody mends it."""

    mended = False

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Ask."""
        answer = await ctx.ask("who", "Who?")
        if not self.mended:
            raise RuntimeError("a bug")
        return ctx.complete(answer.text)


async def test_a_redacted_export_of_a_recovered_task_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Its first entry has the message that is delivered once more: its words are gone, and that it is a message is not.
    """
    at = FakeEngine([Mends])
    await at.start("mends", Content.from_text("Go."), task_id="t1")
    await at.send("t1", Content.from_text("Ada"))
    monkeypatch.setattr(Mends, "mended", True)
    recovered = await at.recover("t1")

    lines = await lines_of(at, recovered.task_id, redact=True)

    assert b"Ada" not in b"".join(lines)
    [task] = read_export(lines)
    found = await ExportEngine([task]).record(task.task_id)
    assert (found.status, found.messages[-2].content.text) == ("completed", "[text of 3 characters]")


async def test_a_gate_that_two_people_must_grant_can_be_redacted_and_read() -> None:
    """
    Names of the same length stay two people: a gate that fewer may decide than must grant cannot be read.
    """
    at = FakeEngine([PaysLarge])
    await at.start("pays_large", Content.from_text("Pay 900?"), task_id="p1")

    lines = await lines_of(at, "p1", redact=True)

    [task] = read_export(lines)
    assert b"ada" not in b"".join(lines)
    assert len({*task.view.waiting_for[0].approvers}) == 2


class Terminated:
    """An engine whose tasks Temporal ended from outside: the server knows why, and no entry of them."""

    def __init__(self, at: FakeEngine) -> None:
        self.past = at.past

    async def look(self, task_id: str) -> TaskView:
        """As the server sees it."""
        why = "Temporal ended it from outside: Workflow terminated: Ada has it already"
        return TaskView(
            task_id=task_id,
            skill="buys",
            status=Status.CANCELED,
            lifecycle=TaskState.FAILED,
            reason=why,
            note=why,
        )


@pytest.mark.parametrize("how", ["started", "forked"])
async def test_a_task_that_temporal_ended_is_exported_with_its_journal(how: str) -> None:
    """
    Its view knows of no entry; what was recorded is in the file all the same, and the file verifies.
    """
    at = engine()
    await bought(at)
    task_id = "t1" if how == "started" else (await at.fork("t1", at=2)).task_id
    entries = [entry async for entry in at.journal(task_id)]

    lines = await lines_of(Terminated(at), task_id)

    assert verify(lines).tasks[0].last == entries[-1].seq
    [task] = read_export(lines)
    assert (task.entries, task.view.status, task.view.seq) == (entries, Status.CANCELED, entries[-1].seq)


async def test_a_redacted_header_leaves_out_what_somebody_said_who_terminated_the_task() -> None:
    """
    The note repeats their words; that there is one stays.
    """
    at = engine()
    await bought(at)

    lines = await lines_of(Terminated(at), redact=True)

    assert b"Ada" not in b"".join(lines)
    assert read_export(lines)[0].header.note.startswith("[text of ")


@dataclass
class Kept:
    """An engine that has one task: its first snapshot, its entries, and how it stands."""

    snapshots: list[Snapshot]
    entries: list[Entry]

    async def look(self, task_id: str) -> TaskView:
        """How it stands."""
        return view_of(self.snapshots[-1])

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """One run."""
        yield self.snapshots[0]
        for entry in self.entries:
            yield entry


@pytest.mark.parametrize("redact", [False, True])
@pytest.mark.parametrize("forked", [False, True])
async def test_a_task_without_an_entry_of_its_own_is_exported_with_its_base(forked: bool, redact: bool) -> None:
    """
    The base of a fork has the number of the other task's last entry: the file has it all the same.
    """
    at = engine()
    await bought(at)
    [base] = [one async for one in at.past("t1") if isinstance(one, Snapshot)]
    if forked:
        entries = [entry async for entry in at.journal("t1")]
        base, _ = fork(skill_of(Buys), base, entries, "new", entries[1].at, seq=2)

    [task] = read_export(await lines_of(Kept([base], []), base.task_id, redact=redact))

    assert (task.base.seq, task.header.last, task.entries) == (base.seq, base.seq, [])


def happened(skill: Any, history: list[Happening]) -> Kept:
    live, kept = Live(), Kept([first_of(skill_of(skill))], [])
    for one in history:
        snapshot, entry = advance(skill_of(skill), kept.snapshots[-1], one.event, one.at, live=live)
        kept.snapshots.append(snapshot)
        kept.entries.append(entry)
    return kept


@pytest.mark.parametrize("skill", [Buys, ResearchLoop])
@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_journal_can_be_exported_and_redacted(skill: Any, data: st.DataObject) -> None:
    """
    Whatever events a task takes, its export verifies, its states are folded from it, and it can be redacted and read.
    """
    kept = happened(skill, data.draw(histories(skill)))
    whole = asyncio.run(lines_of(kept, "T"))
    hidden = asyncio.run(lines_of(kept, "T", redact=True))

    assert verify(whole).tasks == verify(hidden).tasks
    [task] = read_export(whole)
    assert task.entries == kept.entries
    assert list(refolded(skill_of(skill), task.base, task.entries)) == kept.snapshots
    assert [entry.seq for entry in read_export(hidden)[0].entries] == [entry.seq for entry in kept.entries]


async def test_parts_are_exported_with_their_task() -> None:
    """
    Each part begins with a header of its own that names its task; without --parts they stay out.
    """
    at = engine()
    await at.start("sends", Content.from_text("Ada"), task_id="s1")
    await at.decide("s1", approved=True, approver="grace")

    alone, both = verify(await lines_of(at, "s1")), verify(await lines_of(at, "s1", parts=True))
    tasks = read_export(await lines_of(at, "s1", parts=True))

    assert [one.task_id for one in alone.tasks] == ["s1"]
    assert [one.task_id for one in both.tasks] == ["s1", "s1/1.1"]
    assert tasks[1].header.part_of == "s1"


class Without:
    """An engine that does not keep a task any more."""

    def __init__(self, engine: FakeEngine, gone: str) -> None:
        self.engine, self.gone = engine, gone

    async def look(self, task_id: str) -> TaskView:
        if task_id == self.gone:
            raise TaskNotFound(task_id)
        return await self.engine.look(task_id)

    def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        return self.engine.past(task_id)


async def test_a_part_that_is_not_kept_is_told_from_one_that_never_began() -> None:
    """
    Whoever exports learns of the first; the second is nowhere missed.
    """
    at, gone = engine(), list[str]()
    await at.start("sends", Content.from_text("Ada"), task_id="s1")
    await at.fork("s1", at=1)
    await at.decide("s1", approved=True, approver="grace")

    kept = verify(await lines_of(Without(at, "s1/1.1"), "s1", parts=True, gone=gone.append))
    dry = verify(await lines_of(at, "s1.f1", parts=True, gone=gone.append))

    assert ([one.task_id for one in kept.tasks], [one.task_id for one in dry.tasks]) == (["s1"], ["s1.f1"])
    assert gone == ["s1/1.1"]


class Deleted(Without):
    """An engine whose one task is deleted while it is read."""

    async def look(self, task_id: str) -> TaskView:
        """How it stands."""
        return await self.engine.look(task_id)

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """Its beginning."""
        async with aclosing(self.engine.past(task_id)) as past:
            async for one in past:
                yield one
                if task_id == self.gone and isinstance(one, Entry):
                    raise TaskNotFound(task_id)


async def test_an_export_fails_if_a_part_is_deleted_while_it_is_written() -> None:
    """
    A file with half of a part is damaged, and so is no export.
    """
    at = engine()
    await at.start("sends", Content.from_text("Bob"), task_id="s1")

    with pytest.raises(TaskNotFound, match=r"s1/1\.1"):
        await lines_of(Deleted(at, "s1/1.1"), "s1", parts=True)


@pytest.mark.parametrize("how", ["recovered", "forked"])
async def test_parts_that_a_new_task_took_over_are_exported_with_it(how: str) -> None:
    """
    No entry of a recovered or forked task asks for a part that was open in the other task; it is one of its parts.
    """
    at = engine()
    await at.start("sends", Content.from_text("Ada"), task_id="s1")
    if how == "recovered":
        await at.cancel("s1")
    new = await at.recover("s1") if how == "recovered" else await at.fork("s1", at=1, live=True)
    await at.decide(new.task_id, approved=True, approver="grace")

    found = verify(await lines_of(at, new.task_id, parts=True))

    assert [one.task_id for one in found.tasks] == [new.task_id, f"{new.task_id}/1.1"]


async def test_an_open_task_is_exported_as_it_stands() -> None:
    """
    What it waits for can be read from the file, and more of it later in another file with the same first entries.
    """
    at = engine()
    await at.start("buys", Content.from_data({"shop": "Ada", "cents": 5}), task_id="t1")
    before = await lines_of(at)
    await at.decide("t1", approved=True, approver="grace")
    after = await lines_of(at)

    view = await ExportEngine(read_export(before)).look("t1")

    assert (view.status, view.waiting_for[0].message) == ("input-required", "Pay 5 cents to Ada?")
    assert view.note == "as it was exported"
    assert before[3:-1] == after[3 : len(before) - 1]


async def test_an_exported_task_is_read_as_on_its_server() -> None:
    """
    Record, journal and past are the same; another task is not in the file.
    """
    at = engine()
    await bought(at)
    there = ExportEngine(read_export(FILE))

    assert await there.record("t1") == await at.record("t1")
    assert [one async for one in there.journal("t1", after=2)] == [one async for one in at.journal("t1", after=2)]
    assert [one async for one in there.past("t1")] == [one async for one in at.past("t1")]
    with pytest.raises(TaskNotFound):
        await there.look("t2")


async def test_each_state_is_folded_again() -> None:
    """
    `at` gives the snapshots that the engine had, by the skill's code, and fires nothing.
    """
    at = engine()
    await bought(at)
    fired = list(FIRED)
    there = ExportEngine(read_export(await lines_of(at)), {"buys": skill_of(Buys)})

    for seq in range(1, 6):
        assert await there.at("t1", seq) == await at.at("t1", seq)
    assert fired == FIRED
    with pytest.raises(InputRejected, match="entries 1 to"):
        await there.at("t1", 99)


async def test_a_fork_of_an_export_runs_dry() -> None:
    """
    It goes on from the entry, its commands fail as `DryRun`, and nothing is paid.
    """
    there = ExportEngine(read_export(FILE), {"buys": skill_of(Buys)})
    fired = list(FIRED)

    view = await there.fork("t1", at=3)

    assert (view.task_id, view.status, view.forked_from and view.forked_from.seq) == ("t1.f1", "failed", 3)
    assert "dry" in view.reason.lower()
    first, *_ = [entry.seq async for entry in there.journal("t1.f1")]
    assert first == 4
    assert fired == FIRED
    with pytest.raises(InputRejected, match="dry"):
        await there.fork("t1", at=3, live=True)


async def test_a_task_is_forked_and_evaluated_under_a_former_id_of_its_skill() -> None:
    """
    As a worker serves it: a module's workflow for the former id names the skill that took its place.
    """
    module = ModuleType("shop")
    new = flow_skill(id="purchases", input=Order)(type("Purchases", (), {"buy": Buys.buy}))
    vars(module).update(skill=new, old=workflow_for(new, alias="buys", name="OldWorkflow"))
    found = parts_of([module])
    there = ExportEngine(read_export(FILE), found.by_any_id)

    assert list(found.skills) == ["purchases"]
    assert (await there.fork("t1", at=3)).skill == "buys"
    assert not (await evaluated(read_export(FILE)[0], found.by_any_id)).diverged


async def test_forks_of_an_export_stand_beside_one_another() -> None:
    """
    Each is read and forked as the task itself, for as long as the engine exists, and takes no other one's id.
    """
    there = ExportEngine(read_export(FILE), {"buys": skill_of(Buys)})
    views = [await there.fork("t1", at=3), await there.fork("t1", at=1), await there.fork("t1", at=2, new_id="mine")]

    assert [one.task_id for one in views] == ["t1.f1", "t1.f2", "mine"]
    for view in views:
        assert await there.look(view.task_id) == view
        assert (await there.record(view.task_id)).status == view.status
        assert (await there.at(view.task_id, view.seq)).task_id == view.task_id
    again = await there.fork("t1.f2", at=2, by="eve")
    assert (again.task_id, again.forked_from and again.forked_from.task_id) == ("t1.f2.f1", "t1.f2")
    for taken in ("t1", "mine"):
        with pytest.raises(TaskExists):
            await there.fork("t1", at=1, new_id=taken)
    assert (await there.look("t1")).status is Status.COMPLETED


@flow_skill(id="buys", input=Order)
class BuysDearly:
    """The code after somebody changed the question."""

    @step(start=True)
    async def buy(self, ctx: Ctx, order: Order) -> Transition:
        cents = await ctx.tool("price", shop=order.shop)
        await ctx.approve("pay", f"Pay {cents}00 cents to a stranger?")
        return ctx.complete("Paid.")


async def test_code_that_makes_another_journal_is_named() -> None:
    """
    What was recorded stays readable; a state that the code at hand cannot tell is refused with entry and field.
    """
    there = ExportEngine(read_export(FILE), {"buys": skill_of(BuysDearly)})

    assert [one async for one in there.journal("t1")]
    assert (await there.at("t1", 1)).seq == 1
    with pytest.raises(CodeDiffers, match=r"entry 2: messages\[0\].*Pay 5 cents.*Pay 500") as caught:
        await there.at("t1", 4)
    assert caught.value.difference.seq == 2


async def test_what_an_export_lacks_is_said(tmp_path: Path) -> None:
    """
    A skill that is not here, texts that are redacted, a file that is not there, or is another.
    """
    with pytest.raises(UnknownSkill):
        await ExportEngine(read_export(FILE), {"sends": skill_of(Sends)}).at("t1", 1)
    at = engine()
    await bought(at)
    hidden = ExportEngine(read_export(await lines_of(at, redact=True)), {"buys": skill_of(Buys)})
    assert (await hidden.look("t1")).note == "as it was exported, redacted"
    with pytest.raises(ExportError, match="without --redact"):
        await hidden.at("t1", 1)
    with pytest.raises(ExportError, match=r"No such file or directory; `refold export TASK -o '.*/no such.jsonl'`"):
        read_export(tmp_path / "no such.jsonl")
    with pytest.raises(ExportError, match=r"Is a directory$"):
        read_export(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        pytest.param(b"", "line 1: the file is empty", id="empty"),
        pytest.param(
            b'{"some":"json"}\n', "line 1: no line of an export.*; `refold export` writes one; got", id="another"
        ),
        pytest.param(
            b"\x1f\x8b\x08\x00", "line 1: no line of an export.*; `refold export` writes one; got", id="packed"
        ),
        pytest.param(WHOLE[:-20], "the file ends in the middle of it: its rest is missing", id="cut-in-a-line"),
        pytest.param(b"".join(FILE[:-1]), "the file ends here, without the line `end`", id="cut-between-lines"),
        pytest.param(
            WHOLE.replace(b"\n", b"\r\n"), "line 1: it ends with a carriage return: .* as bytes", id="line-ends"
        ),
        pytest.param(WHOLE + WHOLE, "a line follows after the line `end`", id="two-in-one"),
    ],
)
def test_a_file_that_is_no_whole_export_says_why(data: bytes, why: str, tmp_path: Path) -> None:
    """
    The line, and what most likely happened to the file; read from a file, its name, too.
    """
    file = tmp_path / "t1.jsonl"
    file.write_bytes(data)

    with pytest.raises(DamagedExport, match=why):
        verify(split(data))
    with pytest.raises(DamagedExport, match=rf"the export '.*t1.jsonl' is damaged: .*{why}"):
        read_export(file)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="there is no file here that can be opened and not read")
def test_a_file_that_breaks_off_while_it_is_read_says_why() -> None:
    """
    Such as one on a disk that fails, or on a share that goes away.
    """
    with pytest.raises(ExportError, match="the export '/proc/self/mem' cannot be read: Input/output error"):
        read_export(Path("/proc/self/mem"))


@flow_skill(id="talks")
class Talks:
    """Asks for more, for ever."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Ask."""
        return ctx.await_input("more", "More?")

    @step(resume_from="begin")
    async def again(self, ctx: Ctx) -> Transition:
        """Ask again."""
        return ctx.goto("begin")


@pytest.mark.slow
def test_a_long_journal_streams() -> None:
    """
    20,000 entries are written and verified in time that grows with their number.
    """
    start = FakeEngine().clock.now
    messages = [UserMessage(content=Content.from_text(str(number))) for number in range(2_000)]
    kept = happened(Talks, [Happening(message, start) for message in messages])
    timer = [Happening(ReminderDue(gate="none"), start)] * 18_000  # refused, so that the task stays as it is
    for one in timer:
        snapshot, entry = advance(skill_of(Talks), kept.snapshots[-1], one.event, one.at)
        kept.snapshots[1:] = [snapshot]
        kept.entries.append(entry)

    found = verify(asyncio.run(lines_of(kept, "T")))

    assert (found.tasks[0].last, found.lines) == (20_000, 20_004)
