"""Runs the pages' Python, each page in processes of its own that share the libraries which one process has loaded.

As a script, with `-W error`: each line on standard input is a folder, and what to run in it: `page` for its page.py,
`tests` for its tests. The answer is a line with the exit code. What was printed is in the folder, in `printed`.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import traceback
from pathlib import Path

LIBRARIES = ["pytest", "hypothesis", "httpx", "pydantic_ai.models.openai", "temporalio.worker", "temporalio.client"]
"""Which take long to load. None of refold's modules: a page has to import what it uses."""


def main() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    assert "refold" not in sys.modules
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    gc.freeze()
    for line in sys.stdin:
        what, folder = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if not child:
            code = 1
            try:
                code = run(what, Path(folder))
            except BaseException:  # noqa: BLE001 - what ends a script
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)  # without taking all libraries down again, which takes as long as to load them
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


def run(what: str, folder: Path) -> int:
    """Run it in its folder, whose packages come first."""
    printed = os.open(folder / "printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(printed, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.path[0] = str(folder)
    if what == "page":
        importlib.import_module("page")
        return 0
    import pytest

    return pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "tests"])


if __name__ == "__main__":
    main()
