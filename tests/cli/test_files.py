"""Files on the command line: which are sent, which are refused and how, and where those of a task are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.cli.errors import CallError
from refold.cli.files import MOST_BYTES, parts_of, save
from refold.cli.text.content import content_of
from refold.core.content import Part
from refold.engine import ArtifactView

PNG = b"\x89PNG\r\n\x1a\n" + bytes(3_000_000)


def test_a_file_is_sent_after_the_text(tmp_path: Path) -> None:
    """
    By value, with its name and type; an address by reference; a type may be given.
    """
    (tmp_path / "photo.png").write_bytes(PNG)
    (tmp_path / "notes").write_text("x")
    given = [f"{tmp_path}/photo.png", f"{tmp_path}/notes;type=text/plain", "https://example.org/a.pdf"]

    assert content_of(["What is it?"], None, given).parts == (
        Part(text="What is it?"),
        Part(raw=PNG, filename="photo.png", media_type="image/png"),
        Part(raw=b"x", filename="notes", media_type="text/plain"),
        Part(url="https://example.org/a.pdf"),
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param("gone.png", "cannot be read: No such file or directory", id="missing"),
        pytest.param("folder", "cannot be read: Is a directory", id="a folder"),
        pytest.param("empty.png", "is empty", id="empty"),
        pytest.param("notes", "its name does not say its type; write --file '", id="no type"),
        pytest.param("large.png", "has 25,000,001 bytes, and a message takes 25,000,000", id="too large"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused(tmp_path: Path, name: str, said: str) -> None:
    """
    Before the task is started, with the file's name and a way out.
    """
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.png").touch()
    (tmp_path / "notes").write_text("x")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(MOST_BYTES + 1)

    with pytest.raises(CallError) as caught:
        parts_of([str(tmp_path / name)])

    assert name in str(caught.value)
    assert said in str(caught.value)


def test_a_home_that_nobody_has_is_refused() -> None:
    """
    As a folder that is not there.
    """
    with pytest.raises(CallError, match=r"--file '~nobody_x/f\.png' cannot be read"):
        parts_of(["~nobody_x/f.png"])


def test_a_files_name_is_sent_as_far_as_it_is_text(tmp_path: Path) -> None:
    """
    A file system takes bytes that are no UTF-8; no task could write them.
    """
    (tmp_path / "a\udcff.txt").write_text("x")

    (part,) = parts_of([str(tmp_path / "a\udcff.txt")])

    assert part.filename == "a?.txt"


def test_files_are_too_large_together(tmp_path: Path) -> None:
    """
    What is bounded is the message.
    """
    (tmp_path / "half.png").write_bytes(bytes(MOST_BYTES // 2 + 1))

    with pytest.raises(CallError, match="a message takes 25,000,000"):
        parts_of([str(tmp_path / "half.png")] * 2)


def test_a_tasks_files_are_written_to_a_folder(tmp_path: Path) -> None:
    """
    By the last piece of their names, wherever the names point; nothing is overwritten.
    """
    made = [
        ArtifactView(name="a", parts=(Part(raw=PNG, filename="../../a.png"),)),
        ArtifactView(name="b", parts=(Part(raw=b"x"),)),
        ArtifactView(name="c", text="No file."),
    ]

    assert save(made, tmp_path / "out") == [tmp_path / "out" / "a.png", tmp_path / "out" / "file-2"]
    assert (tmp_path / "out" / "a.png").read_bytes() == PNG
    with pytest.raises(CallError, match=r"a\.png exists; choose another folder"):
        save(made, tmp_path / "out")
    with pytest.raises(CallError, match="handed over no file"):
        save(made[2:], tmp_path)


@pytest.mark.parametrize("name", ["..", "a\0b", "\ud800.png", "a\nb", "ä" * 128])
def test_a_name_that_is_none_is_replaced(tmp_path: Path, name: str) -> None:
    """
    Whoever made the file named it, and it is written all the same.
    """
    made = [ArtifactView(name="a", parts=(Part(raw=PNG, filename=name),))]

    assert save(made, tmp_path) == [tmp_path / "file-1"]


def test_files_of_one_name_are_all_written(tmp_path: Path) -> None:
    """
    The later ones with their number.
    """
    made = [ArtifactView(name=n, parts=(Part(raw=n.encode(), filename="chart.png"),)) for n in ("a", "b")]

    assert save(made, tmp_path) == [tmp_path / "chart.png", tmp_path / "2-chart.png"]
    assert (tmp_path / "2-chart.png").read_bytes() == b"b"
