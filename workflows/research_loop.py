"""The research loop as a reducer: draft, critique, and a question to a person if the editor cannot decide."""

from typing import Literal

from pydantic import BaseModel

from refold import Artifact, Cmd, Ctx, Event, LlmResult, Transition, UserMessage, flow_skill
from refold.temporal import workflow_for
from workflows.research import CRITIQUE, RESEARCH, Critique, Cycle, brief


class Start(BaseModel):
    kind: Literal["start"] = "start"


class Researching(BaseModel):
    kind: Literal["researching"] = "researching"
    topic: str
    history: list[Cycle]


class Critiquing(BaseModel):
    kind: Literal["critiquing"] = "critiquing"
    topic: str
    draft: str
    history: list[Cycle]


class AwaitHuman(BaseModel):
    kind: Literal["await_human"] = "await_human"
    topic: str
    history: list[Cycle]


class Done(BaseModel):
    kind: Literal["done"] = "done"


State = Start | Researching | Critiquing | AwaitHuman | Done


@flow_skill(id="research_loop", name="Research loop", tags=["research"], examples=["Tides of the North Sea"])
class ResearchLoop:
    """Drafts a text on a topic, has it critiqued, and asks a person if the editor cannot decide."""

    @staticmethod
    def initial() -> State:
        return Start()

    def on_event(self, state: State, event: Event, ctx: Ctx) -> Transition:
        match state, event:
            case Start(), UserMessage(content=content):
                return self.research(content.text, [])
            case Researching(topic=topic, history=history), LlmResult(id="research", value=draft):
                critiquing = Critiquing(topic=topic, draft=str(draft), history=history)
                return Transition.to(critiquing).cmd(Cmd.llm("critique", CRITIQUE, str(draft), expect=Critique))
            case Critiquing(topic=topic, draft=draft, history=history), LlmResult(id="critique", value=value):
                return self.judged(topic, draft, history, ctx.decode(Critique, value))
            case AwaitHuman(topic=topic, history=[*earlier, last]), UserMessage(content=content):
                return self.research(topic, [*earlier, last.model_copy(update={"human_note": content.text})])
            case _:
                return Transition.ignore(state)

    def judged(self, topic: str, draft: str, history: list[Cycle], critique: Critique) -> Transition:
        history = [*history, Cycle(draft=draft, critique=critique.text)]
        match critique.decision:
            case "Approved":
                final = Artifact.from_text("final.txt", draft)
                return Transition.complete(Done()).message("Approved.").artifact(final)
            case "NeedsRevision":
                return self.research(topic, history)
            case "NeedsHumanInput":
                return Transition.await_input("guidance", critique.text, AwaitHuman(topic=topic, history=history))

    def research(self, topic: str, history: list[Cycle]) -> Transition:
        researching = Researching(topic=topic, history=history)
        return Transition.to(researching).cmd(Cmd.llm("research", RESEARCH, brief(topic, history)))


ResearchLoopWorkflow = workflow_for(ResearchLoop)
