"""How soon the server detects a lost worker, and how often it then dispatches an effect again.

A worker has a profile (`--recovery`), and a skill may have one of its own (`workflow_for(…, recovery=…)`).

Where an effect was under way, the task goes on after the heartbeat timeout and `first_retry`: the worker that takes
over the effect frees the task's next step from the lost worker (`refold.effects.attempt`). Where none was, the next
step waits for `sticky`, and for no more than ten seconds after the lost worker's last poll.

A heartbeat timeout has to be longer than all that keeps a living worker from sending one: a pause of its process or of
the network, a busy server. Else its effects are performed twice, or, where they must not be, looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from refold.core.errors import DefinitionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Timeouts of a worker, or of the effects of one skill.

    Attributes:
        name: The name by which a setting chooses the profile; one of your own is for people.
        heartbeat: The heartbeat timeout: an effect without a heartbeat for this long has lost its worker.
        sticky: How long a workflow task waits for the worker that has the workflow in its cache. A worker's alone: the
            profile of a skill cannot change it.
        effect: The longest time of one attempt of an effect.
        first_retry: The pause before an effect of a lost worker is retried; doubles each time.
        max_attempts: The most attempts of an effect whose workers are lost; then the task blocks on it.

    Raises:
        DefinitionError: A time is 0 or negative, or there is no attempt.
    """

    name: str
    heartbeat: timedelta = timedelta(seconds=5)
    sticky: timedelta = timedelta(seconds=5)
    effect: timedelta = timedelta(hours=1)
    first_retry: timedelta = timedelta(milliseconds=200)
    max_attempts: int = 5

    def __post_init__(self) -> None:
        times = {key: getattr(self, key) for key in ("heartbeat", "sticky", "effect", "first_retry")}
        wrong = [f"{key}={given!r} is no timedelta above 0" for key, given in times.items() if not _positive(given)]
        if not _is_text(self.name):
            wrong.append(f"name={self.name!r} is no text")
        if not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            wrong.append(f"max_attempts={self.max_attempts!r} is no number of attempts, 1 or more")
        if wrong:
            raise DefinitionError(str(self.name), wrong, what="profile")


def _is_text(given: object) -> bool:
    return isinstance(given, str)


def _positive(given: object) -> bool:
    return isinstance(given, timedelta) and given > timedelta(0)


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


def of_skill(skill: str, given: str | Profile | None) -> Profile | None:
    """The profile that a skill is defined with; None leaves it to the worker.

    Args:
        skill: The skill's id, for the error.
        given: A profile's name, a profile, or None.

    Raises:
        DefinitionError: There is no profile of that name.
    """
    if given is None or isinstance(given, Profile):
        return given
    if isinstance(given, str) and given in PROFILES:
        return PROFILES[given]
    known = " or ".join(repr(name) for name in PROFILES)
    raise DefinitionError(skill, [f"recovery={given!r} is no profile; it is {known}, or a Profile(...) of your own"])
