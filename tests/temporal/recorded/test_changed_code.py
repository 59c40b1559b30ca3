"""What was recorded stays recorded, whatever code comes: on a real server, by restarting the worker with other code."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from refold import Status
from refold.engine import NoWorker
from refold.temporal.data.storage import Folder
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import Site, changed


@pytest.fixture
def site(client: Client, values: Folder) -> Site:
    """A queue of this test's own."""
    return Site(client, values)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where changed code goes."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


CHANGES = {
    "message": (2, "messages.0.parts.0.text", {"Here is what": "There is what"}),
    "question": (2, "messages.1.parts.0.text", {"Pay 5 cents to the shop?": "Pay 500 cents to a stranger?"}),
    "shown data": (2, "commands.pay.show.cents", {'"cents": 5}': '"cents": 500}'}),
    "approvers": (2, "commands.pay.policy.approvers.1", {'("ada",)': '("ada", "eve")'}),
    "artifact": (2, "artifacts.0.parts.0.text", {'"5 cents to the shop"': '"500 cents to the shop"'}),
    "progress": (2, "progress", {'"drafted"': '"written"'}),
    "a model's prompt": (1, "commands.draft.prompt", {"Describe the order.": "Praise the order."}),
    "a tool's arguments": (4, "commands.paid.args.cents", {"cents=5)": "cents=500)"}),
}
WAITS = ["a gate is open", "a gate was passed", "an effect was performed"]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_recorded_stays(site: Site, code: Path, change: str) -> None:
    """
    Whatever text a deploy changes, and wherever the task waits: people see what was recorded, with the change as a
    note; the task takes nothing; with its own code back, it goes on and performs each effect once.
    """
    entry, field, edit = CHANGES[change]
    async with site.deployed(purchase):
        tasks = [await site.bought(answers) for answers in range(len(WAITS))]
        before = {id: await site.seen(id) for id in tasks}

    async with site.deployed(changed(code, edit)):
        for id in tasks:
            view = await site.engine.look(id)
            if view.seq < entry:
                assert view.note == ""
                continue
            assert await site.seen(id) == before[id]
            assert f"entry {entry}: {field} was recorded by build" in view.note
            assert (await site.engine.record(id)).differs == view.note
            with pytest.raises(NoWorker, match=f"entry {entry}: {field}"):
                await site.answer(id)

    async with site.deployed(purchase):
        for number, id in enumerate(tasks):
            assert await site.seen(id) == before[id]
            view = await site.go_on(id, 3 - number)
            assert view.status is Status.COMPLETED
            assert view.messages[:3] == before[id][0].messages[:3]
            assert purchase.PAID.count((id, 5)) == 1
            assert (id, 500) not in purchase.PAID
