"""How long ids and names in a request may be, and which characters they have: all that is stored, matched or logged."""

from __future__ import annotations

import re

from a2a.utils.errors import InvalidParamsError
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.struct_pb2 import Struct, Value

MOST_NAMES = 100
"""How many names a list of names has."""

# Characters, by the name of the field.
MOST_CHARS = {
    "id": 1000,  # as Temporal's ids
    "task_id": 1000,
    "reference_task_ids": 1000,
    "context_id": 256,
    "message_id": 256,
    "tenant": 256,
    "media_type": 256,
    "accepted_output_modes": 256,
    "filename": 1000,
    "extensions": 1000,
    "page_token": 4000,
    "token": 4000,
    "scheme": 256,
    "credentials": 16_000,
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_names(request: ProtoMessage, where: str = "") -> None:
    """Check the ids and names in a request and in what it contains.

    Raises:
        InvalidParamsError: One is too long, has control characters, or there are too many; the message says which.
    """
    for field, value in request.ListFields():
        name = f"{where}{field.name}"
        found = list(value) if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in found:
                if isinstance(inner, ProtoMessage) and not isinstance(inner, Struct | Value):
                    check_names(inner, f"{name}.")
        elif field.name in MOST_CHARS:
            _check(name, found, MOST_CHARS[field.name])


def _check(name: str, given: list[str], most: int) -> None:
    if len(given) > MOST_NAMES:
        raise InvalidParamsError(f"{name} has at most {MOST_NAMES} names; got {len(given)}")
    for one in given:
        if len(one) > most:
            raise InvalidParamsError(f"{name} has at most {most} characters; got {len(one)}")
        if _CONTROL.search(one):
            raise InvalidParamsError(f"{name} has control characters")
