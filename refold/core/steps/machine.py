"""The step machine: what named steps and step tables compile to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import JsonValue

from refold.core.authoring.moment import Moment
from refold.core.authoring.skill import Live, Options
from refold.core.authoring.transition import Transition
from refold.core.events import CommandFailed, Event, UserMessage
from refold.core.gates import DecisionMade
from refold.core.steps.drive import Drive
from refold.core.steps.spec import Record, StepSpec


class StepMachine:
    """A skill made of steps. Its state is the record of where it stands among them."""

    def __init__(self, options: Options, steps: Mapping[str, StepSpec]) -> None:
        self._options = options
        self.steps = steps
        self.start = next(step for step in steps.values() if step.start)
        self.resumes = {step.resume_from: step for step in steps.values() if step.resume_from is not None}

    @property
    def held(self) -> Sequence[Any]:
        """What it was made with beside its steps: whoever shares it between tasks asks whether that can change."""
        return ()

    @property
    def options(self) -> Options:
        """What the author said of the skill."""
        return self._options

    def where(self, state: JsonValue) -> str:
        """The step's name."""
        return str(state["step"]) if isinstance(state, dict) else self.start.name

    def awaiting(self, state: JsonValue) -> tuple[str, ...]:
        """The ids that the step's last await, or the step's parameters, wait for, and those whose failure it holds."""
        if state is None:
            return ()
        record = cast("Record", state)
        if "enters" in record:
            return tuple(record["enters"].values())
        awaits = record.get("awaits")
        return tuple(awaits[-1].get("open", awaits[-1]["ids"])) + tuple(awaits[-1].get("failed", ())) if awaits else ()

    def edges(self) -> list[tuple[str, str]]:
        """Literal gotos and resumes."""
        gotos = [(step.name, target) for step in self.steps.values() for target in step.goes_to]
        return gotos + [(source, step.name) for source, step in self.resumes.items()]

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        return self._take(Drive(self.steps, self.resumes, moment, live), state, event, moment)

    def _take(self, drive: Drive, state: JsonValue, event: Event, moment: Moment) -> Transition:
        if state is None:
            assert isinstance(event, UserMessage)
            return drive.enter(self.start, dict(self.start.seeds), event)
        record = cast("Record", state)
        awaited: Any = ()
        if "resume" in record:
            # Another question's answer may have been held, and met by the await that asked for it.
            if isinstance(event, UserMessage | DecisionMade) and event.gate == record["gate"]:
                return drive.resume(record, event)
        elif "enters" in record:
            awaited = record["enters"].values()
            if all(id in moment.receipts for id in awaited):
                return drive.enter_fed(record)
        elif record["awaits"]:
            last = record["awaits"][-1]
            awaited = last.get("open") or last["ids"]
            here = [id in moment.receipts for id in awaited]
            if any(here) if "open" in last else all(here):
                return drive.go_on(record)
        # One of several results: its receipt is kept until the others are here. A failure that no step waits for
        # is nobody's to catch.
        unmet = isinstance(event, CommandFailed) and event.invocation_id not in awaited
        return Transition.ignore() if unmet else Transition()
