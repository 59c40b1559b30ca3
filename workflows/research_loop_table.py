"""The research loop as a table of plain functions over one typed payload."""

from pydantic import BaseModel

from refold import Artifact, Cmd, Content, Ctx, Step, Transition, table
from refold.temporal import workflow_for
from workflows.research import CRITIQUE, RESEARCH, Critique, Cycle, brief


class Work(BaseModel):
    topic: str = ""
    draft: str = ""
    history: list[Cycle] = []


def research(work: Work) -> Transition:
    return Transition.goto("draft", work=work).cmd(Cmd.llm("research", RESEARCH, brief(work.topic, work.history)))


def begin(content: Content) -> Transition:
    return research(Work(topic=content.text))


def draft(work: Work, research: str) -> Transition:
    drafted = work.model_copy(update={"draft": research})
    return Transition.goto("judge", work=drafted).cmd(Cmd.llm("critique", CRITIQUE, research, expect=Critique))


def judge(ctx: Ctx, work: Work, critique: Critique) -> Transition:
    work.history.append(Cycle(draft=work.draft, critique=critique.text))
    match critique.decision:
        case "Approved":
            return ctx.complete("Approved.", [Artifact.from_text("final.txt", work.draft)])
        case "NeedsRevision":
            return research(work)
        case "NeedsHumanInput":
            return ctx.await_input("guidance", critique.text, work=work)


def guided(content: Content, work: Work) -> Transition:
    work.history[-1].human_note = content.text
    return research(work)


RESEARCH_LOOP_TABLE = table(
    "research_loop_table",
    Step("begin", begin).start().takes_user_message(),
    Step("draft", draft),
    Step("judge", judge),
    Step("guided", guided).takes_user_message().resume_from("judge"),
    name="Research loop, as a table",
    description="Drafts a text on a topic, has it critiqued, and asks a person where the editor cannot decide.",
    tags=["research"],
)

ResearchLoopTableWorkflow = workflow_for(RESEARCH_LOOP_TABLE)
