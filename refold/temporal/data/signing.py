"""How somebody vouches for a decision: a signature with a key that they and the workers share.

`REFOLD_APPROVAL_KEY` holds the key. A signature is checked when an update is accepted, never on replay, so the key may
be changed at any time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os

from refold.core.errors import InputRejected
from refold.core.gates import DecisionMade

ENV = "REFOLD_APPROVAL_KEY"


def signature(task_id: str, decision: DecisionMade, key: str) -> str:
    """The signature of who vouches for a decision, as hex."""
    said = [task_id, decision.gate, decision.digest, decision.decision, decision.approver, decision.asserted_by or ""]
    if decision.changes:
        said.append(json.dumps(decision.changes, sort_keys=True))
    text = "".join(f"{len(part)}:{part}" for part in said)  # so that no two decisions read the same
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def approval_key() -> str | None:
    """The key of this process; None where it has none."""
    return os.environ.get(ENV) or None


def check(task_id: str, decision: DecisionMade, given: str) -> None:
    """Whether a signature is right.

    Raises:
        InputRejected: It is not, or this worker has no key to check it with.
    """
    key = approval_key()
    if key is None:
        raise InputRejected(f"the decision is signed, and this worker cannot check it: set {ENV} where it runs")
    if not hmac.compare_digest(signature(task_id, decision, key).encode(), given.encode()):
        raise InputRejected("the decision's signature does not match: was it signed with another key, or changed?")
