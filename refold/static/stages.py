"""A contract's steps described in a file, checked against the code.

The file holds a contract's steps as plain data:

    stages:
      - {name: think, enters: thinking, exits: [acting, observing, failed], reads: [...], writes: [...]}

Source: S1.62.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from refold.core.authoring.skill import Skill, skill_id
from refold.core.contracts.contract import ALL
from refold.core.contracts.run import ContractedMachine
from refold.core.errors import DefinitionError
from refold.core.schema import problems
from refold.core.steps.spec import StepSpec
from refold.core.values import Value


class Stage(Value):
    """One step, as data.

    Attributes:
        name: The step's name.
        flow_type: What enters the step: the first message, an answer, an error, or another step.
        enters: The lifecycle state in which the step runs; empty if it declares none.
        exits: The states that the step may lead to.
        reads: The fields that the step sees; `["*"]` is all.
        writes: The fields that the step may write.
    """

    name: str
    flow_type: Literal["start", "resume", "error", "step"] = "step"
    enters: str = ""
    exits: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def stages_of(skill: Skill) -> list[Stage]:
    """The steps of a skill with a contract, in the author's order; empty for a skill without a contract."""
    if not isinstance(skill, ContractedMachine):
        return []
    return [_stage(step) for step in skill.steps.values()]


def verify_stages(skill: Skill, stages: Iterable[Mapping[str, Any]]) -> None:
    """Check that a description of a skill's steps agrees with their code; the order of names does not matter.

    Args:
        skill: A compiled skill; `skill_of(React)` for a class.
        stages: One mapping for each step, as read from a YAML or JSON file.

    Raises:
        DefinitionError: Description and code differ, or a stage leads where no legal move does; lists all differences.
    """
    written = {stage.name: stage for stage in stages_of(skill)}
    found: list[str] = []
    seen: set[str] = set()
    for given in stages:
        try:
            stage = Stage.model_validate({**given, "exits": tuple(given.get("exits", ()))})
        except ValidationError as error:
            found.append(f"stage {given.get('name', '?')!r}: {problems(error)}")
            continue
        if stage.name in seen:
            found.append(f"stage {stage.name!r} is described twice")
        seen.add(stage.name)
        if stage.name in written:
            found.extend(_differences(skill, stage, written[stage.name]))
        else:
            known = ", ".join(written) or "none with a contract"
            found.append(f"stage {stage.name!r} is no step; the steps are: {known}")
    found.extend(f"step {name!r} is not described" for name in written if name not in seen)
    if found:
        raise DefinitionError(skill_id(skill), found, what="the stages of skill")


def _differences(skill: Skill, said: Stage, code: Stage) -> list[str]:
    assert isinstance(skill, ContractedMachine)
    stage = f"stage {said.name!r}"
    found = []
    if "flow_type" in said.model_fields_set and said.flow_type != code.flow_type:
        found.append(f"{stage}: flow_type is {said.flow_type}, the code says {code.flow_type}")
    if said.enters != code.enters:
        found.append(f"{stage}: enters {said.enters!r}, the code says {code.enters!r}")
    for what in ("exits", "reads", "writes"):
        one, other = set(getattr(said, what)), set(getattr(code, what))
        if what != "exits" and ALL in one:
            one = set(skill.validator.fields)
        found.extend(f"{stage}: {what} {name!r}, which the code does not declare" for name in sorted(one - other))
        found.extend(f"{stage}: {what} not {name!r}, which the code declares" for name in sorted(other - one))
    legal = skill.validator.lifecycle.targets(code.enters)
    if code.enters and not skill.steps[said.name].contract.free:
        astray = [name for name in said.exits if name not in legal]
        found.extend(f"{stage}: there is no move from {code.enters} to {name}" for name in astray)
    return found


def _stage(step: StepSpec) -> Stage:
    terms = step.contract
    kind = "start" if step.start else "resume" if step.resume_from else "error" if terms.on_error else "step"
    return Stage(
        name=step.name, flow_type=kind, enters=terms.enters, exits=terms.exits, reads=terms.reads, writes=terms.writes
    )
