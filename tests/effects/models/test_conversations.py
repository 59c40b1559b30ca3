"""What a worker remembers of conversations, and what it asks the task for."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from refold.conversation import ChatRequest, Conversation, request_of
from refold.core.authoring.cmd import Cmd
from refold.core.chat import EMPTY, Frame, Prior, Reply, Said, Thread, ToolCall, ToolOffer, ToolReturn, as_said
from refold.core.commands import CallChat
from refold.effects.failures.verdicts import Verdict
from refold.effects.models.conversations import Conversations, Remembered

LONG = "A long story. " * 100
FRAME = Frame(instructions="Help.", tools=(ToolOffer(name="weather"),))


@dataclass
class Task:
    """A task that is asked for its conversation, and counts how often."""

    thread: Thread = EMPTY
    framed: bool = False
    out: CallChat | None = None
    asked: list[tuple[str, int, int]] = field(default_factory=list)

    def says(self, *say: Said | str) -> ChatRequest:
        """Its next call, as it travels."""
        self.out = Cmd.chat("a", say).model_copy(update={"frame": FRAME})
        request = request_of(self.out, Prior(thread=self.thread, framed=self.framed))
        self.thread, self.framed = self.thread.changed({"frame": FRAME}), True
        return request

    def hears(self, reply: Reply) -> None:
        assert self.out is not None
        self.thread = self.thread.after([*self.out.say, reply])

    async def ask(self, thread: str, since: int, upto: int) -> Conversation:
        assert self.out is not None
        self.asked.append((thread, since, upto))
        return Conversation(frame=self.thread.frame, said=(*self.thread.said, *self.out.say)[since:upto])


async def turn(memory: Conversations, task: Task, *say: Said | str, reply: str = "Yes.") -> tuple[Said, ...]:
    """One call, and what the model was shown."""
    request = task.says(*say)
    recalled = await memory.recall(request, task.ask)
    assert recalled.frame == FRAME
    memory.heard(request, recalled, Reply(text=reply))
    task.hears(Reply(text=reply))
    return recalled.shown


async def test_who_was_there_asks_for_nothing() -> None:
    """
    A conversation that one worker leads from the start costs no question.
    """
    memory, task = Conversations(), Task()
    for number in range(4):
        await turn(memory, task, f"{number}?")

    assert await turn(memory, task, "4?") == task.thread.said[:-1]
    assert len(task.thread.said) == 10
    assert task.asked == []


async def test_who_was_not_there_asks_for_all_of_it_once() -> None:
    """
    Another worker, or one that was started again, asks for what came before; then it knows.
    """
    task = Task()
    await turn(Conversations(), task, "One?")
    other = Conversations()
    await turn(other, task, "Two?")
    await turn(other, task, "Three?")

    assert task.asked == [("main", 0, 3)]


async def test_a_result_of_its_own_tool_is_known() -> None:
    """
    What a tool returned here need not be asked for; a long message is, and nothing before it.
    """
    memory, task = Conversations(), Task()
    await turn(memory, task, "Oslo?")
    memory.returned({"story": LONG})
    shown = await turn(memory, task, ToolReturn(id="c1", name="weather", value={"story": LONG}, failed=True))
    assert shown[-1] == ToolReturn(id="c1", name="weather", value={"story": LONG}, failed=True)
    assert task.asked == []

    assert (await turn(memory, task, LONG, "And?"))[-2:] == as_said([LONG, "And?"])
    assert task.asked == [("main", 4, 6)]


async def test_a_call_that_is_made_again_has_its_past() -> None:
    """
    The first try came to nothing: the past is remembered still.
    """
    memory, task = Conversations(), Task()
    await turn(memory, task, "One?")
    request = task.says("Two?")
    await memory.recall(request, task.ask)
    await memory.recall(request, task.ask)

    assert task.asked == []


async def test_another_past_is_an_error() -> None:
    """
    What the task answers is checked, and the failure says what does not fit.
    """
    task = Task()
    await turn(Conversations(), task, "One?")
    request = task.says("Two?")
    task.thread = EMPTY.after([*as_said("Zero?"), Reply(text="Yes.")]).changed({"frame": FRAME})

    with pytest.raises(Verdict) as caught:
        await Conversations().recall(request, task.ask)
    assert caught.value.failure.type == "conversation"
    assert f"the call goes on after 2 turns that hash to {request.prior_hash}" in caught.value.failure.message


async def test_turns_that_are_left_out_are_not_shown() -> None:
    """
    The whole past is checked, and the model is shown the end of it.
    """
    memory, task = Conversations(), Task()
    await turn(memory, task, "One?")
    request = task.says("Two?").model_copy(update={"since": 2})

    assert (await memory.recall(request, task.ask)).shown == as_said("Two?")


def test_what_is_remembered_has_a_bound() -> None:
    """
    What was used longest ago is forgotten first; what is larger than all is never kept.
    """
    memory: Remembered[str] = Remembered(10)
    for name in "abc":
        memory.keep(name, name, 4)
        memory.get("a")
    memory.keep("huge", "huge", 11)

    assert [memory.get(name) for name in ("a", "b", "c", "huge")] == ["a", None, "c", None]
    memory.keep("a", "A", 10)
    assert [memory.get(name) for name in "ac"] == ["A", None]


def test_a_tool_call_is_told_from_another() -> None:
    """
    Hashes are of all that a turn says.
    """
    calls = [Reply(tool_calls=(ToolCall(id="c", name=name, args=args),)) for name, args in [("a", {}), ("a", {"x": 1})]]

    assert EMPTY.after([calls[0]]).hash != EMPTY.after([calls[1]]).hash
