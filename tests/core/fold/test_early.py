"""Messages that come before anybody asks: kept where their sender wants that, and met by the next question."""

from __future__ import annotations

from contextlib import suppress

import pytest

from refold import Callback, CommandError, Content, Ctx, Step, Transition, UserMessage, table
from refold.core.authoring.define import skill_of
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK, CALLED
from refold.core.events import Event, ToolResult
from refold.core.fold import draft
from refold.core.fold.apply import advance, planned
from refold.core.fold.delivery import ASKS_ONCE
from refold.core.fold.journal import Entry
from refold.core.fold.refusal import FULL, refusal
from refold.core.fold.snapshot import ANSWERED, EARLY_LIMIT, SEEN_LIMIT, Snapshot
from refold.core.lifecycle import Status
from refold.record import record_of, with_entries
from refold.testing.play import START
from tests.core.byhand import ByHand, at, message
from tests.records.skills import Age, Interview

SKILL = skill_of(Interview)


def heard(*said: UserMessage) -> tuple[Snapshot, list[Entry]]:
    """A task that is told these while it thinks, and then has thought."""
    snapshot, entries = planned(SKILL, "T", START), []
    first = UserMessage(content=Content.from_text("Hello"))
    thought = ToolResult(id="think", invocation_id="T/1.1", value=None)
    events: list[Event] = [first, *said, thought]
    for event in events:
        snapshot, entry = advance(SKILL, snapshot, event, START)
        entries.append(entry)
    return snapshot, entries


def text(text: str, **more: object) -> UserMessage:
    return UserMessage.model_validate({"content": Content.from_text(text), "early": True, **more})


def test_questions_are_answered_with_what_came_before() -> None:
    """
    In order, in the entry that asks; what was said stands where it was said.
    """
    age = UserMessage(content=Content.from_data({"years": 36}), early=True)
    task, entries = heard(text("Ada"), age)

    assert (task.status, task.messages[-1].text) == (Status.COMPLETED, "Ada, 36")
    assert [message.seq for message in task.messages if message.role == "user"] == [1, 2, 3]
    assert entries[3].closed == ("T/4.1", "T/4.2")
    assert with_entries(record_of(planned(SKILL, "T", START)), entries) == record_of(task)


def test_what_does_not_fit_is_left_out_and_said_to_be() -> None:
    """
    The question stays open.
    """
    task, entries = heard(text("Ada"), text("old enough"))

    assert [wait.slot for wait in task.open_waits] == ["age"]
    assert task.early == ()
    assert "a message that had come before is left out" in entries[3].note


def test_a_message_answers_the_first_question_that_it_fits() -> None:
    """
    Two questions are asked at once: what is no number answers the one that takes any text.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("think")
        age, name = await ctx.gather(ctx.ask("age", "How old?", expect=Age), ctx.ask("name", "Who are you?"))
        return ctx.complete(f"{name.text}, {age.years}")

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    task.say("Ada", early=True)
    entry = task.give("think")

    assert (task.waiting, task.task.early, entry.note) == (["age"], (), "")
    task.feed(UserMessage(content=Content.from_data({"years": 36})))
    assert task.said[-1] == "Ada, 36"


def test_what_fits_none_of_several_questions_is_left_out() -> None:
    """
    Both stay open; the note names the first one.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("think")
        await ctx.gather(ctx.ask("age", "How old?", expect=Age), ctx.ask("years", "Since when?", expect=Age))
        return ctx.complete()

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    task.say("Ada", early=True)
    entry = task.give("think")

    assert (task.waiting, task.task.early) == (["age", "years"], ())
    assert entry.note.startswith("a message that had come before is left out: the reply to 'age' must fit")


def test_a_call_between_two_questions_answers_the_second() -> None:
    """
    The first timed out before the address expired, and the step asks again with the same address.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        index, _ = await ctx.first(ctx.ask("paid", "?", callback=address), ctx.sleep(600, id="patience"))
        await ctx.tool("remind")
        paid = await ctx.ask("paid", "?", callback=address)
        return ctx.complete(f"{index} {paid.text}")

    called = f"{CALLBACK}T"
    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    task.give("address", {"digest": text_hash(called), "until": START.replace(year=2030).isoformat()})
    task.ring("patience")
    assert (task.waiting, task.out) == ([], ["remind"])

    entry = task.say("yes", early=True, slot=called, delivery_id="call")
    task.give("remind")

    assert (entry.refused, task.said[-1]) == ("", "1 yes")


def test_a_call_that_an_earlier_release_left_out_keeps_its_address() -> None:
    """
    Its journal says that the corrected call was refused.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        await ctx.tool("think")
        age = await ctx.ask("age", "?", expect=Age, callback=address)
        return ctx.complete(f"{age.years}")

    called = f"{CALLBACK}T"
    task = ByHand(table("asks", Step("begin", begin).start()), patched=lambda _: False)
    task.say()
    task.give("address", {"digest": text_hash(called), "until": START.replace(year=2030).isoformat()})
    task.say("old", early=True, slot=called, delivery_id="call")
    task.give("think")

    age = UserMessage(content=Content.from_data({"years": 36}), slot=called, early=True, delivery_id="call")
    entry = task.feed(age)

    assert entry.refused == "delivery 'call' was taken before, as entry 3"
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


@pytest.mark.parametrize("release", ["this", "earlier"])
@pytest.mark.parametrize("timeout_s", [10, None])
def test_a_call_after_a_questions_deadline_answers_it_until_the_alarm(release: str, timeout_s: float | None) -> None:
    """
    A task of an earlier release refused such a call, and its journal says so.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        paid = await ctx.ask("paid", "?", callback=address, timeout_s=timeout_s)
        return ctx.complete(paid.text)

    called = {"slot": f"{CALLBACK}T", "delivery_id": f"{CALLED}T/1.1", "early": True}
    task = ByHand(table("asks", Step("begin", begin).start()), patched=lambda _: release == "this")
    task.say()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": at(15).isoformat()}, second=5)

    entry = task.feed(message("yes", **called), second=15)

    late = "question 'paid' timed out at 2026-01-01 00:00:15"
    assert (entry.refused, task.status) == (
        ("", Status.COMPLETED) if release == "this" else (late, Status.INPUT_REQUIRED)
    )
    task.journal = [
        one.changed({"patches": {id: yes for id, yes in one.patches.items() if yes}}) for one in task.journal
    ]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


def test_recovery_and_forks_take_a_call_after_a_deadline_without_what_was_refused_before() -> None:
    """
    A call that did not fit was the first to ask whether one after the deadline counts; they leave its entry out.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        await ctx.ask("paid", "?", callback=address, expect=Age)
        await ctx.tool("think")
        return ctx.complete()

    called = {"slot": f"{CALLBACK}T", "delivery_id": f"{CALLED}T/1.1", "early": True}
    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": at(15).isoformat()}, second=5)
    wrong = task.feed(message("yes", **called), second=16)
    right = task.feed(UserMessage(content=Content.from_data({"years": 36}), **called), second=17)
    task.fail("think")

    assert (bool(wrong.refused), right.refused) == (True, "")
    assert task.recovered().task.pending.keys() == {right.commands[0].invocation_id}
    assert len(task.forked(right.seq, live=True).task.pending) == 1
    assert task.folded() == task.task


ASKED = "question 'more' has the address of a callback that was answered before; an address answers one question: "
OPEN = "question 'more' has the address of a callback that 'paid' waits for, too; an address answers one question: "


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("release", ["this", "earlier"])
@pytest.mark.parametrize(("asked", "why"), [("next", ASKED), ("later", ASKED), ("together", OPEN)])
def test_a_second_question_with_an_address_fails_at_once(asked: str, why: str, release: str, *, cut: bool) -> None:
    """
    It waited until the address expired. A task of an earlier release waits on, and its journal says so.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        if asked == "together":
            await ctx.gather(ctx.ask("paid", "?", callback=address), ctx.ask("more", "?", callback=address))
        await ctx.ask("paid", "?", callback=address)
        return ctx.goto("again", address=address)

    async def again(ctx: Ctx, address: Callback) -> Transition:
        if asked == "later":
            await ctx.ask("name", "?")
        await ctx.ask("more", "?", callback=address)
        return ctx.complete()

    skill = table("asks", Step("begin", begin).start(), Step("again", again))
    task = ByHand(skill, cut=cut, patched=lambda _: release == "this")
    task.say()
    until = START.replace(year=2030).isoformat()
    entry = task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until})
    if asked != "together":
        entry = task.say("yes", slot=f"{CALLBACK}T", delivery_id=f"{CALLED}T/1.1", early=True)
    if asked == "later":
        entry = task.say("Ada")

    if release == "this":
        assert (task.status, task.task.reason) == (
            Status.FAILED,
            f"{why}make one for each, with `ctx.callback` or `Cmd.callback`",
        )
        assert entry.patches == {ASKS_ONCE: True}
    else:
        assert "more" in task.waiting
        task.journal = [one.changed({"patches": {}}) for one in task.journal]
        new = ByHand(skill)
        new.task = task.task
        new.feed(message("Bob", early=True))  # taken by this release: the question that is open stays so
        assert "more" in new.waiting
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


def test_a_question_may_have_the_address_of_one_that_nobody_answered() -> None:
    """
    Nor is anything asked of the task then.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        for slot in ("paid", "again"):
            with suppress(CommandError):
                await ctx.ask(slot, "?", callback=address, timeout_s=10)
        paid = await ctx.ask("last", "?", callback=address)
        return ctx.complete(paid.text)

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    until = START.replace(year=2030).isoformat()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until})
    task.clock("~timeout")
    task.clock("~timeout")
    task.say("yes", slot=f"{CALLBACK}T", delivery_id=f"{CALLED}T/1.1", early=True)

    assert (task.status, task.task.patches) == (Status.COMPLETED, {})


def test_an_earlier_release_reads_a_task_whose_address_was_called() -> None:
    """
    Its workers refuse a snapshot with a field that they do not know, and with it the task.
    """

    def saved(*, called: bool) -> set[str]:
        async def begin(ctx: Ctx, content: Content) -> Transition:
            address = await ctx.callback("address")
            await ctx.ask("paid", "?", callback=address if called else None)
            await ctx.ask("name", "?")
            return ctx.complete()

        task = ByHand(table("asks", Step("begin", begin).start()))
        task.say()
        until = START.replace(year=2030).isoformat()
        task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until})
        task.say("yes", slot=f"{CALLBACK}T" if called else "paid", delivery_id=f"{CALLED}T/1.1", early=True)
        assert [wait.slot for wait in task.task.waits] == ["name"]
        return set(task.task.model_dump(mode="json"))

    assert saved(called=True) == saved(called=False)


@pytest.mark.parametrize("release", ["this", "earlier"])
def test_an_address_takes_one_call_however_many_messages_come_after_it(release: str) -> None:
    """
    A task of an earlier release forgot the call after a hundred of them, and its journal says so.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address")
        await ctx.ask("paid", "?", callback=address)
        for _ in range(SEEN_LIMIT):
            await ctx.ask("next", "?")
        await ctx.tool("think")
        return ctx.complete()

    called = {"slot": f"{CALLBACK}T", "delivery_id": f"{CALLED}T/1.1", "early": True}
    task = ByHand(table("asks", Step("begin", begin).start()), patched=lambda _: release == "this")
    task.say()
    until = START.replace(year=2030).isoformat()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until})
    task.say("yes", **called)
    for number in range(SEEN_LIMIT):
        task.say("more", delivery_id=f"d{number}")
    assert task.out == ["think"]

    entry = task.say("again", **called)

    assert entry.refused == ("" if release == "earlier" else f"delivery '{CALLED}T/1.1' was taken before, as entry 3")
    task.journal = [
        one.changed({"patches": {id: yes for id, yes in one.patches.items() if yes}}) for one in task.journal
    ]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})


def test_as_many_addresses_are_remembered_as_a_task_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The newest ones.
    """
    monkeypatch.setattr(draft, "CALLS_LIMIT", 2)
    monkeypatch.setattr(draft, "SEEN_LIMIT", 2)
    calls = [text("paid", slot=f"{CALLBACK}:{n}", delivery_id=f"{CALLED}{n}") for n in range(3)]
    others = [text("Ada", slot="never", delivery_id=f"d{n}") for n in range(3)]

    task, _ = heard(*calls, *others)

    assert list(task.seen) == [f"{CALLED}1", f"{CALLED}2", "d1", "d2"]


def test_addresses_that_answered_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A task of an earlier release refuses the same messages as before.
    """
    monkeypatch.setattr(draft, "CALLS_LIMIT", 2)
    monkeypatch.setattr(draft, "SEEN_LIMIT", 2)

    async def begin(ctx: Ctx, content: Content) -> Transition:
        for number in range(3):
            address = await ctx.callback("address")
            await ctx.ask(f"paid {number}", "?", callback=address)
        await ctx.tool("think")
        return ctx.complete()

    task = ByHand(table("asks", Step("begin", begin).start()))
    task.say()
    for number in range(3):
        slot = f"{CALLBACK}:{number}"
        task.give("address", {"digest": text_hash(slot), "until": START.replace(year=2030).isoformat()})
        task.say("yes", slot=slot, delivery_id=f"{CALLED}T/{number}", early=True)
    for number in range(3):
        task.say("more", delivery_id=f"d{number}", early=True)

    answers = [ANSWERED + text_hash(f"{CALLBACK}:{number}") for number in (1, 2)]
    assert list(task.task.seen) == [*answers, f"{CALLED}T/1", f"{CALLED}T/2", "d1", "d2"]


def test_a_message_for_another_question_waits_for_that_one() -> None:
    """
    Whoever names a question is not taken for the answer to another.
    """
    task, _ = heard(UserMessage(content=Content.from_data({"years": 36}), slot="age", early=True))

    assert [wait.slot for wait in task.open_waits] == ["name"]
    assert len(task.early) == 1


def test_without_that_wish_it_is_refused() -> None:
    """
    As ever: a message nobody asked for changes nothing.
    """
    task, entries = heard(UserMessage(content=Content.from_text("Ada")))

    assert entries[1].refused == "the task waits for no message now; it is running"
    assert [wait.slot for wait in task.open_waits] == ["name"]


def test_a_task_keeps_so_many_and_no_more() -> None:
    """
    Nobody fills it without end.
    """
    task, entries = heard(*[text("Ada", slot="never") for _ in range(EARLY_LIMIT + 1)])

    assert len(task.early) == EARLY_LIMIT
    assert entries[-2].refused.startswith(f"{EARLY_LIMIT} messages wait already")


def test_calls_and_other_messages_leave_each_other_room() -> None:
    """
    Whoever may send messages keeps no payment provider out, and may not fill a task with made-up calls either.
    """
    messages = [text("Ada", slot="never") for _ in range(EARLY_LIMIT + 1)]
    calls = [text("paid", slot=f"{CALLBACK}:{number}") for number in range(EARLY_LIMIT + 1)]

    for first, then in ((messages, calls), (calls, messages)):
        task, entries = heard(*first, *then)

        refused = [entry.seq for entry in entries if entry.refused]
        assert (len(task.early), refused) == (2 * EARLY_LIMIT, [EARLY_LIMIT + 2, 2 * EARLY_LIMIT + 3])


def test_a_task_that_refused_a_call_in_an_earlier_release_goes_on_so() -> None:
    """
    Its validators say the same as its fold, so that no caller is told that a call was taken which was refused.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("think")
        return ctx.complete()

    task = ByHand(table("thinks", Step("begin", begin).start()), patched=lambda _: False)
    task.say()
    for _ in range(EARLY_LIMIT):
        task.say("Ada", early=True, slot="never")
    call = text("paid", slot=f"{CALLBACK}:1")

    entry = task.feed(call)

    assert entry.refused == refusal(task.skill, task.task, call, task.task.at) == FULL
    task.journal = [one.changed({"patches": {}}) for one in task.journal]
    assert task.folded().changed({"patches": {}}) == task.task.changed({"patches": {}})
