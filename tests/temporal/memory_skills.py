"""Agents that remember, and a skill with sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from activities.sessions import close_turn, open_turn
from refold import Content, Ctx, Transition, flow_skill, step
from refold.agent import Agent
from refold.effects.memory import MEMORY
from refold.temporal import workflow_for

Keeper = Agent("keeper", instructions='-> remember(fact="Likes tea.")\n-> Kept.', tools=MEMORY, gates="none")
Teller = Agent("teller", instructions='-> recall(query="tea")\n-> Known: {recall}', tools=MEMORY, gates="none")


@flow_skill(id="talks")
class Talks:
    """Says what was said in the session before."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        asked = {"session_id": "s1", "asked": content.text, "last": 3}
        turns = await ctx.tool(open_turn, asked, key=f"turn:{ctx.task_id}")
        await ctx.tool(close_turn, session_id="s1", answered=f"re {content.text}", key=f"answer:{ctx.task_id}")
        return ctx.complete("; ".join(f"{turn.asked}: {turn.answered}" for turn in turns))


TOOLS: list[Callable[..., Any]] = [*MEMORY, open_turn, close_turn]
KeeperWorkflow = workflow_for(Keeper)
TellerWorkflow = workflow_for(Teller)
TalksWorkflow = workflow_for(Talks)
