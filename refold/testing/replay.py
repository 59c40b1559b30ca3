"""Recorded histories as tests: today's code must still do what it did, without a server.

# tests/test_histories.py
HISTORIES = Histories(Path(__file__).parent / "histories", skills=[workflows.refund], tools=[find_order])

@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_a_recorded_task_replays(history: Path) -> None:
    HISTORIES.check(history)

`refold export TASK --history -o tests/histories/TASK.jsonl` adds a task's histories; what `temporal workflow show
--workflow-id TASK --output json` prints is one, too, as `TASK.json`. Those of running tasks can be checked before a
deployment with `refold replay --open`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory

from refold.engine.arguments import takes
from refold.temporal.data.storage import Folder
from refold.temporal.replay.replaying import Replayed, Replays
from refold.temporal.replay.sources import files_in, read_histories
from refold.testing.answers import ScriptError


@takes(ScriptError)
class Histories(Collection[Path]):
    """The histories in a folder, and the code that must still fit them: a collection of the files."""

    def __init__(
        self,
        folder: Path | str,
        *,
        skills: Sequence[Any],
        tools: Sequence[Callable[..., Any]] = (),
        values: Path | str | None = None,
    ) -> None:
        """The histories in a folder and its subfolders.

        Args:
            folder: Its files end in `.json` or `.json.gz`, or are exports with histories.
            skills: Skills, their workflow classes, or modules that hold them.
            tools: The functions declared with `@tool` that the skills' modules import.
            values: The folder with the large values that the histories refer to; None takes `REFOLD_STORAGE`.
        """
        self._folder, self._skills, self._tools = Path(folder), skills, tools
        self._values = None if values is None else Folder(Path(values))

    def __iter__(self) -> Iterator[Path]:
        """The files, in order.

        Raises:
            InputRejected: There is no such folder, or no history in it.
        """
        return iter(files_in([self._folder]))

    def __len__(self) -> int:
        """How many files there are. Raises as iterating does."""
        return len(files_in([self._folder]))

    def __contains__(self, file: object) -> bool:
        """Whether a file is one of them. Raises as iterating does."""
        return file in files_in([self._folder])

    def check(self, file: Path) -> None:
        """Replay the histories in a file. Called outside an event loop.

        Raises:
            AssertionError: Today's code does something else; the message says where first. Or the history could not be
                replayed: its skill is not given, or a stored value cannot be read.
            ValueError: The file holds no history.
            DefinitionError: A skill is defined wrongly.
        """
        __tracebackhide__ = True
        try:
            histories = read_histories(file)
        except ValueError as error:
            raise ValueError(f"{file} {error}") from None
        for found in asyncio.run(self._replayed(histories)):
            if not found.same:
                raise AssertionError(f"{found.task_id}: {found.divergence or f'not replayed: {found.problem}'}")

    @cached_property
    def _replays(self) -> Replays:
        return Replays(self._skills, self._tools, storage=self._values)

    async def _replayed(self, histories: Sequence[WorkflowHistory]) -> list[Replayed]:
        async def each() -> AsyncIterator[WorkflowHistory]:
            for history in histories:
                yield history

        return [one async for one in self._replays.each(each())]
