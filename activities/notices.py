"""Writing to customers, by mail."""

import os
import smtplib
from email.message import EmailMessage

from refold import tool
from refold.effects import Never, TryLater, current


@tool(effect="idempotent", timeout_s=30)
def send_mail(to: str, subject: str, text: str) -> None:
    """Hand a mail to the SMTP server.

    The Message-ID is made from the idempotency key. A server that recognises duplicates by it delivers a repetition
    once; if yours does not, and a second mail does harm, declare this tool `at_most_once`.

    Args:
        to: One address.
        subject: One line.
        text: The body, plain.
    """
    message = EmailMessage()
    message["From"] = os.environ.get("SMTP_FROM", "service@example.org")
    message["To"] = to
    message["Subject"] = subject
    message["Message-ID"] = f"<{current().idempotency_key}@refold>"
    message.set_content(text)
    host, port = os.environ.get("SMTP_HOST", "localhost"), int(os.environ.get("SMTP_PORT", "25"))
    try:
        with smtplib.SMTP(host, port, timeout=10) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise _verdict(max(codes)) from None
    except smtplib.SMTPResponseException as error:
        raise _verdict(error.smtp_code) from None
    except smtplib.SMTPServerDisconnected:
        raise TryLater("the mail server broke the connection off", type="smtp") from None


def _verdict(code: int) -> TryLater | Never:
    """What the server answered: 4xx means later, 5xx never. Source: RFC 5321 section 4.2.1."""
    said = f"the mail server answered {code}"
    return TryLater(said, type=f"smtp_{code}") if code < 500 else Never(said, type=f"smtp_{code}")
