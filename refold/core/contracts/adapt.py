"""Stages that hand their output to the next one, taken into a contract: their output becomes a patch."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from refold.core.authoring.patch import StatePatch
from refold.core.codec import codec
from refold.core.errors import AdapterError
from refold.core.schema import problems


def adapt(output: Any, **fields: Any) -> StatePatch:
    """The patch that the output of a stage stands for: `adapt(await plan(ctx, text), thought=ThoughtState)`.

    Args:
        output: What the stage returned, as data or as a value.
        fields: The type that each field of the state reads the whole output as.

    Raises:
        AdapterError: The output is not complete, or does not fit.
    """
    patch = {}
    for name, kind in fields.items():
        try:
            patch[name] = codec(kind).fresh(output)
        except ValidationError as error:
            wanted = getattr(kind, "__name__", str(kind))
            raise AdapterError(
                "", "", name, "the stage's output is complete", expected=f"a {wanted}", actual=problems(error)
            ) from None
    return StatePatch(**patch)
