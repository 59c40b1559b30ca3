"""What a worker does for an effect that was begun within a workflow task, with the ledger of the other workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.testing import ActivityEnvironment

from refold.core.commands import CallLlm
from refold.core.content import Content
from refold.effects.ledger.ledger import Ledger
from refold.effects.short.local import Local


async def brought(worker: Local, ledger: str, *, model: str, answer: JsonValue, is_local: bool = False) -> Any:
    """What the activity of a model call brings at a worker whose model answers `answer`."""
    environment = ActivityEnvironment()
    environment.info = replace(
        environment.info, is_local=is_local, activity_type="refold.llm", activity_id="t/1.1", workflow_run_id="run"
    )
    command = CallLlm(id="think", input=Content.from_text("hi"), model=model, fallbacks=("b",))
    sent = RawValue(Payload(data=command.model_dump_json().encode()))

    async def perform() -> JsonValue:
        return answer

    async def act() -> Any:
        return await worker.brought(ledger, sent, perform)

    return await environment.run(act)


async def test_an_effect_that_went_over_waits_for_the_ledger(tmp_path: Path) -> None:
    """
    At a worker that has just started, and does not know the ledger's id yet: an outage is no failure of the effect.
    """
    folder, away = tmp_path / "disk", tmp_path / "away"
    folder.mkdir()
    with Ledger(str(folder / "ledger.db")) as ledger:
        id = await Local(lambda: ledger).ledger_id()
    folder.rename(away)
    asked = 0

    with Ledger(str(folder / "ledger.db")) as again:

        def opened() -> Ledger:
            nonlocal asked
            asked += 1
            if asked == 2:
                away.rename(folder)
            return again

        assert await brought(Local(opened), id, model="a", answer="performed") == "performed"


async def test_a_record_of_another_model_is_none(tmp_path: Path) -> None:
    """
    A call that went over may be answered, and recorded, by the worker where it began, while the regular activity moves
    on to the next model. The record is that of the same call only.
    """
    with Ledger(str(tmp_path / "ledger.db")) as ledger:
        began, other = Local(lambda: ledger), Local(lambda: ledger)
        id = await began.ledger_id()
        _, recorded = await brought(began, id, model="a", answer="of a", is_local=True)

        assert recorded == "of a"
        assert await brought(other, id, model="a", answer="of a again") == "of a"
        assert await brought(other, id, model="b", answer="of b") == "of b"
