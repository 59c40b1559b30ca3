"""A skill's own profile: what it may say, and what it does not change."""

from __future__ import annotations

from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from refold import DefinitionError
from refold.temporal import Profile, workflow_for
from refold.temporal.worker.profile import DEFAULT, FAST_RECOVERY
from refold.temporal.worker.sandboxed.immutable import mutable_in
from refold.temporal.worker.sandboxed.uses import Uses
from tests.faults import policy_skills
from tests.faults.policy_skills import HASTY, Told


def test_a_skill_says_its_profile_by_name_or_value() -> None:
    """
    One that says nothing leaves it to the worker.
    """
    classes = (policy_skills.ToldWorkflow, policy_skills.AsksWorkflow, policy_skills.PatientWorkflow)

    assert [cls.recovery for cls in classes] == [None, FAST_RECOVERY, DEFAULT]
    assert policy_skills.RepeatsWorkflow.recovery is HASTY


def test_tasks_still_share_the_skills_module() -> None:
    """
    A profile cannot change, so a module that has one is not imported anew for every task.
    """
    module = ModuleType("made_up")
    vars(module).update(HASTY=HASTY, ToldWorkflow=policy_skills.RepeatsWorkflow)

    assert mutable_in(module, Uses([module])) is None


@pytest.mark.parametrize("given", ["quick", "", 5, timedelta(seconds=1), "Default"])
def test_what_is_no_profile_is_refused(given: Any) -> None:
    """
    Where the workflow is made, by the skill's id, with the names that there are.
    """
    with pytest.raises(DefinitionError, match=r"(?s)policies_told.* is no profile; it is 'default' or 'fast-recovery'"):
        workflow_for(Told, recovery=given)


@pytest.mark.parametrize("field", ["name", "alias"])
def test_a_workflow_is_named_by_texts(field: str) -> None:
    """
    Before a class is made under the name.
    """
    given: dict[str, Any] = {field: 5}
    with pytest.raises(DefinitionError, match=rf"{field} is a text or None; got 5 \(int\)"):
        workflow_for(Told, **given)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"heartbeat": timedelta(0)}, "heartbeat="),
        ({"effect": timedelta(seconds=-1)}, "effect="),
        ({"first_retry": 0.2}, "first_retry=0.2 is no timedelta above 0"),
        ({"max_attempts": 0}, "max_attempts=0 is no number of attempts"),
        ({"max_attempts": 1.5}, "max_attempts=1.5"),
        ({"name": 5}, "name=5 is no text"),
    ],
)
def test_a_profile_without_time_is_refused(fields: dict[str, Any], says: str) -> None:
    """
    Temporal reads 0 as "for ever", which nobody means who writes it.
    """
    with pytest.raises(DefinitionError, match=says):
        Profile(**{"name": "odd", **fields})
