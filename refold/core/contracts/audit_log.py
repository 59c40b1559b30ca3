"""What the audit is told while a task is driven: each execution of a step, and why one failed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.moment import Moment
from refold.core.contracts.audit import ORCHESTRATOR, ErrorRecord, StateTransitionEvent
from refold.core.contracts.contract import StepContract
from refold.core.contracts.opened import Opened, SaidFailed
from refold.core.errors import CommandError, ContractError
from refold.core.retry import FailureKind


class AuditLog:
    """The audit of one entry.

    Attributes:
        events: What became of the steps that ended, in order.
    """

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.events: list[StateTransitionEvent] = []

    def first(self, lifecycle: str, data: Mapping[str, JsonValue]) -> None:
        """The first state was made."""
        written = {name: value for name, value in data.items() if value is not None}
        self.events.append(
            StateTransitionEvent.trusted(
                session_id=self._session(data), stage=ORCHESTRATOR, from_state="", to_state=lifecycle, owned=written,
                started_at=self.moment.at, finished_at=self.moment.at,
            )
        )  # fmt: skip

    def error(self, opened: Opened, error: BaseException) -> ErrorRecord:
        """Why a step failed, as data."""
        about: dict[str, Any] = {"type": type(error).__name__, "message": str(error)}
        match error:
            case ContractError(field=field, rule=rule, expected=expected, actual=actual):
                about |= {"field": field, "rule": rule, "expected": expected, "actual": actual}
            case CommandError(failure=failure):
                about |= {"type": failure.type, "retryable": failure.kind is FailureKind.TRANSIENT}
            case SaidFailed():
                about["type"] = "failed"
            case _:
                pass
        return ErrorRecord(stage=opened.step.name, lifecycle=opened.lifecycle, at=self.moment.at, **about)

    def note(
        self,
        opened: Opened,
        to: str,
        patch: dict[str, JsonValue] | None = None,
        owned: dict[str, JsonValue] | None = None,
        err: ErrorRecord | None = None,
    ) -> None:
        """A step has ended.

        Args:
            opened: The step.
            to: The state it leads to; its own where it leads to none.
            patch: What it wrote.
            owned: What the orchestrator wrote with it.
            err: Why it failed; None where it did not.
        """
        terms: StepContract = opened.step.contract
        record = opened.record
        waited = [id for awaited in (record["awaits"] if record else ()) for id in awaited["ids"]]
        self.events.append(
            StateTransitionEvent.trusted(
                session_id=self._session(opened.data),
                stage=opened.step.name,
                from_state=opened.lifecycle or opened.step.name,
                to_state=to,
                read_set=terms.reads,
                write_set=terms.writes,
                patch=patch or {},
                owned=owned or {},
                started_at=datetime.fromisoformat(record["at"]) if record else self.moment.at,
                finished_at=self.moment.at,
                awaited=(*opened.met, *waited),
                free=terms.free,
                err=err,
            )
        )

    def _session(self, data: Mapping[str, JsonValue]) -> str:
        session = data.get("session_id")
        return session if isinstance(session, str) else self.moment.task_id
