"""Digests of journals, and what today's code says otherwise than was recorded."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from refold import Artifact, Content
from refold.core.authoring.define import skill_of
from refold.core.commands import AskApproval, AskUser, CallLlm, CallTool
from refold.core.events import UserMessage
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry, Issued
from refold.digests import DIGEST_BYTES, START, chained, digest_after, said_of
from refold.divergence import as_recorded, difference_of, first_difference
from refold.temporal.data.marks import packed, unpacked
from refold.testing import play
from refold.testing.strategies import Happening, first_of, histories
from workflows.refund import RefundSkill
from workflows.research_loop_steps import ResearchLoopSteps

SOME = settings(max_examples=40)
Change = Callable[[Entry], Entry | None]


def journal_of(skill: object, history: Sequence[Happening]) -> list[Entry]:
    """The entries that a skill makes of a history."""
    compiled = skill_of(skill)
    now, entries = first_of(compiled), list[Entry]()
    for one in history:
        now, entry = advance(compiled, now, one.event, one.at)
        entries.append(entry)
    return entries


def _command(entry: Entry, kinds: type | tuple[type, ...], **changes: object) -> Entry | None:
    """The entry with its first command of these kinds changed."""
    for place, one in enumerate(entry.commands):
        if isinstance(one.command, kinds):
            other = one.changed({"command": one.command.changed(changes)})
            return entry.changed({"commands": (*entry.commands[:place], other, *entry.commands[place + 1 :])})
    return None


TEXT = Content.from_text("other words")
CHANGES: dict[str, Change] = {
    "a message more": lambda entry: entry.changed({"messages": (*entry.messages, TEXT)}),
    "a message less": lambda entry: entry.changed({"messages": entry.messages[1:]}) if entry.messages else None,
    "an artifact": lambda entry: entry.changed({"artifacts": (*entry.artifacts, Artifact.from_text("a", "b"))}),
    "progress": lambda entry: entry.changed({"progress": f"{entry.progress or ''}!"}),
    "a note": lambda entry: entry.changed({"note": f"{entry.note}!"}),
    "a reason": lambda entry: entry.changed({"reason": f"{entry.reason}!"}),
    "a refusal": lambda entry: entry.changed({"refused": f"{entry.refused}!"}),
    "a question": lambda entry: _command(entry, (AskUser, AskApproval), message=TEXT),
    "what is shown": lambda entry: _command(entry, AskApproval, show={"other": 1}),
    "who may decide": lambda entry: _command(entry, AskApproval, editable=("other",)),
    "a prompt": lambda entry: _command(entry, CallLlm, prompt="other words"),
    "arguments": lambda entry: _command(entry, CallTool, args={"other": 1}),
    "no command": lambda entry: entry.changed({"commands": ()}) if entry.commands else None,
}


@pytest.mark.parametrize("skill", [RefundSkill, ResearchLoopSteps], ids=["refund", "research"])
@SOME
@given(data=st.data())
def test_any_change_is_found_at_its_entry(skill: object, data: st.DataObject) -> None:
    """
    Whatever a skill says otherwise, in whichever entry: digests differ from there on and not before, the difference
    names that entry and a field, and the entry can be shown as it was recorded.
    """
    recorded = journal_of(skill, data.draw(histories(skill)))
    place = data.draw(st.integers(0, len(recorded) - 1))
    possible = [other for change in CHANGES.values() if (other := change(recorded[place])) is not None]
    now = [*recorded]
    now[place] = data.draw(st.sampled_from(possible))
    sent = {one.invocation_id: one.command for one in recorded[place].commands if isinstance(one.command, CallTool)}
    said = {entry.seq: one for entry in recorded if (one := said_of(entry, sent)) is not None}
    inputs = {id: command.model_dump(mode="json") for id, command in sent.items()}

    digests = [(digest_after(recorded[:upto]), digest_after(now[:upto])) for upto in range(len(now) + 1)]
    found = first_difference("T", now, said, inputs)

    assert [was == says for was, says in digests] == [upto <= place for upto in range(len(now) + 1)]
    assert (found.seq, found.upto) == (recorded[place].seq, recorded[place].seq)
    assert found.field
    assert f"entry {found.seq}: {found.field} was recorded as" in str(found)
    shown = as_recorded("T", now[place], said.get(found.seq), inputs)
    assert shown == recorded[place]


@pytest.mark.parametrize(("was", "now"), [(1, True), (0, False), (1, 1.0), (None, "")])
def test_values_of_other_types_differ(was: JsonValue, now: JsonValue) -> None:
    """
    As their digests do: what Python takes for equal is another text in the journal.
    """
    recorded, says = (calling(args={"n": one}) for one in (was, now))
    found = difference_of("T", recorded, says)

    assert digest_after([recorded]) != digest_after([says])
    assert found is not None
    assert (found.field, found.recorded, found.now) == ("commands.a.args.n", was, now)


def calling(args: dict[str, JsonValue]) -> Entry:
    """An entry that calls a tool."""
    call = Issued(invocation_id="T/1.1", command=CallTool(id="a", name="a", args=args))
    message = UserMessage(content=Content.from_text("go"))
    return Entry(seq=1, at=datetime(2026, 1, 1, tzinfo=UTC), event=message, commands=(call,))


BUG = """
from refold import Ctx, Transition, flow_skill, step

@flow_skill(id="buggy")
class Buggy:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        return ctx.complete(str(1 / 0))
"""


def test_moved_lines_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A bug's entry names the function and not the line, which another line above it moves; the log has the line.
    """
    monkeypatch.syspath_prepend(tmp_path)
    journals = []
    for source in (BUG, f"# a comment more\n{BUG}"):
        (tmp_path / "buggy.py").write_text(source)
        importlib.invalidate_caches()
        sys.modules.pop("buggy", None)
        journals.append(play(importlib.import_module("buggy").Buggy, "go").entries)
    sys.modules.pop("buggy")

    assert [entries[-1].note for entries in journals] == [
        "bug: ZeroDivisionError: division by zero; at buggy in begin"
    ] * 2
    assert digest_after(journals[0]) == digest_after(journals[1])
    assert [record.getMessage().rpartition(":")[2] for record in caplog.records] == ["8", "9"]


@SOME
@given(data=st.data())
def test_what_was_said_is_read_back(data: st.DataObject) -> None:
    """
    The short form in which history keeps what entries said reads back as it was, for any task id.
    """
    entries = journal_of(RefundSkill, data.draw(histories(RefundSkill)))
    said = [one for entry in entries if (one := said_of(entry)) is not None]
    seq, task_id = entries[-1].seq, data.draw(st.sampled_from(["T", "other", "other/1.1"]))

    assert list(unpacked(packed(said, seq, task_id), seq, task_id)) == said


@SOME
@given(history=histories(ResearchLoopSteps))
def test_a_digest_is_of_all_entries_in_order(history: list[Happening]) -> None:
    """
    A digest continues the one before, has one length, and is the same for entries that were read back from JSON.
    """
    entries = journal_of(ResearchLoopSteps, history)
    read = [Entry.model_validate_json(entry.model_dump_json()) for entry in entries]

    assert len(digest_after(entries)) == DIGEST_BYTES
    assert digest_after(entries) == chained(digest_after(entries[:-1]), entries[-1]) == digest_after(read)
    assert digest_after(entries, chained(START, entries[0])) != digest_after(entries)
