"""Files on the command line: `--file` sends one with a message, `refold show --save` writes those of a task."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from refold.cli.errors import CallError
from refold.core.content import Part
from refold.engine import ArtifactView
from refold.export.read import SUFFIX

MOST_BYTES = 25_000_000
"""The most bytes of the files of one message. Providers take about as much."""

Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="A file to send with the message, or its address, https://…; may be repeated. Its type is that of its "
        "name, or given as PATH;type=image/png.",
    ),
]

LONGEST_NAME = 200
"""The most bytes of a file's name that is kept; file systems take 255, and `save` may put a number before it."""

_TYPED = re.compile(r"(.+);type=([\w.+-]+/[\w.+-]+)", re.DOTALL)
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_ADDRESS = re.compile(r"https?://\S+")


def parts_of(files: Sequence[str]) -> tuple[Part, ...]:
    """Files as parts of a message.

    Args:
        files: Paths or addresses, each perhaps with `;type=…` after it.

    Raises:
        CallError: A file is missing, empty, no file, of no known type, or they are too large together.
    """
    parts = tuple(map(_part, files))
    size = sum(len(part.raw or b"") for part in parts)
    if size > MOST_BYTES:
        raise CallError(
            f"the files have {size:,} bytes, and a message takes {MOST_BYTES:,}; make them smaller, or send an "
            "address: --file https://…"
        )
    return parts


def _part(file: str) -> Part:
    typed = _TYPED.fullmatch(file)
    place, media_type = (typed[1], typed[2]) if typed else (file, None)
    if _ADDRESS.fullmatch(place):
        return Part(url=place, media_type=media_type)
    try:
        path = Path(place).expanduser()
    except RuntimeError as error:  # nobody has this home
        raise CallError(f"--file {place!r} cannot be read: {error}") from None
    kind = media_type or mimetypes.guess_type(path.name)[0]
    try:
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise CallError(
                f"--file {place!r} has {path.stat().st_size:,} bytes, and a message takes {MOST_BYTES:,}; make it "
                "smaller, or send its address: --file https://…"
            )
        data = path.read_bytes()
    except OSError as error:
        raise CallError(f"--file {place!r} cannot be read: {error.strerror}") from None
    if not data:
        raise CallError(f"--file {place!r} is empty")
    if kind is None:
        raise CallError(f"--file {place!r}: its name does not say its type; write --file '{place};type=text/plain'")
    # A file system takes names that are no UTF-8.
    return Part(raw=data, filename=path.name.encode(errors="replace").decode(), media_type=kind)


def check_report(report: Path, inputs: Iterable[Path]) -> None:
    """Refuse a report that would be written over a file that the same call reads.

    Raises:
        CallError: It would.
    """
    place = report.resolve()
    history = report.name.endswith((".json", ".json.gz", SUFFIX))
    if any(place == one.resolve() or (history and one.resolve() in place.parents) for one in inputs):
        raise CallError(f"--junit {report} would be written over what is read; name another file")


def files_of(artifacts: Sequence[ArtifactView]) -> Iterator[Part]:
    """The files by value among a task's artifacts, in order."""
    for artifact in artifacts:
        yield from (part for part in artifact.parts if part.raw is not None)


def save(artifacts: Sequence[ArtifactView], folder: Path) -> list[Path]:
    """Write a task's files to a folder, which is created; a name that is taken there is an error.

    Raises:
        CallError: There is no file, a name is taken, or the folder cannot be written.
    """
    files = list(files_of(artifacts))
    if not files:
        raise CallError("the task has handed over no file")
    named: dict[Path, Part] = {}
    for n, part in enumerate(files, 1):
        name = _name(part, n)
        while folder / name in named:
            name = f"{n}-{name}"
        named[folder / name] = part
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, part in named.items():
            with path.open("xb") as file:
                file.write(part.raw or b"")
    except FileExistsError as error:
        raise CallError(f"{error.filename} exists; choose another folder") from None
    except OSError as error:
        raise CallError(f"{error.filename or folder} cannot be written: {error.strerror}") from None
    return [*named]


def _name(part: Part, number: int) -> str:
    """The last piece of a file's name, which is whatever its maker wrote, if a file can have it."""
    name = Path(part.filename or "").name
    odd = name in ("", "..") or _ODD.search(name) or len(name.encode()) > LONGEST_NAME
    return f"file-{number}" if odd else name


def described(part: Part) -> str:
    """A part of an artifact in a line, without the bytes of a file."""
    if part.raw is not None:
        return f"{part.media_type or 'a file'}, {len(part.raw):,} bytes; `refold show TASK --save FOLDER` writes it"
    return part.text or part.url or "data"
