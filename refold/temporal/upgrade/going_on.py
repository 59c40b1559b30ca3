"""Whether the code at hand can go on from a task's snapshot: tried on a copy, as a pure function.

A sealed task meets new code as data, and the data says where the task is: in which step, with which arguments, after
which awaits. A step that waits is driven again from its start, and must ask for the same commands up to there.
"""

from __future__ import annotations

from pydantic import ValidationError

from refold.core.authoring.context import Moment
from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import Skill
from refold.core.errors import SkillError
from refold.core.events import CommandFailed
from refold.core.fold.snapshot import Receipt, ReceiptStatus, Snapshot
from refold.core.lineage.upgrade import upgraded
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import problems
from refold.core.steps.machine import StepMachine
from refold.core.steps.position import Position

_TRIED = Failure(kind=FailureKind.PERMANENT, type="tried", message="tried, and performed nowhere")


def unfit(skill: Skill, snapshot: Snapshot) -> str | None:
    """Why the code at hand cannot go on from a snapshot; None if nothing speaks against it.

    Args:
        skill: The skill, as the code at hand has it.
        snapshot: Of an open task, as any version of the skill has saved it.
    """
    try:
        snapshot = upgraded(skill, snapshot)
        if snapshot.state is None or snapshot.ended:
            return None
        if isinstance(skill, ReducerSkill):
            skill.states.fresh(snapshot.state)
        if isinstance(skill, StepMachine):
            return _unfit_step(skill, Position(snapshot.state)) or _unfit_awaits(skill, snapshot)
    except ValidationError as error:
        return f"the saved state does not read back: {problems(error)}"
    except SkillError as error:
        return str(error)
    return None


def _unfit_step(machine: StepMachine, position: Position) -> str | None:
    name = position.resume or position.step
    if name not in machine.steps:
        return f"the task is at step {name!r}, which its skill has no more; the steps are: {', '.join(machine.steps)}"
    unknown = position.args.keys() - machine.steps[name].params.keys()
    takes = machine.steps[name].takes
    return f"step {name!r} is given {', '.join(sorted(unknown))}, and takes {takes} now" if unknown else None


def _unfit_awaits(machine: StepMachine, snapshot: Snapshot) -> str | None:
    """What differs where the step is driven again, as it will be when the outcome that it awaits is there."""
    position = Position(snapshot.state)
    if position.resume is not None or position.last is None:
        return None
    outcome = _TRIED.model_dump(mode="json")
    came = {
        id: Receipt(invocation_id=id, status=ReceiptStatus.ERROR, outcome=outcome)
        for id in position.outstanding
        if id not in snapshot.receipts
    }
    event = CommandFailed(id="tried", invocation_id=position.outstanding[0], failure=_TRIED)
    moment = Moment(
        task_id=snapshot.task_id,
        known_as=snapshot.known_as,
        seq=snapshot.seq + 1,
        at=snapshot.at,
        receipts={**snapshot.receipts, **came},
        messages=snapshot.messages,
        threads=snapshot.threads,
        patched=lambda patch, again: snapshot.patches.get(patch, not again),
    )
    try:
        machine.on(snapshot.state, event, moment)
    except SkillError as error:
        return str(error)
    except Exception:  # noqa: BLE001 - what the author's code does with a failure that never was
        return None
    return None
