"""Performs activities within another one, so that for their code, and for interceptors, each is an activity of its own.

`temporalio.testing.ActivityEnvironment` gives each its context: the SDK has no other public way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.activity import ActivityCancellationDetails
from temporalio.common import RawValue
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, ExecuteActivityInput, Interceptor

from refold.effects.short.local import HOLD_S, NOVELTY, Novelty, goes_over
from refold.effects.short.stretch import ALONE_BYTES, AskedEffect, Record, failed

AT_ONCE = 100
"""How many effects a worker performs so at once; as many as the SDK performs local activities."""


class Within:
    """A worker's activities.

    Attributes:
        interceptors: The worker's.

    Args:
        functions: Of the activities, by their types.
        other: The function of all other activities; called with a list of raw arguments.
    """

    interceptors: Sequence[Interceptor] = ()

    def __init__(self, functions: Mapping[str, Callable[..., Any]], other: Callable[..., Any]) -> None:
        self._functions = functions
        self._other = other
        self._slots = asyncio.Semaphore(AT_ONCE)

    def begin(self, asked: AskedEffect, *, new: bool) -> EffectWithin:
        """Begin an effect within the current activity.

        Args:
            asked: What the task asks for.
            new: No earlier attempt of the workflow task can have asked for it.
        """
        novelty = Novelty(surely=new)
        environment = ActivityEnvironment(client=activity.client())
        environment.info = replace(activity.info(), activity_id=asked.id, activity_type=asked.type)
        environment.payload_converter = activity.payload_converter()
        environment.metric_meter = activity.metric_meter()
        work = asyncio.create_task(environment.run(self._performed, asked, novelty))
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody asks for it
        return EffectWithin(asked, novelty, environment, work)

    async def _performed(self, asked: AskedEffect, novelty: Novelty) -> Any:
        NOVELTY.set(novelty)
        if self._slots.locked():
            try:
                await asyncio.wait_for(self._slots.acquire(), HOLD_S)
            except TimeoutError:
                raise goes_over() from None
        else:
            await self._slots.acquire()
        try:
            inbound: ActivityInboundInterceptor = _Innermost()
            for interceptor in reversed(self.interceptors):
                inbound = interceptor.intercept_activity(inbound)
            inbound.init(_Outermost())
            return await inbound.execute_activity(self._input(asked))
        finally:
            self._slots.release()

    def _input(self, asked: AskedEffect) -> ExecuteActivityInput:
        function, args = self._functions.get(asked.type), asked.args
        if function is None:
            given: list[Any] = [[RawValue(arg) for arg in args]]
        else:
            converter = activity.payload_converter()
            given = [RawValue(args[0]), *converter.from_payloads(args[1:])]
        return ExecuteActivityInput(fn=function or self._other, args=given, executor=None, headers=asked.headers)


@dataclass(frozen=True, slots=True)
class EffectWithin:
    """An effect that is under way; see `refold.effects.short.stretch.Going`."""

    asked: AskedEffect
    _novelty: Novelty
    _environment: ActivityEnvironment
    _work: asyncio.Task[Any]

    @property
    def is_over(self) -> bool:
        """Whether the effect has ended."""
        return self._work.done()

    @property
    def is_new(self) -> bool:
        """Whether it was performed, and no earlier attempt of the workflow task had its outcome."""
        return self._novelty.found

    async def record(self) -> Record:
        """The effect's outcome, once it has ended."""
        await asyncio.wait([self._work])
        label = self.asked.label
        if self._work.cancelled():  # by its worker, which is stopped
            return failed(label, goes_over())
        if (error := self._work.exception()) is not None:
            return failed(label, error)
        try:
            at, value = self._work.result()
            return [label, None] if len(to_json(value)) >= ALONE_BYTES else [label, at, value]
        except (TypeError, ValueError):  # a program's interceptor has changed it: the regular way says so
            return failed(label, goes_over())

    def drop(self) -> None:
        """Cancel it: the task does not want it any more."""
        self._environment.cancel(ActivityCancellationDetails(cancel_requested=True))

    def leave(self) -> None:
        """Let it run on, though this activity does not wait for it any more."""
        self._work.cancel()


class _Innermost(ActivityInboundInterceptor):
    """Calls the activity's function: the end of the chain of interceptors."""

    def __init__(self) -> None:  # without a next one
        pass

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        pass

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await input.fn(*input.args)


class _Outermost(ActivityOutboundInterceptor):
    """What interceptors wrap that change `activity.info()` or heartbeats. Here their changes have no effect."""

    def __init__(self) -> None:  # without a next one
        pass

    def info(self) -> activity.Info:
        return activity.info()

    def heartbeat(self, *details: Any) -> None:
        pass  # as in any local activity
