"""refold: agents that cannot lose their work.

A skill is a pure reducer, or steps that compile to one; it runs as a durable state machine on Temporal. This module
is the pure core; what runs it is imported by name: `from refold.temporal import connect`.
"""

from refold.core.authoring.cmd import Cmd
from refold.core.authoring.context import Ctx
from refold.core.authoring.define import flow_skill, skill_of
from refold.core.authoring.tool import tool
from refold.core.authoring.transition import StatePatch, Transition
from refold.core.chat import Reply, Said, ToolCall, ToolOffer, ToolReturn, Usage, UserSaid
from refold.core.commands import Callback, EffectPolicy
from refold.core.content import Artifact, Content, Message, Part
from refold.core.contracts.audit import ErrorRecord, StateTransitionEvent
from refold.core.contracts.contract import ALL, Contract, Fallback, Invariant, Move, Requirement, adapt
from refold.core.contracts.rules import StateValidator
from refold.core.errors import (
    AdapterError,
    CommandError,
    ContractError,
    DecodeError,
    DefinitionError,
    IllegalMoveError,
    InputRejected,
    InvalidTransitionError,
    InvariantError,
    PatchError,
    RefoldError,
    ReplayMismatch,
    RequirementError,
    SkillError,
    UnauthorizedReadError,
    UnauthorizedWriteError,
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
from refold.core.retry_policy import Failure, FailureKind, RetryPolicy
from refold.core.steps.table import Step, step, table

__all__ = [
    "ALL",
    "TRANSITION_TABLE",
    "ActivityResult",
    "AdapterError",
    "Artifact",
    "Callback",
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
    "ErrorRecord",
    "Event",
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
    "Part",
    "PatchError",
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
    "TaskEvent",
    "TaskState",
    "TimerFired",
    "ToolCall",
    "ToolOffer",
    "ToolResult",
    "ToolReturn",
    "Transition",
    "UnauthorizedReadError",
    "UnauthorizedWriteError",
    "Usage",
    "UserMessage",
    "UserSaid",
    "WorkflowResult",
    "adapt",
    "flow_skill",
    "skill_of",
    "step",
    "table",
    "tool",
]
