"""What functions take, whether their annotations can be read yet or not.

From Python 3.14 on, annotations are code that runs when somebody asks for them: one that names a class further down, or
one that only type checkers import, fails there. Who asks for its type is told so; who asks for its name is not.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    signature = partial(inspect.signature, annotation_format=Format.FORWARDREF)
    annotations_of = partial(get_annotations, format=Format.STRING)
else:
    signature = inspect.signature

    def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
        """A function's annotations, as they are written where they cannot be read yet."""
        found: Mapping[str, Any] = getattr(function, "__annotations__", {})
        return found
