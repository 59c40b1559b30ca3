"""The research loop as named steps: each step awaits its commands and names the next step."""

from refold import Artifact, Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for
from workflows.research import CRITIQUE, RESEARCH, Critique, Cycle, brief


@flow_skill(id="research_loop_steps", name="Research loop, in steps", tags=["research"])
class ResearchLoopSteps:
    """Drafts a text on a topic, has it critiqued, and asks a person if the editor cannot decide."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content, history: list[Cycle]) -> Transition:
        return ctx.goto("research", topic=content.text, history=history)

    @step
    async def research(self, ctx: Ctx, topic: str, history: list[Cycle]) -> Transition:
        draft = await ctx.llm("research", RESEARCH, brief(topic, history))
        return ctx.goto("critique", topic=topic, draft=draft, history=history)

    @step
    async def critique(self, ctx: Ctx, topic: str, draft: str, history: list[Cycle]) -> Transition:
        verdict = await ctx.llm("critique", CRITIQUE, draft, expect=Critique)
        history.append(Cycle(draft=draft, critique=verdict.text))
        match verdict.decision:
            case "Approved":
                return ctx.complete("Approved.", [Artifact.from_text("final.txt", draft)])
            case "NeedsRevision":
                return ctx.goto("research", topic=topic, history=history)
            case "NeedsHumanInput":
                return ctx.await_input("guidance", verdict.text, topic=topic, history=history)

    @step(resume_from="critique")
    async def guided(self, ctx: Ctx, content: Content, topic: str, history: list[Cycle]) -> Transition:
        history[-1].human_note = content.text
        return ctx.goto("research", topic=topic, history=history)


ResearchLoopStepsWorkflow = workflow_for(ResearchLoopSteps)
