"""How errors end a command: one clear text on stderr and an exit code, never a traceback.

| exit | means                                                                    |
| ---- | ------------------------------------------------------------------------ |
| 0    | done                                                                     |
| 1    | the task failed, was rejected or canceled; what was checked has findings |
| 2    | the call was wrong: its arguments, the task it names, the server, the code |
| 130  | interrupted                                                              |
| 141  | the reader of the output has closed it, as `head` does                   |
"""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from pathlib import Path
from shlex import quote

from refold.core.errors import InputRejected, RefoldError
from refold.engine import TaskNotFound
from refold.export.read import SUFFIX
from refold.words.text import clean

DONE, TASK_FAILED, WRONG_CALL, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141
DEBUG = "REFOLD_DEBUG"
AS_TEXT = "_REFOLD_ERRORS_AS_TEXT"
"""Set by `refold dev` without --json for the processes that it starts with --json: its terminal shows their errors."""


_OF_FILES = (
    "`refold show`, `journal`, `at`, `explain` and `fork` read an export whose name ends in "
    f"`{SUFFIX}`; any other command takes the id of a task"
)


class CallError(Exception):
    """The command was called wrongly; the message says what came, what was expected and what to do."""


def explain(error: Exception, hint: str = "") -> tuple[str, str]:
    """The name of an error, and its text with a hint what to do.

    Args:
        hint: What to do if the task refused the message or decision.
    """
    name = type(error).__name__
    if isinstance(error, InputRejected) and hint:
        return name, f"{error}; {hint}"
    if isinstance(error, TaskNotFound):
        return name, f"{error}{_of_file(getattr(error, 'task_id', ''))}"
    if isinstance(error, RefoldError | CallError):
        return name, str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return name, f"{error.filename or 'the output'} cannot be written: {error.strerror}"
    text = str(error) or "no message"
    return name, f"refold met an error of its own: {name}: {text}; {DEBUG}=1 shows where"


def _of_file(named: str) -> str:
    """What else to say where no task has this name, and it could be a file's."""
    if SUFFIX in named and Path(named).is_file():
        return f". {named!r} is a file: {_OF_FILES}"
    if named.endswith(SUFFIX):
        return f", and no such file; `refold export TASK -o {quote(named)}` writes one"
    return ""


def report(name: str, message: str, *, as_json: bool) -> None:
    """Print an error on stderr."""
    line = clean(f"error: {message}")
    if as_json and AS_TEXT not in os.environ:
        line = json.dumps({"error": name, "message": message}, ensure_ascii=False)
    sys.stderr.write(line + "\n")


def debugging() -> bool:
    """Whether REFOLD_DEBUG asks for tracebacks."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def show_traceback(error: Exception) -> None:
    """Print an error's traceback on stderr."""
    traceback.print_exception(error, file=sys.stderr)
