"""The scripts of client/, run on an engine in memory; and the worker's list."""

import asyncio
import runpy
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import worker
from activities import TOOLS
from client import answer, show, start, watch
from refold.cli.application import application
from refold.testing import FakeEngine
from workflows.refund import RefundSkill
from workflows.research_loop import ResearchLoop

ROOT = Path(__file__).parents[2]


class _Critic:
    """Needs a person first, then approves."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, _: object) -> object:
        self.asked += 1
        return {"decision": "NeedsHumanInput" if self.asked == 1 else "Approved", "text": "Which coast?"}


async def test_the_scripts_drive_a_task_from_start_to_end(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Start, look, answer and watch, as a reader of the scripts would.
    """
    engine = FakeEngine([ResearchLoop], answers={"research": "A draft.", "critique": _Critic()})

    await start.main("research_loop", "Tides", "t1", engine)
    await show.main("t1", engine)
    await answer.main("t1", "The Dutch one", "guidance", engine=engine)
    await show.main("t1", engine)
    await watch.main("t1", follow=True, engine=engine)

    assert capsys.readouterr().out.splitlines() == [
        "t1  input-required",
        "t1  research_loop  input-required",
        "user: Tides",
        "agent: Which coast?",
        "waits for guidance",
        "t1  completed",
        "t1  research_loop  completed",
        "user: Tides",
        "agent: Which coast?",
        "user: The Dutch one",
        "agent: Approved.",
        "final.txt: A draft.",
        "#1  user_message  running  asks: llm research",
        "#2  llm_result  -  asks: llm critique",
        "#3  llm_result  paused  asks: ask guidance",
        "#4  user_message  running  asks: llm research",
        "#5  llm_result  -  asks: llm critique",
        "#6  llm_result  done  asks: -",
    ]


async def test_a_task_is_started_with_data() -> None:
    """
    As by `refold start refund order_id=A1 amount_cents=1999`.
    """
    engine = FakeEngine([RefundSkill])

    await start.main("refund", '{"order_id": "A1", "amount_cents": 1999}', "r1", engine, data=True)

    assert (await engine.look("r1")).pending[0].command == "tool find_order"


def test_scripts_stay_short() -> None:
    """
    Each is under 40 lines, so that it can be read at a glance.
    """
    for script in (start, answer, show, watch, worker):
        assert len(Path(str(script.__file__)).read_text().splitlines()) < 40


def test_the_worker_lists_every_skill_and_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What is in workflows/ and activities/ is served by `python worker.py` as by `refold worker`.
    """
    monkeypatch.chdir(ROOT)
    found = application([])
    listed = {module.__name__ for module in worker.SKILLS}

    assert application(sorted(listed)).skills == found.skills
    assert set(found.tools) == set(TOOLS)


def test_ctrl_c_ends_a_watch_as_it_ends_a_shells_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With --follow a task that waits for a person is left in no other way: without a traceback.
    """

    def interrupted(coroutine: Coroutine[Any, Any, None]) -> None:
        coroutine.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["watch.py", "t1", "--follow"])

    with pytest.raises(SystemExit, match="130"):
        runpy.run_path(str(ROOT / "client" / "watch.py"), run_name="__main__")
