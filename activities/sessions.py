"""The memory of sessions: earlier questions and answers, stored by a service of its own.

`SESSIONS_URL` is its address. The user's question opens a turn, and the answer closes it.
"""

import os
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from refold import tool
from refold.effects import Never, current


class Turn(BaseModel):
    """One question and its answer; None while there is none."""

    asked: str
    answered: str | None = None


_TURNS = TypeAdapter(list[Turn])


@tool(effect="idempotent", timeout_s=30)
async def open_turn(session_id: str, asked: str, last: int) -> list[Turn]:
    """Record the user's question, and get the earlier turns. The same key again opens no second turn.

    Args:
        session_id: The session.
        asked: The user's words.
        last: How many earlier turns to get, newest last.
    """
    response = await current().http.post(f"{_turns(session_id)}?last={last}", json={"asked": asked})
    response.raise_for_status()
    return _TURNS.validate_json(response.content)


@tool(effect="idempotent", timeout_s=30)
async def close_turn(session_id: str, answered: str) -> None:
    """Record the answer to the open turn; the next one can begin."""
    response = await current().http.post(f"{_turns(session_id)}/answer", json={"answered": answered})
    response.raise_for_status()


def _turns(session_id: str) -> str:
    server = os.environ.get("SESSIONS_URL")
    if not server:
        raise Never("the task names a session, and SESSIONS_URL names no service that keeps them", type="no_sessions")
    return f"{server}/sessions/{quote(session_id, safe='')}/turns"
