"""The mark of a worker's ledger, with which the worker's identity at the Temporal server ends: `4711@host~1a2b3c`.

The server tells the identities of the workers that poll a task queue. So a worker with another ledger is noticed
without a word in history or in the effect's arguments.
"""

from __future__ import annotations

import re

DIGITS = 6
"""How many digits of the ledger's id the mark has. It is short, since history holds the identity with each step."""

_MARK = re.compile(rf"~([0-9a-f]{{{DIGITS}}})\Z")


def marked(identity: str, ledger: str) -> str:
    """A worker's identity with the mark of its ledger.

    Args:
        identity: What the worker is called; it stays whole, since no two workers may have one identity.
        ledger: The id of the ledger (`Store.identity`), at least six hex digits.
    """
    return f"{identity}~{ledger[:DIGITS]}"


def mark_in(identity: str) -> str:
    """The mark with which an identity ends; empty for a worker without a ledger."""
    found = _MARK.search(identity)
    return found.group(1) if found else ""
