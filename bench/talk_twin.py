"""The conversation as a hand-written Temporal workflow, with as few bytes as possible.

A model call is sent the hash of the conversation, the last tool result included; the worker has the conversation in
memory, or would ask by the query. Replies and tool results are in history once, as the activities' results. Timeouts,
retry policy and summaries are those that refold sets.

It does not: number its effects, keep a journal, retry by lifecycle, send instructions or tools (its activity has them),
check its input against the hash, continue as new.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from bench.talk_twin_wire import Answer, Ask, Conversation, Turn, look_up, model_call

HOUR, HEARTBEAT = timedelta(hours=1), timedelta(seconds=10)
RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), backoff_coefficient=2.0, maximum_attempts=5)


@workflow.defn(name="talk_twin")
class TalkTwin:
    """Calls the model and the tools that it requests, until it requests none."""

    @workflow.init
    def __init__(self, question: str) -> None:
        self.question = question
        self.turns: list[Turn] = []
        self.hash = _hash(question)

    @workflow.run
    async def run(self, question: str) -> str:
        while True:
            answer: Answer = await workflow.execute_activity(
                model_call,
                Ask(turns=len(self.turns), hash=self.hash),
                start_to_close_timeout=HOUR,
                heartbeat_timeout=HEARTBEAT,
                retry_policy=RETRY,
                summary="model",
            )
            if not answer.calls:
                return answer.text
            turn = Turn(answer=answer, returned=[])
            for call in answer.calls:
                returned = await workflow.execute_activity(
                    look_up,
                    call.args,
                    start_to_close_timeout=HOUR,
                    heartbeat_timeout=HEARTBEAT,
                    retry_policy=RETRY,
                    summary=call.name,
                )
                turn.returned.append(returned)
            self.turns.append(turn)
            self.hash = _hash(self.hash + turn.model_dump_json())

    @workflow.query
    def conversation(self) -> Conversation:
        return Conversation(question=self.question, turns=self.turns)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
