"""How failures are written: bounded in size, and encrypted where there is a codec.

A worker without the key or the storage of an activity's input leaves the activity to others, though the SDK would fail
it: the failure gets a type of its own, by which the task goes on asking (`refold.temporal.worker.task.outcomes`).
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError

from refold.core import retry_policy
from refold.core.retry_policy import NOT_READABLE
from refold.core.values import shortened
from refold.engine import CodecError, PayloadTooLarge, StorageError
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count

PAUSE = timedelta(seconds=1)
"""How long the server waits before it dispatches such an activity again, perhaps to another worker."""

_UNDECODED = ("Failed decoding arguments", "Failed decoding heartbeat details")
"""What the SDK says of an activity that it could not begin."""

_CANCELED = "Cancelled"
"""What the SDK says of an activity that was canceled."""

log = logger(__name__)


class RefoldFailureConverter(DefaultFailureConverter):
    """The SDK's failure converter, with bounds.

    `PayloadTooLarge` is not retried. Details that are too large are left out, and long messages are cut, so that the
    failure itself is always sent.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See the SDK."""
        self._written(_left_to_others(exception), payload_converter, failure)
        _bounded(failure)

    def _written(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        if isinstance(exception, PayloadTooLarge):
            # Non-retryable, since a retry of the activity would return the same large result.
            final = ApplicationError(str(exception), type=PayloadTooLarge.__name__, non_retryable=True)
            super().to_failure(final.with_traceback(exception.__traceback__), payload_converter, failure)
            return
        try:
            super().to_failure(exception, payload_converter, failure)
        except PayloadTooLarge as error:
            if not isinstance(exception, ApplicationError):
                raise
            failure.Clear()
            message = shortened(f"{exception.message} (its details are left out: {error})", FAILURE_CHARS)
            bare = without_details(exception, message)
            super().to_failure(bare.with_traceback(exception.__traceback__), payload_converter, failure)


class EncodedFailureConverter(RefoldFailureConverter):
    """Moves a failure's message and stack trace to where the codec encrypts them, as the SDK's own does.

    A key or a stored value that is missing stays readable: whoever looks for the reason may lack the same key, and its
    message quotes nobody. So does the SDK's word for an activity that was canceled, which the codec may be away for.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See the SDK."""
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, CodecError | StorageError) or _is_undecoded(exception) or _is_canceled(exception):
            failure.stack_trace = ""
            if isinstance(exception, CodecError):
                failure.ClearField("cause")  # encoded, for which the codec is needed
        else:
            _encode_attributes(failure, payload_converter)


def without_details(error: ApplicationError, message: str) -> ApplicationError:
    """An effect's failure in other words, but of its kind; see `refold.core.retry_policy.Failure`."""
    kept = [one.without_details(message) for one in error.details if isinstance(one, retry_policy.Failure)]
    return ApplicationError(
        message,
        *kept,
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def _is_canceled(exception: BaseException) -> bool:
    """Whether it says that an activity was canceled, in the SDK's words, and nothing more."""
    return isinstance(exception, CancelledError) and exception.message == _CANCELED and not exception.details


def _is_undecoded(exception: BaseException) -> bool:
    """Whether the SDK could not read an activity's input, for want of a key or a stored value."""
    return (
        isinstance(exception, ApplicationError)
        and exception.message in _UNDECODED
        and isinstance(exception.__cause__, CodecError | StorageError)
    )


def _left_to_others(exception: BaseException) -> BaseException:
    """The exception to write: without details, which nobody could read if this worker's key is of no other process."""
    if not _is_undecoded(exception):
        return exception
    why = f"this worker cannot read the command: {exception.__cause__}"
    log.warning("left_to_others", failure=NOT_READABLE, reason=why)
    count(metrics.LEFT_TO_OTHERS, NOT_READABLE)
    return ApplicationError(why, type=NOT_READABLE, next_retry_delay=PAUSE, category=ApplicationErrorCategory.BENIGN)


FAILURE_CHARS = 20_000
"""How much of a failure's message and stack trace travels. Whatever holds one larger than Temporal takes, fails again
and again."""


FAILURE_CAUSES = 20
"""How many causes of a failure travel, each the next one's. The SDK cannot send a hundred, and whoever waits for the
failure would wait for ever."""


def _bounded(failure: Failure, causes: int = FAILURE_CAUSES) -> None:
    failure.message = shortened(failure.message, FAILURE_CHARS)
    failure.stack_trace = shortened(failure.stack_trace, FAILURE_CHARS)
    if not causes:
        failure.ClearField("cause")
    elif failure.HasField("cause"):
        _bounded(failure.cause, causes - 1)


ENCODED = "Encoded failure"
"""What Temporal's SDKs write in place of a message that is encrypted."""


def _encode_attributes(failure: Failure, payload_converter: PayloadConverter) -> None:
    if failure.message != ENCODED:
        attributes = {"message": failure.message, "stack_trace": failure.stack_trace}
        failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
        failure.message, failure.stack_trace = ENCODED, ""
    if failure.HasField("cause"):  # copied as it was read, if an activity or another workflow raised it
        _encode_attributes(failure.cause, payload_converter)
