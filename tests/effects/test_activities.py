"""What a worker registers, and what it opens and closes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs
from temporalio.api.failure import v1 as wire
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment

from refold import Cmd, Content, tool
from refold.core.commands import Notify
from refold.core.retry_policy import FailureKind
from refold.effects import Never, TryLater
from refold.effects.activities import Effects
from refold.effects.attempt import OTHERS_PAUSE
from refold.effects.failures.verdicts import OTHERS_S
from refold.effects.ledger.ledger import Ledger
from refold.effects.notify import Reminder
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Off
from tests.effects.conftest import INVOCATION, TASK, Bench, failure_in, name_of


@tool(effect="read_only")
async def closed() -> None:
    raise TryLater("the till is closed", after=7)


@tool(effect="at_most_once")
async def paid() -> None:
    """Never called."""


def names(effects: Effects) -> list[str | None]:
    return [name_of(one) for one in effects.activities]


def test_what_is_registered() -> None:
    """
    The model calls, one activity a tool, the reminder, the callback, those of effects within workflow tasks, and a
    fallback that can be left out.
    """
    short = ["refold.ledger", "refold.stretch", "refold.stretch_end"]
    registered = ["refold.llm", "refold.chat", "tool.closed", "refold.notify", "refold.callback", *short]

    assert names(Effects([closed])) == [*registered, None]
    assert names(Effects([closed], fallback=False)) == registered


@pytest.mark.parametrize(
    ("asked", "said"),
    [("tool.refund", "no tool 'refund' is registered; there are: closed"), ("charge", "no activity 'charge'")],
)
async def test_what_is_not_registered(asked: str, said: str) -> None:
    """
    Temporal dispatches it again, perhaps to a worker of another release; the failure says what there is here.
    """
    async with Effects([closed]) as effects:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, activity_type=asked)
        with pytest.raises(ApplicationError, match=said) as caught:
            await environment.run(effects.activities[-1], [])

    failure = failure_in(caught.value, left=True)
    assert failure.type in ("unknown_tool", "unknown_activity")
    assert (failure.kind, failure.again_s) == (FailureKind.PERMANENT, OTHERS_S)
    assert (caught.value.next_retry_delay, caught.value.category) == (OTHERS_PAUSE, ApplicationErrorCategory.BENIGN)


class Leaving:
    """A notifier that calls a program's `main()`."""

    async def notify(self, reminder: Reminder) -> None:
        raise SystemExit(2)


async def test_no_effect_ends_its_worker() -> None:
    """
    Notifiers, models and middleware are others' code too: what they raise is the failure of their effect.
    """
    async with Effects([], notifier=Leaving()) as effects:
        with pytest.raises(ApplicationError) as caught:
            await Bench(effects).run("refold.notify", Notify(id="n", gate="T/3.1", message=Content.from_text("Pay?")))

    assert failure_in(caught.value).kind is FailureKind.PERMANENT
    assert "it raised SystemExit(2)" in str(caught.value)


async def test_undoes_share_a_ledger() -> None:
    """
    A worker without receipts of its own opens the ledger once for all the effects that it undoes, and closes it.
    """
    async with Effects([closed]) as effects:
        ledger = effects.ledger_of_undone

        assert ledger is effects.ledger_of_undone


MAY_HAVE_RECEIPTS = {"tool.paid", "tool.other"}  # this worker does not have the other one


@pytest.mark.parametrize("name", ["tool.closed", "tool.paid", "tool.other"])
async def test_a_command_of_another_release_is_left_to_its_workers(name: str, tmp_path: Path) -> None:
    """
    A field that this release does not know: nothing is called, and another worker may read it. Of an effect with
    receipts none here can say that a worker that was lost did not perform it.
    """
    asked = {**Cmd.tool("t", closed).model_dump(mode="json"), "deadline_s": 5}
    async with Effects([closed, paid], ledger=Ledger(str(tmp_path / "ledger.db"))) as effects:
        with pytest.raises(ApplicationError, match="deadline_s") as caught:
            await as_sent(effects, name, asked, 0)

    assert of_another_release(caught.value, name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("refold.llm", 4),
        ("refold.chat", 4),
        ("tool.closed", 5),
        ("tool.paid", 5),
        ("tool.other", 5),
        ("refold.notify", 1),
    ],
)
async def test_an_argument_of_another_release_is_left_to_its_workers(name: str, known: int, tmp_path: Path) -> None:
    """
    One more than this release knows: nothing is called, since nobody here can say what it asks for.
    """
    said = f"{known + 1} arguments, of which this worker knows {known}"
    async with Effects([closed, paid], ledger=Ledger(str(tmp_path / "ledger.db"))) as effects:
        with pytest.raises(ApplicationError, match=said) as caught:
            await as_sent(effects, name, Cmd.tool("t", closed), *[None] * (known - 1), "a later release's")

    assert of_another_release(caught.value, name)


async def as_sent(effects: Effects, name: str, *given: Any) -> Any:
    """Run an activity of this name; the dynamic one, where the worker has no other."""
    bench = Bench(effects)
    bench.environment.info = replace(bench.environment.info, activity_type=name)
    if name in names(effects):
        return await bench.environment.run(bench.activity(name), *given)
    converter = bench.environment.payload_converter = data_converter(Off()).payload_converter
    return await bench.environment.run(effects.activities[-1], [RawValue(one) for one in converter.to_payloads(given)])


def of_another_release(error: ApplicationError, name: str) -> bool:
    failure = failure_in(error, left=True)
    kind = FailureKind.UNKNOWN if name in MAY_HAVE_RECEIPTS else FailureKind.PERMANENT
    return (failure.type, failure.kind) == ("another_release", kind)


async def test_what_is_tried_again_is_benign() -> None:
    """
    The SDK neither logs nor counts a failure that the task will try again.
    """
    async with Effects([closed]) as effects:
        with pytest.raises(ApplicationError) as caught:
            await Bench(effects).tool(Cmd.tool("t", closed))

    assert caught.value.category is ApplicationErrorCategory.BENIGN
    assert failure_in(caught.value).retry_after == 7


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(Never("no such order", details={"answer": "cut \ud83d", "\ud83d": [1]}), id="details"),
        pytest.param(Never("no such order", type="cut \ud83d"), id="type"),
    ],
)
async def test_a_failure_that_quotes_half_a_character_is_sent(cut: Never) -> None:
    """
    Else Temporal repeats the effect, since the SDK sends an error of its own in place of one that it cannot write.
    """

    @tool(effect="at_least_once")
    async def charge() -> None:
        raise cut

    async with Effects([charge]) as effects:
        with pytest.raises(ApplicationError) as caught:
            await Bench(effects).tool(Cmd.tool("t", charge))
    sent = wire.Failure()
    await data_converter().encode_failure(caught.value, sent)
    found = await data_converter().decode_failure(sent)

    assert isinstance(found, ApplicationError)
    assert found.non_retryable
    assert "cut \N{REPLACEMENT CHARACTER}" in (found.type or "") + str(found.details[0])


async def test_closed_effects_say_so() -> None:
    """
    A worker that forgets to enter them is told how.
    """
    with pytest.raises(ApplicationError, match="async with effects"):
        await Bench(Effects()).llm(Cmd.llm("a", "x"))


async def test_they_may_be_shared_and_opened_again() -> None:
    """
    The last one to leave closes the client; the next one to come gets a new one.
    """
    effects = Effects()
    async with effects:
        async with effects:
            http = effects.open.http
        assert effects.open.http is http
        assert (await Bench(effects).llm(Cmd.llm("a", "Greet.", "Ada"))).value == "Hello, Ada!"
    assert http.is_closed

    async with effects:
        assert (await Bench(effects).llm(Cmd.llm("a", "Greet.", "Ada"))).value == "Hello, Ada!"


async def test_one_line_is_logged_for_each_effect() -> None:
    """
    Who, what, which try, how long and how it ended; nothing of what was said.
    """
    structlog.reset_defaults()
    async with Effects([closed]) as effects:
        with capture_logs() as logs:
            await Bench(effects).llm(Cmd.llm("a", "Greet.", "Ada", model="scripted:demo"))
            with pytest.raises(ApplicationError):
                await Bench(effects).tool(Cmd.tool("t", closed), attempt=2)

    for line in logs:
        assert line.pop("seconds") >= 0
    who = {"task_id": TASK, "invocation_id": INVOCATION}
    assert logs == [
        {"event": "effect_done", "log_level": "debug", "effect": "llm", "name": "scripted:demo", "attempt": 1, **who},
        {
            "event": "effect_failed",
            "log_level": "info",
            "effect": "tool",
            "name": "closed",
            "attempt": 2,
            "failure": "try_later",
            "kind": "transient",
            **who,
        },
    ]
