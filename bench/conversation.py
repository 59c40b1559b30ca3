"""What a long conversation costs in history, and how soon its words are seen.

The same conversation three times, on one Temporal server: as a skill of refold; as a hand-written workflow that sends
hashes alone (`bench/talk_twin.py`); and as an agent of pydantic-ai in its own Temporal integration
(`bench/talk_peer.py`), which repeats its messages in each call. A turn is a reply of 1 KB with a tool call, and a tool
result of 1 KB. refold's model is an OpenAI-compatible server over HTTP; the others' models are functions.

History bytes: the history as the server returns it (protobuf), over all runs, divided by the turns.

Growth: the bytes that turns 51 to 100 add, compared with turns 1 to 50.

400 turns: the task completes, whatever number of runs it takes.

First token: from when the provider sends the first byte of an answer to when a `watch` shows the first of its text.

History events: of a task whose model calls are streamed, compared with a task whose model calls are not.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from statistics import median
from typing import Any

from pydantic_ai.durable_exec.temporal import PydanticAIPlugin
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Worker

from bench import talk_refold, talk_twin
from bench.logs import quiet_logs
from bench.report import Check, Figure, Report, figure
from bench.talk import MODEL, TOOL, Talk, call_id
from bench.talk_peer import TalkPeer
from bench.talk_twin_wire import PLAYED, look_up, model_call
from refold.core.content import Content
from refold.engine import Tokens
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import ENV
from refold.temporal.dev import dev_server
from tests.services.openai_server import OpenAIServer

BYTES_LIMIT = 1.15
GROWTH_LIMIT = 1.10
FIRST_TOKEN_LIMIT_MS = 200.0
PIECE_S = 0.03
"""Seconds between two pieces of an answer: about the speed of a provider."""


class Provider(OpenAIServer):
    """The model, which answers from the script and notes when each answer began.

    Attributes:
        began: When the first byte of each streamed answer was sent, in seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        super().__init__()
        self.began: list[float] = []

    def reply_to(self, body: dict[str, Any]) -> dict[str, Any]:
        """The line of the turn, whose number is that of the replies so far."""
        asked = next(one for one in body["messages"] if one["role"] == "user")
        talk = Talk.of(asked["content"])
        turn = sum(one["role"] == "assistant" for one in body["messages"]) + 1
        message: dict[str, Any] = {"role": "assistant", "content": talk.said(turn)}
        if turn <= talk.turns:
            arguments = f'{{"source": {turn}, "chars": {talk.returned_chars}}}'
            function = {"name": TOOL, "arguments": arguments}
            message["tool_calls"] = [{"id": call_id(turn), "type": "function", "function": function}]
        return message

    async def _complete(self, request: Request) -> Response:
        response = await super()._complete(request)
        self.requests.clear()  # each contains the whole conversation
        if isinstance(response, StreamingResponse):
            response.body_iterator = self._paced(response.body_iterator)
        return response

    async def _paced(self, pieces: Any) -> AsyncIterator[Any]:
        self.began.append(time.monotonic())
        async for piece in pieces:
            yield piece
            await asyncio.sleep(PIECE_S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--turns", type=int, default=100, help="turns of the conversation (default: 100)")
    parser.add_argument("--long", type=int, default=400, help="turns of the long one (default: 400)")
    parser.add_argument("--streams", type=int, default=21, help="streamed answers that are watched (default: 21)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: short conversations, one stream")


def run(options: argparse.Namespace) -> Report:
    """Measure; takes about a minute."""
    quiet_logs()
    logging.basicConfig(level=logging.ERROR)
    turns, long, streams = (10, 12, 1) if options.quick else (options.turns, options.long, options.streams)
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as folder, Provider() as provider:
        os.environ |= {ENV: folder, **provider.environment}
        return asyncio.run(_measured(provider, turns, long, streams))


async def _measured(provider: Provider, turns: int, long: int, streams: int) -> Report:
    talk = Talk(turns=turns, said_chars=1_000, returned_chars=1_000)
    settings = {"turns": turns, "long": long, "streams": streams, "bytes_per_turn": 2_000}
    report = Report(benchmark="conversation", settings=settings)
    async with dev_server() as server:
        bench = Bench(server.address, provider)
        await bench.connect()
        _tell("conversations")
        ours, twin, peer = await bench.ours(talk), await bench.twin(talk), await bench.peer(talk)
        report.figures += _histories(talk, ours, twin, peer)
        report.checks.append(_growth("refold", ours, turns))
        _tell(f"{long} turns")
        report.checks.append(await bench.long(Talk(turns=long, said_chars=1_000, returned_chars=1_000)))
        _tell("first tokens")
        report.checks += await bench.first_tokens(streams)
    return report


def _tell(what: str) -> None:
    print(f"measuring {what} …", file=sys.stderr, flush=True)


class Bench:
    """One run of the benchmark: a server, and a worker for each side while that is measured."""

    def __init__(self, address: str, provider: Provider) -> None:
        self.address = address
        self.provider = provider
        self._ids = count(1)

    async def connect(self) -> None:
        """The clients of the three sides."""
        self.plugin = RefoldPlugin([talk_refold], [talk_refold.look_up], model=MODEL)
        self.refold = await Client.connect(self.address, plugins=[self.plugin])
        self.by_hand = await Client.connect(self.address, data_converter=pydantic_data_converter)
        self.pydantic_ai = await Client.connect(self.address, plugins=[PydanticAIPlugin()])

    def _id(self) -> str:
        return f"talk-{next(self._ids):07}"  # of one length, so that ids take the same number of bytes

    async def ours(self, talk: Talk, *, stream: bool = False) -> list[HistoryEvent]:
        """The history of the conversation as a skill."""
        async with make_worker(self.refold, self.plugin, task_queue="queue-ours"):
            id = await self._talked(talk, stream=stream)
            return await _history(self.refold, id)

    async def _talked(self, talk: Talk, *, stream: bool = False) -> str:
        engine = TemporalEngine(self.refold, "queue-ours")
        view = await engine.start("bench_talk", Content.from_text(talk.question), task_id=self._id(), stream=stream)
        async for _ in engine.watch(view.task_id):
            pass
        return view.task_id

    async def twin(self, talk: Talk) -> list[HistoryEvent]:
        """The history of the conversation by hand."""
        activities: list[Callable[..., Any]] = [model_call, look_up]
        async with Worker(self.by_hand, task_queue="queue-twin", workflows=[talk_twin.TalkTwin], activities=activities):
            id = self._id()
            PLAYED[id] = talk
            await self.by_hand.execute_workflow("talk_twin", talk.question, id=id, task_queue="queue-twin")
            return await _history(self.by_hand, id)

    async def peer(self, talk: Talk) -> list[HistoryEvent]:
        """The history of the conversation in pydantic-ai's integration."""
        async with Worker(self.pydantic_ai, task_queue="queue-peer", workflows=[TalkPeer]):
            id = self._id()
            await self.pydantic_ai.execute_workflow("talk_peer", talk.question, id=id, task_queue="queue-peer")
            return await _history(self.pydantic_ai, id)

    async def long(self, talk: Talk) -> Check:
        """A conversation that no single history could contain."""
        began = time.monotonic()
        async with make_worker(self.refold, self.plugin, task_queue="queue-ours"):
            id = await self._talked(talk)
        status = (await self.refold.get_workflow_handle(id).describe()).status
        runs = [one async for one in self.refold.list_workflows(f"WorkflowId = '{id}'")]
        took = time.monotonic() - began
        return Check(
            name=f"{talk.turns} turns finish",
            key="long",
            passed=status is WorkflowExecutionStatus.COMPLETED,
            found=f"{status.name if status else status} in {len(runs)} runs and {took:.0f} s",
        )

    async def first_tokens(self, streams: int) -> list[Check]:
        """How soon a watch shows a streamed answer, and whether streaming adds history events."""
        short = Talk(turns=1, said_chars=400, returned_chars=10)
        waits: list[float] = []
        async with make_worker(self.refold, self.plugin, task_queue="queue-ours"):
            engine = TemporalEngine(self.refold, "queue-ours")
            for _ in range(streams + 1):  # the first one warms up
                self.provider.began.clear()
                content = Content.from_text(short.question)
                view = await engine.start("bench_talk", content, task_id=self._id(), stream=True)
                seen: dict[str, float] = {}
                async for news in engine.watch(view.task_id):
                    if isinstance(news, Tokens):
                        seen.setdefault(news.invocation_id, time.monotonic())
                waits += [1_000 * (at - sent) for at, sent in zip(seen.values(), self.provider.began, strict=False)]
        kinds = [[event.event_type for event in await self.ours(short, stream=streamed)] for streamed in (True, False)]
        waits = waits[2:] if len(waits) > 2 else waits
        return [
            Check(
                name=f"first token at a watch within {FIRST_TOKEN_LIMIT_MS:g} ms of the provider's first byte (median)",
                key="first_token_ms",
                passed=median(waits) <= FIRST_TOKEN_LIMIT_MS,
                found=f"{median(waits):.0f} ms, {min(waits):.0f} to {max(waits):.0f}, of {len(waits)}",
            ),
            Check(
                name="history events: streaming adds none",
                key="streamed_events",
                passed=kinds[0] == kinds[1],
                found=f"{len(kinds[0])} against {len(kinds[1])}",
            ),
        ]


async def _history(client: Client, id: str) -> list[HistoryEvent]:
    """The events of all runs of a workflow."""
    events: list[HistoryEvent] = []
    run_id: str | None = (
        await client.get_workflow_handle(id).describe()
    ).raw_description.workflow_execution_info.first_run_id
    while run_id:
        history = await client.get_workflow_handle(id, run_id=run_id).fetch_history()
        events += history.events
        run_id = history.events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return events


def _histories(
    talk: Talk, ours: list[HistoryEvent], twin: list[HistoryEvent], peer: list[HistoryEvent]
) -> list[Figure]:
    def per_turn(events: list[HistoryEvent]) -> float:
        return sum(event.ByteSize() for event in events) / talk.turns

    name = f"history bytes a turn, {talk.turns} turns"
    return [
        figure(f"{name}, refold", "history_bytes.refold", "B", [(per_turn(ours), per_turn(twin))], limit=BYTES_LIMIT),
        figure(f"{name}, pydantic-ai", "history_bytes.peer", "B", [(per_turn(peer), per_turn(twin))]),
    ]


def _growth(name: str, events: list[HistoryEvent], turns: int) -> Check:
    """The bytes of the second half of the turns, divided by those of the first."""
    sizes = [0]
    completed = 0
    for event in events:
        sizes[-1] += event.ByteSize()
        completed += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
        if completed == 2:  # a reply and a tool result
            sizes.append(0)
            completed = 0
    half = turns // 2
    first, second = sum(sizes[1:half]) / (half - 1), sum(sizes[half:turns]) / (turns - half)
    return Check(
        name=f"{name}: turns {half + 1} to {turns} add at most {GROWTH_LIMIT:g} times what turns 2 to {half} do",
        key=f"growth.{name}",
        passed=abs(second / first - 1) <= GROWTH_LIMIT - 1,
        found=f"{second:.0f} B a turn against {first:.0f}",
    )
