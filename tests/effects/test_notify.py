"""People are reminded by the log, or by whoever listens at a URL."""

from __future__ import annotations

import json
from typing import Any

import pytest
from httpx2 import HTTPStatusError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from refold import Content
from refold.core.commands import Notify
from refold.core.errors import DefinitionError
from refold.effects.http.client import open_client
from refold.effects.notify import LogNotifier, Reminder, WebhookNotifier, notifier_from_env
from tests.services.serving import Serving

COMMAND = Notify(
    id="remind pay", gate="T/3.1", message=Content.from_text("Pay?"), show={"amount": 50}, approvers=("ada",)
)


class Listener(Serving):
    """Takes reminders."""

    def __init__(self, status: int = 204) -> None:
        self.heard: list[tuple[str | None, Any]] = []
        self._status = status
        super().__init__(Starlette(routes=[Route("/hook", self._hear, methods=["POST"])]))

    async def _hear(self, request: Request) -> Response:
        self.heard.append((request.headers.get("idempotency-key"), json.loads(await request.body())))
        return Response(status_code=self._status)


async def test_a_webhook_hears_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    One POST, with what is decided on and a key that is the same on every try.
    """
    with Listener() as listener:
        monkeypatch.setenv("REFOLD_NOTIFY_URL", f"{listener.address}/hook")
        async with open_client() as http:
            await notifier_from_env(http).notify(Reminder.of(COMMAND, "k1"))

    ((key, body),) = listener.heard
    assert key == "k1"
    assert body == {
        "kind": "approval_reminder",
        "task_id": "T",
        "gate": "T/3.1",
        "message": "Pay?",
        "show": {"amount": 50},
        "approvers": ["ada"],
    }


async def test_a_webhook_that_refuses_is_an_error() -> None:
    """
    Whoever calls classifies it, as any effect's failure.
    """
    with Listener(503) as listener:
        async with open_client() as http:
            with pytest.raises(HTTPStatusError):
                await WebhookNotifier(f"{listener.address}/hook", http).notify(Reminder.of(COMMAND, "k1"))


async def test_the_setting_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Unset is the log; what is no HTTP address is refused before the first reminder is due.
    """
    async with open_client() as http:
        monkeypatch.delenv("REFOLD_NOTIFY_URL", raising=False)
        assert isinstance(notifier_from_env(http), LogNotifier)
        for wrong in ("pager:ops", "https://[::1", "https://a.example:https", "https://:80"):
            monkeypatch.setenv("REFOLD_NOTIFY_URL", wrong)
            with pytest.raises(DefinitionError, match="REFOLD_NOTIFY_URL"):
                notifier_from_env(http)
