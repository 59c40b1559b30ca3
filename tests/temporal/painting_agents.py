"""An agent that takes and makes images, for the server tests."""

from __future__ import annotations

from refold.agent import Agent
from refold.temporal import workflow_for

Painter = Agent(
    "painter",
    model="openai-responses:gpt-5",
    instructions="Paint.",
    settings={"provider_tools": ["image_generation"]},
    input_modes=["text/plain", "image/*"],
    output_modes=["text/plain", "image/png"],
)
PainterWorkflow = workflow_for(Painter)
