"""A loop of the user's own as the steps of a skill: each slot is a step, and so a checkpoint.

After a slot its status says what comes: `done` the next slot, `again` the first one of its loop, `answered` whatever
follows the loop. Slots within `Together` run inside one step, each with a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from refold.agent.errors import NoAnswer
from refold.agent.loop import ANSWER_DUE, AROUND, AgentLoop, AnyLoop, Parts, refuse_calls
from refold.agent.looping.places import Place, placed
from refold.agent.looping.slots import Node, Own, Repeat, Think, Together, every, kinds_of, nodes_of
from refold.agent.looping.turn import LoopTurn, settle
from refold.agent.middleware import Checked, Middleware, Proceed, Retryable, Traced, Wrapped, named, wrapped
from refold.agent.orchestrators import Orchestrator
from refold.agent.ready.budget import with_given
from refold.agent.state import AgentState, Aside, StepStatus
from refold.agent.steps import Step, blaming, refusals, short
from refold.core.authoring.context import Ctx
from refold.core.authoring.transition import Transition
from refold.core.chat import Reply, Said, UserSaid
from refold.core.content import Content, as_content
from refold.core.errors import SkillError
from refold.core.steps.machine import StepMachine
from refold.core.steps.spec import StepSpec
from refold.core.steps.table import step

_ASIDE = "aside."
"""How the names of conversations beside the main one begin."""


class OwnLoop(AnyLoop):
    """The steps of an agent with a loop of its own; each agent has a subclass.

    Attributes:
        places: The slots that are steps of the skill, by name.
        made: The steps of orchestrators and of the user's own slots, inside the agent's middleware, by the slot's name.
    """

    places: ClassVar[Mapping[str, Place]]
    made: ClassVar[Mapping[str, Step[Any, Any]]]

    async def _take(self, name: str, ctx: Ctx, state: AgentState, say: list[Said]) -> Transition:
        place = self.places[name]
        if state.cycle == 0:  # the user has said something
            state.asked = next((one.content for one in reversed(say) if isinstance(one, UserSaid)), state.asked)
            state.steps, state.passes = {}, {}
            state.asides = {of: one.model_copy(update={"unheard": True}) for of, one in state.asides.items()}
            place.begin(state, since=0)
        turn = self._turn_for(name, ctx, state, say, final=place.is_final(state))
        status = await self._run(place.node, turn)
        state.position = f"after_{name}"
        to = place.after(status, state, self.places)
        if to is not None:
            return ctx.goto(to, state=state, say=turn.say)
        if status is not StepStatus.ANSWERED:
            raise NoAnswer(state.cycle)
        if state.last_reply is None:
            raise SkillError(f"step {name!r} returned StepStatus.ANSWERED without a reply; return turn.answer(text)")
        settle(state)
        state.unsaid = [*state.unsaid, *turn.say]
        return ctx.goto("answer", state=state)

    def _tell(self, ctx: Ctx, state: AgentState, doing: str) -> None:
        """Show how the steps of this pass stand, and what one of them is doing."""
        nth = f"cycle {state.cycle}: " if state.cycle > 1 else ""
        steps = ", ".join(f"{name} {status}" for name, status in state.steps.items())
        ctx.status(f"{nth}{steps}{f' ({doing})' if doing else ''}")

    # --- one slot

    def _turn_for(self, name: str, ctx: Ctx, state: AgentState, say: list[Said], *, final: bool) -> LoopTurn:
        def status(doing: str) -> None:
            self._tell(ctx, state, doing)

        return LoopTurn(ctx=ctx, state=state, say=say, name=name, final=final, asks=self._ask, status=status)

    async def _run(self, node: Node, turn: LoopTurn) -> StepStatus:
        """Run a slot, and record how it stands."""
        turn.state.steps[node.name] = StepStatus.RUNNING
        turn.status("")
        match node.slot:
            case Think() as slot:
                status = await self._think(slot, turn)
            case Orchestrator():
                status = await self._act(node, turn)
            case Together():
                status = await self._together(node, turn)
            case Repeat():
                status = await self._repeat(node, turn)
            case _:
                status = await self._own(node, turn)
        turn.state.steps[node.name] = status
        return status

    async def _own(self, node: Node, turn: LoopTurn) -> StepStatus:
        came: Any = await self.made[node.name].invoke(turn)
        if came is None:
            return StepStatus.DONE
        if not isinstance(came, StepStatus) or came is StepStatus.RUNNING:
            raise SkillError(
                f"step {node.name!r} returned {short(came)}; it returns None, turn.again(...) or turn.answer(...)"
            )
        return came

    async def _think(self, slot: Think, turn: LoopTurn) -> StepStatus:
        state = turn.state
        settle(state)
        asked = self._turn(turn.ctx, state, turn.say, final=turn.final)
        turn.say.clear()
        asked = replace(
            asked,
            model=slot.model or asked.model,
            instructions=asked.instructions if slot.instructions is None else slot.instructions,
            tools=asked.tools if slot.tools or state.thread == "main" else (),
            final=turn.final or not slot.tools,
            owes_type=slot.answers and not state.thread.startswith(_ASIDE),
        )
        reply = await self._asks(asked)
        state.owed = list(reply.tool_calls)
        if reply.tool_calls and not asked.final:
            return StepStatus.DONE
        if reply.tool_calls:
            refuse_calls(asked, reply)
            state.owed = []
        return StepStatus.ANSWERED if slot.answers else StepStatus.DONE

    async def _act(self, node: Node, turn: LoopTurn) -> StepStatus:
        state, owed = turn.state, tuple(turn.state.owed)
        if owed:
            results = await self._calls(turn.ctx, state, owed, self.made[node.name])
            state.owed = []
            turn.say[:0] = results
            await self.parts.hooks.said(turn.ctx, state, results)
        return StepStatus.DONE

    async def _together(self, node: Node, turn: LoopTurn) -> StepStatus:
        runs = [self._beside(one, turn) for one in node.inner]
        await turn.ctx.parallel(*runs, limit=node.slot.limit)
        return StepStatus.DONE

    async def _beside(self, node: Node, turn: LoopTurn) -> None:
        own, known = self._aside(turn.state, node.name), turn.state.asides.get(node.name)
        say: list[Said] = []
        if (known is None or known.unheard) and turn.state.asked is not None:
            say = [UserSaid(content=turn.state.asked)]
        beside = self._turn_for(node.name, turn.ctx, own, say, final=turn.final)
        if await self._run(node, beside) is StepStatus.AGAIN:
            raise SkillError(
                f"step {node.name!r} returned turn.again() within Together, which makes one pass; write "
                "Repeat(...) around it"
            )
        settle(own)
        own.unsaid = [*own.unsaid, *beside.say]
        _keep(turn.state, node.name, own)

    async def _repeat(self, node: Node, turn: LoopTurn) -> StepStatus:
        """A loop within `Together`; others are laid out as steps of the skill."""
        for number in range(node.slot.max_cycles):
            own = replace(turn, final=number + 1 == node.slot.max_cycles)
            for inner in node.inner:
                status = await self._run(inner, replace(own, name=inner.name))
                if status is StepStatus.ANSWERED:
                    return StepStatus.DONE
                if status is StepStatus.AGAIN:
                    break
        return StepStatus.DONE

    # --- calls of a step's own

    async def _ask(
        self,
        turn: LoopTurn,
        text: str | Content | None,
        *,
        thread: str | None,
        model: str | None,
        instructions: str | None,
        expect: Any,
    ) -> Reply:
        if thread is not None:
            return await self._ask_aside(turn, text, thread, model=model, instructions=instructions, expect=expect)
        state = turn.state
        if state.owed:
            calls = ", ".join(call.name for call in state.owed)
            raise SkillError(
                f"step {turn.name!r} asks the model while its calls of {calls} have no results: put the step after the "
                f"orchestrator, or ask in a conversation of its own, turn.ask(..., thread={turn.name!r})"
            )
        if text is not None:
            turn.tell(text)
        asked = self._turn(turn.ctx, state, turn.say, final=True)
        turn.say.clear()
        asked = replace(
            asked,
            model=model or asked.model,
            instructions=asked.instructions if instructions is None else instructions,
            expect=expect,
        )
        reply = await self._asks(asked)
        state.unsaid = [*state.unsaid, *refusals(reply.tool_calls, ANSWER_DUE)]
        return reply

    async def _ask_aside(self, turn: LoopTurn, text: str | Content | None, thread: str, **about: Any) -> Reply:
        if text is None:
            raise SkillError(f"step {turn.name!r} asks in thread {thread!r} without a text: turn.ask(text, thread=...)")
        own = self._aside(turn.state, thread)
        reply = await self._ask(
            replace(turn, state=own, say=[UserSaid(content=as_content(text))]), None, thread=None, **about
        )
        _keep(turn.state, thread, own)
        return reply

    def _aside(self, state: AgentState, name: str) -> AgentState:
        """The state with another conversation in place of the main one; all else is shared."""
        aside = state.asides.get(name) or Aside(thread=f"{_ASIDE}{name}")
        about = {"thread": aside.thread, "unsaid": aside.unsaid, "told": 0, "last_reply": aside.reply}
        return state.model_copy(update={**about, "owed": [], "withheld": []})


def _keep(state: AgentState, name: str, own: AgentState) -> None:
    state.asides[name] = Aside(thread=own.thread, unsaid=own.unsaid, reply=own.last_reply)


# --- making it


class Around:
    """Puts an agent's middleware around its steps.

    Args:
        middleware: The agent's.
        tool: The step that makes one call.
        loop: The slots of a loop of its own.
    """

    def __init__(self, middleware: Sequence[Middleware], tool: Step[Any, Any], loop: Sequence[Any] | None) -> None:
        own = [one for one in with_given(middleware) if one.scope == "workflow"]
        self._all = (*own, Traced((*Traced().steps, *sorted(kinds_of(loop or ())))), Retryable())
        self._tool = self.wrapped(tool)

    def wrapped(self, step: Step[Any, Any]) -> Step[Any, Any]:
        """A step, inside the middleware of its kind."""
        return wrapped(step, self._all)

    def over(self, orchestrator: Orchestrator) -> Step[Any, Any]:
        """The step that makes the calls of one reply, whose results are checked whatever the orchestrator returns."""
        step = orchestrator.over(self._tool, self.wrapped)
        return Checked(step, "tools", f"orchestrator {named(orchestrator)}")


def loop_of(id: str, loop: Sequence[Any] | None, parts: Parts, around: Around) -> type[AnyLoop]:
    """The class of an agent's loop.

    Args:
        id: The agent's id.
        loop: Its slots, which have been checked; None is model and tools.
        parts: The agent's parts.
        around: Puts its middleware around its steps.
    """
    if loop is None:
        return type(f"{id}_loop", (AgentLoop,), {"parts": parts})
    nodes = nodes_of(loop)
    places = placed(nodes, parts.max_cycles)
    made = {}
    for node in every(nodes):
        if isinstance(node.slot, Orchestrator):
            made[node.name] = around.over(node.slot)
        elif not isinstance(node.slot, Think | Together | Repeat):
            own = node.slot if isinstance(node.slot, Step) else Own(node.slot)
            made[node.name] = around.wrapped(Wrapped(own, _blamed(node.name)))
    steps = {f"slot_{number}": _step(name) for number, name in enumerate(places)}
    calls = [place.node.name for place in places.values() if _makes_calls(place.node)]
    about = {"parts": parts, "places": places, "made": made, "first": next(iter(places)), "calls": (*calls, "begin")[0]}
    return type(f"{id}_loop", (OwnLoop,), {**steps, **about})


def _blamed(name: str) -> Any:
    """Names a step of the user's own in the error for a value that it wrote and that does not fit."""

    async def run(turn: LoopTurn, proceed: Proceed) -> Any:
        with blaming(turn.ctx, f"step {name!r}"):
            return await proceed(turn)

    return run


def _step(name: str) -> Any:
    @step(name=name)
    async def slot(self: OwnLoop, ctx: Ctx, state: AgentState, say: list[Said]) -> Transition:
        return await self._take(name, ctx, state, say)

    return slot


def _makes_calls(node: Node) -> bool:
    return any(isinstance(one.slot, Orchestrator) for one in every([node]))


def with_routes(machine: StepMachine, loop: type[AnyLoop]) -> dict[str, StepSpec]:
    """The steps with where they lead, which their code does not name, in the order in which they are met."""
    steps = machine.steps
    leads = {name: place.leads_to for name, place in getattr(loop, "places", {}).items()}
    leads |= {name: (*steps[name].goes_to, loop.first) for name in AROUND}
    begin, *last = AROUND
    order = [begin, *(name for name in steps if name not in AROUND), *last]
    return {name: replace(steps[name], goes_to=leads.get(name, steps[name].goes_to)) for name in order}
