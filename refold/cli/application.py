"""The application: the skills and tools in the modules of the current folder."""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from refold.cli.errors import CallError
from refold.core.authoring.skill import skill_id
from refold.core.errors import RefoldError
from refold.engine import UnknownSkill

if TYPE_CHECKING:  # it is loaded by the verbs that look for modules
    from refold.static import Parts, Source

USUAL = ("workflows", "activities")
"""The modules that a verb loads when the call names none."""


def sources_of(names: Sequence[str]) -> list[Source]:
    """The files of the named modules, files and folders; of the `USUAL` ones if none are named.

    Raises:
        NotFound: There is no such module, file or folder.
        CallError: None are named, and this folder has none of the usual ones.
    """
    from refold.static import find_sources

    here = Path.cwd()
    names = names or _usual_names()
    if not names:
        raise CallError(
            f"no module {' or '.join(USUAL)} in {here}; go to your application's folder, or name its modules"
        )
    found = [source for name in names for source in find_sources(name, [here, *map(Path, sys.path)])]
    return list({source.file.resolve(): source for source in found}.values())


def usual_sources() -> list[Source]:
    """The files of the usual modules of this folder; empty where there are none."""
    return sources_of(names) if (names := _usual_names()) else []


def _usual_names() -> list[str]:
    from refold.static.code.sources import is_module

    return [name for name in USUAL if is_module(Path.cwd() / name)]


def application(names: Sequence[str], skill: str | None = None) -> Parts:
    """Import modules and collect their skills and tools.

    Args:
        names: As for `sources_of`.
        skill: The id of the skill to which the call confines itself; None for all. There is no task of a misspelt one,
            so that a verb that checks tasks would find nothing wrong.

    Raises:
        NotFound, CallError: As for `sources_of`; or a module cannot be imported, or two skills share an id.
        UnknownSkill: No module has that skill.
        DefinitionError: A skill or tool is defined wrongly.
    """
    from refold.static import parts_of

    found = parts_of(_imported(source) for source in sources_of(names))
    for second, module in found.twice:
        raise CallError(f"two skills have the id {skill_id(second)!r}, the second in {module.__name__}")
    if skill is not None and skill not in found.skills:
        raise UnknownSkill(skill, list(found.skills))
    return found


def without_skill(found: Parts) -> CallError:
    """The error of a verb that needs a skill, and whose modules have none."""
    named = ", ".join(module.__name__ for module in found.modules)
    return CallError(f"no skill in {named}; at the top level of a module, one is made by @flow_skill, table or Agent")


@contextlib.contextmanager
def quiet_stdout() -> Iterator[None]:
    """Send what imported modules print to stderr: it is not a result of the verb."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def imported(name: str, called: str, root: Path | None = None) -> ModuleType:
    """Import a module of the application.

    Args:
        name: The module's, with dots.
        called: What an error calls it.
        root: The folder on the import path that it is below; None for the current one.

    Raises:
        CallError: It cannot be imported.
        DefinitionError: A skill or tool is defined wrongly.
    """
    try:
        with quiet_stdout():
            return importlib.import_module(name)
    except RefoldError:
        raise
    # A script that calls sys.exit() when it is imported would end the verb, with an exit code that says "done".
    except (Exception, SystemExit) as error:
        why = _why(error, Path.cwd() if root is None else root)
        raise CallError(f"{called} cannot be imported: {why}") from error


def _why(error: BaseException, root: Path) -> str:
    """An error at import, the way out, and the innermost line of the application that led to it unless it says that."""
    from refold.static.code.loaded import is_installed
    from refold.static.failed_import import told
    from refold.static.finding import shown

    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    lines = [f" ({shown(frame.filename)}, line {frame.lineno})" for frame in frames if not is_installed(frame.filename)]
    return f"{told(error, root)}{lines[-1] if lines else ''}"


def _imported(source: Source) -> ModuleType:
    if str(source.root) not in sys.path:
        sys.path.insert(0, str(source.root))
    return imported(source.name, str(source.file), source.root)
