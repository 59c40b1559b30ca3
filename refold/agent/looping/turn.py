"""What a step of a loop is given, and what it may return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import JsonValue

from refold.agent.state import AgentState, StepStatus
from refold.agent.steps import NO_RESULT, refusals
from refold.core.authoring.context import Ctx
from refold.core.chat import Reply, Said, UserSaid
from refold.core.content import Content, as_content
from refold.core.errors import SkillError


class Asks(Protocol):
    """Calls the model for a step; see `LoopTurn.ask`."""

    def __call__(
        self,
        turn: LoopTurn,
        text: str | Content | None,
        *,
        thread: str | None,
        model: str | None,
        instructions: str | None,
        expect: Any,
    ) -> Awaitable[Reply]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTurn:
    """The input of a step of a loop.

    Attributes:
        ctx: The task's context.
        state: The state of the agent's run; of a step that runs beside others, with a conversation of its own.
        say: New messages, which the next model call of the conversation sends; a step may add to them.
        name: The step's name.
        final: This is the last pass through the step's loop.
        asks: Calls the model.
        status: Shows what the step is doing.
    """

    ctx: Ctx
    state: AgentState
    say: list[Said]
    name: str
    final: bool
    asks: Asks
    status: Callable[[str], None]

    @property
    def question(self) -> str:
        """The user's newest message, as text."""
        return "" if self.state.asked is None else self.state.asked.text

    @property
    def reply(self) -> str:
        """The text of the newest reply of the conversation; empty before the first."""
        return "" if self.state.last_reply is None else self.state.last_reply.text

    @property
    def replies(self) -> Mapping[str, str]:
        """The newest reply of each conversation beside this one, by its name."""
        return {name: aside.reply.text for name, aside in self.state.asides.items() if aside.reply is not None}

    def tell(self, text: str | Content) -> None:
        """Add a message, as the user's, which the next model call of the conversation sends."""
        self.say.append(UserSaid(content=as_content(text)))

    async def ask(
        self,
        text: str | Content | None = None,
        *,
        thread: str | None = None,
        model: str | None = None,
        instructions: str | None = None,
        expect: Any = None,
    ) -> Reply:
        """Call the model, which calls no tools in this call. The agent's middleware, hooks and budgets apply.

        Args:
            text: A message to the model, after those in `say`.
            thread: A conversation of this name beside the main one, which continues whenever its name is given. None is
                the main conversation.
            model: `provider:name`; None is the agent's.
            instructions: The system prompt; None is the agent's.
            expect: The type of the reply's `value`; None is text.

        Raises:
            CommandError: The call finally failed.
            SkillError: The main conversation has calls without results, or there is nothing to say.
        """
        return await self.asks(self, text, thread=thread, model=model, instructions=instructions, expect=expect)

    def again(self, text: str | Content | None = None) -> StepStatus:
        """Return this to begin the loop's next pass now, with a message to the model."""
        if text is not None:
            self.tell(text)
        return StepStatus.AGAIN

    def answer(self, answer: str | JsonValue = None) -> StepStatus:
        """Return this to end the loop.

        Args:
            answer: Its answer: a text, or a value of the agent's `output`; None is the newest reply.

        Raises:
            SkillError: There is no reply yet.
        """
        state, newest = self.state, self.state.last_reply
        if answer is None and newest is None:
            raise SkillError(f"step {self.name!r} answers with the newest reply, and there is none: give a text")
        settle(state)
        if answer is None or (newest is not None and newest.value is None and newest.text == answer):
            return StepStatus.ANSWERED
        state.last_reply = Reply(text=answer) if isinstance(answer, str) else Reply(value=answer)
        state.unsaid = [*state.unsaid, *self.say, state.last_reply]
        self.say.clear()
        return StepStatus.ANSWERED


def settle(state: AgentState) -> None:
    """Give each call that nobody has made a refusal: providers take no conversation with a call without a result."""
    state.unsaid = [*state.unsaid, *refusals(state.owed, NO_RESULT)]
    state.owed = []
