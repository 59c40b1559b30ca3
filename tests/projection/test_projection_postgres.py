"""The projection in PostgreSQL, written by several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from refold import Content
from refold.core.errors import DefinitionError
from refold.projection import Projection, ProjectionUnavailable, Projector, TransitionRow
from refold.sql.postgres import SAFELY
from tests.projection.test_projection import engine_with, long_journal
from tests.services.postgres import LATIN, NO_ENCODING, Postgres, postgres

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


def test_a_database_whose_encoding_lacks_characters_serves(server: Postgres, tmp_path: Path) -> None:
    """
    A sender's name may have any character; the rows are those of a file, and hooks receive the name as it was sent.
    """
    engine = engine_with("t")
    asyncio.run(engine.send("t", Content.from_text("yes"), sender="Зоя"))
    heard: list[TransitionRow] = []
    made, alone = Projection(server.another("latin", LATIN)), Projection(str(tmp_path / "alone.db"))
    for one in (made, alone):
        done = asyncio.run(Projector(engine, one, [heard.append]).once())
        assert done.unread == {}

    assert [one.by for one in heard if one.by] == ["Зоя", "Зоя"]
    assert [*made.dump()] == [*alone.dump()]
    made.close()


def test_a_server_that_stands_still(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It is unavailable after a while, on the open connection as on a new one; then it serves as before.
    """
    projection = Projection(server.another("still") + "&connect_timeout=2")
    made = projection.take("t", "errand", long_journal(1))
    with monkeypatch.context() as impatient, server.frozen():
        impatient.setattr("refold.sql.postgres.ANSWER_S", 0.2)
        with pytest.raises(ProjectionUnavailable, match="timeout expired"):
            projection.row("t")

    assert projection.row("t") == made
    projection.close()


def test_a_lock_of_somebody_else_is_not_waited_for_long(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    As that of a program that changes the table, or of a `refold project` that stands still amid its transaction.
    """
    monkeypatch.setattr("refold.sql.postgres.SAFELY", SAFELY.replace("'5s'", "'20ms'"))
    projection, engine = Projection(url := server.another("locked")), create_engine(driven(url))
    projection.row("t")
    with engine.begin() as other:
        other.exec_driver_sql("LOCK TABLE task_checkpoints")
        with pytest.raises(ProjectionUnavailable, match="lock timeout"):
            projection.row("t")
    engine.dispose()

    assert projection.row("t").seq == 0
    projection.close()


def test_tables_of_another_program_are_refused(server: Postgres) -> None:
    """
    A table with a column more is not emptied.
    """
    projection, engine = Projection(url := server.another("others")), create_engine(driven(url))
    columns = "task_id TEXT, state TEXT, retry_count INT, checkpoint_data TEXT, version INT, updated_at TEXT"
    with engine.begin() as other:
        other.exec_driver_sql(f"CREATE TABLE task_checkpoints ({columns})")
        other.exec_driver_sql("INSERT INTO task_checkpoints VALUES ('t', 'done', 0, '{}', 1, '')")

    with pytest.raises(DefinitionError, match=r"(?s)database others.*task_checkpoints.*version"):
        projection.clear()
    with engine.begin() as other:
        assert other.exec_driver_sql("SELECT count(*) FROM task_checkpoints").scalar() == 1
    engine.dispose()
    projection.close()


def test_a_row_that_a_trigger_refuses_holds_up_no_other(server: Postgres) -> None:
    """
    Whatever it raises: PostgreSQL has a class of its own for that, which is no error of data.
    """
    projection, engine = Projection(url := server.another("refusing")), create_engine(driven(url))
    projection.row("t")
    with engine.begin() as other:
        other.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.task_id = 'odd' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$"
        )
        other.exec_driver_sql(
            "CREATE TRIGGER refuses BEFORE INSERT ON task_checkpoints FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    engine.dispose()
    done = asyncio.run(Projector(engine_with("odd", "there"), projection).once())
    projection.close()

    assert [*done.unread] == ["odd"]
    assert "refuses a row: not this one" in done.unread["odd"]
    assert done.tasks == 1


def driven(url: str) -> str:
    """The URL for SQLAlchemy, with the driver's name."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


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
