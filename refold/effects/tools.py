"""A worker's tools by name: their arguments checked, their calls made, their results as JSON."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

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
from pydantic_core import PydanticSerializationError, to_jsonable_python

from refold.core.commands import CallTool, EffectPolicy
from refold.core.errors import DefinitionError
from refold.core.retry import Failure, FailureKind
from refold.core.schema import first_line, problems
from refold.core.tool import ToolSpec, tool_spec
from refold.effects.failures import classify, surely_unsent
from refold.effects.invocation import Invocation, as_current
from refold.effects.verdicts import Verdict

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as a worker runs it.

    Attributes:
        spec: Its declaration.
        fields: The name of each parameter, by the field of `arguments` that stands for it.
        arguments: The model that its arguments must fit.
        result: How its result is written as JSON; None where its type is not declared.
    """

    spec: ToolSpec
    fields: Mapping[str, str]
    arguments: type[BaseModel]
    result: TypeAdapter[Any] | None

    @property
    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments, as a model is shown it."""
        schema = self.arguments.model_json_schema(by_alias=True)
        return {key: value for key, value in schema.items() if key not in ("title", "description")}

    async def call(self, command: CallTool, invocation: Invocation, threads: Executor) -> JsonValue:
        """Run the tool, unless its policy forbids this try.

        Args:
            command: What is asked.
            invocation: Who asks, on which try.
            threads: Where a tool that is a plain `def` runs.

        Raises:
            Verdict: The arguments do not fit, the result is not what was declared, or it is not known whether the
                tool's effect has taken place and it must not be repeated.
            CancelledError: Nobody wants the result any more.
            Exception: Whatever the tool raises; `classify` knows it.
        """
        given = self._given(command.args)
        careful = self.spec.effect is EffectPolicy.AT_MOST_ONCE
        if careful and invocation.attempt > 1:
            raise Verdict(
                _outcome_unknown(
                    self.spec.name,
                    "a worker was lost while an earlier try was under way; the tool was not called again",
                )
            )
        try:
            with as_current(invocation):
                value = await self._run(given, invocation, threads)
        except Exception as error:
            failure = classify(error)
            if careful and failure.kind is FailureKind.TRANSIENT and not surely_unsent(error):
                raise Verdict(_outcome_unknown(self.spec.name, failure.message)) from error
            raise
        return self._as_json(value)

    def _given(self, args: Mapping[str, JsonValue]) -> dict[str, Any]:
        try:
            checked = self.arguments.model_validate(args)
        except ValidationError as error:
            takes = ", ".join(self.fields.values()) or "none"
            message = f"tool {self.spec.name!r}: {problems(error)}; its arguments are: {takes}"
            raise Verdict(_permanent("arguments", message)) from None
        # What was not given is left to the function's own default.
        return {self.fields[field]: getattr(checked, field) for field in checked.model_fields_set}

    async def _run(self, given: dict[str, Any], invocation: Invocation, threads: Executor) -> Any:
        if inspect.iscoroutinefunction(self.spec.function):
            async with asyncio.timeout(self.spec.timeout_s):
                return await self.spec.function(**given)
        context = copy_context()
        running = asyncio.get_running_loop().run_in_executor(threads, lambda: context.run(self.spec.function, **given))
        return await _patiently(running, invocation, self.spec.timeout_s)

    def _as_json(self, value: Any) -> JsonValue:
        try:
            if self.result is None:
                written: JsonValue = to_jsonable_python(value)
            else:
                written = self.result.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
        except (PydanticSerializationError, ValueError):
            declared = "JSON" if self.result is None else str(self.spec.returns)
            message = (
                f"tool {self.spec.name!r} returned a {type(value).__name__}, which cannot be written as {declared}; "
                "correct its return type"
            )
            raise Verdict(_permanent("result", message)) from None
        return written


async def _patiently(running: asyncio.Future[T], invocation: Invocation, timeout_s: float) -> T:
    """Wait for a thread. It cannot be stopped, so it is told, and waited for: what it did is the truth.

    Raises:
        TimeoutError: It takes too long. It is told to stop, and left to itself.
        CancelledError: Nobody waits any more, and it came to nothing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        if loop.time() >= deadline:
            invocation.stop.set()
            raise cancelled or TimeoutError()
        try:
            await asyncio.wait([running], timeout=deadline - loop.time())
        except asyncio.CancelledError as error:
            invocation.stop.set()
            cancelled = error
    if cancelled is not None and (running.cancelled() or running.exception() is not None):
        raise cancelled
    return running.result()


def tools_of(functions: Iterable[Callable[..., Any]]) -> dict[str, Tool]:
    """The tools of a worker, by name.

    Raises:
        DefinitionError: A function is not declared as a tool, takes what JSON cannot bring, or shares its name.
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
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    try:
        hints = get_type_hints(spec.function, include_extras=True)
        for number, parameter in enumerate(inspect.signature(spec.function).parameters.values()):
            default = ... if parameter.default is parameter.empty else parameter.default
            # Numbered, since a parameter may be called `json` or `_x`, which a model's field may not.
            fields[f"p{number}"] = (hints[parameter.name], Field(default, alias=parameter.name))
            names[f"p{number}"] = parameter.name
        return Tool(
            spec=spec,
            fields=names,
            arguments=create_model(spec.name, __config__=ConfigDict(extra="forbid"), **fields),
            result=TypeAdapter(hints["return"]) if "return" in hints else None,
        )
    except NameError as error:
        found = f"a type in its signature cannot be found: {error}"
    except PydanticUserError as error:
        found = f"a type in its signature is none that JSON can bring: {first_line(error)}"
    raise DefinitionError(spec.name, [found], what="tool")


def _outcome_unknown(name: str, why: str) -> Failure:
    return _permanent(
        "outcome_unknown",
        f"it is not known whether the tool {name!r} has had its effect, and it may happen once at most: {why}; "
        "look at the other side, then decide",
    )


def _permanent(type: str, message: str) -> Failure:
    return Failure(kind=FailureKind.PERMANENT, type=type, message=message)
