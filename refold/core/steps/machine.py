"""The step machine: the skill that `@step` methods and step tables compile to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.context import Moment
from refold.core.authoring.skill import Live, Options, Skill
from refold.core.authoring.transition import NOTHING, Transition
from refold.core.content import Content
from refold.core.errors import SkillError, brief
from refold.core.events import CommandFailed, Event, UserMessage
from refold.core.gates import DecisionMade
from refold.core.steps.arguments import unfit_reply
from refold.core.steps.hooks import Hooks
from refold.core.steps.position import Position
from refold.core.steps.run import Drive
from refold.core.steps.spec import MadeWith, StepSpec

NO_HOOKS = Hooks()


class StepMachine(Skill):
    """A skill made of steps. Its state is a `Position`."""

    def __init__(self, options: Options, steps: Mapping[str, StepSpec]) -> None:
        self.options = options
        self.steps = steps
        self.start = next(step for step in steps.values() if step.start)
        self.resumes = {step.resume_from: step for step in steps.values() if step.resume_from is not None}

    @property
    def references(self) -> Sequence[Any]:
        """Extra objects the machine refers to. The sandbox shares a skill between tasks only if none is mutable."""
        return ()

    @property
    def made_with(self) -> Sequence[MadeWith]:
        """Tools, skills and MCP servers that the skill was constructed with; `refold check` looks them up."""
        return ()

    def where(self, state: JsonValue) -> str:
        """The step's name."""
        return str(state["step"]) if isinstance(state, dict) else self.start.name

    def places(self) -> list[str]:
        """The steps."""
        return list(self.steps)

    def awaiting(self, state: JsonValue) -> tuple[str, ...]:
        """See `Skill.awaiting`: the commands of the step's last await, or those whose results its parameters need.

        In `ctx.parallel`, these are the outstanding calls of all branches, and the calls whose failures will be raised.
        """
        if state is None:
            return ()
        position = Position(state)
        return (*position.outstanding, *(last.failed if (last := position.last) else ()))

    def interruptible(self, state: JsonValue) -> bool:
        """See `Skill.interruptible`: whether the task is in a step with `on_interrupt`."""
        if state is None or (position := Position(state)).last is None:
            return False
        return position.step in self.steps and self.steps[position.step].on_interrupt is not None

    def unfit_reply(self, state: JsonValue, gate: str, content: Content) -> str:
        """See `Skill.unfit_reply`."""
        if not isinstance(state, dict) or state.get("gate") != gate or state.get("resume") not in self.steps:
            return ""
        position = Position(state)
        return unfit_reply(self.steps[str(position.resume)], position.slot, position.args, content)

    def own_state(self, state: JsonValue) -> JsonValue:
        """`{"step": …, "args": …}`: the task's step, or the one that receives the awaited answer, and its arguments."""
        if state is None:
            return None
        position = Position(state)
        return {"step": position.resume or position.step, "args": position.args}

    def with_own_state(self, state: JsonValue, own: JsonValue) -> JsonValue:
        """See `Skill.with_own_state`."""
        position = Position(state)
        if not (isinstance(own, dict) and own.keys() == {"step", "args"} and isinstance(own["args"], dict)):
            raise SkillError(f'returned {brief(own)}; it returns {{"step": name, "args": {{name: value}}}}')
        key = "step" if position.resume is None else "resume"
        return {**position.data, key: own["step"], "args": own["args"]}

    def edges(self) -> list[tuple[str, str]]:
        """The pairs of steps joined by a literal `goto`, by `resume_from` or by `on_interrupt`."""
        gotos = [(step.name, target) for step in self.steps.values() for target in step.goes_to]
        met = [(step.name, step.on_interrupt) for step in self.steps.values() if step.on_interrupt is not None]
        return gotos + [(source, step.name) for source, step in self.resumes.items()] + met

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        return self.take(Drive(self.steps, self.resumes, moment, live, NO_HOOKS), state, event)

    def take(self, drive: Drive, state: JsonValue, event: Event) -> Transition:
        """Run steps for one event, until a step awaits something or the task ends."""
        if state is None:
            assert isinstance(event, UserMessage)
            return drive.enter(self.start, dict(self.start.seeds), event)
        position = Position(state)
        receipts = drive.moment.receipts
        if position.resume is not None:
            if isinstance(event, UserMessage | DecisionMade) and event.gate == position.gate:
                return drive.resume(position, event)
            if isinstance(event, CommandFailed) and event.invocation_id == position.gate:
                return drive.resume(position, None)
        elif position.fed_by:
            if all(id in receipts for id in position.fed_by.values()):
                return drive.enter_fed(position)
        elif (last := position.last) is not None:
            if isinstance(event, UserMessage) and event.gate is None:
                return drive.interrupt(position, event)
            if last.back(receipts) or (last.first and drive.moment.parked in last.outstanding):
                return drive.go_on(position)
        return NOTHING  # the step waits for further results; the receipt of this one is recorded
