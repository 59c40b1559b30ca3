"""A worker's timeouts: how soon the server detects a lost worker, and how often it retries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Timeouts of one worker.

    Attributes:
        name: The name by which a setting chooses the profile.
        heartbeat: The heartbeat timeout: an effect without a heartbeat for this long has lost its worker.
        sticky: How long a workflow task waits for the worker that has the workflow in its cache.
        effect: The longest time of one attempt of an effect.
        first_retry: The pause before an effect of a lost worker is retried; doubles each time.
        max_attempts: The most attempts of an effect whose workers are lost; then the effect counts as failed.
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
    """Set the profile of this process's worker."""
    global _current  # noqa: PLW0603 - a worker process has one profile, and workflow code takes no arguments from it
    _current = profile


def current() -> Profile:
    """The profile of this process's worker. Replay does not compare timeouts, so a profile may change."""
    return _current
