"""Which source files a module name, a file or a folder stands for."""

from __future__ import annotations

import importlib.machinery
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from refold.core.errors import RefoldError

SKIPPED = {"__pycache__", "node_modules", "build", "dist"}


class NotFound(RefoldError, LookupError):
    """There is no such module, file or folder."""


@dataclass(frozen=True, slots=True)
class Source:
    """A module and its file.

    Attributes:
        name: As it is imported.
        file: Where its source is.
        root: The folder that has to be on the import path.
    """

    name: str
    file: Path
    root: Path


def text_of(file: Path) -> str:
    """The text of a file, decoded as Python decodes it: as UTF-8, unless its first lines name another encoding.

    Raises:
        SyntaxError: It names an encoding that Python does not know.
        UnicodeDecodeError: It is in another encoding than it says.
    """
    with tokenize.open(file) as opened:
        return opened.read()


def find_sources(target: str, roots: Sequence[Path]) -> list[Source]:
    """The source files that a target stands for, in order; a package or folder stands for all below it.

    Nothing is imported for it.

    Args:
        target: A path that exists, or a module's dotted name.
        roots: Where modules are looked for, first to last.

    Raises:
        NotFound: It is neither.
    """
    path = Path(target)
    if path.suffix == ".py" or "/" in target or (path.is_dir() and not _is_name(target)):
        if path.is_dir():
            return _below(path, roots)
        if path.is_file():
            return [_of_file(path, roots)]
        raise NotFound(f"there is no file or folder {target!r}")
    module, colon, _ = target.partition(":")
    if colon and _is_name(module):
        raise NotFound(f"{target!r} names something in a module; name the module: {module}")
    if not _is_name(target):
        raise NotFound(f"{target!r} is neither a module's name nor a path; for a path write ./{target}")
    found = _of_module(target, roots)
    if found is None:
        looked = ", ".join(str(root) for root in roots[:1])
        raise NotFound(f"there is no module {target!r} in {looked} or on the import path; a path is written ./{target}")
    return found


def is_module(base: Path) -> bool:
    """Whether a path without an ending is that of a module: a file, or a folder with Python files in or below it.

    A folder without any is none: it may have been made a moment ago, as in the tutorial.
    """
    return _has_source(base) or base.with_suffix(".py").is_file()


def _has_source(folder: Path) -> bool:
    return any(not _skipped(file.relative_to(folder)) for file in folder.rglob("*.py"))


def _is_name(target: str) -> bool:
    return all(part.isidentifier() for part in target.split("."))


def _below(folder: Path, roots: Sequence[Path]) -> list[Source]:
    files = [file for file in sorted(folder.rglob("*.py")) if not _skipped(file.relative_to(folder))]
    if not files:
        raise NotFound(f"there is no Python file in {str(folder)!r}")
    return [_of_file(file, roots) for file in files]


def _skipped(path: Path) -> bool:
    return any(part in SKIPPED or part.startswith(".") for part in path.parts)


def _of_file(file: Path, roots: Sequence[Path]) -> Source:
    """A file's module: named from the innermost import root it lies in, else from its outermost package."""
    whole = file.resolve()
    # `src` may be on the import path below the current folder: a skill in it is imported once, by the name that the
    # application's own modules use. A package is no root, though a script's folder may be one.
    around = [at for root in roots if whole.is_relative_to(at := root.resolve()) and not (at / "__init__.py").exists()]
    root = max(around, key=lambda at: len(at.parts), default=None)
    if root is None or not _is_name(".".join(_parts(whole, root))):
        root = whole.parent
        while (root / "__init__.py").exists() and root != root.parent:
            root = root.parent
    return Source(".".join(_parts(whole, root)), file, root)


def _parts(file: Path, root: Path) -> tuple[str, ...]:
    parts = file.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def _of_module(name: str, roots: Sequence[Path]) -> list[Source] | None:
    for root in roots:
        base = root.joinpath(*name.split("."))
        if _has_source(base):
            return _below(base, [root])
        if (file := base.with_suffix(".py")).is_file():
            return [Source(name, file, root.resolve())]
    return _installed(name)


def _installed(name: str) -> list[Source] | None:
    """A module on the import path, found without importing its parents."""
    path: Sequence[str] | None = None
    spec = None
    for end in range(len(parts := name.split("."))):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: end + 1]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin)
    root = file.parents[len(parts) - (0 if file.name == "__init__.py" else 1)]
    return _below(file.parent, [root]) if file.name == "__init__.py" else [Source(name, file, root)]
