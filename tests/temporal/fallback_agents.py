"""An agent with two models, for the server tests."""

from __future__ import annotations

from refold import RetryPolicy, tool
from refold.agent import Agent
from refold.temporal import workflow_for


@tool(effect="read_only")
async def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word}!"


Patient = Agent(
    "patient",
    model=["openai:gpt-test", "anthropic:claude-test"],
    instructions="Look words up.",
    tools=[look_up],
    retry=RetryPolicy(base=0.01),
)
PatientWorkflow = workflow_for(Patient)
