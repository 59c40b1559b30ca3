"""A workflow that sends values of all sizes every way that values can go."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from refold.engine import PayloadTooLarge
    from refold.temporal.data.payloads import Stored

ATTEMPTS = 3


class Line(BaseModel):
    seq: int
    text: str


class Segment(BaseModel):
    lines: list[Line]


class Final(BaseModel):
    """What a run ends with: the task for people, its journal in storage."""

    text: str
    journal: Stored[Segment]


class Order(BaseModel):
    """What the workflow is to do, and the journals of its earlier runs."""

    how: str = "wait"
    earlier: tuple[Stored[Segment], ...] = ()


@activity.defn
async def make(size: int) -> str:
    return "y" * size


@activity.defn
async def measure(text: str) -> int:
    return len(text)


@workflow.defn
class Travel:
    """Waits for `finish` and does meanwhile what it is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.finished = False
        self.outcome = ""

    @workflow.run
    async def run(self, order: Order) -> Final:
        await workflow.wait_condition(lambda: self.finished)
        await workflow.wait_condition(workflow.all_handlers_finished)
        segment = Segment(lines=[Line(seq=n, text=text) for n, text in enumerate(self.texts)])
        if order.how == "again":
            earlier = (*order.earlier, Stored[Segment](value=segment))
            workflow.continue_as_new(Order(how="wait", earlier=earlier))
        final = Final(text="Dear Ada", journal=Stored[Segment](value=segment))
        if order.how == "fail":
            raise ApplicationError("rejected", final, type="Rejected")
        if order.earlier:
            return Final(text="Dear Ada", journal=order.earlier[0])
        return final

    @workflow.signal
    def say(self, text: str) -> None:
        self.texts.append(text)

    @workflow.signal
    def finish(self) -> None:
        self.finished = True

    @workflow.update
    def tell(self, text: str) -> int:
        self.texts.append(text)
        return len(text)

    @workflow.update
    async def ask(self, size: int) -> int:
        """Have an activity answer with that many bytes."""
        try:
            text = await workflow.execute_activity(
                make,
                size,
                start_to_close_timeout=timedelta(seconds=30),
                retry_policy=RetryPolicy(maximum_attempts=ATTEMPTS, initial_interval=timedelta(milliseconds=1)),
            )
        except ActivityError as error:
            cause = error.cause
            assert isinstance(cause, ApplicationError)
            raise ApplicationError(cause.message, type=cause.type) from error
        self.texts.append(text)
        return len(text)

    @workflow.update
    async def give(self, size: int) -> int:
        """Send that many bytes to an activity."""
        try:
            return await workflow.execute_activity(measure, "z" * size, start_to_close_timeout=timedelta(seconds=30))
        except PayloadTooLarge as error:
            raise ApplicationError(str(error), type="PayloadTooLarge") from error

    @workflow.query
    def sizes(self) -> list[int]:
        return [len(text) for text in self.texts]

    @workflow.query
    def everything(self) -> list[str]:
        return self.texts
