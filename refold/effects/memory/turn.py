"""One question of a session and its answer."""

from pydantic import BaseModel


class Turn(BaseModel):
    """One question of a session and its answer.

    Attributes:
        asked: The user's words.
        answered: The answer; None while there is none.
    """

    asked: str
    answered: str | None = None
