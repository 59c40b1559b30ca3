"""The address of a callback: which task it is for, until when, and a signature over both.

An address is `URL/callbacks/TOKEN`. A worker makes it, a gateway reads it; both have the key. The question keeps a hash
of the token, and takes only an answer with a token of that hash: who can send the task messages cannot answer in the
place of whoever has the address, and addresses stay valid for as long as gateways know the key that signed them.

| `REFOLD_CALLBACK_URL` | where others reach the gateway: `https://agents.example` or `https://agents.example/path` |
| `REFOLD_CALLBACK_KEY` | one key or more, separated by commas: the first signs, all are accepted                  |
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from refold.core.chat import text_hash
from refold.core.commands import CALLBACK, CALLED, Callback
from refold.core.errors import DefinitionError
from refold.core.values import shortened

URL, KEY = "REFOLD_CALLBACK_URL", "REFOLD_CALLBACK_KEY"

PATH = "/callbacks"

SHORTEST_KEY = 16
"""The fewest characters of a key."""

LONGEST_TOKEN = 4_000

LAST_SECOND = int(datetime.max.replace(microsecond=0, tzinfo=UTC).timestamp())
"""The last second that a `datetime` has; an address that is to be valid for ever expires then."""


class Forged(Exception):
    """A token that no key here has signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What an address says.

    Attributes:
        task_id: The task that waits for the call.
        command: The id of the command that made the address.
        until: When it expires.
        slot: The slot that a message to the task names, if it came to this address.
    """

    task_id: str
    command: str
    until: datetime
    slot: str

    @property
    def delivery_id(self) -> str:
        """The same for all calls to this address, of which the task takes one."""
        return CALLED + self.command


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSettings:
    """How addresses are made and read.

    Attributes:
        url: Where others reach the gateway; empty where none are made.
        keys: The first signs, all are accepted; none reads no address.
    """

    url: str = ""
    keys: tuple[str, ...] = ()

    def make(self, task_id: str, command: str, until: datetime) -> Callback:
        """A new address; the same for the same arguments and key. It is valid to the end of the second of `until`."""
        seconds = min(math.ceil(until.timestamp()), LAST_SECOND)
        said = json.dumps([task_id, command, seconds], separators=(",", ":")).encode()
        token = f"{_text(said)}.{_text(_signature(said, self.keys[0]))}"
        digest = text_hash(_slot(token))
        return Callback(url=f"{self.url}{PATH}/{token}", digest=digest, until=until)

    def read(self, token: str) -> Address:
        """What an address says, from its last part.

        Raises:
            Forged: No key here has signed it.
        """
        said, _, signature = token.partition(".")
        try:
            if len(token) > LONGEST_TOKEN:
                raise Forged
            raw, given = _bytes(said), _bytes(signature)
            if not any(hmac.compare_digest(_signature(raw, key), given) for key in self.keys):
                raise Forged
            if (_text(raw), _text(given)) != (said, signature):
                raise Forged  # the same bytes, written otherwise: the task would not know it
            task_id, command, until = json.loads(raw)
        except (ValueError, binascii.Error):
            raise Forged from None
        return Address(task_id=task_id, command=command, until=datetime.fromtimestamp(until, UTC), slot=_slot(token))


def settings(environment: Mapping[str, str] = os.environ) -> CallbackSettings:
    """The settings of this process; empty where they are not set.

    Raises:
        DefinitionError: One cannot be.
    """
    url, keys = environment.get(URL, "").strip().rstrip("/"), environment.get(KEY, "")
    if url and not _can_be_called(url):
        at = "https://HOST or https://HOST/PATH, without `?`, `#`, a backslash or a blank"
        problem = f"others reach a gateway at {at}, not at {shortened(url, 100)!r}"
        raise DefinitionError(URL, [problem], what="setting")
    found = tuple(key.strip() for key in keys.split(",") if key.strip())
    if short := [key for key in found if len(key) < SHORTEST_KEY]:
        problem = f"a key has {SHORTEST_KEY} characters at least, and one has {len(short[0])}"
        raise DefinitionError(KEY, [problem], what="setting")
    return CallbackSettings(url=url, keys=found)


_NOT_IN_URL = re.compile(r"[?#\\\s\x00-\x1f\x7f]")
"""An address with one of these before its token is cut off there, or read as another address."""


def _can_be_called(url: str) -> bool:
    try:
        parsed = urlsplit(url)
        _ = parsed.port  # which is read only here
    except ValueError:
        return False
    return parsed.scheme in ("http", "https") and bool(parsed.hostname) and not _NOT_IN_URL.search(url)


def missing(known: CallbackSettings) -> str:
    """Which settings a worker lacks to make addresses, and what they are; empty if none."""
    lacks = {
        URL: ("" if known.url else "the address at which others reach the gateway, such as https://agents.example"),
        KEY: ("" if known.keys else f"a secret of {SHORTEST_KEY} characters or more, which gateways have, too"),
    }
    named = "; ".join(f"set {name}: {what}" for name, what in lacks.items() if what)
    return f"no callback can be made here: {named}" if named else ""


_LIKE_A_TOKEN = re.compile(r"(?:(?<![A-Za-z0-9_-])|(?<=2[Ff]))Wy[IJ][A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{20,43}")
"""Half of a signature is enough: a text may have been cut. The slash before it is `%2F` where an address is a parameter
of another one, such as that of a provider's page."""


def without_addresses(text: str, sign: str = "[secret]") -> str:
    """Text without the part of callbacks' addresses that makes them work, for whoever looks at a task.

    Args:
        text: Any text, JSON too.
        sign: What stands there instead; of a single character as many as were there.
    """
    return _LIKE_A_TOKEN.sub(lambda found: sign * len(found[0]) if len(sign) == 1 else sign, text)


def token_of(url: str) -> str:
    """The last part of an address."""
    return url.rpartition("/")[2]


def slot_of(callback: Callback) -> str:
    """The slot that a message names which came to this address."""
    return _slot(token_of(callback.url))


def _slot(token: str) -> str:
    return f"{CALLBACK}:{token}"


def _signature(said: bytes, key: str) -> bytes:
    return hmac.new(key.encode(), b"refold callback " + said, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
