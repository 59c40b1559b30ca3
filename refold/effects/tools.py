"""A worker's tools by name: checks their arguments, calls them, and encodes their results as JSON."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import to_json, to_jsonable_python

from refold.core.authoring.tool import ToolSpec, tool_spec
from refold.core.codec import misnamed, unwritten
from refold.core.commands import CallTool, EffectPolicy
from refold.core.errors import DefinitionError
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import first_line, problems
from refold.core.values import encodable, unreadable
from refold.effects.failures.building import permanent
from refold.effects.failures.contained import awaited
from refold.effects.failures.verdicts import Never, OutOfTime, Verdict
from refold.effects.invocation import Invocation, Stopped, as_current
from refold.effects.ledger.ledgered_call import LedgeredCall, NotBegun, StillRunning, reused, until_answered
from refold.effects.ledger.receipts import LEASE_S, Ask, Begun, KeyReused, LedgerReceipt, ReceiptState
from refold.effects.threads import Threads

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

T = TypeVar("T")

WAITED_S = 0.02
"""From which wait for a thread on, in seconds, a call asks whether it is still wanted before it begins."""

ANSWER_S = 5.0
"""How long a call waits for that answer, in seconds."""

LEDGERED = frozenset({EffectPolicy.AT_MOST_ONCE, EffectPolicy.COMPENSATE})
"""The policies of tools whose effects have receipts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as a worker runs it.

    Attributes:
        spec: The tool's declaration.
        fields: The tool's parameter names, by field of `arguments`.
        arguments: The pydantic model that validates the arguments.
        result: Encodes the result as JSON; None if the tool declares no result type.
    """

    spec: ToolSpec
    fields: Mapping[str, str]
    arguments: type[BaseModel]
    result: TypeAdapter[Any] | None

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of the tool's arguments, as a model sees it."""
        schema = self.arguments.model_json_schema(by_alias=True)
        return {key: value for key, value in schema.items() if key not in ("title", "description")}

    @property
    def ledgered(self) -> bool:
        """Whether the tool's effects have receipts."""
        return self.spec.effect in LEDGERED

    async def call(
        self,
        command: CallTool,
        invocation: Invocation,
        threads: Threads,
        ledger: Ledger | None = None,
        *,
        lease_s: float = LEASE_S,
        decided: int = 0,
        why: Callable[[], Stopped] = lambda: Stopped.UNWANTED,
        wanted: Callable[[], Coroutine[Any, Any, bool]] | None = None,
        elsewhere: Callable[[], Awaitable[str]] | None = None,
    ) -> JsonValue:
        """Run the tool; if its effects have receipts, only if this effect has not taken place yet.

        Args:
            command: The tool call.
            invocation: The call as the tool sees it.
            threads: Runs tools that are a plain `def`.
            ledger: Holds the receipts.
            lease_s: How long this worker counts as alive without renewing its lease, in seconds.
            decided: See `Ask.decided`.
            why: Asked at a cancellation for its reason.
            wanted: Asked before a call that has waited for a thread begins; it does not begin if the answer is False.
            elsewhere: See `LedgeredCall`.

        Raises:
            Verdict: The arguments or the result do not fit the declared types, or `LedgeredCall.result` raised it. If
                there is a receipt, arguments that do not fit are refused only if nothing has been done.
            OutOfTime: It took longer than its `timeout_s`.
            CancelledError: The activity was canceled.
            Exception: Any exception of the tool, for `classify`.
        """
        self._refuse_without_undo(command)  # whatever another call of its key has done: nobody could undo this one
        refused, given = None, dict[str, Any]()
        try:
            given = self.given(command)
        except Verdict as refusal:
            refused = await self._refused(refusal, command, invocation, ledger)
        in_thread = _InThread(threads, self.spec, why, wanted)

        async def perform(invocation: Invocation) -> Any:
            if refused is not None:
                raise refused
            with as_current(invocation):
                called = partial(self.spec.function, **given)
                if inspect.iscoroutinefunction(self.spec.function):
                    result = called()
                else:
                    result = await in_thread.run(called, invocation)
                if not inspect.isawaitable(result):
                    return result
                # Also that of an `async def` under a decorator that is a plain `def`.
                return await self._in_time(result)

        if not self.ledgered:
            try:
                return self.as_json(await perform(invocation))
            except (StillRunning, NotBegun) as error:
                raise error.canceled or error from None
        return await call_with_receipt(
            self.spec,
            command,
            invocation,
            ledger,
            perform,
            self.as_json,
            lease_s=lease_s,
            decided=decided,
            why=in_thread.why,
            elsewhere=elsewhere,
        )

    async def _in_time(self, result: Awaitable[Any]) -> Any:
        limit = asyncio.timeout(self.spec.timeout_s)
        try:
            async with limit:
                return await awaited(result)
        except TimeoutError as error:
            if limit.expired():
                raise OutOfTime(self.spec.name, self.spec.timeout_s) from error
            raise  # of a request that the tool made

    async def _refused(
        self, refusal: Verdict, command: CallTool, invocation: Invocation, ledger: Ledger | None
    ) -> Never:
        """Why the function is not to be called, of an effect with a receipt: an earlier attempt may have called it, as
        before a deployment that gave it other arguments, and the receipt knows.

        Raises:
            Verdict: The refusal; this call has no receipt, so nothing has been done.
        """
        if not self.ledgered or ledger is None:
            raise refusal
        ask, failure = _asked(ledger, self.spec.name, command, invocation), refusal.failure
        found = await until_answered(lambda: ledger.run(ledger.look, ask.key), invocation.invocation_id)
        if found is None or found.fingerprint != ask.fingerprint:
            raise refusal
        return Never(failure.message, type=failure.type)

    def _refuse_without_undo(self, command: CallTool) -> None:
        undo = self.spec.undo
        if undo is None or command.undo is not None or command.undoes is not None:
            return
        message = (
            f"tool {self.spec.name!r} is to be undone by {undo.name!r} if the task does not complete, and a command "
            f"that names it by a string cannot say so: call it by its function, `ctx.tool({self.spec.name}, ...)`, "
            f"with `from ... import {self.spec.name}`; it was not performed"
        )
        raise Verdict(permanent("no_undo", message))

    def given(self, command: CallTool) -> dict[str, Any]:
        """The function's arguments.

        Raises:
            Verdict: They do not fit, or nobody could undo the effect; the function is not to be called.
        """
        self._refuse_without_undo(command)
        try:
            # Strict, as JSON: a date may be a text, but `"12"`, `true` and `12.5` are no number of cents.
            checked = self.arguments.model_validate_json(to_json(command.args), strict=True)
        except ValidationError as error:
            takes = ", ".join(self.fields.values()) or "none"
            message = f"tool {self.spec.name!r}: {problems(error)}; its arguments are: {takes}"
            raise Verdict(permanent("arguments", message)) from None
        # Arguments that were not given take the function's own defaults.
        return {self.fields[field]: getattr(checked, field) for field in checked.model_fields_set}

    def as_json(self, value: Any) -> JsonValue:
        """The function's result as JSON data.

        Raises:
            Verdict: It does not fit the declared type, or cannot be written as JSON.
        """
        try:
            if self.result is None:
                written: JsonValue = to_jsonable_python(value)
            else:
                written = self.result.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
        except ValueError as error:
            declared = "JSON" if self.result is None else _named(self.spec.returns)
            message = (
                f"tool {self.spec.name!r} returned a value of type {type(value).__name__}, which cannot be written as "
                f"{declared}: {unwritten(error)}; correct its return type, or what it returns"
            )
            raise Verdict(permanent("result", message)) from None
        if why := unreadable(written):
            raise Verdict(permanent("result", f"what tool {self.spec.name!r} returned {why}"))
        return encodable(written)


async def call_with_receipt(
    spec: ToolSpec,
    command: CallTool,
    invocation: Invocation,
    ledger: Ledger | None,
    perform: Callable[[Invocation], Coroutine[Any, Any, Any]],
    write: Callable[[Any], JsonValue],
    *,
    lease_s: float,
    decided: int,
    why: Callable[[], Stopped],
    elsewhere: Callable[[], Awaitable[str]] | None = None,
) -> JsonValue:
    """Perform an effect that has a receipt, unless it has taken place already; see `LedgeredCall`."""
    if ledger is None:
        raise RuntimeError(f"tool {spec.name!r} needs a ledger")
    ask = _asked(ledger, spec.name, command, invocation, lease_s=lease_s, decided=decided)
    call = LedgeredCall(ledger, spec, invocation, ask, perform, write, why=why, elsewhere=elsewhere)
    return await call.result()


async def record_outcome(
    tool: str,
    command: CallTool,
    invocation: Invocation,
    ledger: Ledger | None,
    outcome: JsonValue,
    result: TypeAdapter[Any] | None = None,
) -> JsonValue:
    """Record the outcome that a person gives for an effect, without running the tool.

    Args:
        tool: The tool's name.
        command: The tool call.
        invocation: The call as the tool sees it.
        ledger: Holds the receipts.
        outcome: The result that the person gives.
        result: Validates the outcome by the tool's result type; None if the type is not known.

    Returns:
        The recorded result; one that a receipt held before stays.

    Raises:
        Verdict: The outcome does not fit the tool's result type, or the key belongs to a call with other arguments.
    """
    try:
        if result is not None:
            result.validate_json(to_json(outcome))
    except ValidationError as error:
        # Refused, since a receipt would return it to every later call of this key.
        message = f"the outcome that was given cannot be one of the tool {tool!r}: {problems(error)}; give another one"
        raise Verdict(Failure(kind=FailureKind.UNKNOWN, type="unfit_outcome", message=message)) from None
    if ledger is None:
        return outcome
    ask = _asked(ledger, tool, command, invocation)
    recorded = await until_answered(lambda: ledger.run(ledger.resolve, ask, outcome), invocation.invocation_id)
    if isinstance(recorded, KeyReused):
        raise Verdict(reused(tool, ask.key, recorded))
    return recorded


def receipt_left(
    ledger: Ledger, tool: str, command: CallTool, key: str, *, decided: int, why: str
) -> LedgerReceipt | None:
    """The receipt of a call whose tool this worker does not have; None if there is none. Blocks.

    Where a person has decided that the effect may be performed again, it is in doubt no more, and its receipt is
    released: the call fails as one that was never made, as a tool's whose arguments do not fit any more.

    Args:
        ledger: The ledger with the receipt.
        tool: The tool's name.
        command: The tool call.
        key: Its idempotency key.
        decided: See `Ask.decided`.
        why: Why the effect does not take place, for people.

    Raises:
        LedgerUnavailable: The receipt cannot be read or released.
    """
    ask, found = ledger.ask(key, tool, command.args, decided=decided), ledger.look(key)
    # Without a business key the receipt is this call's, though middleware may have changed the arguments.
    if found is None or (command.key is not None and found.fingerprint != ask.fingerprint):
        return None
    if decided and found.state not in (ReceiptState.DONE, ReceiptState.RELEASED):
        answer = ledger.begin(replace(ask, fingerprint=found.fingerprint))
        if isinstance(answer, Begun):
            ledger.release(key, answer.fence, why)
            return None
    return found


def _asked(
    ledger: Ledger,
    tool: str,
    command: CallTool,
    invocation: Invocation,
    *,
    lease_s: float = LEASE_S,
    decided: int = 0,
) -> Ask:
    return ledger.ask(
        invocation.idempotency_key,
        tool,
        command.args,
        lease_s=lease_s,
        task_id=invocation.task_id,
        invocation_id=invocation.invocation_id,
        decided=decided,
    )


class _InThread:
    """One call of a tool that is a plain `def`, in one of the worker's threads, which cannot be stopped."""

    def __init__(
        self,
        threads: Threads,
        spec: ToolSpec,
        why: Callable[[], Stopped],
        wanted: Callable[[], Coroutine[Any, Any, bool]] | None,
    ) -> None:
        self._threads = threads
        self._spec = spec
        self._why = why
        self._wanted = wanted
        self._thread: Future[Any] | None = None

    def why(self) -> Stopped:
        """Why the attempt is canceled. One that was timed out while it waited for a thread does not begin any more."""
        why = self._why()
        waited = why is Stopped.TIMED_OUT and self._thread is not None and self._thread.cancel()
        return Stopped.UNWANTED if waited else why

    async def run(self, call: Callable[[], T], invocation: Invocation) -> T:
        """The tool's result. A cancellation sets `Invocation.cancelled`, and prevents a call that has not begun.

        Raises:
            NotBegun: The activity was canceled or the worker was closed before a thread was free, or no thread starts.
            StillRunning: The tool has timed out, or its worker is being stopped; the thread runs on.
            CancelledError: The activity was canceled, and the tool failed.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        began: list[float] = []
        begun, submitted = asyncio.Event(), time.monotonic()

        def in_context() -> T:
            wanted = time.monotonic() - submitted <= WAITED_S or self._still_wanted(loop, context)
            if not wanted or invocation.cancelled:
                raise NotBegun(None)
            began.append(time.monotonic())  # the time limit is the tool's, without its wait for a thread
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(begun.set)
            return context.run(call)

        try:
            thread = self._threads.submit(in_context)
        except RuntimeError:
            raise NotBegun(None) from None
        self._thread = thread
        running, beginning = asyncio.wrap_future(thread), asyncio.ensure_future(begun.wait())
        canceled: asyncio.CancelledError | None = None
        try:
            while not running.done():
                left = began[0] + self._spec.timeout_s - time.monotonic() if began else None
                if left is not None and left <= 0:
                    invocation.stop.set()
                    raise StillRunning(self._spec, thread, canceled)
                try:
                    ends: list[asyncio.Future[Any]] = [running] if began else [running, beginning]
                    await asyncio.wait(ends, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                except asyncio.CancelledError as error:
                    invocation.stop.set()
                    if not thread.cancel() and (canceled or self._why() is Stopped.LEAVING):
                        raise StillRunning(self._spec, thread, error) from None
                    canceled = error
        finally:
            beginning.cancel()
            running.cancel()  # a thread that runs on has nobody to answer here
        if running.cancelled() or isinstance(running.exception(), NotBegun):
            raise NotBegun(canceled)
        if canceled is not None and running.exception() is not None:
            raise canceled
        return running.result()

    def _still_wanted(self, loop: asyncio.AbstractEventLoop, context: Context) -> bool:
        """Ask the server, from the tool's thread. Where it does not answer, the call begins."""
        if self._wanted is None or loop.is_closed():
            return not loop.is_closed()
        try:
            return context.run(asyncio.run_coroutine_threadsafe, self._wanted(), loop).result(ANSWER_S)
        except Exception:  # noqa: BLE001 - whatever went wrong, nobody has said that it is not wanted
            return True


def tools_of(functions: Iterable[Callable[..., Any]]) -> dict[str, Tool]:
    """The tools of a worker, by name.

    Raises:
        DefinitionError: A function is not declared as a tool, has a type that JSON cannot express or does not bring
            back whole, or has the name of another tool.
    """
    tools: dict[str, Tool] = {}
    for function in functions:
        spec = tool_spec(function)
        if spec is None:
            choices = ", ".join(f"{policy.value!r}" for policy in EffectPolicy)
            called = getattr(function, "__name__", repr(function))
            raise DefinitionError(
                called,
                [f"it is not declared as a tool: write @tool(effect=...) above it, with one of {choices}"],
                what="tool",
            )
        known = tools.get(spec.name)
        if known is not None and known.spec.function is not spec.function:
            places = " and ".join(_where(one) for one in (known.spec.function, spec.function))
            found = f"two tools have this name: {places}; give one another by @tool(name=)"
            raise DefinitionError(spec.name, [found], what="tool")
        tools[spec.name] = _tool(spec)
    return tools


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _tool(spec: ToolSpec) -> Tool:
    """The tool of a declaration. Made once, and kept with the function: a worker's start asks for it several times."""
    made = getattr(spec.function, _MADE, None)
    if not isinstance(made, Tool) or made.spec is not spec:
        made = _made(spec)
        with suppress(AttributeError):  # a callable that takes no attributes
            setattr(spec.function, _MADE, made)
    return made


_MADE = "__refold_made__"


def _made(spec: ToolSpec) -> Tool:
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    try:
        hints = get_type_hints(spec.function, include_extras=True)
        parameters = inspect.signature(spec.function).parameters
        if hidden := [name for name, one in parameters.items() if _default_hidden(one.default, hints[name])]:
            raise DefinitionError(spec.name, [_UNHIDE.format(name) for name in hidden], what="tool")
        for number, parameter in enumerate(parameters.values()):
            default = ... if parameter.default is parameter.empty else parameter.default
            # Numbered, since a parameter may be called `json` or `_x`, but a pydantic field may not.
            fields[f"p{number}"] = (hints[parameter.name], Field(default, alias=parameter.name))
            names[f"p{number}"] = parameter.name
        made = Tool(
            spec=spec,
            fields=names,
            arguments=create_model(spec.name, __config__=ConfigDict(extra="forbid"), **fields),
            result=_result(hints["return"]) if "return" in hints else None,
        )
        _ = made.json_schema  # a model is offered it; a type without one is found here
        if why := misnamed(hints.get("return", Any)):
            raise DefinitionError(spec.name, [f"in the type of its result, {why}"], what="tool")
        return made
    except NameError as error:
        found = f"a type in its signature cannot be found: {error}"
    except PydanticUserError as error:
        found = f"a type in its signature is none that JSON can bring: {first_line(error)}"
    raise DefinitionError(spec.name, [found], what="tool")


_NUMBERS = ConfigDict(ser_json_inf_nan="constants")
"""NaN and infinite numbers stay, also where no type says that they are numbers; `encodable` writes their names."""


def _result(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=_NUMBERS)
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(hint)  # a model, which has a config of its own


def _named(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _default_hidden(default: Any, hint: Any) -> bool:
    """Whether a parameter's default is within a `Field`, where a call of the function does not find it."""
    if default is not inspect.Parameter.empty:
        return isinstance(default, FieldInfo)
    return any(isinstance(one, FieldInfo) and not one.is_required() for one in getattr(hint, "__metadata__", ()))


_UNHIDE = (
    "parameter {0!r} has a Field as its default, or a default in its Field, which a call of the function does not see: "
    "write `{0}: Annotated[TYPE, Field(description=...)]`, and a default after it, `= VALUE`"
)
