"""Finds settings that are misspelled: nobody would read them, and the default would apply in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches

_OWN = """
    APPROVAL_KEY APPROVER CALLBACK_KEY CALLBACK_URL CODEC DEBUG DURABILITY ENCRYPTION_KEYS ENCRYPTION_KEYS_FILE GRACE
    HEALTH LEDGER LEDGER_SINGLE_HOST MCP METRICS MODEL NOTIFY_URL OUTBOUND_ALLOW OUTBOUND_PORTS PAGE_NO_PAYLOADS
    PAGE_PROXIES PAGE_PROXY_HEADER PAGE_READ_ONLY PAGE_SECRET PAGE_SEE_ALL RETENTION SCRIPTED_DELAY SEARCH_KEY STORAGE
    TASK_QUEUE TEMPORAL_UI TRACES TRACES_CONTENT WEBHOOK_SECRET
"""

_CALLERS = """
    ANONYMOUS API_KEYS API_KEYS_FILE HOSTS JWT_ALGORITHMS JWT_AUDIENCE JWT_CLAIM JWT_ISSUER JWT_JWKS_URL JWT_KEY
    JWT_KEY_FILE JWT_SCOPE MAX_BODY_BYTES MAX_CONNECTIONS MAX_DEPTH MAX_PARTS MAY_VOUCH ORIGINS RATE RATE_STORAGE
"""

SETTINGS = frozenset(
    f"REFOLD_{name}"
    for name in (*_OWN.split(), "A2A_URL", *(f"{of}_{name}" for of in ("A2A", "CODEC") for name in _CALLERS.split()))
)
"""The names of the settings in the environment, as `docs/reference.md` lists them."""


def misspelled(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each name in the environment that is nearly a setting's. Others, also those that begin with
    `REFOLD_`, may be somebody else's."""
    for name in sorted(names):
        if not name.startswith("REFOLD") or name in SETTINGS:
            continue
        if near := get_close_matches(name, SETTINGS, n=1, cutoff=0.85):
            yield f"{name} is no setting of refold, and nothing reads it; did you mean {near[0]}?"
