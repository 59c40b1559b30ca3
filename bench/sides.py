"""The two sides of the comparison: a skill in one of its styles, and the hand-written workflow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.plugin import SimplePlugin
from temporalio.worker import UnsandboxedWorkflowRunner, WorkerConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

import workflows.research_loop
import workflows.research_loop_steps
import workflows.research_loop_table
from bench import script
from bench.script import Plan
from bench.twin import ResearchTwin
from bench.twin_wire import Start, model_call
from refold.conversation import LlmOutcome
from refold.core.chat import Usage
from refold.core.commands import CallLlm
from refold.core.content import Content
from refold.core.events import UserMessage
from refold.temporal.data import search_attributes
from refold.temporal.data.inputs import input_of
from refold.temporal.data.wire import LLM_ACTIVITY, TaskStart
from refold.temporal.worker.plugin import RefoldPlugin

REFOLD, TWIN = "refold", "twin"


@dataclass(frozen=True, slots=True)
class Subject:
    """One workflow type that is measured.

    Attributes:
        name: In reports: the style, or the twin.
        side: Which worker serves it: `refold` or `twin`.
        workflow: Its workflow type.
    """

    name: str
    side: str
    workflow: str


STYLES = (
    Subject("reducer", REFOLD, "research_loop"),
    Subject("steps", REFOLD, "research_loop_steps"),
    Subject("table", REFOLD, "research_loop_table"),
)
BY_HAND = Subject("by hand", TWIN, "research_twin")
SUBJECTS = (*STYLES, BY_HAND)


@activity.defn(name=LLM_ACTIVITY)
async def scripted_llm(command: CallLlm, stream: bool = False) -> LlmOutcome:
    """Answer from the script, as `bench.twin_wire.model_call` does."""
    command = CallLlm.model_validate(command)  # as refold's own activity does if one of two arguments arrived
    asked = command.input.text if command.input is not None else ""
    value: Any = script.draft(asked) if command.expect is None else script.verdict(asked)
    return LlmOutcome(value=value, model="scripted:bench", usage=Usage(input_tokens=250, output_tokens=500))


class _Scripted(RefoldPlugin):
    """refold as it runs in production, except that its model answers from the script."""

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """The plugin's own settings, with one activity in place of all of refold's."""
        config = super().configure_worker(config)
        config["activities"] = [scripted_llm]
        return config


def plugin(side: str, *, sandboxed: bool = True) -> SimplePlugin:
    """The side's settings for clients, workers and replayers."""
    if side == REFOLD:
        skills = [workflows.research_loop, workflows.research_loop_steps, workflows.research_loop_table]
        return _Scripted(skills, sandboxed=sandboxed)
    # pydantic is passed through: otherwise its models would be of different classes inside the sandbox, as every user
    # of both finds.
    passed = SandboxRestrictions.default.with_passthrough_modules(
        "pydantic", "pydantic_core", "annotated_types", "structlog"
    )
    return SimplePlugin(
        "twin",
        data_converter=pydantic_data_converter,
        workflows=[ResearchTwin],
        activities=[model_call],
        workflow_runner=SandboxedWorkflowRunner(restrictions=passed) if sandboxed else UnsandboxedWorkflowRunner(),
    )


async def start(client: Client, subject: Subject, plan: Plan, id: str, queue: str) -> WorkflowHandle[Any, Any]:
    """Start a task as the side's own starter does: with search attributes and a summary.

    Args:
        client: With the side's plugin.
    """
    message = UserMessage(content=Content.from_text(plan.topic))
    ours = subject.side == REFOLD
    argument = input_of(TaskStart(message=message)) if ours else Start(topic=plan.topic)
    return await client.start_workflow(
        subject.workflow,
        argument,
        id=id,
        task_queue=queue,
        search_attributes=search_attributes.at_start(subject.workflow, datetime.now(UTC)),
        static_summary=plan.topic[:160],
    )
