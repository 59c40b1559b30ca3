"""An agent that goes through gates, three abreast."""

from __future__ import annotations

from refold.agent import Agent, Concurrent
from refold.temporal import workflow_for
from tests.faults.skills import through

Guide = Agent(
    "guide", instructions="Go.", tools=[through], gates="none", orchestrator=Concurrent(3), model="scripted:demo"
)
GuideWorkflow = workflow_for(Guide)

Pair = Agent("pair", instructions="Answer.", model=["openai:first", "openai:second"])
PairWorkflow = workflow_for(Pair)
