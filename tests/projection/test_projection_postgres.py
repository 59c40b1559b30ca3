"""The projection in PostgreSQL, written by several at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refold.projection import Projection, ProjectionUnavailable
from tests.projection.test_projection import long_journal
from tests.services.postgres import NO_ENCODING, Postgres, postgres

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


def test_a_database_without_an_encoding_serves(server: Postgres, tmp_path: Path) -> None:
    """
    It is what `initdb` makes where no locale is set; the rows are those of a file.
    """
    made, alone = Projection(server.another("without_encoding", NO_ENCODING)), Projection(str(tmp_path / "alone.db"))
    for one in (made, alone):
        one.take("tür", "errand", long_journal(3))

    assert [*made.dump()] == [*alone.dump()]
    made.close()


def test_several_write_what_one_would(server: Postgres, tmp_path: Path) -> None:
    """
    The rows are those of a file, byte by byte; hooks hear of each; a database that is away is named.
    """
    entries = long_journal(60)
    several, alone = [Projection(server.url) for _ in range(3)], Projection(str(tmp_path / "alone.db"))

    def write(projection: Projection) -> None:
        while (at := projection.row("t").seq) < len(entries):
            projection.take("t", "errand", entries[at : at + 7])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, several))
    alone.take("t", "errand", entries)
    (made,) = several[0].untold()
    several[0].told(made[-1])
    rows = [*several[0].dump()]
    told = several[1].untold()
    for one in several:
        one.close()
    server.stop()

    assert rows == [*alone.dump()]
    assert told == []
    with pytest.raises(ProjectionUnavailable, match="does not answer"):
        several[0].row("t")
