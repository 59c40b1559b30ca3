"""Signs decisions, so that a worker can check who asserts the approver: HMAC with a key shared by gateway and workers.

`REFOLD_APPROVAL_KEY` holds the key. A worker checks a signature when it accepts the update, never on replay, so the key
may be rotated at any time.
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
    """The signature of a decision of this task, as hex."""
    said = [task_id, decision.gate, decision.digest, decision.decision, decision.approver, decision.asserted_by or ""]
    if decision.changes:
        said.append(json.dumps(decision.changes, sort_keys=True))
    text = "".join(f"{len(part)}:{part}" for part in said)  # so that no two decisions read the same
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def approval_key() -> str | None:
    """The key of this process; None if `REFOLD_APPROVAL_KEY` is not set."""
    return os.environ.get(ENV) or None


def check(task_id: str, decision: DecisionMade, given: str) -> None:
    """Check a decision's signature.

    Raises:
        InputRejected: The signature is wrong, or this worker has no key to check it with.
    """
    key = approval_key()
    if key is None:
        raise InputRejected(f"the decision is signed, and this worker cannot check it: set {ENV} where it runs")
    if not hmac.compare_digest(signature(task_id, decision, key).encode(), given.encode()):
        raise InputRejected("the decision's signature does not match: was it signed with another key, or changed?")
