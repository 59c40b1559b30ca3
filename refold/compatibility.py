"""Whether today's code can go on from a task's saved state: a pure function of the snapshot, which changes nothing.

`upgraded` converts the state of an older version. Two questions are asked about the result:

- `resumed`: could the task go on at all? Asked where a run begins with a snapshot, and before a seal. The snapshot says
  where the task is: in which step, with which arguments, after which awaits. What is saved must read back. A step that
  waits is driven again from its start, and must ask for the same commands up to there.
- `carried`: would it also keep all that it has saved? Asked before a deployment. A parameter that was renamed, or a
  field that the code no longer knows, would lose its value silently.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError

from refold.core.authoring.context import Moment
from refold.core.authoring.reducer import ReducerSkill
from refold.core.authoring.skill import Skill
from refold.core.codec import Codec, NoData, codec
from refold.core.commands import AskApproval, Question
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import RefoldError, SkillError, describe
from refold.core.events import CommandFailed
from refold.core.fold.snapshot import Receipt, ReceiptStatus, Snapshot
from refold.core.lineage.upgrade import upgraded
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import problems
from refold.core.steps.arguments import check_timeout
from refold.core.steps.machine import StepMachine
from refold.core.steps.params import Json, Source
from refold.core.steps.position import Position
from refold.core.steps.spec import StepSpec

_TRIED = Failure(kind=FailureKind.PERMANENT, type="tried", message="tried, and performed nowhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A task's state, converted by today's code.

    Attributes:
        snapshot: The task with its state in today's version; None where it cannot be converted.
        why_not: Why the code cannot continue the task, or what of the saved state it would lose (`carried` alone);
            empty if it can.
    """

    snapshot: Snapshot | None
    why_not: str = ""


def resumed(skill: Skill, snapshot: Snapshot) -> Carried:
    """A task as today's code goes on from it, or why it cannot. Calls the author's `upgrade`; changes nothing.

    Args:
        skill: The task's skill, in today's code.
        snapshot: Of an open task, as any version of the skill has saved it.
    """
    return _converted(skill, snapshot, lambda new: _why_not(skill, new))


def _converted(skill: Skill, snapshot: Snapshot, objection: Callable[[Snapshot], str]) -> Carried:
    """The snapshot in today's version, with what there is to say against it; nothing where the task has ended."""
    if not snapshot.has_begun:
        return Carried(snapshot=snapshot.changed({"skill_version": skill.options.version}))
    try:
        new = upgraded(skill, snapshot)
    except SkillError as error:
        return Carried(snapshot=None, why_not=str(error))
    if new.state is None or new.ended:
        return Carried(snapshot=new)
    try:
        why_not = objection(new)
    except ValidationError as error:
        why_not = f"the saved state does not read back: {problems(error)}"
    except SkillError as error:
        why_not = str(error)
    except Exception as error:  # noqa: BLE001 - the author's validators are called
        why_not = f"the saved state does not read back: {describe(error)}"
    return Carried(snapshot=new, why_not=why_not)


def _why_not(skill: Skill, snapshot: Snapshot) -> str:
    if isinstance(skill, ReducerSkill):
        skill.states.fresh(snapshot.state)
    if isinstance(skill, ContractedMachine):
        codec(skill.contract.state).fresh(Position(snapshot.state).state)
    if isinstance(skill, StepMachine):
        position = Position(snapshot.state)
        if why_not := next(_misplaced(skill, position), "") or _unfit_awaits(skill, snapshot):
            return why_not
        step = skill.steps[position.resume or position.step]
        for argument, value in position.args.items():
            step.params[argument].encode(Json(value), step.name)  # raises where the value does not fit
    return ""


def _misplaced(skill: StepMachine, position: Position) -> Iterator[str]:
    """Why the code has no place for a task: its step, or what the step is given, is gone."""
    name = position.resume or position.step
    if (step := skill.steps.get(name)) is None:
        yield f"it is in step {name!r}, which the code does not have; its steps are {', '.join(skill.steps)}"
        return
    for argument in (*position.args, *position.fed_by):
        if argument not in step.params:
            yield f"step {name!r} has no parameter {argument!r}, which the task has saved; it takes {step.takes}"


class _Receipts(dict[str, Receipt]):
    """A task's receipts, and a placeholder failure for each command that its step awaits.

    Attributes:
        reached: Whether the step has read a placeholder: then it has issued every recorded command.
    """

    def __init__(self, came: Mapping[str, Receipt], awaited: Collection[str]) -> None:
        outcome = _TRIED.model_dump(mode="json")
        tried = {id: Receipt(invocation_id=id, status=ReceiptStatus.ERROR, outcome=outcome) for id in awaited}
        super().__init__({**tried, **came})
        self._awaited, self.reached = awaited, False

    def __getitem__(self, id: str) -> Receipt:
        self.reached = self.reached or id in self._awaited
        return super().__getitem__(id)


def _unfit_awaits(machine: StepMachine, snapshot: Snapshot) -> str:
    """Run a waiting step again from its start, up to the await where the task waits.

    Returns:
        How its commands differ from the recorded ones; empty if they are the same.
    """
    position = Position(snapshot.state)
    if position.resume is not None or position.last is None:
        return ""
    receipts = _Receipts(snapshot.receipts, position.outstanding)
    event = CommandFailed(id="tried", invocation_id=position.outstanding[0], failure=_TRIED)
    try:
        uncaught = machine.on(snapshot.state, event, _next_moment(snapshot, receipts)).uncaught
        why_not = "" if uncaught is None else _told(position, uncaught)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's code is called
        why_not = _told(position, error)
    return "" if receipts.reached else why_not  # past the await the step reacts to a placeholder


def _next_moment(snapshot: Snapshot, receipts: Mapping[str, Receipt]) -> Moment:
    return Moment(
        task_id=snapshot.task_id,
        known_as=snapshot.known_as,
        seq=snapshot.seq + 1,
        at=snapshot.at,
        receipts=receipts,
        messages=snapshot.messages,
        threads=snapshot.threads,
        budget=snapshot.budget,
        patched=lambda patch, again: snapshot.patches.get(patch, not again),
    )


def _told(position: Position, error: BaseException) -> str:
    if isinstance(error, RefoldError):
        return str(error)
    return (
        f"step {position.step!r}, run again with today's code, fails before the await where the task waits: "
        f"{describe(error)}; keep the code before that await, or put the change under `ctx.patched`"
    )


def carried(skill: Skill, snapshot: Snapshot) -> Carried:
    """As `resumed`, and also which saved values the code would lose. Leaves the awaits to a replay of the history.

    Args:
        skill: The task's skill, in today's code.
        snapshot: The task as it stands: what the query `snapshot` answers.
    """
    return _of_task(snapshot, _converted(skill, snapshot, lambda new: next(_lossy(skill, new.state), "")))


def entered(skill: Skill, snapshot: Snapshot) -> Carried:
    """As `carried`, but whether the code can begin the step that the outcome enters for which the task waits now.

    Args:
        skill: The task's skill, in today's code.
        snapshot: As there.
    """
    return _of_task(snapshot, _converted(skill, snapshot, lambda new: next(_unentered(skill, new), "")))


def _of_task(snapshot: Snapshot, found: Carried) -> Carried:
    if found.snapshot is None or not found.why_not:
        return found
    return replace(found, why_not=f"task {snapshot.task_id!r}: {found.why_not}")


def _lossy(skill: Skill, state: JsonValue) -> Iterator[str]:
    if isinstance(skill, ReducerSkill):
        yield from _unread(skill.states, state, "the state")
    if isinstance(skill, ContractedMachine):
        yield from _unread(codec(skill.contract.state), Position(state).state, "the state")
    if isinstance(skill, StepMachine):
        yield from _lossy_step(skill, Position(state))


def _lossy_step(skill: StepMachine, position: Position) -> Iterator[str]:
    yield from _misplaced(skill, position)
    step = skill.steps[position.resume or position.step]
    for argument, value in position.args.items():
        param = step.params[argument]
        param.encode(Json(value), step.name)  # raises where the value does not fit
        yield from _unread(param.codec, value, f"{argument} of step {step.name!r}")
    known = {*position.args, *position.fed_by, position.slot}  # the reply fills the parameter named like its slot
    for name in step.needs(message=position.resume is not None):
        if name not in known:
            yield f"step {step.name!r} needs {name!r}, which the task has not saved"


def _unentered(skill: Skill, task: Snapshot) -> Iterator[str]:
    position = Position(task.state)
    if not isinstance(skill, StepMachine) or (step := skill.steps.get(position.resume or position.step)) is None:
        return
    for argument, id in position.fed_by.items():
        if (came := task.receipts.get(id)) is not None and came.status is ReceiptStatus.OK:
            step.params[argument].encode(Json(came.outcome), step.name)  # raises where the value does not fit
    asked = next((wait.ask for wait in task.waits if wait.gate == position.gate), None)
    if position.resume is not None and asked is not None:
        yield from _unbrought(step, position, asked)
        check_timeout(step, asked, position.args)  # raises where the step needs an answer that may not come
    if isinstance(skill, ContractedMachine) and position.last is None:
        yield from skill.unentered(step, task.state, _next_moment(task, task.receipts))


def _unbrought(step: StepSpec, position: Position, asked: Question) -> Iterator[str]:
    """What the step takes of the other kind of answer: a decision where a reply comes, or the other way round."""
    decided = isinstance(asked, AskApproval)
    what = "a decision at" if decided else "an answer to"
    for name, param in step.params.items():
        answers = param.needed and name not in position.args and (param.source.from_message or name == position.slot)
        if answers and decided is not (param.source is Source.DECISION):
            yield f"step {step.name!r} needs {name}: {param.type_name}, which {what} {asked.slot!r} does not bring"


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
