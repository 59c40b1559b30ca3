"""Evaluates an exported task: folds the recorded run with the code at hand, and compares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from refold.callbacks.address import without_addresses
from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.skill import Skill, skill_id
from refold.core.commands import Command
from refold.core.errors import InputRejected
from refold.core.events import ChatResult, LlmResult
from refold.core.fold.journal import no_entry
from refold.core.lineage.upgrade import upgraded
from refold.differences import parted
from refold.engine import UnknownSkill
from refold.engine.arguments import Within, takes
from refold.evals.recording import Recording, described
from refold.evals.rerun import AskModel, Rerun, Rules, seconds_of, with_usage
from refold.evals.result import Cost, Evaluation, Row
from refold.evals.steps import aligned, slots_of, steps_of
from refold.export.layout import ExportError
from refold.export.read import Exported, read_export

Tools = Literal["recorded", "strict", "live-read-only"]


@takes()
def evaluate(
    file: Path | str | Exported,
    skills: Iterable[Any] | Mapping[str, Skill],
    *,
    model: str | AskModel | None = None,
    since: int = 0,
    tools: Tools = "recorded",
    functions: Sequence[Callable[..., Any]] = (),
    patched: bool = False,
) -> Evaluation:
    """`evaluated`, for programs and tests without an event loop: `assert not evaluate(file, [Refund]).diverged`.

    Raises:
        InputRejected: As `evaluated`; or it is called within an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            evaluated(file, skills, model=model, since=since, tools=tools, functions=functions, patched=patched)
        )
    raise InputRejected("evaluate runs an event loop of its own; within one, write `await evaluated(...)`")


@takes()
async def evaluated(
    file: Path | str | Exported,
    skills: Iterable[Any] | Mapping[str, Skill],
    *,
    model: str | AskModel | None = None,
    since: Annotated[int, Within(0)] = 0,
    tools: Tools = "recorded",
    functions: Sequence[Callable[..., Any]] = (),
    patched: bool = False,
) -> Evaluation:
    """Fold a recorded run with the code at hand, and compare the journals step by step.

    No effect takes place: only models that are asked anew are called, and read-only tools where `tools` says so.

    Args:
        file: The export, or the task read from it.
        skills: Skill classes, tables or compiled skills; one of them is the task's. Or compiled skills by the ids that
            tasks name, where a skill was renamed.
        model: The model to ask anew, `provider:name`, or an `async def` function that makes a model call; None lets the
            recorded replies answer.
        since: Replies up to this entry stay as recorded, also if models are asked anew.
        tools: What answers a call. `recorded`: the recorded call of the same name and arguments, else the next of the
            same name. `strict`: only a call with the same arguments; any other call, and a recorded call that nobody
            asks for, is a divergence. `live-read-only`: as `recorded`, but a tool that is `read_only` is called where
            the record has no call with the same arguments.
        functions: The application's tools; for `live-read-only`, and for the descriptions that models are offered.
        patched: `ctx.patched` answers True, as in a task that begins now. Else it answers as in the recorded task,
            which goes the old path of a change that came later; `Evaluation.old_paths` names these changes.

    Raises:
        ExportError: There is no such file, it is damaged, or redacted.
        UnknownSkill: The task's skill is not among the skills.
        InputRejected: There is no such entry, the model cannot be used, or an argument is of another type.
        SkillError: The skill cannot take over the state that the record begins with; see `upgraded`.
    """
    if model == "":
        raise InputRejected("model is a text `provider:name`; got ''")
    task = file if isinstance(file, Exported) else read_export(Path(file))[0]
    skill = _skill(task, skills)
    if since > task.header.last:
        raise InputRejected(no_entry(task.task_id, since, task.header.first, task.header.last))
    async with AsyncExitStack() as stack:
        asker = model if not isinstance(model, str) else await stack.enter_async_context(_named(model, functions))
        live = tools == "live-read-only"
        readers = await stack.enter_async_context(_reading(functions, task.task_id)) if live else {}
        rules = Rules(exact=tools == "strict", model=asker, since=since, readers=readers, patched=patched)
        rerun = Rerun(skill, upgraded(skill, task.base), task.entries, rules)
        await rerun.run()
    return _result(task, rerun, strict=tools == "strict")


def _skill(task: Exported, skills: Iterable[Any] | Mapping[str, Skill]) -> Skill:
    if isinstance(skills, Mapping):
        known = {id: skill_of(one) for id, one in skills.items()}
    else:
        known = {skill_id(one): one for one in map(skill_of, listed(skills))}
    if task.header.redacted:
        raise ExportError(f"the export of task {task.task_id!r} is redacted; export the task without --redact")
    if task.header.skill not in known:
        raise UnknownSkill(task.header.skill, list(known))
    return known[task.header.skill]


def _named(model: str, functions: Sequence[Callable[..., Any]]) -> Any:
    from refold.evals.models import asking

    return asking(model, functions)


def _reading(functions: Sequence[Callable[..., Any]], task_id: str) -> Any:
    from refold.evals.readers import reading

    return reading(functions, task_id)


def _result(task: Exported, rerun: Rerun, *, strict: bool) -> Evaluation:
    now = [(one.invocation_id, one.command) for entry in rerun.entries for one in entry.commands]
    recorded_steps = steps_of(task.entries, slots_of(rerun.recording.commands.items()))
    now_steps = steps_of(rerun.entries, slots_of(_with_base(rerun, now)))
    rows = aligned(recorded_steps, now_steps)
    unused = [described(one) for one in rerun.recording.unused()]
    first = _first(rows)
    if not first and rerun.endless:
        first = "the run does not end"
    if not first and strict and unused:
        first = f"a recorded call was never asked for: {unused[0]}"
    return Evaluation(
        task_id=task.task_id,
        skill=task.header.skill,
        diverged=bool(first),
        first=first,
        rows=tuple(map(_shown, rows)),
        drift=tuple(rerun.recording.drift),
        unrecorded=tuple(rerun.unrecorded),
        unused=tuple(unused),
        live=tuple(rerun.live),
        old_paths=tuple(rerun.old_paths),
        status=task.header.status,
        status_now=rerun.now.status,
        recorded=_recorded_cost(task, rerun.recording),
        now=rerun.cost,
    )


def _with_base(rerun: Rerun, now: list[tuple[str, Command]]) -> list[tuple[str, Command]]:
    return [*((wait.gate, wait.ask) for wait in rerun.base.waits), *now]


def _shown(row: Row) -> Row:
    """A row without addresses that work."""
    sides = {"recorded": row.recorded, "now": row.now}
    return row.model_copy(update={side: tuple(map(without_addresses, lines)) for side, lines in sides.items()})


def _first(rows: Sequence[Row]) -> str:
    """The first row that differs, in words, without addresses that work."""
    place = next((number for number, row in enumerate(rows) if not row.equal), None)
    if place is None:
        return ""
    row, after = rows[place], rows[place + 1] if place + 1 < len(rows) else Row()
    if not row.now and not after.recorded and after.now:
        row = Row(recorded_seq=row.recorded_seq, recorded=row.recorded, now=after.now)
    if not row.now:
        return f"entry {row.recorded_seq} of the record did not happen: {without_addresses(row.recorded[0])}"
    if not row.recorded:
        return f"a step that was not recorded: {without_addresses(row.now[0])}"
    was = "; ".join(line for line in row.recorded if line not in row.now) or "nothing more"
    now = "; ".join(line for line in row.now if line not in row.recorded) or "nothing more"
    was, now = parted(without_addresses(was), without_addresses(now))
    return f"entry {row.recorded_seq}: recorded {was}; now {now}"


def _recorded_cost(task: Exported, recording: Recording) -> Cost:
    cost = Cost()
    for entry in task.entries:
        event = entry.event
        if entry.refused:
            continue
        cost = with_usage(cost, event, recording.commands.get(str(getattr(event, "invocation_id", ""))))
        if isinstance(event, LlmResult | ChatResult):
            took = seconds_of(task.entries, task.base, event.invocation_id, entry)
            cost = cost.model_copy(update={"seconds": cost.seconds + took})
    return cost
