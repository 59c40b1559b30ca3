"""A worker dies while tools of one reply are under way: those that are done are not called again."""

from __future__ import annotations

from pathlib import Path

from refold import Status
from refold.core.chat import ToolReturn
from refold.temporal import TemporalEngine
from tests.faults.processes import Ledger, Workers
from tests.temporal.test_task import settled, text

MODULES = ["tests.faults.agents"]


async def test_only_what_is_unfinished_is_called_again(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    SIGKILL with one of four done, three under way: the first one's result stands, the three are called
    under their own ids, and the model reads all four in its order.
    """
    gates = [tmp_path / f"gate-{number}" for number in range(4)]
    wish = ", ".join(f'through(gate="{gate}")' for gate in gates)
    first = await workers.start(queue, modules=MODULES)
    view = await engine.start("guide", text(f"Go.\n-> {wish}\n-> Through."))
    await ledger.until("begun", 3)
    gates[0].touch()
    await ledger.until("begun", 4)  # the fourth has taken the first one's place, so its result is recorded
    await first.kill()
    for gate in gates:
        gate.touch()
    await workers.start(queue, modules=MODULES)
    view = await settled(engine, view.task_id)
    snapshot = await engine.at(view.task_id, view.seq)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Through.")
    assert [one.value for one in snapshot.threads["main"].said if isinstance(one, ToolReturn)] == ["through"] * 4
    done = ledger.noted("done")
    assert len(done) == len(set(done)) == 4
    attempts = {line.invocation_id: line.attempt for line in ledger.lines}
    assert sorted(attempts.values()) == [1, 2, 2, 2]
