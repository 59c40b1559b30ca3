"""When a schedule starts tasks: by cron expressions or at an interval, and what it does while a task of it is open."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator
from temporalio.client import ScheduleIntervalSpec, ScheduleOverlapPolicy, ScheduleSpec

from refold.core.errors import InputRejected
from refold.core.values import Value, shortened

LONGEST = timedelta(days=3650)
"""The longest interval, and the longest time to catch up in: ten years."""

SHORTEST = timedelta(seconds=1)
"""The shortest interval. A run's id ends with its second, so more runs than one a second would have one id."""

_NO_ZONES = ("", "Local")
"""What the server reads as UTC, as of a shell variable that is not set, and as the zone of its own machine."""

_NAMED_TIMES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
"""What the server knows in place of five fields."""

MOST_CRONS = 20
CRON_CHARS = 200


class Overlap(StrEnum):
    """What becomes of a start that is due while an earlier task of the schedule is open."""

    SKIP = "skip"
    """It is left out."""
    QUEUE_ONE = "queue-one"
    """It waits until the open task has ended; one waits at most, and others are left out."""
    QUEUE_ALL = "queue-all"
    """It waits until all before it have ended."""
    CANCEL = "cancel"
    """The open task is canceled, and the new one starts when it has ended."""
    ALLOW = "allow"
    """It starts beside the open task."""

    @property
    def policy(self) -> ScheduleOverlapPolicy:
        """Temporal's word for it."""
        return _POLICIES[self]


_POLICIES = {
    Overlap.SKIP: ScheduleOverlapPolicy.SKIP,
    Overlap.QUEUE_ONE: ScheduleOverlapPolicy.BUFFER_ONE,
    Overlap.QUEUE_ALL: ScheduleOverlapPolicy.BUFFER_ALL,
    Overlap.CANCEL: ScheduleOverlapPolicy.CANCEL_OTHER,
    Overlap.ALLOW: ScheduleOverlapPolicy.ALLOW_ALL,
}


def overlap_of(policy: ScheduleOverlapPolicy) -> str:
    """A schedule's policy in our words; Temporal's name of one that refold never sets."""
    return next((word.value for word, known in _POLICIES.items() if known is policy), policy.name.lower())


def _several(crons: object) -> object:
    if isinstance(crons, str):
        one = (shortened(crons, CRON_CHARS),)
        raise InputRejected(f"cron takes several expressions, and got one as a text; write cron={one!r}")
    return crons


class Timing(Value):
    """When a schedule is due.

    Attributes:
        cron: Expressions of five fields (minute, hour, day, month, weekday), or `@daily` and the like.
        every: The interval, instead of or beside `cron`; whole seconds, one at least.
        timezone: In which `cron` is read, such as `Europe/Berlin`; None is UTC.
        jitter: Each start comes up to this much later, by chance; None is no delay.
        overlap: What becomes of a start that is due while an earlier task is open.
        catch_up: Starts that were missed because the server was down are made up for if they are no older than this.

    Raises:
        InputRejected: `cron` is a text.
    """

    cron: Annotated[tuple[str, ...], BeforeValidator(_several)] = ()
    every: timedelta | None = None
    timezone: str | None = None
    jitter: timedelta | None = None
    overlap: Overlap = Overlap.SKIP
    catch_up: timedelta = timedelta(hours=1)

    def checked(self) -> Timing:
        """This timing, if a server can be asked for it.

        Raises:
            InputRejected: It is never due, or a length of time is out of bounds.
        """
        if not self.cron and self.every is None:
            raise InputRejected("a schedule needs a time: give `cron`, such as '0 7 * * 1-5', or `every`, such as 2h")
        if len(self.cron) > MOST_CRONS or any(len(one) > CRON_CHARS for one in self.cron):
            raise InputRejected(f"a schedule takes {MOST_CRONS} cron expressions of {CRON_CHARS} characters at most")
        if self.timezone is not None and not self.cron:
            raise InputRejected("a time zone says how a cron expression is read; an interval has none")
        if self.timezone is not None and self.timezone.strip() in _NO_ZONES:
            raise InputRejected(
                f"the time zone is {self.timezone!r}, which names none; give a name such as Europe/Berlin, or UTC"
            )
        _within("an interval", self.every, SHORTEST)
        if self.every is not None and self.every % SHORTEST:
            raise InputRejected(
                f"an interval has whole seconds, since the server drops the rest; got {self.every.total_seconds():g} s"
            )
        _within("jitter", self.jitter, SHORTEST)
        _within("the time to catch up in", self.catch_up, timedelta(seconds=10))
        for cron in self.cron:
            _check_cron(cron)
        return self

    @property
    def text(self) -> str:
        """The same for people."""
        return times_of(self.spec)

    @property
    def spec(self) -> ScheduleSpec:
        """The same for the server."""
        return ScheduleSpec(
            cron_expressions=[f"{one} # {one}" for one in self.cron],  # the server keeps only the comment as it is
            intervals=[] if self.every is None else [ScheduleIntervalSpec(every=self.every)],
            jitter=self.jitter,
            time_zone_name=self.timezone,
        )


def _within(what: str, time: timedelta | None, least: timedelta) -> None:
    if time is not None and not least <= time <= LONGEST:
        seconds = f"{time.total_seconds():g} s"
        raise InputRejected(f"{what} is {least.total_seconds():g} s at least and ten years at most; got {seconds}")


def _check_cron(cron: str) -> None:
    """Refuse what the server would read otherwise than cron does, or as a setting."""
    words = cron.split()
    if any(word.startswith(("CRON_TZ=", "TZ=")) for word in words):
        raise InputRejected(f"the cron expression {cron!r} has a time zone in it: give it as the timezone")
    if "#" in cron:
        raise InputRejected(f"the cron expression {cron!r} has a `#`, which begins a comment: leave it out")
    if cron.startswith("@every"):
        raise InputRejected(f"the cron expression {cron!r} is an interval: give it as one (`--every`)")
    if cron.startswith("@") and cron.strip() not in _NAMED_TIMES:
        raise InputRejected(f"the cron expression {cron!r} is none of {', '.join(_NAMED_TIMES)}")
    if not cron.startswith("@") and len(words) != 5:
        raise InputRejected(
            f"the cron expression {cron!r} has {len(words)} fields; it takes five (minute, hour, day of the month, "
            "month, day of the week), such as '0 7 * * 1-5', or @hourly, @daily, @weekly, @monthly, @yearly"
        )
    if not (cron.startswith("@") or words[2][0] in "*?" or words[4][0] in "*?"):
        raise InputRejected(
            f"the cron expression {cron!r} names days of the month and of the week: cron takes a day that is either, "
            "the server only one that is both; write an expression for each, with * for the other"
        )


def due(spec: ScheduleSpec, second: datetime) -> bool:
    """Whether a start may be due in this second, before any jitter; for cron expressions, in the first of a minute."""
    if (spec.calendars or spec.cron_expressions) and second.second == 0:
        return True
    since = second - datetime(1970, 1, 1, tzinfo=UTC)
    return any((since - (one.offset or timedelta())) % one.every < timedelta(seconds=1) for one in spec.intervals)


def times_of(spec: ScheduleSpec) -> str:
    """When a schedule is due, for people."""
    # The server keeps cron expressions as calendars, each with the expression as its comment.
    crons = [*(one.partition(" # ")[0] for one in spec.cron_expressions)]
    crons += [one.comment or "a calendar" for one in spec.calendars]
    parts = [f"cron {one}" for one in crons]
    parts += [f"every {in_words(one.every)}" for one in spec.intervals]
    zone = f" ({spec.time_zone_name})" if spec.time_zone_name and crons else ""
    jitter = f", up to {in_words(spec.jitter)} later" if spec.jitter else ""
    return (", ".join(parts) or "never") + zone + jitter


def in_words(time: timedelta) -> str:
    """A length of time as it is typed in: 90m, 2h, 1d."""
    seconds = time.total_seconds()
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"


_UNITS: Sequence[tuple[int, str]] = ((86_400, "d"), (3_600, "h"), (60, "m"))
