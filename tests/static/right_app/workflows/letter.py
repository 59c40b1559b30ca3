"""Writes a letter, as a reducer."""

from typing import Literal

from pydantic import BaseModel

from refold import Cmd, Ctx, Event, LlmResult, Transition, UserMessage, flow_skill
from refold.temporal import workflow_for


class Waiting(BaseModel):
    """Nothing is asked for yet."""

    kind: Literal["waiting"] = "waiting"


class Writing(BaseModel):
    """The model writes."""

    kind: Literal["writing"] = "writing"
    about: str


@flow_skill(id="letter")
class Letter:
    """Writes one letter."""

    @staticmethod
    def initial() -> Waiting:
        return Waiting()

    def on_event(self, state: Waiting | Writing, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Waiting(), UserMessage(content=content):
                return Transition.to(Writing(about=content.text)).cmd(Cmd.llm("letter", "Write it.", content))
            case Writing(), LlmResult(value=text):
                return Transition.complete().message(str(text))
        return Transition.ignore(state)


LetterWorkflow = workflow_for(Letter)
