"""Every metric of refold: its name, kind, labels and help text. The docs, the alerts and the dashboard are checked
against this list.

No label has a task's id, an owner or a text. A label's values are a closed list, or names that the application's code
gives (skills, tools, models), of which the first few are told apart (`refold.seen.meters`); any other value is `other`.
Prometheus shows a counter with `_total` behind its name, and OpenTelemetry without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from refold.core.lifecycle import Ending, TaskEvent, TaskState
from refold.core.retry_policy import ANOTHER_RELEASE, LEFT


class Kind(StrEnum):
    """What a metric measures."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One label of a metric.

    Attributes:
        name: The label's name.
        values: The values it may have; empty for names that the application's code gives.
        most: How many such names are told apart in one process.
    """

    name: str
    values: frozenset[str] = frozenset()
    most: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        name: The name without Prometheus' `_total`.
        kind: What it measures.
        help: One sentence for people.
        labels: In the order in which `refold.seen.meters` takes their values.
        buckets: The upper bounds of a histogram's buckets, in seconds.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        """The name in Prometheus."""
        return f"{self.name}_total" if self.kind is Kind.COUNTER else self.name


OTHER = "other"
"""The label value of what a label does not tell apart."""

SKILL = Label(name="skill")


def _one_of(name: str, values: Iterable[str]) -> Label:
    return Label(name=name, values=frozenset(values))


STATES = tuple(state.value for state in TaskState)
OPEN_STATES = ("untaken", *(state for state in STATES if state != TaskState.DONE))
"""The states of open tasks: `untaken` by any worker yet, then the lifecycle's; `failed` while a task compensates."""

EVENTS = (*(event.value for event in TaskEvent), Ending.CANCELED.value)
REFUSED_FOR = ("state", "duplicate", "not_allowed", "stale", "unreadable", "unfit")
EFFECTS = ("llm", "chat", "tool", "notify", "skill", "activity", "workflow", "sleep")
OUTCOMES = ("done", "transient", "permanent", "unknown", "canceled")
FAMILIES = ("http_429", "http_4xx", "http_5xx", "timeout", "connection", "worker_lost", ANOTHER_RELEASE)
BLOCKED_BY = ("dependency", "worker_lost", ANOTHER_RELEASE, "outcome_unknown")
WAITS = ("approval", "content_review", "budget", "risk", "question")
CLOSED_BY = ("approved", "denied", "answered", "timeout", "withdrawn")
UNDOING = ("done", "not_done", "unknown")
LEDGER = ("begun", "repeated", "in_progress", "outcome_unknown", "key_reused", "unavailable", "owed", "not_written",
          "overtaken", "gone")  # fmt: skip

_SHORT = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0)
_LONG = (1.0, 10.0, 60.0, 300.0, 1800.0, 7200.0, 14400.0, 86400.0)


def _counter(name: str, help: str, *labels: Label) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, help=help, labels=labels)


def _gauge(name: str, help: str, *labels: Label) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, help=help, labels=labels)


def _histogram(name: str, help: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, help=help, labels=labels, buckets=buckets)


# --- tasks: counted by the worker that takes an entry, never on a replay

TRANSITIONS = _counter(
    "refold_transitions", "Moves of tasks between states of the lifecycle.",
    SKILL, _one_of("from", STATES), _one_of("to", STATES), _one_of("event", EVENTS),
)  # fmt: skip
STATE_SECONDS = _histogram(
    "refold_state_seconds", "How long tasks stayed in a state that they left.", _LONG, SKILL, _one_of("state", STATES)
)
TASKS_ENDED = _counter(
    "refold_tasks_ended", "Tasks that ended.", SKILL, _one_of("ending", [one.value for one in Ending])
)
RETRIES = _counter(
    "refold_retries", "Retries of commands that were scheduled.",
    SKILL, _one_of("effect", EFFECTS), _one_of("failure", FAMILIES),
)  # fmt: skip
HIGH_RETRIES = _counter("refold_high_retries", "Commands that came to their third retry or a later one.", SKILL)
REFUSALS = _counter(
    "refold_refusals", "Events and updates that tasks refused.",
    SKILL, Label(name="trigger", most=40), _one_of("reason", REFUSED_FOR),
)  # fmt: skip
INVALID_MOVES = _counter(
    "refold_invalid_moves", "Events and updates that tasks refused because of the state they were in.", SKILL
)
WAITS_OPENED = _counter("refold_waits_opened", "Gates and questions that were opened.", SKILL, _one_of("kind", WAITS))
WAIT_SECONDS = _histogram(
    "refold_wait_seconds",
    "How long gates and questions were open, by how they closed.",
    _LONG,
    _one_of("outcome", CLOSED_BY),
)
BLOCKED = _counter("refold_blocked", "Commands that blocked their task.", SKILL, _one_of("reason", BLOCKED_BY))
NEEDS_PERSON = _counter("refold_needs_person", "Blocked commands that only a person can resolve.", SKILL)
COMPENSATIONS = _counter(
    "refold_compensations", "Effects of tasks that did not complete: compensated, not compensated, or not known.",
    SKILL, _one_of("outcome", UNDOING),
)  # fmt: skip
CONTINUED = _counter(
    "refold_continued", "Tasks that began as the recovery or the fork of another.", SKILL,
    _one_of("by", ("recovery", "fork")),
)  # fmt: skip
TOKENS = _counter(
    "refold_tokens",
    "Tokens of model calls, also of answers of no use, as the provider counted them; cached and reasoning ones are "
    "among input and output.",
    SKILL, Label(name="model", most=20), _one_of("kind", ("input", "output", "input_cached", "output_reasoning")),
)  # fmt: skip
COST = _counter(
    "refold_cost_micro_usd", "What model calls cost, in millionths of a US dollar, where the worker knows the price.",
    SKILL, Label(name="model", most=20),
)  # fmt: skip
CODE_DIFFERS = _counter("refold_code_differs", "Tasks that stopped because the code differs from what was recorded.")

# --- effects: counted by the worker that performs an attempt

EFFECTS_ENDED = _counter(
    "refold_effects", "Attempts of model calls, tools and notifications that ended.",
    _one_of("effect", EFFECTS), Label(name="name"), _one_of("outcome", OUTCOMES),
)  # fmt: skip
EFFECT_SECONDS = _histogram(
    "refold_effect_seconds", "How long attempts of model calls, tools and notifications took.", _SHORT,
    _one_of("effect", EFFECTS), _one_of("outcome", OUTCOMES),
)  # fmt: skip
LEFT_TO_OTHERS = _counter(
    "refold_left_to_others", "Activities that the worker did not know or could not read, and left to other workers.",
    _one_of("failure", LEFT),
)  # fmt: skip
STORAGE_AWAITED = _counter(
    "refold_storage_awaited", "Failed attempts to write a large result to storage, or to encrypt a result."
)
LEDGER_ANSWERS = _counter(
    "refold_ledger", "What the ledger of receipts answered, and what became of reports to it.", _one_of("event", LEDGER)
)
RECEIPTS_OWED = _gauge("refold_receipts_owed", "Receipts of this process that wait until the ledger is back.")
REFUSALS_LOST = _counter("refold_refusals_not_recorded", "Refused updates that could not be written to the ledger.")

# --- gateways

CALLS = _counter("refold_gateway_calls", "Calls that the gateway answered, by the class of the HTTP status.",
                 _one_of("status", ("2xx", "3xx", "4xx", "5xx")))  # fmt: skip
CALL_SECONDS = _histogram("refold_gateway_call_seconds", "How long the gateway took to begin an answer.", _SHORT)
STREAMS = _gauge("refold_gateway_streams", "Event streams that are open in this gateway.")
WEBHOOKS = _counter(
    "refold_webhooks", "Webhook updates: accepted by the receiver, refused, given up after a day.",
    _one_of("outcome", ("accepted", "refused", "given_up")),
)  # fmt: skip

# --- open tasks: asked of the server by `refold metrics`

OPEN_TASKS = _gauge("refold_open_tasks", "Open tasks.", SKILL, _one_of("state", OPEN_STATES))
OLDEST_TASK = _gauge(
    "refold_oldest_task_seconds", "For how long the task that is longest in a state has been in it; 0 without one.",
    _one_of("state", OPEN_STATES),
)  # fmt: skip
QUEUE_POLLERS = _gauge(
    "refold_queue_pollers", "Workers that asked a task queue for work lately.",
    Label(name="queue", most=20), _one_of("type", ("workflow", "activity")),
)  # fmt: skip
QUEUE_BACKLOG = _gauge(
    "refold_queue_backlog", "Work that waits in a task queue, about.",
    Label(name="queue", most=20), _one_of("type", ("workflow", "activity")),
)  # fmt: skip
QUEUE_AGE = _gauge(
    "refold_queue_age_seconds", "For how long the oldest work in a task queue has waited, about.",
    Label(name="queue", most=20), _one_of("type", ("workflow", "activity")),
)  # fmt: skip
ASKED_AT = _gauge(
    "refold_open_tasks_asked_at_seconds", "When the server was last asked for all of these, as Unix time."
)

METRICS = tuple(one for one in list(globals().values()) if isinstance(one, Metric))
"""All of them, in the order above."""

BUCKETS: Mapping[str, tuple[float, ...]] = MappingProxyType({one.name: one.buckets for one in METRICS if one.buckets})
"""The buckets of each histogram, by name."""
