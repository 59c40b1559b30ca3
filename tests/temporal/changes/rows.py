"""The table of changes: what a deployment changes under open tasks, and what becomes of a task at each place.

Each row is run on a server (`test_changes`), and docs/upgrades.md shows it (`tests.docs.change_table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.temporal.changes import trip


class Place(StrEnum):
    """For what a task waits when the new code comes."""

    GATE = "gate"
    QUESTION = "question"
    SLEEP = "sleep"
    EFFECT = "effect"


class Fate(StrEnum):
    """What becomes of it."""

    ON = "goes on"
    STILL = "stands still"


ON, STILL = Fate
ALL = tuple(Place)
PEOPLE = (Place.GATE, Place.QUESTION)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change.

    Attributes:
        change: In words.
        edits: Text of the skill's module, and what takes its place.
        now: What becomes of a task whose history the new code replays.
        sealed: The same, once the task was sealed, or on a version of a worker deployment.
        after_effect: The same, where the seal waited for an effect, after which the step went on; None is as `sealed`.
        back: What becomes of a task that the new code has taken on, under the old code.
        rolled: The same as `now`, where old workers finish what they do; None is as `now`.
        says: What the words say that are on a task which stands still.
        unsealed: What `refold upgrade` says of a task that it cannot move.
        do: What to do.
        at: The places where it makes a difference.
        gone: The skill is not served any more.
    """

    change: str
    edits: Mapping[str, str] = field(default_factory=dict)
    now: Fate
    sealed: Fate = ON
    after_effect: Fate | None = None
    back: Fate = ON
    rolled: Fate | None = None
    says: str = ""
    unsealed: str = ""
    do: str
    at: tuple[Place, ...] = ALL
    gone: bool = False


BEHIND = "seal with the old code first, or keep the old path under `ctx.patched`"
STAYS = "keep the old code until the task has left the step, or keep the old path under `ctx.patched`"
FIRST = "seal only with code that can read it: raise `version=`, and write `upgrade`"
NOTHING = "nothing"

_SOURCE = Path(str(trip.__file__)).read_text()
_FIND = '        found = await ctx.tool(find, id="find", order=order, nights=5)\n'
_DRAFT = '        await ctx.llm("draft", "Describe the room.", content)\n'
_BOOK = '        await ctx.tool(book, id="book", order=order, cents=cents)\n'
_PRAISE = '        await ctx.llm("praise", "Praise the room.", order)\n'
_SAY = '        ctx.say("One moment.")\n'
_GOTO = 'ctx.goto("wait", order=order, cents=found["cents"])'
_TAKES = "async def wait(self, ctx: Ctx, order: str, cents: int)"
_END = "    @step\n    async def end"
_WAIT = _SOURCE[_SOURCE.index(f"    @step\n    {_TAKES}") : _SOURCE.index(_END)]
_SKILL = '@flow_skill(id="trip"'


def _of_wait(old: str, new: str) -> dict[str, str]:
    """Another parameter of step `wait`, in all places."""
    return {
        _GOTO: _GOTO.replace(f"{old}=", f"{new}="),
        _WAIT: _WAIT.replace(f"{old}:", f"{new}:").replace(f" {old}}}", f" {new}}}").replace(f"={old})", f"={new})"),
    }


def _upgrade(change: str) -> dict[str, str]:
    """The skill as version 2, whose `upgrade` changes what step `wait` was given."""
    function = f"def upgrade(version: int, state: Any) -> Any:\n    {change}\n    return state\n\n\n"
    return {
        "from refold import": "from typing import Any\n\nfrom refold import",
        _SKILL: f"{function}{_SKILL}, version=2, upgrade=upgrade",
    }


ROWS: dict[str, Row] = {
    # --- texts
    "text_said": Row(
        change="text of a message, an artifact or progress, said in an earlier step",
        edits={"There is a room.": "There is a bed."},
        now=STILL,
        says='messages[0].parts[0].text was recorded by build old as "There is a room."',
        do=BEHIND,
    ),
    "text_said_here": Row(
        change="the same, said in the step where the task waits",
        edits={"One moment.": "Two moments."},
        now=STILL,
        says='messages[1].parts[0].text was recorded by build old as "One moment."',
        do=BEHIND,
    ),
    "text_ahead": Row(
        change="text that is still ahead",
        edits={"It is booked.": "It is yours.", "How was it?": "Was it good?"},
        now=ON,
        back=STILL,
        do=NOTHING,
    ),
    "prompt": Row(
        change="prompt of a model call that was answered, in an earlier step",
        edits={"Describe the room.": "Praise the room."},
        now=STILL,
        says="commands.draft.prompt was recorded by build old",
        do=BEHIND,
    ),
    # --- what is open
    "open_question": Row(
        change="text, choices or time of the question that is open",
        edits={"When?": "When at last?"},
        now=STILL,
        sealed=STILL,
        says='messages[0].parts[0].text was recorded by build old as "When?"',
        unsealed="step 'wait' asked for ask",
        do=STAYS,
        at=(Place.QUESTION,),
    ),
    "open_gate": Row(
        change="message, shown data, approvers or times of the gate that is open",
        edits={'("ada",)': '("ada", "eve")'},
        now=STILL,
        sealed=STILL,
        says="commands.go.policy.approvers[1] was recorded by build old as nothing",
        unsealed="step 'wait' asked for approval:go",
        do=STAYS,
        at=(Place.GATE,),
    ),
    "open_sleep": Row(
        change="length of the sleep that is under way",
        edits={"86_400": "43_200"},
        now=STILL,
        sealed=STILL,
        says="sleep",
        unsealed="step 'wait' asked for sleep",
        do=STAYS,
        at=(Place.SLEEP,),
    ),
    "open_call": Row(
        change="argument of the call that is under way",
        edits={'ctx.tool(hold, id="hold", order=order)': 'ctx.tool(hold, id="hold", order=order.upper())'},
        now=STILL,
        sealed=STILL,
        says="commands.hold.args.order was recorded by build old",
        unsealed="step 'wait' asked for tool:trip.hold",
        do=STAYS,
        at=(Place.EFFECT,),
    ),
    # --- calls
    "argument": Row(
        change="argument of a call that has ended, in an earlier step",
        edits={"nights=5": "nights=7"},
        now=STILL,
        says="commands.find.args.nights was recorded by build old as 5",
        do=BEHIND,
    ),
    "argument_ahead": Row(
        change="argument of a call, or approvers of a gate, still ahead",
        edits={"order=order, cents=cents)": "order=order, cents=cents + 1)"},
        now=ON,
        after_effect=STILL,
        back=STILL,
        do="nothing; but do not seal a task while the call before it is under way",
    ),
    # --- order
    "swapped": Row(
        change="order of two calls that have ended, in an earlier step",
        edits={_FIND + _DRAFT: _DRAFT + _FIND},
        now=STILL,
        says="entry 1: commands.",
        do=BEHIND,
    ),
    "swapped_ahead": Row(
        change="order of two calls still ahead",
        edits={_BOOK + _PRAISE: _PRAISE + _BOOK},
        now=ON,
        after_effect=STILL,
        back=STILL,
        do="nothing; but do not seal a task while the call before it is under way",
    ),
    "ended_here": Row(
        change="prompt, argument or order of calls that have ended, in the step where the task waits",
        edits={"Look around.": "Look closely."},
        now=STILL,
        sealed=STILL,
        says='commands.look.prompt was recorded by build old as "Look around."',
        unsealed="step 'wait' asked for llm:look",
        do=STAYS,
    ),
    # --- new
    "new_at_end": Row(
        change="new step at the end",
        edits={
            '        return ctx.complete("Thank you.")': '        return ctx.goto("thank")\n\n    @step\n'
            '    async def thank(self, ctx: Ctx) -> Transition:\n        return ctx.complete("Thank you.")'
        },
        now=ON,
        do=NOTHING,
    ),
    "new_behind": Row(
        change="new call or step before the step where the task waits",
        edits={_DRAFT: _DRAFT + _PRAISE},
        now=STILL,
        says="entry 3: messages was recorded by build old",
        do=BEHIND,
    ),
    "new_before": Row(
        change="new call in the step where it waits, before the waiting point",
        edits={_SAY: _SAY + _PRAISE},
        now=STILL,
        sealed=STILL,
        says="entry 3: ",
        unsealed="step 'wait' asked for",
        do=STAYS,
    ),
    "new_after": Row(
        change="new call after the waiting point",
        edits={_BOOK: _BOOK + _PRAISE.replace('"praise"', '"blame"')},
        now=ON,
        back=STILL,
        do=NOTHING,
    ),
    "patched": Row(
        change="any change under `ctx.patched`, with the old path beside it, before the point where the task waits",
        edits={_SAY: _SAY + '        if ctx.patched("praise"):\n    ' + _PRAISE},
        now=ON,
        do="remove the old path when no task from before is open",
    ),
    "patched_ahead": Row(
        change="the same, after that point",
        edits={_BOOK: _BOOK + '        if ctx.patched("blame"):\n    ' + _PRAISE.replace('"praise"', '"blame"')},
        now=ON,
        back=STILL,
        do="remove the old path when no task from before is open",
    ),
    # --- removed
    "removed": Row(
        change="removed step behind the task, or removed call of an earlier step",
        edits={_DRAFT: ""},
        now=STILL,
        says="entry 2: commands.",
        do=BEHIND,
    ),
    "removed_here": Row(
        change="removed step, in which the task waits",
        edits={_WAIT: "", _GOTO: 'ctx.goto("end", order=order)'},
        now=STILL,
        sealed=STILL,
        says="entry 3: messages[1].parts[0].text was recorded by build old",
        unsealed="it is in step 'wait', which the code does not have; its steps are begin, end",
        do=STAYS,
    ),
    "removed_ahead": Row(
        change="removed call or step, ahead of the task",
        edits={_PRAISE: ""},
        now=ON,
        back=STILL,
        do=NOTHING,
    ),
    # --- names
    "renamed": Row(
        change="renamed step, behind the task",
        edits={"async def begin": "async def first"},
        now=ON,
        do=NOTHING,
    ),
    "renamed_here": Row(
        change="renamed step, in which the task waits",
        edits={'ctx.goto("wait"': 'ctx.goto("linger"', "async def wait": "async def linger"},
        now=ON,
        sealed=STILL,
        unsealed="it is in step 'wait', which the code does not have; its steps are begin, linger, end",
        do=FIRST,
    ),
    "renamed_ahead": Row(
        change="renamed step, ahead of the task",
        edits={'ctx.goto("end"': 'ctx.goto("last"', "async def end": "async def last"},
        now=ON,
        do=NOTHING,
    ),
    # --- state
    "field": Row(
        change="renamed parameter of the step where the task waits, without `upgrade`",
        edits=_of_wait("cents", "price"),
        now=ON,
        sealed=STILL,
        unsealed="step 'wait' has no parameter 'cents', which the task has saved; it takes order, price",
        do=FIRST,
    ),
    "field_upgraded": Row(
        change="the same, with `version=2` and an `upgrade` that renames it",
        edits={**_of_wait("cents", "price"), **_upgrade('state["args"]["price"] = state["args"].pop("cents")')},
        now=ON,
        do="seal; then there is no way back to code of the older version",
    ),
    "field_type": Row(
        change="other type of a parameter, without `upgrade`",
        edits={
            _GOTO: _GOTO.replace('found["cents"]', 'str(found["cents"])'),
            _TAKES: _TAKES.replace("int", "str"),
            '{"cents": cents}': '{"cents": int(cents)}',
            "order=order, cents=cents)": "order=order, cents=int(cents))",
        },
        now=ON,
        sealed=STILL,
        unsealed="step 'wait' cannot read what it was entered with",
        do=FIRST,
    ),
    "field_new": Row(
        change="new parameter of the step where the task waits, with or without a default, without `upgrade`",
        edits={_TAKES: _TAKES.replace("int", "int, nights: int = 1")},
        now=ON,
        sealed=STILL,
        unsealed="step 'wait' was entered with order, cents, and takes order, cents, nights now",
        do=FIRST,
    ),
    "version": Row(
        change="`version=2` without `upgrade`",
        edits={_SKILL: f"{_SKILL}, version=2"},
        now=ON,
        sealed=STILL,
        unsealed="which is now 2 and has no `upgrade`",
        do=FIRST,
    ),
    "upgrade_fails": Row(
        change="an `upgrade` that fails",
        edits=_upgrade('raise ValueError("no")'),
        now=ON,
        sealed=STILL,
        unsealed="`upgrade` of skill 'trip' failed on its state of version 1: ValueError: no",
        do=FIRST,
    ),
    # --- skills
    "new_skill": Row(
        change="new skill",
        edits={
            "TripWorkflow = ": '@flow_skill(id="trip_more")\nclass More(Trip):\n    """More."""\n\n\n'
            "MoreWorkflow = workflow_for(More)\nTripWorkflow = "
        },
        now=ON,
        do=NOTHING,
    ),
    "gone": Row(
        change="removed skill, or another id",
        now=STILL,
        sealed=STILL,
        says="no skill 'trip'; the skills known here: ",
        unsealed="its skill 'trip' is not in the modules at hand",
        do="keep a worker with the skill; for another id, make a second workflow with `workflow_for(…, alias=)`",
        gone=True,
    ),
    "alias": Row(
        change="another id, with `alias=` for the former one",
        edits={
            _SKILL: '@flow_skill(id="trip_now"',
            "TripWorkflow = ": 'OldWorkflow = workflow_for(Trip, name="OldWorkflow", alias="trip")\nTripWorkflow = ',
        },
        now=ON,
        do="nothing; a skill that calls it as a part keeps the former id, or calls the new one under `ctx.patched`",
    ),
    # --- tools
    "tool_policy": Row(
        change="a tool's policy, its time or its code",
        edits={'effect="idempotent", name="trip.book"': 'effect="at_most_once", timeout_s=60, name="trip.book"'},
        now=ON,
        do=NOTHING,
        at=(Place.GATE, Place.QUESTION, Place.SLEEP),
    ),
    "tool_result": Row(
        change="a tool's type of result, of a call that has ended, in an earlier step",
        edits={
            "-> dict[str, int]": "-> list[int]",
            'return {"cents": nights}': "return [nights]",
            'found["cents"]': "found[0]",
        },
        now=STILL,
        says="entry 2:",
        do=BEHIND,
    ),
    "tool_gone": Row(
        change="a tool that is removed, of the call that is under way",
        edits={"TOOLS = [find, hold, book]": "TOOLS = [find, book]"},
        now=STILL,
        rolled=ON,
        says="no tool 'trip.hold' is registered",
        do="keep a worker with the tool until the call has ended",
        at=(Place.EFFECT,),
    ),
    # --- what is no change
    "words": Row(
        change="comments, docstrings, formatting",
        edits={"Finds a room, waits, and books it.": "Books a room."},
        now=ON,
        do=NOTHING,
    ),
    "seal_at_pause": Row(
        change="`seal_at_pause=True`, for a task that waits for a person",
        edits={_SKILL: f"{_SKILL}, seal_at_pause=True"},
        now=STILL,
        says="the code goes on in a new run here, as `seal_at_pause=True` lets it, and the task did not",
        do="seal with the old code first",
        at=PEOPLE,
    ),
}
