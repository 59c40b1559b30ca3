"""Histories with marks: what an open task said, showed and asked is compared, too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowHistory

from refold.temporal.data.storage import Folder
from refold.temporal.replay.replaying import Replayed
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import Site, changed
from tests.temporal.replay.changed import each

AT_GATE = "entry 2 (llm_result 'draft') in 'begin': "


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of changed modules."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("deployed_") and name not in before]:
        del sys.modules[name]


async def bought(client: Client, values: Folder) -> list[WorkflowHistory]:
    """A task at its gate, one after the payment, and one that has ended."""
    site = Site(client, values)
    async with site.deployed(purchase):
        ids = [await site.bought(answers) for answers in (0, 2, 3)]
    return [await client.get_workflow_handle(id).fetch_history() for id in ids]


async def test_an_open_task_is_compared_by_its_marks(client: Client, values: Folder, here: Path) -> None:
    """
    The gate that waits, what was said before it, and an argument: found in the open tasks as in the one that ended.
    """
    histories = await bought(client, values)

    async def found(was: str, now: str) -> list[Replayed]:
        return await each(histories, changed(here, {was: now}), values=values.path)

    def words(several: list[Replayed]) -> list[str]:
        return [str(one.divergence or "").replace(one.task_id, "T") for one in several]

    same = await each(histories, purchase, values=values.path)
    assert [(one.same, one.compared) for one in same] == [(True, "entries")] * 3

    text = words(await found("Pay 5 cents to the shop?", "Pay 500 cents to a stranger?"))
    assert all(one.startswith(AT_GATE) for one in text)
    assert all(one.endswith('recorded "Pay 5 cents to the shop?", now "Pay 500 cents to a stranger?"') for one in text)

    said = words(await found("Here is what will be bought.", "Look!"))
    assert said == [f'{AT_GATE}messages[0].parts[0].text: recorded "Here is what will be bought.", now "Look!"'] * 3

    progress = words(await found('ctx.status("drafted")', 'ctx.status("written")'))
    assert progress == [f'{AT_GATE}progress: recorded "drafted", now "written"'] * 3

    argument = words(await found('id="paid", to=order, cents=5', 'id="paid", to=order, cents=6'))
    paid = "entry 4 (user_message) in 'begin': tool 'pay' as 'paid', args.cents: recorded 5, now 6"
    assert argument == ["", paid, paid], "the task at the gate has not come so far"

    last = words(await found('"Paid 5 cents."', '"Bought."'))
    assert last[:2] == ["", ""]
    assert last[2].endswith('messages[0].parts[0].text: recorded "Paid 5 cents.", now "Bought."')


async def test_marks_stand_in_for_a_journal_that_cannot_be_read(
    client: Client, values: Folder, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    An ended task's journal is in storage; where that is not at hand, the marks in its history say what differs.
    """
    ended = (await bought(client, values))[2:]
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    module = changed(here, {"Here is what will be bought.": "Look!"})
    (found,) = await each(ended, module, values=elsewhere)

    assert found.problem == ""
    assert str(found.divergence).startswith(f"{AT_GATE}messages[0].parts[0].text: recorded")
