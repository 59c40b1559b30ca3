"""How the saved state of an older version of a skill is upgraded, once, before the task continues."""

from __future__ import annotations

from refold.core.authoring.cmd import as_json
from refold.core.authoring.skill import Skill, skill_id
from refold.core.codec import copied
from refold.core.errors import SkillError, describe
from refold.core.fold.snapshot import Snapshot


def upgraded(skill: Skill, snapshot: Snapshot) -> Snapshot:
    """The snapshot with its state in the shape of the skill's current version.

    Calls the author's `upgrade(version, state)` once for each version in between, oldest first, with the author's part
    of the state (see `Skill.own_state`); in a recovered task, also for the state that a redo starts from.

    Raises:
        SkillError: The state is newer than the code, or the skill has no `upgrade`, or `upgrade` failed.
    """
    state, version, today = snapshot.state, snapshot.skill_version, skill.options.version
    if version == today:
        return snapshot
    if version > today:
        raise SkillError(
            f"task {snapshot.task_id!r} was saved by version {version} of skill {skill_id(skill)!r}; this worker runs "
            f"version {today}: deploy the newer code"
        )
    if skill.options.upgrade is None:
        raise SkillError(
            f"task {snapshot.task_id!r} was saved by version {version} of skill {skill_id(skill)!r}, which is now "
            f"{today} and has no `upgrade`: give flow_skill(upgrade=...) a function (version, state) -> state"
        )
    own = skill.own_state(state)
    try:
        while version < today and state is not None:
            own = as_json(skill.options.upgrade(version, copied(own)), "what it returned")
            version += 1
        state = None if state is None else skill.with_own_state(state, own)
    except Exception as error:  # `upgrade` is the author's code
        raise SkillError(
            f"task {snapshot.task_id!r}: `upgrade` of skill {skill_id(skill)!r} failed on its state of version "
            f"{version}: {describe(error)}"
        ) from error
    redo = snapshot.redo and snapshot.redo.changed({"base": upgraded(skill, snapshot.redo.base)})
    return snapshot.changed({"state": state, "skill_version": today, "redo": redo})
