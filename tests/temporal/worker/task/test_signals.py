"""Which signals a task takes, as the refusal of any other one says."""

from temporalio import workflow

from refold.temporal.worker.task.handlers import SIGNALS
from refold.temporal.worker.task.workflow import SkillWorkflow

INTERNAL = "sent by"
"""In the description of each signal that refold itself sends."""


def test_the_refusal_of_an_unknown_signal_lists_all_that_people_may_send() -> None:
    """
    In the order in which the handlers are defined.
    """
    found = [getattr(one, "__temporal_signal_definition", None) for one in vars_of(SkillWorkflow)]
    signals = [one for one in found if isinstance(one, workflow._SignalDefinition) and one.name is not None]

    assert ", ".join(one.name or "" for one in signals if INTERNAL not in (one.description or "")) == SIGNALS


def vars_of(kind: type) -> list[object]:
    return [member for base in kind.__mro__ for member in vars(base).values()]
