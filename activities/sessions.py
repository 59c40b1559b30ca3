"""The memory of sessions: earlier questions and answers. The user's question opens a turn, and the answer closes it.

They are kept in the ledger's database, for each owner apart; or, where `SESSIONS_URL` names one, by a service.
"""

import os
from urllib.parse import quote

from pydantic import TypeAdapter

from refold import tool
from refold.effects import current
from refold.effects.memory import Turn
from refold.effects.memory.tools import memory

_TURNS = TypeAdapter(list[Turn])


@tool(effect="idempotent", timeout_s=30)
async def open_turn(session_id: str, asked: str, last: int) -> list[Turn]:
    """Record the user's question, and get the earlier turns. The same key again opens no second turn.

    Args:
        session_id: The session.
        asked: The user's words.
        last: How many earlier turns to get, newest last.
    """
    if not (server := os.environ.get("SESSIONS_URL")):
        return await memory().open_turn(session_id, asked, last)
    response = await current().http.post(f"{_turns(server, session_id)}?last={last}", json={"asked": asked})
    response.raise_for_status()
    return _TURNS.validate_json(response.content)


@tool(effect="idempotent", timeout_s=30)
async def close_turn(session_id: str, answered: str) -> None:
    """Record the answer to the open turn; the next one can begin."""
    if not (server := os.environ.get("SESSIONS_URL")):
        await memory().close_turn(session_id, answered)
        return
    response = await current().http.post(f"{_turns(server, session_id)}/answer", json={"answered": answered})
    response.raise_for_status()


def _turns(server: str, session_id: str) -> str:
    return f"{server}/sessions/{quote(session_id, safe='')}/turns"
