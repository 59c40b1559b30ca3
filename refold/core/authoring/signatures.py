"""Signatures and annotations of functions, also while an annotation cannot be evaluated.

From Python 3.14 on, an annotation is evaluated when it is read, and raises if it names a class that is defined later
or imported for type checkers only. `signature` and `annotations_of` do not raise.
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
