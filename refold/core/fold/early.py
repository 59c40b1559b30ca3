"""Messages that came before anybody asked: kept, where their sender wants that, for the next question they fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.core.commands import AskUser
from refold.core.events import UserMessage
from refold.core.fold.refusal import answers, unfit_reply
from refold.core.lifecycle import TaskState
from refold.core.waits import Wait

if TYPE_CHECKING:
    from refold.core.fold.turn import Turn


def keep(turn: Turn, message: UserMessage) -> None:
    """Keep a message until a question is asked that it answers."""
    turn.early = (*turn.early, message)


def meet(turn: Turn) -> None:
    """Answer what is asked with what came before, oldest first. What does not fit is left out, and said to be."""
    while turn.early and turn.lifecycle is TaskState.PAUSED:
        found = _next(turn)
        if found is None:
            return
        message, wait = found
        turn.early = tuple(one for one in turn.early if one is not message)
        assert isinstance(wait.ask, AskUser)
        if problem := unfit_reply(wait.ask, message.content):
            turn.notes.append(f"a message that had come before is left out: {problem}")
            continue
        turn.answer(wait, message)


def _next(turn: Turn) -> tuple[UserMessage, Wait] | None:
    """The oldest message that answers an open question, and the oldest question that it answers."""
    for message in turn.early:
        for wait in turn.waits:
            if isinstance(wait.ask, AskUser) and answers(message, wait):
                return message, wait
    return None
