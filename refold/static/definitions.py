"""Import a module and collect every definition error in it, not only the first that stops the import."""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from refold.core.errors import DefinitionError
from refold.static.finding import Finding
from refold.static.sources import Source


def definition_errors(source: Source) -> list[Finding]:
    """What is wrong with the skills and tools of a module, as they say themselves when it is imported.

    The module is imported, so its top level runs. Where a definition fails, the rest of the module is tried without
    it, so that all failures are found.
    """
    with _on_path(source.root):
        try:
            importlib.import_module(source.name)
        except DefinitionError as error:
            if _line_in(error, source.file) is None:
                return [_elsewhere(source, error)]
            return list(_one_by_one(source))
        except Exception as error:  # noqa: BLE001 - whatever the module's top level raises is the finding
            return [_broken(source, error)]
    return []


def _one_by_one(source: Source) -> Iterator[Finding]:
    tree = ast.parse(source.file.read_bytes(), str(source.file))
    for attempt in range(len(tree.body)):
        try:
            _run(tree, source)
        except DefinitionError as error:
            line = _line_in(error, source.file)
            at_line = (one for one in tree.body if line and _first(one) <= line <= (one.end_lineno or line))
            statement = next(at_line, None)
            if statement is None or line is None:
                return
            shown = statement.lineno if isinstance(statement, ast.ClassDef) else line
            for problem in error.problems:
                yield Finding(
                    file=str(source.file), line=shown, column=1, rule="definition", message=f"{error.skill}: {problem}"
                )
            tree.body.remove(statement)
        except Exception as error:  # noqa: BLE001 - see above
            if attempt == 0:
                yield _broken(source, error)
            return  # it misses what was taken out
        else:
            return


def _run(tree: ast.Module, source: Source) -> None:
    """Run a module's top level under its own name, and take it away again."""
    module = ModuleType(source.name)
    module.__file__ = str(source.file)
    if source.file.name == "__init__.py":
        module.__path__ = [str(source.file.parent)]
    module.__package__ = source.name if source.file.name == "__init__.py" else source.name.rpartition(".")[0]
    before = sys.modules.get(source.name)
    sys.modules[source.name] = module
    try:
        exec(compile(tree, str(source.file), "exec"), module.__dict__)
    finally:
        if before is None:
            del sys.modules[source.name]
        else:
            sys.modules[source.name] = before


def _first(statement: ast.stmt) -> int:
    marks: Sequence[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(mark.lineno for mark in marks)])


def _line_in(error: BaseException, file: Path) -> int | None:
    """The line of a file that led to an error; the outermost one."""
    whole = file.resolve()
    frames = traceback.extract_tb(error.__traceback__)
    return next((frame.lineno for frame in frames if Path(frame.filename).resolve() == whole), None)


def _elsewhere(source: Source, error: DefinitionError) -> Finding:
    problems = "; ".join(error.problems)
    message = f"it imports a skill that cannot be defined: {error.skill}: {problems}"
    return Finding(file=str(source.file), line=1, column=1, rule="definition", message=message)


def _broken(source: Source, error: Exception) -> Finding:
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(source.file) else None
    line = line or _line_in(error, source.file) or 1
    message = f"the module cannot be imported: {type(error).__name__}: {error}"
    return Finding(file=str(source.file), line=line, column=1, rule="import", message=message)


@contextmanager
def _on_path(root: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
