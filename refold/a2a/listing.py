"""Listing a caller's tasks."""

from __future__ import annotations

from a2a.types import ListTasksRequest, ListTasksResponse
from a2a.utils.errors import UnsupportedOperationError

from refold.engine import Engine


class Listing:
    """Lists tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def page(self, request: ListTasksRequest, caller: str | None) -> ListTasksResponse:
        """One page of the caller's tasks. The request's history length and page size are checked already."""
        raise UnsupportedOperationError("tasks cannot be listed yet")
