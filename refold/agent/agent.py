"""The ready-made agent: any model, with tools, as a durable skill."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from refold.agent.clients import Chat, Commands, ModelClient, ToolClient
from refold.agent.definition import (
    as_given,
    models_in,
    unfit_keys,
    unfit_middleware,
    unfit_settings,
    unfit_values,
    unknown_tools,
)
from refold.agent.gates import TOOL_GATE, Gates, gates_of
from refold.agent.loop import ANSWER, Parts
from refold.agent.looping.own_loop import Around, loop_of, with_routes
from refold.agent.looping.slots import streams, unfit_loop
from refold.agent.middleware import Middleware, in_workers
from refold.agent.orchestrators import Orchestrator, Sequential
from refold.agent.plugins import Hook, Hooks, Plugin
from refold.agent.steps import ModelStep, ToolStep
from refold.agent.tools import AgentTool, tools_of
from refold.core.authoring.skill import options_for
from refold.core.content import Artifact, Content, as_content
from refold.core.errors import DefinitionError, SkillError, brief
from refold.core.fold.journal import Entry
from refold.core.gates import GatePolicy
from refold.core.lifecycle import Status
from refold.core.retry_policy import RetryPolicy
from refold.core.steps.machine import StepMachine
from refold.core.steps.position import Position
from refold.core.steps.spec import MadeWith
from refold.core.steps.table import compile_steps, steps_of
from refold.engine import Engine, News, TaskView

VERSION = 1
"""The version of an agent's saved state; a task with another version is not continued unless `upgrade` converts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a message.

    Attributes:
        task_id: The task.
        status: Completed; or waiting for a person or for the next message.
        text: The agent's last message since then; empty if it said nothing, as where the task failed (`task.reason`).
        value: The answer to this message, if it has a type; None otherwise.
        task: The whole task.
    """

    task_id: str
    status: Status
    text: str
    value: JsonValue
    task: TaskView


class Agent(StepMachine):
    """A model with tools in a loop, as a skill: `Clerk = Agent("clerk", instructions="…", tools=[find_order])`.

    An agent is immutable and stores nothing of its tasks: each task has an `AgentState` of its own.
    """

    def __init__(
        self,
        id: str = "agent",
        *,
        model: str | Sequence[str] | None = None,
        instructions: str = "",
        tools: Sequence[Any] = (),
        output: Any = None,
        gates: Gates = "effects",
        gate_policy: GatePolicy = TOOL_GATE,
        middleware: Sequence[Middleware] = (),
        plugins: Sequence[Plugin | Hook] = (),
        orchestrator: Orchestrator | None = None,
        loop: Sequence[Any] | None = None,
        max_cycles: int = 20,
        turns: int | None = 1,
        fatal: Sequence[str] = (),
        keys: Mapping[str, str] | None = None,
        settings: Mapping[str, JsonValue] | None = None,
        retry: RetryPolicy | None = None,
        name: str | None = None,
        description: str = "",
        tags: Sequence[str] = (),
        examples: Sequence[str] = (),
        input_modes: Sequence[str] | None = None,
        output_modes: Sequence[str] | None = None,
        version: int = VERSION,
        upgrade: Any = None,
        model_client: ModelClient | None = None,
        tool_client: ToolClient | None = None,
    ) -> None:
        """Make an agent.

        Args:
            id: The skill's id, unique among those that are served together.
            model: `provider:name`; a list of them, each of which is asked where the one before is out of service; None
                takes the worker's setting.
            instructions: The system prompt.
            tools: The tools that the model may call: functions with `@tool`, skills and agents (each call is a task of
                its own), or tools of MCP servers by name: `server.tool`, or `server.*` for all.
            output: The type of the answer, any that pydantic knows; None is text.
            gates: Which calls wait for a person: `"effects"`, those of tools that are not declared `read_only`;
                `"none"`; tools' names; or policies by tool.
            gate_policy: Who decides, if `gates` names no policy. The model always receives a denial as the call's
                result.
            middleware: Wraps the steps, the first one outermost. A model's answer is shown while it is written only if
                all middleware declares `streams`.
            plugins: Hooks, and the tools they add. Hooks that may discard a reply, or change or cancel its calls, stop
                its answer from being shown while it is written, unless their plugin declares `streams`.
            orchestrator: How the tool calls of one reply are run; None is one after the other.
            loop: The steps of a loop of your own, in place of model and tools: `[plan, Think(), Concurrent(3), check]`.
                See `looping.slots`; docs/agent.md has an example.
            max_cycles: How often the model is called for one message, at least once; in the last call it must answer.
                Of a loop of your own: how many passes it makes.
            turns: How many messages of the user a task answers before it completes; None continues until the task is
                canceled.
            fatal: Tools whose failure fails the task; other failures are results that the model reads.
            keys: Business keys by tool, with its arguments in braces: `{"pay_refund": "refund:{order_id}"}`. Calls with
                the same key, from any task of the same owner, are one effect.
            settings: Passed to the provider.
            retry: The retry policy of its calls; None is three retries after 1, 2 and 4 s.
            name: For people.
            description: For people, and for models that choose a skill. Only the agent's own model receives the
                instructions.
            tags: For search.
            examples: Messages that it understands.
            input_modes: Media types that A2A clients may send, such as `image/*`; None is text and JSON.
            output_modes: Media types that it answers with; None is text and JSON.
            version: Of the saved state; raise it when your plugins change what they save.
            upgrade: Converts a state saved by an older version to the next one.
            model_client: Calls the model; None issues a chat command. Its attribute `streams` says whether the answer
                may be shown while it is written.
            tool_client: Calls tools; None issues commands. Its attribute `streams` says whether tools' progress may be
                shown.

        Raises:
            DefinitionError: Lists all mistakes at once.
        """
        given, found = as_given({name: value for name, value in locals().items() if name not in ("self", "__class__")})
        hooks, middleware, fatal = Hooks(plugins := given["plugins"]), given["middleware"], given["fatal"]
        known, remote, wrong = _keyed_tools(given["tools"], hooks, given["keys"] or {})
        policies, unknown = gates_of(given["gates"], known, remote, gate_policy)
        found += [*wrong, *hooks.problems, *unknown, *unfit_middleware(middleware, loop), *unfit_settings(settings)]
        found += unknown_tools(known, remote, fatal=fatal, middleware=middleware, orchestrator=orchestrator)
        found += unfit_values(model, instructions, output, max_cycles, turns, orchestrator, gate_policy)
        found += unfit_loop(loop, tools=bool(known or remote), orchestrator=orchestrator)
        shows = hooks.streams and _lets_stream(model_client) and streams(loop if isinstance(loop, Sequence) else ())
        reports = hooks.reports and _lets_stream(tool_client)
        options = options_for(
            None, id=id, name=name or id, description=description, tags=tags, examples=examples, retry=retry,
            input_modes=input_modes, output_modes=output_modes, version=version, upgrade=upgrade, is_agent=True,
            models=models_in(model), middleware=in_workers(middleware, streams=shows, reports=reports),
        )  # fmt: skip
        if found := [*options.problems, *found]:
            raise DefinitionError(id, found, what="agent")
        around = Around(middleware, ToolStep(tool_client or Commands(), hooks, known, policies.before, fatal), loop)
        self.parts = Parts(
            instructions=instructions, model=model, settings=dict(settings or {}), output=output,
            tools=known, remote=remote, gated=tuple(policies.named), hooks=hooks, max_cycles=max_cycles, turns=turns,
            model_step=around.wrapped(ModelStep(model_client or Chat(), hooks)),
            tools_step=around.over(orchestrator or Sequential()),
        )  # fmt: skip
        self._loop = loop_of(id, loop, self.parts, around)
        super().__init__(options, with_routes(compile_steps(options, steps_of(self._loop), self._loop), self._loop))
        self._given, self._gate = given, policies.before
        self._references = (*middleware, *plugins, *(loop or (orchestrator,)), model_client, tool_client, upgrade)
        # Who looks for its workflow looks in the module that it was made in.
        self.__module__ = str(sys._getframe(1).f_globals.get("__name__", ""))

    def __repr__(self) -> str:
        return f"Agent({self.options.card.id!r})"

    @property
    def references(self) -> Sequence[Any]:
        """The user's own parts of it, which may hold what changes."""
        return self._references

    @property
    def made_with(self) -> Sequence[MadeWith]:
        """The tools and skills that its model may call, with their gates; and the MCP servers behind remote tools."""
        own, calls = self.parts.tools.values(), self._loop.calls
        return (
            *(MadeWith(calls, "tool", one.called or one.name, self._gate(one)) for one in own if one.skill is None),
            *(MadeWith(calls, "skill", one.skill, self._gate(one)) for one in own if one.skill is not None),
            *(MadeWith("begin", "MCP server", name.partition(".")[0]) for name in self.parts.remote),
        )

    def adding(
        self,
        *,
        tools: Sequence[Any] = (),
        middleware: Sequence[Middleware] = (),
        plugins: Sequence[Plugin | Hook] = (),
    ) -> Agent:
        """The same agent with more tools, middleware and hooks, after its own; this one stays as it is.

        Serve the one or the other: both have the same id.

        Args:
            tools: As in `Agent`.
            middleware: As in `Agent`; inside the agent's own.
            plugins: As in `Agent`.

        Raises:
            DefinitionError: As `Agent` raises it.
        """
        added, found = as_given({"tools": tools, "middleware": middleware, "plugins": plugins})
        if found:
            raise DefinitionError(self.options.card.id, found, what="agent")
        made = Agent(**{**self._given, **{name: (*self._given[name], *more) for name, more in added.items()}})
        made.__module__ = str(sys._getframe(1).f_globals.get("__name__", ""))
        return made

    def interruptible(self, state: JsonValue) -> bool:
        """Never within a step: each call of a reply gets its result before the model receives a new message."""
        return False

    def own_state(self, state: JsonValue) -> JsonValue:
        """`{"app": …, "kept": …}`: what plugins and middleware have saved; the rest is the agent's own record."""
        saved = _saved_by(state)
        return None if state is None else {name: saved.get(name, {}) for name in _AUTHORS}

    def with_own_state(self, state: JsonValue, own: JsonValue) -> JsonValue:
        """See `Skill.with_own_state`."""
        if not isinstance(own, dict) or [type(own.get(name)) for name in _AUTHORS] != [dict, dict] or len(own) > 2:
            raise SkillError(f'returned {brief(own)}; it returns {{"app": {{…}}, "kept": {{…}}}}')
        position = Position(state)
        if "state" not in position.args:
            return state  # the task is still looking up its tools, and nobody has saved anything
        rest = {name: value for name, value in _saved_by(state).items() if name not in _AUTHORS}
        saved = {name: value for name, value in own.items() if value}
        return {**position.data, "args": {**position.args, "state": {**rest, **saved}}}

    # --- running it

    async def stream(
        self, engine: Engine, message: str | Content, *, task_id: str | None = None, **start: Any
    ) -> AsyncIterator[News]:
        """Send a message, and yield what comes until the agent has answered, waits for a person, or has ended.

        Args:
            engine: Runs its tasks.
            message: The message.
            task_id: A task that waits for it; None starts one.
            start: Further arguments of `Engine.start`.

        Raises:
            InputRejected: The task does not wait for a message.
            EngineError: As `Engine` raises it.
        """
        task_id, after = await self._say(engine, message, task_id, start)
        async with aclosing(engine.watch(task_id, after=after)) as going_on:
            async for one in going_on:
                yield one

    async def invoke(
        self, engine: Engine, message: str | Content, *, task_id: str | None = None, **start: Any
    ) -> Answer:
        """Send a message to the agent, and return once it has answered, waits for a person, or has ended.

        The arguments and errors are those of `stream`.
        """
        task_id, after = await self._say(engine, message, task_id, start)
        handed: dict[str, Artifact] = {}
        spoke = False
        async with aclosing(engine.watch(task_id, after=after)) as going_on:
            async for one in going_on:
                if isinstance(one, Entry):
                    handed |= {artifact.name: artifact for artifact in one.artifacts}
                    spoke = spoke or bool(one.messages)
        task = await engine.look(task_id)
        said = [one.text for one in task.messages if one.role == "agent"] if spoke else []
        value = Content(parts=handed[ANSWER].parts).data if ANSWER in handed else None
        return Answer(task_id=task_id, status=task.status, text=said[-1] if said else "", value=value, task=task)

    async def _say(
        self, engine: Engine, message: str | Content, task_id: str | None, start: dict[str, Any]
    ) -> tuple[str, int]:
        content = as_content(message)
        if task_id is None:
            return (await engine.start(self.options.card.id, content, **start)).task_id, 0
        after = (await engine.look(task_id)).seq
        await engine.send(task_id, content)
        return task_id, after


_AUTHORS = ("app", "kept")
"""The fields of an agent's state that are its author's."""


def _saved_by(state: JsonValue) -> dict[str, JsonValue]:
    """The `AgentState` in a saved state, as JSON data."""
    found = Position(state).args.get("state") if state is not None else None
    return found if isinstance(found, dict) else {}


def _keyed_tools(
    tools: Sequence[Any], hooks: Hooks, keys: Mapping[str, str]
) -> tuple[dict[str, AgentTool], list[str], list[str]]:
    """The agent's own tools and those of its plugins, with their business keys; MCP tools by name; what is wrong."""
    known, remote, found = tools_of(tools, hooks.tools)
    found += unfit_keys(keys, known)
    return {name: replace(tool, key=keys.get(name, tool.key)) for name, tool in known.items()}, remote, found


def _lets_stream(client: ModelClient | ToolClient | None) -> bool:
    """Whether a client lets a model's answer, or a tool's progress, be shown meanwhile; the agent's own does."""
    return client is None or bool(getattr(client, "streams", False))
