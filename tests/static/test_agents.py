"""What `refold check` finds in the code that agents are made with."""

import pytest

from refold.static.check import check_source

HEAD = """
import time
from refold.agent import AfterModelCall, BeforeToolCall, Plugin, around
"""

HOOK = "def late(event: BeforeToolCall) -> None:\n    event.cancel = time.time() > 0\n"
METHOD = "class Hours(Plugin):\n    def before_tool_call(self, event):\n        event.cancel = time.time() > 0\n"
MIDDLEWARE = (
    "@around('model'{more})\nasync def timed(turn, proceed):\n    time.time()\n    return await proceed(turn)\n"
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(HOOK, id="hook"),
        pytest.param(METHOD, id="plugin"),
        pytest.param(MIDDLEWARE.format(more=""), id="middleware"),
        pytest.param(MIDDLEWARE.format(more=", scope='workflow'"), id="workflow scope"),
    ],
)
def test_what_runs_in_the_task_has_no_clock(source: str) -> None:
    """
    Hooks and middleware of workflow scope are pure, like steps.
    """
    assert [one.rule for one in check_source(HEAD + source)] == ["clock"]


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(MIDDLEWARE.format(more=", scope='activity'"), id="activity scope"),
        pytest.param(HOOK.replace("BeforeToolCall", "int"), id="no hook"),
        pytest.param(METHOD.replace("before_tool_call", "other"), id="no hook of a plugin"),
    ],
)
def test_what_runs_in_the_worker_may_have_one(source: str) -> None:
    """
    And so may what is no part of an agent.
    """
    assert check_source(HEAD + source) == []
