"""The recorded outcomes of local activities, so that a workflow task that runs again gets the same ones.

| the record | what a local activity does                                   |
| ---------- | ------------------------------------------------------------ |
| there      | answers with it; performs nothing                            |
| missing    | performs the effect, then records its result, with the time  |

History holds the outcome of a local activity only once its workflow task has ended. If the worker dies before that,
the workflow task runs again, and with it all its local activities: by these records with the same results at the same
times, so that the task takes the same way, and asks for the same effects under the same ids.

No record is looked for where there can be none: if an outcome was performed, and recorded by nobody before, then no
earlier attempt had it, and none has asked for the effects that the task asks for next.

Only results are recorded. After a failure the task begins no effect before the workflow task has ended
(`refold.temporal.worker.short`), so nothing was built on one that is lost. An effect that has a receipt of its own
(`at_most_once`, `compensate`) has both: the receipt, perhaps shared with other tasks by a business key, and the record,
which belongs to one command of one run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.keys import wire_key
from refold.effects.ledger.receipts import Ask, LedgerReceipt
from refold.effects.ledger.receipts import resolve as resolved

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

RECORD = "refold.short"
"""The tool that records name as theirs, since they belong to no tool."""


Brought: TypeAlias = tuple[int, JsonValue]
"""What a local activity answers: when its result was recorded, in milliseconds since 1970 by the ledger's clock, and
the result. As short as that, since history holds it once an effect."""


class Outcomes:
    """The records in a ledger. Its methods block on the disk or network."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def asked(self, name: str, sent: bytes, namespace: str, run_id: str, task_id: str, invocation_id: str) -> Ask:
        """The request whose outcome a record holds.

        Args:
            name: The activity.
            sent: The command, as it was sent.
            namespace: The Temporal namespace.
            run_id: The run of the workflow: a task that is started anew under an old id has other records.
            task_id: The task.
            invocation_id: The command's id.
        """
        key = wire_key(namespace=namespace, tool=RECORD, key=f"{run_id} {invocation_id}")
        return Ask(
            key=key,
            tool=RECORD,
            fingerprint=hashlib.sha256(name.encode() + b"\0" + sent).hexdigest(),
            holder=self._ledger.holder,
            lease_s=0.0,
            task_id=task_id,
            invocation_id=invocation_id,
        )

    def look(self, ask: Ask) -> Brought | None:
        """What was recorded; None if nothing was.

        Raises:
            Verdict: What was recorded under this command's id came of other arguments.
            LedgerUnavailable: The record cannot be read.
        """
        found = self._ledger.store.read(ask.key)
        return None if found is None else self._brought(ask, found)

    def look_same(self, ask: Ask) -> Brought | None:
        """As `look`, but a record made with other arguments does not count.

        Raises:
            LedgerUnavailable: The record cannot be read.
        """
        found = self._ledger.store.read(ask.key)
        return None if found is None or found.fingerprint != ask.fingerprint else self._brought(ask, found)

    def record(self, ask: Ask, value: JsonValue) -> tuple[Brought, bool]:
        """Record a result, and return it; or return the one recorded before. Also returns whether it is new.

        Raises:
            Verdict: As in `look`.
            LedgerUnavailable: The record was not written, or it is not known whether it was.
        """
        receipt, _ = resolved(None, ask, to_json(value).decode(), 0.0)
        kept = self._ledger.store.keep(receipt)
        return self._brought(ask, kept), kept.holder == ask.holder

    def _brought(self, ask: Ask, found: LedgerReceipt) -> Brought:
        if found.fingerprint != ask.fingerprint:
            message = (
                "an earlier attempt of this workflow task asked for another effect here, and its outcome is recorded: "
                "the code was changed meanwhile, or does not do the same again; let the former code go on, or recover "
                "the task"
            )
            details: dict[str, JsonValue] = {"key": ask.key, "known": found.fingerprint, "given": ask.fingerprint}
            raise Verdict(Failure(kind=FailureKind.PERMANENT, type="another_effect", message=message, details=details))
        return int(found.changed_at * 1_000), from_json(found.result or "null")
