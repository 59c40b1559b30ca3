"""The ready-made agent: any model with tools, durable, in ten lines.

Five layers, each of which imports only those before it: `clients` call models and tools, `plugins` observe and raise
flags, `steps` do the work, `middleware` wraps steps, `orchestrators` decide which calls run concurrently.
"""

from refold.agent.agent import Agent, Answer
from refold.agent.checkpoints import Checkpoint, checkpoint_of, next_checkpoint, resumed
from refold.agent.errors import BudgetExceeded, GuardrailError, NoAnswer, NoPrice, NoUsage
from refold.agent.looping.slots import Repeat, Think, Together
from refold.agent.looping.turn import LoopTurn
from refold.agent.middleware import Middleware, Retryable, Traced, around
from refold.agent.orchestrators import ByTool, Concurrent, Orchestrator, Sequential
from refold.agent.plugins import (
    AfterInvocation,
    AfterModelCall,
    AfterToolCall,
    AfterTools,
    BeforeInvocation,
    BeforeModelCall,
    BeforeToolCall,
    BeforeTools,
    MessageAdded,
    Plugin,
)
from refold.agent.ready.budget import Budget
from refold.agent.ready.guards import Block, Guardrail
from refold.agent.ready.limits import RateLimit
from refold.agent.ready.memory import Cache, Window
from refold.agent.ready.tracing import Spans
from refold.agent.state import AgentState, StepStatus
from refold.agent.steps import ModelTurn, Step, ToolTurn
from refold.agent.tools import AgentTool, skill_tool

__all__ = [
    "AfterInvocation",
    "AfterModelCall",
    "AfterToolCall",
    "AfterTools",
    "Agent",
    "AgentState",
    "AgentTool",
    "Answer",
    "BeforeInvocation",
    "BeforeModelCall",
    "BeforeToolCall",
    "BeforeTools",
    "Block",
    "Budget",
    "BudgetExceeded",
    "ByTool",
    "Cache",
    "Checkpoint",
    "Concurrent",
    "Guardrail",
    "GuardrailError",
    "LoopTurn",
    "MessageAdded",
    "Middleware",
    "ModelTurn",
    "NoAnswer",
    "NoPrice",
    "NoUsage",
    "Orchestrator",
    "Plugin",
    "RateLimit",
    "Repeat",
    "Retryable",
    "Sequential",
    "Spans",
    "Step",
    "StepStatus",
    "Think",
    "Together",
    "ToolTurn",
    "Traced",
    "Window",
    "around",
    "checkpoint_of",
    "next_checkpoint",
    "resumed",
    "skill_tool",
]
