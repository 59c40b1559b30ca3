"""Steps: the parts of the loop. They have one interface: `stream` does the work and emits events meanwhile.

A step stores nothing. Its turn contains what it needs: the task's context, the state, and the input. A step is a
coroutine that awaits only calls of the context, so it can run again from recorded results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import JsonValue, ValidationError

from refold.agent.clients import ModelClient, Question, ToolClient
from refold.agent.plugins import AfterModelCall, AfterToolCall, BeforeModelCall, BeforeToolCall, Hooks, canceled
from refold.agent.state import AgentState
from refold.agent.tools import AgentTool, remote_tool
from refold.core.authoring.context import Ctx, own_patched, own_turn_count
from refold.core.chat import Reply, Said, ToolCall, ToolReturn, Usage, UserSaid, paid_in_vain
from refold.core.content import Content
from refold.core.errors import CommandError, SkillError
from refold.core.gates import GatePolicy
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import problems
from refold.cost import OWNER_DAY_SPENT

HOOK_RETRIES = 5
"""How often hooks may repeat a model or tool call in one step, or resume an answer."""

ANSWERS_KEPT = "refold.step.agent_answers_kept"
"""A patch: tasks recorded before lose what a model client answered without a model call, and what it was told."""

TYPED_DUE = "refold.step.agent_typed_answer_due"
"""A patch: tasks recorded before complete with a text beside tool calls in place of their typed answer."""

NAMES_PARTS = "refold.step.agent_names_parts"
"""A patch: in tasks recorded before, an error of a client or of a user's step names built-in middleware."""

USAGE_CHECKED = "refold.step.agent_usage_checked"
"""A patch: tasks recorded before count whatever a model client says that a call cost."""

T = TypeVar("T")
R = TypeVar("R")
Emit = Callable[[object], None]


class Step(ABC, Generic[T, R]):
    """Does something with a turn, and returns a result.

    Attributes:
        kind: By which middleware selects it.
    """

    kind: ClassVar[str]

    @abstractmethod
    async def stream(self, turn: T, emit: Emit) -> R:
        """Do it, and emit events meanwhile.

        Args:
            turn: The context, the state and the input.
            emit: Receives each event as it happens.
        """

    async def invoke(self, turn: T) -> R:
        """Do it, without events."""
        return await self.stream(turn, _nobody)


def _nobody(_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """The input of the model step.

    Attributes:
        ctx: The task's context.
        state: The state of the run; the step writes to it.
        say: The new messages of the conversation.
        instructions: The system prompt.
        tools: The tools that the model may call.
        model: `provider:name`, or several in the order in which they are asked; None is the worker's.
        expect: The type of the final answer; None is text.
        since: How many of the oldest turns are hidden from the model.
        settings: For the provider.
        retry: The retry policy; None is the agent's.
        final: The model must answer in this call, without tools.
        owes_type: Whether an answer needs the type `expect`; for a step that does not end the loop a text is enough.
    """

    ctx: Ctx
    state: AgentState
    say: tuple[Said, ...]
    instructions: str = ""
    tools: tuple[AgentTool, ...] = ()
    model: str | Sequence[str] | None = None
    expect: Any = None
    since: int = 0
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    retry: RetryPolicy | None = None
    final: bool = False
    owes_type: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTurn:
    """The input of a tool step.

    Attributes:
        ctx: The task's context.
        state: The state of the run.
        call: The call that the model requested.
        retry: The retry policy; None is the agent's.
        left: What is left of the task's budgets, by limit (`tokens`, `usd`): a part gets no budget above it.
    """

    ctx: Ctx
    state: AgentState
    call: ToolCall
    retry: RetryPolicy | None = None
    left: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """Emitted: the model is called, for the nth time in this step."""

    attempt: int


@dataclass(frozen=True, slots=True)
class ModelReplied:
    """Emitted: the model has replied."""

    reply: Reply


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Emitted: a tool is called."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """Emitted: a tool call has a result, also a failure."""

    result: ToolReturn


@contextmanager
def blaming(ctx: Ctx, whose: str) -> Iterator[None]:
    """Name a part of the user's in the error for a value that it wrote and that does not fit."""
    try:
        yield
    except ValidationError as error:
        if not own_patched(ctx, NAMES_PARTS):
            raise
        raise unfit(whose, error) from error


def unfit(whose: str, error: ValidationError) -> SkillError:
    """The error for a value that does not fit where it was written."""
    return SkillError(f"{whose} wrote a value that does not fit {error.title}: {problems(error)}")


class ModelStep(Step[ModelTurn, Reply]):
    """Calls the model, and writes its reply to the state.

    A reply that a hook discards is removed: the conversation continues in a copy without it.
    """

    kind: ClassVar[str] = "model"

    def __init__(self, client: ModelClient, hooks: Hooks) -> None:
        self._client, self._hooks = client, hooks

    async def stream(self, turn: ModelTurn, emit: Emit) -> Reply:
        """See `Step.stream`.

        Raises:
            CommandError: The call finally failed, and no hook repeats it.
        """
        state = turn.state
        if state.last_reply is not None:
            forget(turn)  # middleware repeats the step
        for attempt in range(1, HOOK_RETRIES + 2):
            before = BeforeModelCall(turn.ctx, state, say=turn.say, cancel=False)
            await self._hooks.fire(before)
            if before.cancel:
                return Reply(text=canceled(before.cancel, "The model was not asked."))
            emit(ModelAsked(attempt))
            reply, error = await self._ask(turn)
            after = AfterModelCall(turn.ctx, state, reply=reply, error=error, attempt_count=attempt, retry=False)
            await self._hooks.fire(after)
            again = after.retry and attempt <= HOOK_RETRIES
            if reply is not None and not again:
                emit(ModelReplied(reply))
                return reply
            if reply is not None:
                if state.last_reply is not None:
                    forget(turn)
            elif not again:
                assert error is not None
                raise error
        raise AssertionError("the last attempt returns or raises")

    async def _ask(self, turn: ModelTurn) -> tuple[Reply | None, CommandError | None]:
        state = turn.state
        question = Question(
            thread=state.thread,
            say=(*state.unsaid, *turn.say),
            instructions=turn.instructions,
            tools=[tool.offer for tool in turn.tools],
            model=turn.model,
            expect=turn.expect,
            since=turn.since,
            # Not omitted: providers refuse a conversation that has tool calls but declares no tools.
            settings={**turn.settings, "tool_choice": "none"} if turn.final and turn.tools else turn.settings,
            retry=turn.retry,
        )
        spent, before = state.spent, own_turn_count(turn.ctx, state.thread)
        spent.model_calls += 1
        try:
            with blaming(turn.ctx, f"model client {type(self._client).__name__}"):
                reply: Any = await self._client.ask(turn.ctx, question)
        except CommandError as error:
            if error.failure.type == OWNER_DAY_SPENT:
                spent.model_calls -= 1  # the worker made no call
            if paid := paid_in_vain(error.failure.details):
                spent.count(paid[0])
            return None, error
        if not isinstance(reply, Reply):
            raise SkillError(f"model client {type(self._client).__name__} returned {short(reply)}; it returns a Reply")
        if (wrong := _no_cost(reply.usage)) and own_patched(turn.ctx, USAGE_CHECKED):
            raise SkillError(f"model client {type(self._client).__name__} returned a usage with {wrong}")
        # Else the client has not called the model, and the loop keeps what was said for the next call.
        if own_turn_count(turn.ctx, state.thread) > before or not own_patched(turn.ctx, ANSWERS_KEPT):
            state.unsaid, state.last_reply, state.told = [], reply, len(turn.say)
        spent.count(reply.usage)
        return reply, None


def _no_cost(usage: Usage) -> str:
    """What of a usage no call can have cost, by which a budget would be kept; empty if there is nothing."""
    wrong = [f"{name}={given}" for name, given in usage if given is not None and not 0 <= given < inf]
    return f"{wrong[0]}; give a finite number, 0 or more" if wrong else ""


def heard(turn: ModelTurn) -> tuple[Said, ...]:
    """The conversation as it was before this step: a step that is repeated discards its first reply."""
    said = turn.ctx.thread(turn.state.thread)
    return said if turn.state.last_reply is None else said[: len(said) - turn.state.told - 1]


def forget(turn: ModelTurn) -> None:
    """Continue in a copy of the conversation as it was before this step."""
    state = turn.state
    state.unsaid, state.last_reply = list(heard(turn)), None
    name, _, number = state.thread.rpartition("~")
    state.thread = f"{name}~{int(number) + 1}" if number.isdecimal() else f"{state.thread}~2"


class ToolStep(Step[ToolTurn, ToolReturn]):
    """Calls a tool, after its gate if it has one. Every call has a result that the model can read.

    Args:
        client: Calls the tools.
        hooks: The agent's hooks.
        tools: By name.
        gate: The policy for a tool's calls; None if they need no decision.
        fatal: Tools whose failure fails the task.
    """

    kind: ClassVar[str] = "tool"

    def __init__(
        self,
        client: ToolClient,
        hooks: Hooks,
        tools: Mapping[str, AgentTool],
        gate: Callable[[AgentTool], GatePolicy | None] = lambda _: None,
        fatal: Collection[str] = (),
    ) -> None:
        self._client, self._hooks, self._tools = client, hooks, tools
        self._gate, self._fatal = gate, fatal

    async def stream(self, turn: ToolTurn, emit: Emit) -> ToolReturn:
        """See `Step.stream`.

        Raises:
            CommandError: A fatal tool failed.
        """
        result, call, attempt = None, turn.call, 0
        while result is None:
            attempt += 1
            before = BeforeToolCall(turn.ctx, turn.state, tool_use=call, selected_tool=call.name, cancel=False)
            await self._hooks.fire(before)
            call = before.tool_use
            if before.cancel:
                result = refusal(turn.call, canceled(before.cancel, "This call was canceled."))
                break
            emit(ToolStarted(call))
            came, error = await self._call(turn, call, before.selected_tool)
            after = AfterToolCall(
                turn.ctx, turn.state, tool_use=call, result=came, error=error, attempt_count=attempt, retry=False
            )
            await self._hooks.fire(after)
            if after.retry and attempt <= HOOK_RETRIES:
                continue
            if error is not None and before.selected_tool in self._fatal:
                raise error
            # The result has the model's own name for the call, whatever tool was called.
            result = after.result.model_copy(update={"id": turn.call.id, "name": turn.call.name})
        emit(ToolEnded(result))
        return result

    async def _call(self, turn: ToolTurn, call: ToolCall, selected: str) -> tuple[ToolReturn, CommandError | None]:
        known = {**self._tools, **{one.name: remote_tool(one) for one in turn.state.found}}
        if turn.state.tools is not None:
            known = {name: tool for name, tool in known.items() if name in turn.state.tools}
        tool = known.get(selected) or next((one for one in known.values() if one.offer.name == selected), None)
        if tool is None:
            listed = ", ".join(one.offer.name for one in known.values()) or "none"
            return refusal(call, f"tool {selected!r} not found; there are: {listed}"), None
        if call.problem:
            return refusal(call, f"the arguments cannot be read: {call.problem}"), None
        args = call.args
        try:
            tool.command(args, turn.retry)  # no gate for a call that cannot be made
        except SkillError as error:
            return refusal(call, str(error)), None
        if (policy := self._gate(tool)) is not None:
            if unfit := tool.misfits(args):
                return refusal(call, unfit), None
            decided = await _ask_person(turn, call, tool, policy)
            if isinstance(decided, ToolReturn):
                return decided, None
            args = decided
        whose = f"tool client {type(self._client).__name__}"
        with blaming(turn.ctx, whose):
            try:
                value = await self._client.call(turn.ctx, tool.within(turn.left), args, turn.retry)
            except CommandError as error:
                return refusal(call, error.failure.message), error
            except SkillError as error:
                return refusal(call, str(error)), None
            finally:
                turn.state.spent.tool_calls += 1
                turn.state.let_out(call.id)
        if args != call.args:  # else the model would receive its original request as the result's
            value = {"called_with": args, "result": value}
        try:
            return ToolReturn(id=call.id, name=call.name, value=value), None
        except ValidationError:
            raise SkillError(f"{whose} returned {short(value)} of {tool.name}; it returns JSON") from None


async def _ask_person(
    turn: ToolTurn, call: ToolCall, tool: AgentTool, policy: GatePolicy
) -> dict[str, JsonValue] | ToolReturn:
    """The granted arguments; or the result for the model instead."""
    shown: dict[str, JsonValue] = {"tool": tool.name, "arguments": call.args}
    try:
        decision = await turn.ctx.approve(
            tool.name, f"May {tool.name} be called?", show=shown, policy=policy, editable=("arguments", "result")
        )
    except CommandError as error:  # nobody answered in time, and the gate lets the agent go on
        return refusal(call, f"{error.failure.message}, so this call was not made; do not try it again unasked")
    if not decision.approved:
        why = f": {decision.comment}" if decision.comment else ""
        return refusal(call, f"{decision.approver} denied this call{why}; do not try it again unasked")
    granted = decision.shown if isinstance(decision.shown, dict) else shown
    if "result" in granted:
        return ToolReturn(id=call.id, name=call.name, value=granted["result"])
    arguments = granted["arguments"]
    if not isinstance(arguments, dict):
        return refusal(call, f"{decision.approver} changed the arguments to what is no object")
    return arguments


def is_answer(turn: ModelTurn, reply: Reply) -> bool:
    """Whether a reply that must be the answer is one: of a reply with tool calls, its text is no typed answer."""
    if reply.value is not None or not reply.text:
        return reply.value is not None
    typed = turn.owes_type and turn.expect is not None
    return not typed or not reply.tool_calls or not own_patched(turn.ctx, TYPED_DUE)


def refusal(call: ToolCall, message: str) -> ToolReturn:
    """The result for the model if a tool did not do what was requested."""
    return ToolReturn(id=call.id, name=call.name, value=message, failed=True)


def refusals(calls: Sequence[ToolCall], message: str) -> tuple[ToolReturn, ...]:
    """The same for several calls."""
    return tuple(refusal(call, message) for call in calls)


WITHHELD = "(withheld)"
"""The model reads this in place of a message that is withheld from it, when it is called again later."""


def withheld(said: Said) -> Said:
    """The text in a conversation in place of a message that is withheld from the model."""
    if isinstance(said, ToolReturn):
        return said.model_copy(update={"value": WITHHELD, "failed": True})
    return UserSaid(content=Content.from_text(WITHHELD))


def short(value: Any) -> str:
    """A value in one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else text[:79] + "…"


Results = tuple[ToolReturn, ...]

NO_RESULT = "this call has no result: it was not made"
"""The model reads this where nothing was returned for a call."""


def in_order(calls: Sequence[ToolCall], results: Any, whose: str) -> Results:
    """One result for each call, in the order of the calls; a call without one gets a refusal.

    Args:
        calls: The requested calls.
        results: What was returned for them.
        whose: Who returned it, for people.

    Raises:
        SkillError: A value is no result, or belongs to no call, or there are two results for one call.
    """
    if not isinstance(results, Sequence) or isinstance(results, str):
        raise SkillError(f"{whose} returned {short(results)}; it returns a tuple of ToolReturn values")
    left = list(results)
    if odd := [one for one in left if not isinstance(one, ToolReturn)]:
        raise SkillError(f"{whose} returned {short(odd[0])} among its results; each is a ToolReturn")
    ordered = []
    for call in calls:
        found = next((one for one in left if one.id == call.id), None)
        if found is not None:
            left.remove(found)
        ordered.append(found or refusal(call, NO_RESULT))
    if left:
        known = ", ".join(repr(call.id) for call in calls) or "none"
        raise SkillError(
            f"{whose} returned a result of tool {left[0].name!r} for call {left[0].id!r}, which is not requested, or "
            f"has a result already; the requested calls are: {known}"
        )
    return tuple(ordered)
