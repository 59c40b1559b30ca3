"""The pure core: what a skill is, and what a task becomes when something happens to it.

Standard library and pydantic only. Nothing here reads a clock, draws a random number, opens a file or waits.
"""

from refold.core.chat import Reply, Said, ToolCall, ToolOffer, ToolReturn, Usage, UserSaid
from refold.core.commands import Cmd, EffectPolicy
from refold.core.content import Artifact, Content, Message, Part
from refold.core.context import Ctx
from refold.core.define import flow_skill, skill_of
from refold.core.errors import (
    CommandError,
    DecodeError,
    DefinitionError,
    EngineError,
    InputRejected,
    InvalidTransitionError,
    NotConnected,
    NoWorker,
    PayloadTooLarge,
    RefoldError,
    ReplayMismatch,
    SkillError,
    StorageError,
    TaskExists,
    TaskNotFound,
    UnknownSkill,
)
from refold.core.events import (
    ActivityResult,
    ChatResult,
    CommandFailed,
    Event,
    LlmResult,
    SkillOutcome,
    SkillResult,
    TimerFired,
    ToolResult,
    UserMessage,
    WorkflowResult,
)
from refold.core.gates import DecisionMade, GateKind, GatePolicy
from refold.core.lifecycle import TRANSITION_TABLE, Status, TaskEvent, TaskState
from refold.core.retry import Failure, FailureKind, RetryPolicy
from refold.core.steps import Step, step, table
from refold.core.tool import tool
from refold.core.transition import Transition

__all__ = [
    "TRANSITION_TABLE",
    "ActivityResult",
    "Artifact",
    "ChatResult",
    "Cmd",
    "CommandError",
    "CommandFailed",
    "Content",
    "Ctx",
    "DecisionMade",
    "DecodeError",
    "DefinitionError",
    "EffectPolicy",
    "EngineError",
    "Event",
    "Failure",
    "FailureKind",
    "GateKind",
    "GatePolicy",
    "InputRejected",
    "InvalidTransitionError",
    "LlmResult",
    "Message",
    "NoWorker",
    "NotConnected",
    "Part",
    "PayloadTooLarge",
    "RefoldError",
    "ReplayMismatch",
    "Reply",
    "RetryPolicy",
    "Said",
    "SkillError",
    "SkillOutcome",
    "SkillResult",
    "Status",
    "Step",
    "StorageError",
    "TaskEvent",
    "TaskExists",
    "TaskNotFound",
    "TaskState",
    "TimerFired",
    "ToolCall",
    "ToolOffer",
    "ToolResult",
    "ToolReturn",
    "Transition",
    "UnknownSkill",
    "Usage",
    "UserMessage",
    "UserSaid",
    "WorkflowResult",
    "flow_skill",
    "skill_of",
    "step",
    "table",
    "tool",
]
