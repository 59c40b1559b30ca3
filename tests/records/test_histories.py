"""Every recorded Temporal history is replayed by the code as it is, without a server; and nothing is different.

That is more than Temporal asks for: the journal and the last snapshot are compared byte for byte, and every command
with all its fields, but for stack traces.
"""

from pathlib import Path

import pytest

from refold.temporal.replay.watched import Seen
from tests.records import replaying, tapes

FILES = sorted(replaying.HISTORIES.glob("*.json.gz"))


@pytest.fixture(scope="module")
async def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen | Exception]:
    """What the replay of each history came to, by run; all by one worker, which is made once."""
    replays = replaying.Replaying(tmp_path_factory.mktemp("values"))
    return await replays.replay(*(replaying.read(path)[0] for path in FILES))


@pytest.mark.parametrize("path", FILES, ids=map(replaying.name_of, FILES))
async def test_a_history_is_replayed(path: Path, replayed: dict[str, Seen | Exception]) -> None:
    """
    The task writes the journal that it wrote, comes to the snapshot that it came to, and asks Temporal for the same.
    """
    history, recorded = replaying.read(path)
    seen = replayed[history.run_id]

    assert not isinstance(seen, Exception), seen
    different = tapes.difference(replaying.name_of(path), recorded, replaying.lines_of(seen))
    assert not different, different


def test_no_value_is_kept_for_nothing() -> None:
    """
    Every value beside the histories is one that a replay of a history reads.
    """
    kept = {path.name for path in replaying.VALUES.rglob("*") if path.is_file()}

    assert kept == {key for path in FILES for key in replaying.values_in(path)}
