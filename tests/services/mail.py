"""A real SMTP server on a free loopback port, with one mailbox.

It delivers a Message-ID once, as servers with duplicate suppression do (Cyrus, Gmail), and keeps every attempt.

    with MailServer() as mail:
        os.environ |= mail.environment
        ...
        assert [message["Subject"] for message in mail.inbox] == ["Your refund"]
"""

from __future__ import annotations

from collections import deque
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType
from typing import Self

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from tests.services.serving import free_port


class MailServer:
    """The server; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        inbox: What was delivered, oldest first.
        accepted: What was accepted, with every repetition.
    """

    def __init__(self, *, suppresses_duplicates: bool = True) -> None:
        self.inbox: list[EmailMessage] = []
        self.accepted: list[EmailMessage] = []
        self._suppresses = suppresses_duplicates
        self._trouble: deque[str] = deque()
        self.port = free_port()
        self._controller = Controller(self, hostname="127.0.0.1", port=self.port)

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._controller.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send mail here."""
        return {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(self.port)}

    def refuse(self, *replies: str) -> None:
        """Answer the next messages so instead of taking them, for example `451 try later`."""
        self._trouble.extend(replies)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        """See aiosmtpd: a message has come."""
        if self._trouble:
            return self._trouble.popleft()
        content = envelope.content
        assert isinstance(content, bytes)
        message = message_from_bytes(content, policy=policy.default)
        assert isinstance(message, EmailMessage)
        known = {kept["Message-ID"] for kept in self.inbox}
        self.accepted.append(message)
        if not (self._suppresses and message["Message-ID"] in known):
            self.inbox.append(message)
        return "250 taken"
