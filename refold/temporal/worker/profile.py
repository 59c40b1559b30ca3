"""How soon a lost worker is noticed, and what waiting costs: one set of timeouts for a worker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Timeouts of one worker.

    Attributes:
        name: What it is chosen by.
        heartbeat: An effect that is silent for this long has lost its worker.
        sticky: A workflow task waits this long for the worker that has the workflow in memory.
        effect: The longest that one try of an effect may take.
        first_retry: The wait before a lost effect is given to another worker; doubles each time.
        max_attempts: How often one effect is given to a worker before it counts as failed.
    """

    name: str
    heartbeat: timedelta = timedelta(seconds=10)
    sticky: timedelta = timedelta(seconds=10)
    effect: timedelta = timedelta(hours=1)
    first_retry: timedelta = timedelta(milliseconds=200)
    max_attempts: int = 5


DEFAULT = Profile(name="default")
FAST_RECOVERY = Profile(name="fast-recovery", heartbeat=timedelta(seconds=1), sticky=timedelta(seconds=1))
PROFILES = {profile.name: profile for profile in (DEFAULT, FAST_RECOVERY)}

_current = DEFAULT


def use(profile: Profile) -> None:
    """Make `profile` the one of this process's worker."""
    global _current  # noqa: PLW0603 - a worker process has one profile, and workflow code can be handed nothing
    _current = profile


def current() -> Profile:
    """The profile of this process's worker. Timeouts are no part of what replay compares, so they may change."""
    return _current
