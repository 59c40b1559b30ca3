"""The names by which a task's workflow asks for what a worker's activities do."""

from refold.effects import activities
from refold.effects.short import local, stretch
from refold.temporal.data import wire
from refold.temporal.worker.task import outcomes


def test_workflows_and_workers_use_the_same_names() -> None:
    """
    Each is defined on both sides, since neither package imports the other.
    """
    asked = (wire.LLM_ACTIVITY, wire.CHAT_ACTIVITY, wire.TOOL_ACTIVITIES, wire.NOTIFY_ACTIVITY, wire.LEDGER_ACTIVITY)
    assert asked == (activities.LLM, activities.CHAT, activities.TOOL, activities.NOTIFY, activities.LEDGER)
    assert wire.STRETCH_END == stretch.STRETCH_END
    assert outcomes.ANOTHER_LEDGER == local.ANOTHER_LEDGER
