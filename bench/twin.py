"""The research loop as a hand-written Temporal workflow, with which refold's cost is compared.

It has everything that a production workflow has, without waste:

- the same models (`workflows/research.py`), prompts, inputs and answers, one typed activity for both model calls;
- the same timeouts, heartbeat timeout and retry policy; activity summaries; `set_current_details` before each wait;
- the conversation, the artifact and the rounds as state of the workflow; a `status` query that returns them as a model;
- guidance by a `message` update with a validator that refuses it while no question is open;
- one structlog line for each change of status, not repeated on replay;
- started with the search attributes and the static summary that the starter sets; ends with a readable result.

Its worker is set up as Temporal's documentation describes for pydantic: the SDK's sandbox, pydantic and the models
passed through, the SDK's pydantic converter.

It does not: keep a journal, write search attributes when it pauses, number its effects, keep its state as data, hold
early messages, retry by lifecycle, continue as new, store large values elsewhere. Nor does it have refold's sandbox
(`refold/temporal/worker/sandboxed/sandbox.py`), which is part of the comparison.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from workflows.research import CRITIQUE, RESEARCH, Critique, Cycle, brief

with workflow.unsafe.imports_passed_through():
    from bench.twin_wire import Answer, Ask, Document, Said, Start, Status, model_call

log = structlog.get_logger("twin")

RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), backoff_coefficient=2.0, maximum_attempts=5)


@workflow.defn(name="research_twin")
class ResearchTwin:
    """Drafts a text on a topic, has it critiqued, and asks a person if the editor cannot decide."""

    @workflow.init
    def __init__(self, start: Start) -> None:
        self.task_id = workflow.info().workflow_id
        self.status = "submitted"
        self.history: list[Cycle] = []
        self.messages = [Said(role="user", text=start.topic)]
        self.artifacts: list[Document] = []
        self.question: str | None = None
        self.guidance: str | None = None

    @workflow.run
    async def run(self, start: Start) -> Status:
        self.becomes("working", "started")
        while True:
            draft = await self.ask("research", RESEARCH, brief(start.topic, self.history))
            answer = await self.ask("critique", CRITIQUE, str(draft.value), expect="workflows.research:Critique")
            critique = Critique.model_validate(answer.value)
            self.history.append(Cycle(draft=str(draft.value), critique=critique.text))
            match critique.decision:
                case "Approved":
                    self.messages.append(Said(role="agent", text="Approved."))
                    self.artifacts.append(Document(name="final.txt", text=str(draft.value)))
                    self.becomes("completed", "approved")
                    return self.show()
                case "NeedsHumanInput":
                    self.history[-1].human_note = await self.ask_person(critique.text)
                case "NeedsRevision":
                    pass

    async def ask(self, name: str, prompt: str, input: str, *, expect: str | None = None) -> Answer:
        workflow.set_current_details(f"**{self.status}**, round {len(self.history) + 1}\n- model call `{name}`")
        return await workflow.execute_activity(
            model_call,
            Ask(prompt=prompt, input=input, expect=expect),
            start_to_close_timeout=timedelta(hours=1),
            heartbeat_timeout=timedelta(seconds=10),
            retry_policy=RETRY,
            summary=name,
        )

    async def ask_person(self, question: str) -> str:
        self.messages.append(Said(role="agent", text=question))
        self.question = question
        self.becomes("input-required", "asked")
        workflow.set_current_details(f"**{self.status}**, round {len(self.history)}\n- waits for an answer: {question}")
        await workflow.wait_condition(lambda: self.guidance is not None)
        assert self.guidance is not None
        note, self.guidance = self.guidance, None
        return note

    @workflow.update(name="message")
    def message(self, text: str) -> int:
        self.messages.append(Said(role="user", text=text))
        self.question, self.guidance = None, text
        self.becomes("working", "answered")
        return len(self.messages)

    @message.validator
    def check_message(self, text: str) -> None:
        if self.question is None:
            raise ApplicationError(f"the task waits for no message; it is {self.status}", non_retryable=True)

    @workflow.query(name="status")
    def show(self) -> Status:
        return Status(
            task_id=self.task_id,
            status=self.status,
            messages=self.messages,
            artifacts=self.artifacts,
            waiting_for=self.question,
        )

    def becomes(self, status: str, trigger: str) -> None:
        before, self.status = self.status, status
        if not workflow.unsafe.is_replaying():
            log.info(
                "state_transition",
                task_id=self.task_id,
                **{"from": before, "to": status},
                trigger=trigger,
                timestamp=workflow.now().isoformat(),
                metadata={"skill": "research_twin", "round": len(self.history)},
            )
