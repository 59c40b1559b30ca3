"""Whether today's code can go on from a task's saved state: asked before a deployment, without changing the task.

`upgraded` converts the state of an older version. This module also reads the result as the code would: a step that was
removed, a parameter that was renamed, or a field that the code no longer knows would lose what the task has saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError

from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import Skill
from refold.core.codec import Codec, NoData, codec
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import SkillError
from refold.core.fold.snapshot import Snapshot
from refold.core.lineage.upgrade import upgraded
from refold.core.schema import problems
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import Json
from refold.core.steps.position import Position
from refold.core.steps.spec import StepSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a task's state comes to with today's code.

    Attributes:
        snapshot: The task with its state in today's version; None where it cannot be converted.
        why_not: Why the code cannot go on from the task, or what of the saved state it would lose; empty if it can.
    """

    snapshot: Snapshot | None
    why_not: str = ""


def carried(skill: Skill, snapshot: Snapshot) -> Carried:
    """A task as today's code goes on from it, or why it cannot. Calls the author's `upgrade`; changes nothing.

    Args:
        skill: The task's skill, in today's code.
        snapshot: The task as it stands: what the query `snapshot` answers.
    """
    try:
        new = upgraded(skill, snapshot)
    except SkillError as error:
        return Carried(snapshot=None, why_not=str(error))
    if new.state is None or new.ended:
        return Carried(snapshot=new)
    try:
        found = next(_unfit(skill, new.state), "")
    except SkillError as error:
        found = str(error)
    return Carried(snapshot=new, why_not=f"task {snapshot.task_id!r}: {found}" if found else "")


def _unfit(skill: Skill, state: JsonValue) -> Iterator[str]:
    if isinstance(skill, ReducerSkill):
        yield from _unread(skill.states, state, "the state")
    if isinstance(skill, ContractedMachine):
        yield from _unread(codec(skill.contract.state), Position(state).state, "the state")
    if isinstance(skill, StepMachine):
        yield from _unfit_step(skill, Position(state))


def _unfit_step(skill: StepMachine, position: Position) -> Iterator[str]:
    name = position.resume or position.step
    if (step := skill.steps.get(name)) is None:
        yield f"it is in step {name!r}, which the code does not have; its steps are {', '.join(skill.steps)}"
        return
    for argument, value in position.args.items():
        if argument not in step.params:
            yield f"step {name!r} has no parameter {argument!r}, which the task has saved; it takes {step.takes}"
            continue
        param = step.params[argument]
        param.encode(Json(value), name)  # raises where the value does not fit
        yield from _unread(param.codec, value, f"{argument} of step {name!r}")
    yield from _missing(step, position)


def _missing(step: StepSpec, position: Position) -> Iterator[str]:
    known = position.args.keys() | position.fed_by.keys()
    for name in step.needs(message=position.resume is not None):
        if name not in known:
            yield f"step {step.name!r} needs {name!r}, which the task has not saved"


def _unread(read: Codec, data: JsonValue, what: str) -> Iterator[str]:
    """What of saved data the code cannot read, or would leave out when it saves the data again."""
    try:
        again, _ = read.saved(read.fresh(data))
    except ValidationError as error:
        yield f"{what} does not read back: {problems(error)}"
    except NoData as error:
        yield f"{what} cannot be saved: {error}"
    else:
        for field in _lost(data, again, ""):
            yield f"{what} has a field {field!r} that the code does not know: its value would be lost"


def _lost(data: JsonValue, again: JsonValue, path: str) -> Iterator[str]:
    if isinstance(data, dict) and isinstance(again, dict):
        for name, value in data.items():
            inner = f"{path}.{name}" if path else name
            if name in again:
                yield from _lost(value, again[name], inner)
            elif value not in (None, {}, []):
                yield inner
    if isinstance(data, list) and isinstance(again, list):
        for number, (one, other) in enumerate(zip(data, again, strict=False)):
            yield from _lost(one, other, f"{path}[{number}]")
