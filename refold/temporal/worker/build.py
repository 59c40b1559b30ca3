"""The build id of a worker whose code nobody has named: a hash of the sources of all loaded modules.

The SDK's default hashes the bytecode of each module's top level alone, which stays as it is when the body of a function
changes: `refold upgrade` would take changed code for the code that a task runs on already. Sources are read five times
as fast, too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

_SOURCES = (".py", ".pyc")
"""Extensions are large, and their packages' Python files change with them."""


@cache
def build_of_process() -> str:
    """The build of this process: of the modules loaded at the first call, so that all of its workers have one."""
    return build_of(sys.modules)


def build_of(modules: Mapping[str, Any]) -> str:
    """A hash of modules' names and sources: the same wherever they are installed.

    Args:
        modules: Modules by name, as in `sys.modules`. A module without a file, or whose file is gone, is left out.
    """
    digest = hashlib.md5(usedforsecurity=False)
    for name, module in sorted(modules.items(), key=lambda item: item[0]):
        said: Mapping[str, Any] = getattr(module, "__dict__", {})  # asked by attribute, a lazy module may import more
        file = said.get("__file__")
        if not isinstance(file, str) or not file.endswith(_SOURCES):
            continue
        try:
            source = said["__loader__"].get_data(file)
        except (KeyError, AttributeError, OSError):
            continue
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(source), source))
    return digest.hexdigest()
