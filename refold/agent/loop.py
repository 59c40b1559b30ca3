"""The loop: model, then tools, then model again, until there is an answer. Its steps are those of a skill.

`AnyLoop` has what every agent's loop has around it; `looping` has loops of the user's own.

Each cycle is a `goto` of its own, so the task discards the cycle's results and stays small in a long run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import JsonValue

from refold.agent.errors import NoAnswer
from refold.agent.orchestrators import ToolsStep, ToolsTurn
from refold.agent.plugins import AfterInvocation, AfterTools, BeforeInvocation, BeforeTools, Hooks, canceled
from refold.agent.state import AgentState
from refold.agent.steps import HOOK_RETRIES, ModelTurn, Step, forget, is_answer, refusals, withheld
from refold.agent.tools import AgentTool, found_at, remote_tool
from refold.core.authoring.context import Ctx, own_patched
from refold.core.authoring.transition import Transition
from refold.core.chat import Reply, Said, ToolCall, ToolReturn, UserSaid
from refold.core.content import Artifact, Content
from refold.core.steps.table import step, steps_of

ANSWER = "answer"
"""The artifact with a typed answer."""

EVERY_FILE = "refold.step.agent_every_file"
"""A patch: tasks recorded before hand over no files beside tool calls, and number those of each reply from 1."""

_NUMBER = re.compile(r"file-([0-9]{1,9})((?:\..*)?)")
"""The name that a worker gives a file in a model's reply."""

ANSWER_DUE = "not called: the answer was due"
"""The result of a call in a reply that must be the answer."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a loop; see `Agent`."""

    instructions: str
    model: str | Sequence[str] | None
    settings: Mapping[str, JsonValue]
    output: Any
    tools: Mapping[str, AgentTool]
    remote: Sequence[str]
    gated: Sequence[str]
    hooks: Hooks
    model_step: Step[ModelTurn, Reply]
    tools_step: ToolsStep
    max_cycles: int
    turns: int | None


class AnyLoop:
    """The steps before and after the loop, which all agents have; each agent has a subclass with its parts.

    Attributes:
        parts: The agent's.
        first: The loop's first step.
        calls: The step that calls tools.
    """

    parts: ClassVar[Parts]
    first: ClassVar[str]
    calls: ClassVar[str]

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Handle the first message."""
        state = AgentState(found=await found_at(ctx, self.parts.remote, self.parts.gated))
        say = [UserSaid(content=content)]
        if await self._is_called_off(ctx, state, say):
            return ctx.goto("answer", state=state)
        return ctx.goto(self.first, state=state, say=say)

    @step(on_interrupt="steered")
    async def answer(self, ctx: Ctx, state: AgentState) -> Transition:
        """Answer, and continue with the next message of a hook or the user."""
        if again := await self._resumed(ctx, state):
            return ctx.goto(self.first, state=state, say=again)
        ctx.status("")
        said, handed = self._answered(ctx, _reply_in(state))
        if self.parts.turns is not None and state.turns >= self.parts.turns:
            return ctx.complete(said, handed)
        for artifact in handed:
            ctx.hand_over(artifact)
        return ctx.await_input("next", said, state=state)

    @step(resume_from="answer")
    async def heard(self, ctx: Ctx, content: Content, state: AgentState) -> Transition:
        """Handle the next message of the same conversation."""
        say = [UserSaid(content=content)]
        if await self._is_called_off(ctx, state, say):
            return ctx.goto("answer", state=state)
        return ctx.goto(self.first, state=state, say=say)

    @step
    async def steered(self, ctx: Ctx, content: Content, state: AgentState, say: list[Said] | None = None) -> Transition:
        """Handle a message that came while the agent was at work: before it calls the model again, or has answered."""
        say = say or await self._resumed(ctx, state)
        if not say:
            said, handed = self._answered(ctx, _reply_in(state))
            ctx.say(said)
            for artifact in handed:
                ctx.hand_over(artifact)
        new, unsaid = [UserSaid(content=content)], list(state.unsaid)
        if await self._is_called_off(ctx, state, new):
            if not say:
                return ctx.goto("answer", state=state)
            # The work goes on without the message. Results stay in `say`, which guardrails check.
            ctx.say(_content(_reply_in(state)))
            new, state.unsaid = [], unsaid
        return ctx.goto(self.first, state=state, say=[*say, *new])

    # --- what the steps do

    async def _is_called_off(self, ctx: Ctx, state: AgentState, say: Sequence[UserSaid]) -> bool:
        """Accept a message; returns whether a hook has canceled it, and so has answered it."""
        state.turns += 1
        state.cycle, state.resumed, state.position = 0, 0, "start"
        begun = BeforeInvocation(ctx, state, say=tuple(say), cancel=False)
        await self.parts.hooks.fire(begun)
        await self.parts.hooks.said(ctx, state, say)
        if not begun.cancel:
            return False
        state.last_reply = Reply(text=canceled(begun.cancel, "The agent does not work on this."))
        state.unsaid = [*state.unsaid, *say, state.last_reply]
        return True

    async def _resumed(self, ctx: Ctx, state: AgentState) -> list[Said]:
        """What a hook has the agent go on with instead of the answer; empty if the user receives the answer."""
        ended = AfterInvocation(ctx, state, reply=_reply_in(state), resume=None)
        await self.parts.hooks.fire(ended)
        if ended.resume is None or state.resumed >= HOOK_RETRIES:
            return []
        state.cycle, state.resumed = 0, state.resumed + 1
        say: list[Said] = [UserSaid(content=Content.from_text(ended.resume))]
        await self.parts.hooks.said(ctx, state, say)
        return say

    def _answered(self, ctx: Ctx, reply: Reply) -> tuple[Content, list[Artifact]]:
        """What the user receives of a final reply: a message, and artifacts for a typed answer and for files."""
        if self.parts.output is not None and reply.value is not None:
            ctx.decode(self.parts.output, reply.value)  # middleware may have put another one in its place
        handed = [] if reply.value is None else [Artifact.from_data(ANSWER, reply.value)]
        return _content(reply), [*handed, *_files_in(reply)]

    def _tell(self, ctx: Ctx, state: AgentState, doing: str) -> None:
        """Show what the agent is doing."""
        ctx.status(doing)

    def _turn(self, ctx: Ctx, state: AgentState, say: Sequence[Said], *, final: bool) -> ModelTurn:
        """A model call with all that the agent has; `final` asks for an answer without tools."""
        parts = self.parts
        offered = [
            tool
            for tool in (*parts.tools.values(), *map(remote_tool, state.found))
            if state.tools is None or tool.name in state.tools
        ]
        return ModelTurn(
            ctx=ctx,
            state=state,
            say=tuple(say),
            instructions=parts.instructions if state.instructions is None else state.instructions,
            tools=tuple(offered),
            model=state.model or parts.model,
            expect=parts.output,
            settings=parts.settings,
            final=final,
        )

    async def _asks(self, turn: ModelTurn) -> Reply:
        ctx, state = turn.ctx, turn.state
        state.last_reply, state.withheld = None, []
        reply = _numbered(turn, await self.parts.model_step.invoke(turn))
        _agree(turn, reply)
        await self.parts.hooks.said(ctx, state, [reply])
        if reply.files and reply.tool_calls and not turn.final and own_patched(ctx, EVERY_FILE):
            for artifact in _files_in(reply):  # the user gets those of a last reply with the answer
                ctx.hand_over(artifact)
        return reply

    async def _calls(
        self, ctx: Ctx, state: AgentState, calls: tuple[ToolCall, ...], step: ToolsStep
    ) -> tuple[ToolReturn, ...]:
        """Make the requested calls; each has a result, in their order."""
        hooks = self.parts.hooks
        before = BeforeTools(ctx, state, calls=calls, cancel=False)
        await hooks.fire(before)
        if before.cancel:
            results = refusals(calls, canceled(before.cancel, "Tools were canceled."))
        else:
            self._tell(ctx, state, f"calling {', '.join(call.name for call in calls)}")
            own = _told_apart(calls)
            ids = {one.id: call.id for one, call in zip(own, calls, strict=True)}
            came = await step.invoke(ToolsTurn(ctx=ctx, state=state, calls=own))
            results = tuple(one.model_copy(update={"id": ids.get(one.id, one.id)}) for one in came)
        await hooks.fire(AfterTools(ctx, state, results=results))
        return results


AROUND = tuple(one.name for one in steps_of(AnyLoop))
"""The names of the steps around the loop."""


class AgentLoop(AnyLoop):
    """The loop of an agent that defines none itself: model, then tools."""

    first, calls = "model", "tools"

    @step(on_interrupt="steered")
    async def model(self, ctx: Ctx, state: AgentState, say: list[Said]) -> Transition:
        """Call the model; in the last call it must answer."""
        parts = self.parts
        state.cycle += 1
        final = state.cycle >= parts.max_cycles
        self._tell(ctx, state, "thinking" if state.cycle == 1 else f"thinking, cycle {state.cycle}")
        turn = self._turn(ctx, state, say, final=final)
        reply = await self._asks(turn)
        state.position = "after_model"
        if not reply.tool_calls:
            return ctx.goto("answer", state=state)
        if not final:
            return ctx.goto("tools", state=state)
        refuse_calls(turn, reply)
        return ctx.goto("answer", state=state)

    @step
    async def tools(self, ctx: Ctx, state: AgentState) -> Transition:
        """Call the requested tools; each call has a result."""
        results = await self._calls(ctx, state, _reply_in(state).tool_calls, self.parts.tools_step)
        await self.parts.hooks.said(ctx, state, results)
        state.position = "after_tools"
        return ctx.goto("model", state=state, say=list(results))


def refuse_calls(turn: ModelTurn, reply: Reply) -> None:
    """Give each call of a reply that must be the answer a refusal.

    Raises:
        NoAnswer: Beside the calls there is no answer.
    """
    state = turn.state
    if not is_answer(turn, reply):
        raise NoAnswer(state.cycle)
    state.unsaid = [*state.unsaid, *refusals(reply.tool_calls, ANSWER_DUE)]


def _told_apart(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls, each with an id of its own: some models give several calls of a reply the same id."""
    ids, made = [call.id for call in calls], []
    for place, call in enumerate(calls):
        if ids.index(id := call.id) < place:
            id = f"{id}~{place}"
            while id in ids:
                id += "~"
        made.append(call.model_copy(update={"id": id}))
    return tuple(made)


def _agree(turn: ModelTurn, reply: Reply) -> None:
    """Make the conversation agree with the reply that the loop continues with, if middleware replaced the reply.

    The thread keeps the text as the model wrote it; the user sees the replacement. But every tool call in the thread
    needs a result, and every result a call.
    """
    state, raw = turn.state, turn.state.last_reply
    state.last_reply = reply
    if raw is None:  # the model was not called
        told = [withheld(one) if place in state.withheld else one for place, one in enumerate(turn.say)]
        state.unsaid = [*state.unsaid, *told, reply]
        return
    kept = {call.id for call in reply.tool_calls}
    if kept - {call.id for call in raw.tool_calls}:
        forget(turn)
        state.unsaid = [*state.unsaid, *turn.say, reply]
        state.last_reply = reply
    else:
        dropped = [call for call in raw.tool_calls if call.id not in kept]
        state.unsaid = [*state.unsaid, *refusals(dropped, "not called")]


def _numbered(turn: ModelTurn, reply: Reply) -> Reply:
    """The reply with its files numbered on from those that the task's models made before.

    Each reply comes with its files numbered from 1, and an artifact replaces the one before of the same name.
    """
    made = turn.state.spent.files
    turn.state.spent.files += len(reply.files)
    if not made or not reply.files or not own_patched(turn.ctx, EVERY_FILE):
        return reply
    files = []
    for place, one in enumerate(reply.files, 1):
        found = _NUMBER.fullmatch(one.filename or f"file-{place}")
        name = one.filename if found is None else f"file-{int(found[1]) + made}{found[2]}"
        files.append(one.model_copy(update={"filename": name}))
    return reply.model_copy(update={"files": tuple(files)})


def _files_in(reply: Reply) -> list[Artifact]:
    return [Artifact(name=one.filename or f"file-{n}", parts=(one,)) for n, one in enumerate(reply.files, 1)]


def _content(reply: Reply) -> Content:
    """What the user reads of a final reply: its value or text; of files alone, their names."""
    if reply.value is not None:
        return Content.from_data(reply.value)
    return Content.from_text(reply.text or ", ".join(one.filename or "a file" for one in reply.files))


def _reply_in(state: AgentState) -> Reply:
    assert state.last_reply is not None, "the step before has written it"
    return state.last_reply
