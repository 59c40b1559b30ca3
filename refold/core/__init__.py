"""The pure core: what a skill is, and what a task becomes when something happens to it.

Standard library and pydantic only. Nothing here reads a clock, draws a random number, opens a file or waits.
"""

from refold.core.authoring.context import Ctx
from refold.core.authoring.define import flow_skill, skill_of
from refold.core.authoring.patch import StatePatch
from refold.core.authoring.tool import tool
from refold.core.authoring.transition import Transition
from refold.core.chat import Reply, Said, ToolCall, ToolOffer, ToolReturn, Usage, UserSaid
from refold.core.commands import Cmd, EffectPolicy
from refold.core.content import Artifact, Content, Message, Part
from refold.core.contracts.adapt import adapt
from refold.core.contracts.audit import ErrorRecord, Explanation, StateTransitionEvent, Written, explain
from refold.core.contracts.contract import ALL, Contract, Fallback, Invariant, Move, Requirement
from refold.core.contracts.rules import StateValidator
from refold.core.contracts.stages import stages_of, verify_stages
from refold.core.errors import (
    AdapterError,
    CommandError,
    ContractError,
    DecodeError,
    DefinitionError,
    EngineError,
    IllegalMoveError,
    InputRejected,
    InvalidTransitionError,
    InvariantError,
    NotConnected,
    NoWorker,
    PatchError,
    PayloadTooLarge,
    RefoldError,
    ReplayMismatch,
    RequirementError,
    SkillError,
    StorageError,
    TaskExists,
    TaskNotFound,
    UnauthorizedReadError,
    UnauthorizedWriteError,
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
from refold.core.steps.table import Step, step, table

__all__ = [
    "ALL",
    "TRANSITION_TABLE",
    "ActivityResult",
    "AdapterError",
    "Artifact",
    "ChatResult",
    "Cmd",
    "CommandError",
    "CommandFailed",
    "Content",
    "Contract",
    "ContractError",
    "Ctx",
    "DecisionMade",
    "DecodeError",
    "DefinitionError",
    "EffectPolicy",
    "EngineError",
    "ErrorRecord",
    "Event",
    "Explanation",
    "Failure",
    "FailureKind",
    "Fallback",
    "GateKind",
    "GatePolicy",
    "IllegalMoveError",
    "InputRejected",
    "InvalidTransitionError",
    "Invariant",
    "InvariantError",
    "LlmResult",
    "Message",
    "Move",
    "NoWorker",
    "NotConnected",
    "Part",
    "PatchError",
    "PayloadTooLarge",
    "RefoldError",
    "ReplayMismatch",
    "Reply",
    "Requirement",
    "RequirementError",
    "RetryPolicy",
    "Said",
    "SkillError",
    "SkillOutcome",
    "SkillResult",
    "StatePatch",
    "StateTransitionEvent",
    "StateValidator",
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
    "UnauthorizedReadError",
    "UnauthorizedWriteError",
    "UnknownSkill",
    "Usage",
    "UserMessage",
    "UserSaid",
    "WorkflowResult",
    "Written",
    "adapt",
    "explain",
    "flow_skill",
    "skill_of",
    "stages_of",
    "step",
    "table",
    "tool",
    "verify_stages",
]
