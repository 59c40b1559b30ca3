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
    JWT_KEY_FILE JWT_SCOPE MAX_BODY_BYTES MAX_CONNECTIONS MAX_DEPTH MAX_PARTS MAX_VALUES MAY_VOUCH ORIGINS RATE
    RATE_STORAGE
"""

SETTINGS = frozenset(
    f"REFOLD_{name}"
    for name in (*_OWN.split(), "A2A_URL", *(f"{of}_{name}" for of in ("A2A", "CODEC") for name in _CALLERS.split()))
)
"""The names of the settings in the environment, as `docs/reference.md` lists them."""

_TEMPORALS = """
    ADDRESS API_KEY CODEC_AUTH CODEC_ENDPOINT CONFIG_FILE DEBUG DEPLOYMENT_NAME NAMESPACE PROFILE TASK_QUEUE TLS
    TLS_CLIENT_CERT_DATA TLS_CLIENT_CERT_PATH TLS_CLIENT_KEY_DATA TLS_CLIENT_KEY_PATH TLS_DISABLE_HOST_VERIFICATION
    TLS_SERVER_CA_CERT_DATA TLS_SERVER_CA_CERT_PATH TLS_SERVER_NAME WORKER_BUILD_ID
"""

TEMPORALS = frozenset(f"TEMPORAL_{name}" for name in _TEMPORALS.split())
"""The names of Temporal's own settings that its SDK or refold reads."""

_OTHERS = """
    CONFIG_FILES TLS_CLIENT1_CA_CERT_DATA TLS_CLIENT2_CA_CERT_DATA TLS_ENABLE_HOST_VERIFICATION
    TLS_FRONTEND_DISABLE_HOST_VERIFICATION TLS_INTERNODE_DISABLE_HOST_VERIFICATION TLS_SERVER_CA_CERT
    TLS_SERVER_CERT_DATA TLS_SERVER_KEY_DATA
"""
"""What Temporal's server and its UI read that is like a client's setting."""


def misspelled(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each name in the environment that is nearly a setting's of refold or Temporal. Others, also those
    that begin as one does, may be somebody else's."""
    for name in sorted(names):
        if near := _near(name):
            whose = "refold" if name.startswith("REFOLD") else "Temporal"
            yield f"{name} is no setting of {whose}, and nothing reads it; did you mean {near}?"


def _near(name: str) -> str | None:
    if name.startswith("REFOLD") and name not in SETTINGS:
        return next(iter(get_close_matches(name, SETTINGS, n=1, cutoff=0.85)), None)
    rest = name.removeprefix("TEMPORAL").lstrip("_")
    if not name.startswith("TEMPORAL") or name in TEMPORALS or rest in _OTHERS.split():
        return None
    # Without the prefix, by which one setting is like another with a word before it, such as TEMPORAL_CLOUD_NAMESPACE.
    near = get_close_matches(rest, _TEMPORALS.split(), n=1, cutoff=0.84)
    return f"TEMPORAL_{near[0]}" if near else None
