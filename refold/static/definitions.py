"""Import a module and collect every definition error in it, not only the first that stops the import."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from refold.core.errors import DefinitionError
from refold.static.code.loaded import is_installed
from refold.static.code.module import FunctionNode
from refold.static.code.sources import Source
from refold.static.failed_import import told
from refold.static.finding import Finding, shown


def definition_errors(source: Source, checked: Collection[Path] = ()) -> list[Finding]:
    """The definition errors of a module's skills and tools, found by importing the module.

    The module's top level runs. After a definition error the module runs again without that definition, so that all
    errors are found.

    Args:
        source: The module.
        checked: Absolute paths of files that are checked too: their errors are reported there, not in the modules that
            import them.
    """
    with on_path(source.root):
        try:
            importlib.import_module(source.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the top level raises becomes a finding
            inner = _imported_from(error, source.file)
            if any(file in checked for file in inner):
                return []
            if inner:
                return [_elsewhere(source, error, inner[-1])]
            return list(_one_by_one(source, error)) if isinstance(error, DefinitionError) else [_broken(source, error)]
    return []


def _one_by_one(source: Source, first: DefinitionError) -> Iterator[Finding]:
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
            place = statement.lineno if isinstance(statement, ast.ClassDef) else line
            for problem in error.problems:
                message = f"{error.skill}: {problem}"
                own = _line_of_step(problem, statement if isinstance(statement, ast.ClassDef) else tree) or place
                yield Finding(file=shown(source.file), line=own, column=1, rule="definition", message=message)
            tree.body.remove(statement)
        except (Exception, SystemExit):  # noqa: BLE001 - see above
            # Caused by the definition that was left out; or by the package's `__init__.py`, which asks this module, not
            # yet run to its end, for what it defines.
            if attempt == 0:
                yield _broken(source, first)
            return
        else:
            return


def _line_of_step(problem: str, where: ast.AST) -> int | None:
    """The line of the step that a problem names, or of the goto or question concerned."""
    named = re.match(r"step '(\w+)'", problem)
    steps = [one for one in ast.walk(where) if isinstance(one, FunctionNode) and named and one.name == named[1]]
    if not steps:
        return None
    target = re.search(r" goes to '(\w+)'", problem)
    asks = "awaits input" in problem or " asks " in problem
    for call in [one for one in ast.walk(steps[0]) if isinstance(one, ast.Call)]:
        match call:
            case ast.Call(func=ast.Attribute(attr="goto"), args=[ast.Constant(value=name), *_]):
                if target is not None and name == target[1]:
                    return call.lineno
            case ast.Call(func=ast.Attribute(attr="await_input" | "await_approval")) if asks:
                return call.lineno
            case _:
                pass
    return steps[0].lineno


def _run(tree: ast.Module, source: Source) -> None:
    """Run a module's top level under its own name, then restore `sys.modules`."""
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


def _line_in(error: BaseException, file: Path, *, innermost: bool = False) -> int | None:
    """The line of a file that led to an error: the outermost one, which is a statement of the module, or the last."""
    whole = file.resolve()
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == whole]
    return lines[-1 if innermost else 0] if lines else None


def _imported_from(error: BaseException, file: Path) -> list[Path]:
    """The files whose import failed and with it that of this file, outermost first; none where this file is wrong.

    They include the `__init__.py` of this file's package, which Python runs before the file, and what it imports.
    """
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.name == "<module>"]
    files = [Path(one.filename).resolve() for one in frames if not is_installed(one.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        files.append(Path(error.filename).resolve())
    own = file.resolve()
    if own not in files:
        return files
    return [] if files[-1] == own else files[files.index(own) + 1 :]


def _elsewhere(source: Source, error: BaseException, inner: Path) -> Finding:
    what = told(error, source.root)
    if isinstance(error, DefinitionError):
        what = f"{error.skill!r} cannot be defined: {'; '.join(error.problems)}"
    line = _line_in(error, source.file)
    how = "it imports" if line else "Python imports its package first, and with it"
    message = f"{how} {shown(inner)}, which cannot be imported: {what}"
    return Finding(file=shown(source.file), line=line or 1, column=1, rule="import", message=message)


def _broken(source: Source, error: BaseException) -> Finding:
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(source.file) else None
    line = line or _line_in(error, source.file, innermost=True) or 1
    message = f"the module cannot be imported: {told(error, source.root)}"
    return Finding(file=shown(source.file), line=line, column=1, rule="import", message=message)


@contextmanager
def on_path(*roots: Path) -> Iterator[None]:
    """Let modules below these folders be imported."""
    before = list(sys.path)
    sys.path[:0] = dict.fromkeys(map(str, roots))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
