"""`refold.testing.replay`: a folder of histories as tests."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from refold import InputRejected
from refold.testing.replay import Histories
from tests.records.replaying import HISTORIES, VALUES
from tests.temporal.replay.changed import changed, forget
from workflows import hello, refund


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two histories, one of them in a folder below."""
    for name in ("hello", "below/refund"):
        data = json.loads(gzip.decompress((HISTORIES / f"{Path(name).name}.json.gz").read_bytes()))
        file = tmp_path / "histories" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(data["history"]))
    return tmp_path / "histories"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of changed modules."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    forget(before)


def test_each_file_is_a_case(folder: Path) -> None:
    """
    Also in folders below; code that does what it did passes.
    """
    histories = Histories(folder, skills=[hello, refund], values=VALUES)

    assert [file.name for file in histories] == ["refund.json", "hello.json"]
    for file in histories:
        histories.check(file)


def test_exports_with_histories_are_cases(folder: Path) -> None:
    """
    Those without are for evals, and are left out. The files are a collection, as pytest wants it.
    """
    history = (folder / "hello.json").read_text()
    run = f'{{"history":{{"run_id":"r","history":{history}}},"digest":"d"}}'
    (folder / "exported.jsonl").write_text(f'{{"header":{{}},"digest":"d"}}\n{run}\n')
    (folder / "run.jsonl").write_text('{"header":{},"digest":"d"}\n')
    histories = Histories(folder, skills=[hello, refund], values=VALUES)

    assert [file.name for file in histories] == ["refund.json", "exported.jsonl", "hello.json"]
    assert isinstance(histories, Collection)
    assert len(histories) == 3
    assert folder / "exported.jsonl" in histories
    assert folder / "run.jsonl" not in histories
    histories.check(folder / "exported.jsonl")


def test_a_difference_fails(folder: Path, here: Path) -> None:
    """
    With the words that tell where.
    """
    module = changed(here, "workflows.hello", ("Greet this person", "Greet them"))
    histories = Histories(str(folder), skills=[module, refund], values=str(VALUES))

    histories.check(folder / "below" / "refund.json")
    with pytest.raises(AssertionError, match=r"hello: entry 1 .* model call 'greeting', prompt: rec"):
        histories.check(folder / "hello.json")


def test_what_cannot_be_replayed_fails(folder: Path) -> None:
    """
    A skill that is not given, a file that is no history, a folder without any.
    """
    histories = Histories(folder, skills=[hello], values=VALUES)
    (folder / "bad.json").write_text("{}")
    (folder / "empty").mkdir()

    with pytest.raises(AssertionError, match="refund: not replayed: the code at hand has no skill"):
        histories.check(folder / "below" / "refund.json")
    with pytest.raises(ValueError, match=r"bad\.json holds no history"):
        histories.check(folder / "bad.json")
    with pytest.raises(InputRejected, match=r"empty ends in \.json or"):
        list(Histories(folder / "empty", skills=[hello]))
