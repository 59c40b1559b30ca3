"""The tools of an agent: functions declared with `@tool`, other skills, and tools that only the worker knows."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from string import Formatter
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue, ValidationError
from pydantic_core import to_json

from refold.agent.state import RemoteTool
from refold.core.authoring.cmd import Cmd, as_json
from refold.core.authoring.context import Ctx
from refold.core.authoring.define import skill_of
from refold.core.authoring.signatures import signature
from refold.core.authoring.skill import Skill
from refold.core.authoring.tool import tool_spec
from refold.core.chat import ToolOffer
from refold.core.commands import CallSkill, CallTool, EffectPolicy, PartBudget
from refold.core.content import Content
from refold.core.errors import DefinitionError, SkillError, brief
from refold.core.pins import offered, pinned
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import adapter, problems
from refold.core.values import is_number

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NONE = inspect.Parameter.empty
_REMOTE = re.compile(r"[A-Za-z0-9_-]+\.([A-Za-z0-9_./-]+|\*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool:
    """A tool of an agent.

    Attributes:
        name: The name that the model uses; `server.tool` for a server's tool.
        effect: Its effect policy; None is unknown, which counts as any effect.
        offer: Its description for the model; the worker adds a missing description and parameters.
        function: The declared function, if it is one.
        skill: The skill's id, if it is one.
        called: The name for calls, if it differs from `name`.
        takes_data: The skill is started with the arguments as data, not with a text.
        queue: The task queue of the workers that serve the skill; None is the agent's own.
        timeout_s: Seconds until the skill's task is canceled, and the model reads so; None waits for ever.
        budget: What the skill's task may spend.
        key: The business key of its calls, with arguments in braces: `refund:{order_id}`. An argument that is not given
            is the default of the function. Empty takes each call's own id, so the same request of another task is
            another call.
    """

    name: str
    effect: EffectPolicy | None
    offer: ToolOffer
    function: Callable[..., Any] | None = None
    skill: str | None = None
    called: str = ""
    takes_data: bool = False
    queue: str | None = None
    timeout_s: float | None = None
    budget: PartBudget | None = None
    key: str = ""

    @property
    def changes_nothing(self) -> bool:
        """Whether it is declared to have no effect."""
        return self.effect is EffectPolicy.READ_ONLY

    def within(self, left: Mapping[str, float]) -> AgentTool:
        """The tool with no more in its budget than is left, by limit; a tool without a budget as it is."""
        if self.budget is None:
            return self
        given = self.budget.model_dump(exclude_none=True)
        bound = {what: min(limit, left.get(what, limit)) for what, limit in given.items()}
        return replace(self, budget=PartBudget(**bound))

    def misfits(self, args: Mapping[str, JsonValue]) -> str:
        """Why the worker would refuse these arguments by their types; empty if they fit, or only the worker can check.

        Only plain types are checked: the check of another one may be code that is not pure.
        """
        spec = tool_spec(self.function)
        types = {} if spec is None else _plain_types(spec.function)
        found = [
            f"{name} is {brief(value)}, and must be {inspect.formatannotation(types[name])}"
            for name, value in args.items()
            if name in types and not _fits(types[name], value)
        ]
        return f"tool {self.name!r}: {'; '.join(found)}" if found else ""

    def left_out(self, args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The defaults of those arguments of the business key that a call leaves out."""
        return defaults_of(self.function, (name for name in key_names(self.key) if name not in args))

    def command(self, args: Mapping[str, JsonValue], retry: RetryPolicy | None) -> CallTool | CallSkill:
        """The command for a call of the model.

        Raises:
            SkillError: The tool does not accept these arguments.
        """
        if self.skill is not None:
            content = Content.from_data(dict(args)) if self.takes_data else _message(self.name, args)
            return Cmd.skill(
                self.name, self.skill, content, queue=self.queue, timeout_s=self.timeout_s, budget=self.budget
            )
        given = {**self.left_out(args), **args}
        key = self.key.format_map(given) if self.key and all(name in given for name in key_names(self.key)) else None
        tool = self.function or self.called or self.name
        return Cmd.tool(self.name, tool, dict(args), key=key, retry=retry)


_PLAIN = (str, int, float, bool, NoneType, Any, date, datetime, Decimal, list, dict, tuple)
_PLAIN_OF = (list, dict, tuple, Union, UnionType)


def _plain_types(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters with a type that pydantic checks by itself."""
    try:
        return {name: kind for name, kind in get_type_hints(function, include_extras=True).items() if _is_plain(kind)}
    except NameError:
        return {}


def _is_plain(kind: Any) -> bool:
    inner = [one for one in get_args(kind) if one is not ...]
    return (
        kind in _PLAIN or get_origin(kind) is Literal or (get_origin(kind) in _PLAIN_OF and all(map(_is_plain, inner)))
    )


def _fits(kind: Any, value: JsonValue) -> bool:
    try:
        adapter(kind).validate_json(to_json(value), strict=True)  # as the worker does
    except ValidationError:
        return False
    return True


def key_names(key: str) -> list[str]:
    """The arguments in a business key.

    Raises:
        ValueError: Its braces are not closed, or have more than a name.
    """
    fields = [(name, spec, how) for _, name, spec, how in Formatter().parse(key) if name is not None]
    if more := [name for name, spec, how in fields if spec or how or not name or {".", "["} & {*name}]:
        raise ValueError(f"an argument is in braces by its name, without `:`, `!`, `.` and `[`: {{{more[0]}}}")
    return [name for name, _, _ in fields]


def defaults_of(function: Callable[..., Any] | None, names: Iterable[str]) -> dict[str, JsonValue]:
    """The defaults of these parameters, as a model would write them; a parameter without a default is left out.

    Raises:
        SkillError: A default cannot be written as JSON.
    """
    known = signature(function).parameters if function is not None else {}
    found = {name: known[name].default for name in names if name in known}
    return {name: as_json(one, "the default of {}", name) for name, one in found.items() if one is not _NONE}


def _message(name: str, args: Mapping[str, JsonValue]) -> Content:
    said = args.get("message")
    if set(args) != {"message"} or not isinstance(said, str) or not said:
        raise SkillError(f"tool {name!r} takes one argument, message, a text that is not empty; got {dict(args)!r}")
    return Content.from_text(said)


def skill_tool(
    skill: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: EffectPolicy | str | None = None,
    queue: str | None = None,
    timeout_s: float | None = None,
    budget: PartBudget | Mapping[str, float] | None = None,
) -> AgentTool:
    """Another skill as a tool: each call is a task of its own.

    Args:
        skill: A skill's class, a table, or an agent; the worker must serve it.
        name: The name that the model uses; None takes the skill's id.
        description: For the model; None takes the skill's.
        effect: Its effect policy; None counts as any effect, so that the default gates ask first. A skill with gates of
            its own may be declared `read_only` here.
        queue: The task queue of the workers that serve it; None is the agent's own.
        timeout_s: Seconds until its task is canceled and the call fails; None waits for ever.
        budget: What each of its tasks may spend, if it is an agent: `{"usd": 0.5, "model_calls": 10}`, with `tokens`
            and `tool_calls` as in `Budget`. None sets no limit beside the agent's own.

    Raises:
        ValueError: The effect policy is unknown, the timeout is not a positive number of seconds, the budget does not
            fit, the skill is no agent and has a budget, or the skill's input is no object.
    """
    if timeout_s is not None and not (is_number(timeout_s) and timeout_s < math.inf):
        raise ValueError(f"timeout_s={timeout_s!r}: give a positive number of seconds, or None to wait for ever")
    compiled = skill_of(skill)
    card = compiled.options.card
    bound = None if budget is None else _budget(compiled, budget)
    own = name or card.id
    offer = ToolOffer(
        name=own, description=description or card.description or card.name, parameters=_parameters(compiled)
    )
    return AgentTool(
        name=own,
        effect=None if effect is None else EffectPolicy(effect),
        offer=offer,
        skill=card.id,
        takes_data=compiled.options.input is not None,
        queue=queue,
        timeout_s=timeout_s,
        budget=bound,
    )


def _budget(skill: Skill, given: PartBudget | Mapping[str, float]) -> PartBudget:
    if not skill.options.is_agent:
        id = skill.options.card.id
        raise ValueError(f"skill {id!r} takes no budget: only agents count what they spend; leave budget= out")
    try:
        return PartBudget.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"budget={given!r}: {problems(error)}; write for example {{'usd': 0.5}}") from None


def _parameters(skill: Skill) -> dict[str, JsonValue]:
    if skill.options.input is None:
        message: JsonValue = {"type": "string", "description": "What it is asked, with all that it needs to know."}
        return {"type": "object", "properties": {"message": message}, "required": ["message"]}
    schema = adapter(skill.options.input).json_schema()
    kind = schema.get("type", "object")  # without a type it is one of several, or a reference
    if kind != "object":
        id = skill.options.card.id
        raise ValueError(f"the input of skill {id!r} is of type {kind!r}; a model gives an object, so take a class")
    return schema


def tools_of(given: Iterable[Any], brought: Iterable[Any] = ()) -> tuple[dict[str, AgentTool], list[str], list[str]]:
    """The tools by name; the names of servers' tools, whose definitions a task looks up; and mistakes in them.

    Args:
        given: Functions declared with `@tool`, skills, `AgentTool` values, names of tools that only the worker knows,
            and names of servers' tools, `server.tool` or `server.*`.
        brought: Tools that plugins add.
    """
    tools: dict[str, AgentTool] = {}
    remote: list[str] = []
    problems: list[str] = []
    for one in (*given, *brought):
        if names_remote(one):
            remote.append(one)
            continue
        try:
            made = _tool(one)
        except (DefinitionError, ValueError) as error:
            problems.append(f"tools: {one!r} is neither a function with @tool, nor a skill, nor a name: {error}")
            continue
        if not _NAME.fullmatch(made.name):
            problems.append(f"tools: a tool's name has letters, digits, `_` and `-`, at most 64: {made.name!r}")
        if made.name in tools:
            problems.append(f"tools: two are named {made.name!r}")
        tools[made.name] = made
    return tools, remote, problems


def names_remote(one: Any) -> bool:
    """Whether it is the name of a server's tool, `server.tool`, or of all of a server's, `server.*`."""
    return isinstance(one, str) and _REMOTE.fullmatch(one) is not None


async def found_at(ctx: Ctx, remote: Sequence[str], gated: Iterable[str] = ()) -> list[RemoteTool]:
    """The current definitions of servers' tools.

    Args:
        ctx: The task's context.
        remote: Their names; `server.*` is all of a server's.
        gated: Tools with named gates: a misspelt name would leave its tool without a gate.

    Raises:
        CommandError: A server does not answer.
        SkillError: A server has no such tool.
    """
    servers = list(dict.fromkeys(name.partition(".")[0] for name in remote))
    listed = await ctx.gather(*(ctx.tool(f"{server}.tools/list") for server in servers))
    every = [RemoteTool.model_validate(_fields(one)) for tools in listed for one in tools]
    names = [one.name for one in every]
    wanted = [
        *(name for name in remote if not name.endswith(".*")),
        *(name for name in gated if "." in name and not name.endswith(".*")),
    ]
    if missing := [name for name in wanted if name not in names]:
        raise SkillError(f"no server has a tool {missing[0]!r}; there are: {', '.join(names) or 'none'}")
    return [one for one in every if one.name in remote or f"{one.name.partition('.')[0]}.*" in remote]


def _fields(listed: dict[str, Any]) -> dict[str, Any]:
    return {name: listed[name] for name in RemoteTool.model_fields if name in listed}


def remote_tool(found: RemoteTool) -> AgentTool:
    """A server's tool, pinned to its definition when the task began."""
    offer = ToolOffer(name=offered(found.name), description=found.description, parameters=found.parameters)
    return AgentTool(name=found.name, effect=found.effect, offer=offer, called=pinned(found.name, found.pin))


def _tool(given: Any) -> AgentTool:
    if isinstance(given, AgentTool):
        return given
    if isinstance(given, str):
        return AgentTool(name=given, effect=None, offer=ToolOffer(name=given))
    spec = tool_spec(given)
    if spec is not None:
        return AgentTool(name=spec.name, effect=spec.effect, offer=ToolOffer(name=spec.name), function=given)
    if inspect.isroutine(given):
        raise ValueError("declare it with @tool(effect=...)")
    return skill_tool(given)
