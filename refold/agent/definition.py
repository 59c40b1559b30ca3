"""Finds mistakes in an agent's definition when the agent is made."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import PydanticUserError

from refold.agent.looping.slots import kinds_of
from refold.agent.middleware import KINDS, Middleware, Scope
from refold.agent.orchestrators import ByTool, Orchestrator
from refold.agent.ready.memory import Cache
from refold.agent.tools import AgentTool, defaults_of, key_names
from refold.core.authoring.tool import tool_spec
from refold.core.chat import FIRST_TOKEN, WHOLE_CALL, unfit_time
from refold.core.errors import SkillError
from refold.core.gates import GatePolicy
from refold.core.schema import adapter, first_line
from refold.core.values import is_count
from refold.cost import OWNER_DAY, RATE, misspelt, unfit_owner_day, unfit_rate


def as_given(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments of an agent, with those that are lists as tuples: a generator yields its values only once.

    Args:
        given: The arguments by name.

    Returns:
        The arguments, and what is wrong with those that are no lists, which are left out.
    """
    taken, found = dict(given), []
    for name in ("middleware", "plugins", "tools", "fatal", "gates"):
        value = given.get(name)
        if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
            taken[name] = tuple(value)
        elif name in ("middleware", "plugins", "tools"):
            found.append(f"{name}={value!r}: it is a list; write {name}=[...]")
            taken[name] = ()
    if not isinstance(given.get("keys") or {}, Mapping):
        found.append(f'keys={given["keys"]!r}: it is a dict, such as {{"pay_refund": "refund:{{order_id}}"}}')
        taken["keys"] = None
    return taken, found


def unfit_values(
    model: Any, instructions: Any, output: Any, max_cycles: Any, turns: Any, orchestrator: Any, gate_policy: Any
) -> Iterator[str]:
    """The plain settings; see `Agent`."""
    yield from _unfit_models(model)
    if not isinstance(instructions, str):
        yield f"instructions={instructions!r}: it is a text"
    if not is_count(max_cycles):
        yield f"max_cycles={max_cycles!r}: the model is asked at least once; give a whole number, 1 or more"
    if turns is not None and not is_count(turns):
        yield f"turns={turns!r}: a task answers at least one message; give a whole number, or None for no end"
    if output is not None:
        try:
            adapter(output).json_schema()
        except PydanticUserError as error:
            yield f"output={output!r} is not a type that pydantic knows, with a JSON schema: {first_line(error)}"
    if orchestrator is not None and not isinstance(orchestrator, Orchestrator):
        yield f"orchestrator={orchestrator!r} is none; give one, for example Concurrent(3)"
    if not isinstance(gate_policy, GatePolicy):
        yield f"gate_policy={gate_policy!r}: it is a GatePolicy"


def unfit_settings(settings: Any) -> Iterator[str]:
    """Mistakes in the settings that refold reads itself: the provider never sees these, and so cannot refuse them."""
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        yield f"settings={settings!r}: they are a dict, such as {{'temperature': 0}}"
        return
    if wrong := misspelt(map(str, settings)):
        yield f"settings: {wrong}"
    for name, unfit in ((RATE, unfit_rate), (OWNER_DAY, unfit_owner_day)):
        if name in settings and (wrong := unfit(settings[name])):
            yield f"settings: {wrong}"
    for name in (FIRST_TOKEN, WHOLE_CALL):
        if wrong := unfit_time(name, settings.get(name)):
            yield f"settings: {wrong}"


def models_in(model: Any) -> tuple[str, ...]:
    """The models of an agent's `model`, in the order in which they are asked; none if the worker's is asked."""
    given = [model] if isinstance(model, str) else model if isinstance(model, Sequence) else ()
    return tuple(one for one in given if isinstance(one, str))


def _unfit_models(model: Any) -> Iterator[str]:
    if model is None:
        return
    models = models_in(model)
    if not isinstance(model, str | Sequence) or len(models) != (1 if isinstance(model, str) else len(model)):
        yield f"model={model!r}: it is the name of a model, or a list of names"
        return
    if not models:
        yield "model=[]: name at least one model; None takes the worker's"
    for one in models:
        if not all(one.partition(":")):
            yield f"model={one!r}: a model is named provider:model, for example openai:gpt-5"
    for one in sorted({one for one in models if models.count(one) > 1}):
        yield f"model={one!r} stands in the list twice; a model that has failed is asked no second time"


def unfit_middleware(middleware: Sequence[Any], loop: Any = None) -> Iterator[str]:
    """Values that are no middleware, and middleware that wraps an unknown kind of step.

    Args:
        middleware: The agent's.
        loop: Its slots, whose kinds are known too.
    """
    kinds = (*KINDS, *sorted(kinds_of(loop) if isinstance(loop, list | tuple) else ()))
    for one in middleware:
        if not isinstance(one, Middleware):
            yield f"middleware: {one!r} is none; write a `Middleware`, or `@around(...)` above a coroutine function"
            continue
        if unknown := [kind for kind in one.steps if kind not in kinds]:
            yield f"middleware: {one!r} wraps {', '.join(unknown)}; there are {', '.join(kinds)}"
        elif one.scope == "activity" and not {"model", "tool"} & set(one.steps):
            steps = ", ".join(one.steps)
            yield f"middleware: {one!r} has activity scope, where {steps} does not run; there are model and tool"
        if one.scope not in get_args(Scope):
            yield f"middleware: {one!r} has the scope {one.scope!r}; there are {', '.join(get_args(Scope))}"


def unknown_tools(
    tools: Mapping[str, AgentTool],
    remote: Collection[str],
    *,
    fatal: Any,
    middleware: Sequence[Any],
    orchestrator: Any,
) -> Iterator[str]:
    """Names that no tool has: a setting for such a name would have no effect."""
    if isinstance(fatal, str):
        yield f"fatal={fatal!r} is one text; write fatal=[{fatal!r}]"
        fatal = ()
    elif not isinstance(fatal, Iterable):
        yield f"fatal={fatal!r}: it is a list; write fatal=[...]"
        fatal = ()
    named = {"fatal": list(fatal)}
    named["Cache"] = [name for one in middleware if isinstance(one, Cache) for name in one.tools]
    if isinstance(orchestrator, ByTool):
        named["ByTool"] = list(orchestrator.groups)
    for where, names in named.items():
        for name in names:
            # The tools of a server are known only when a task begins, under the names that the model sees.
            if name not in tools and not (remote and "__" in name and where != "fatal"):
                yield f"{where}: there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"


def unfit_keys(keys: Mapping[str, str], tools: Mapping[str, AgentTool]) -> Iterator[str]:
    """Business keys of unknown tools and of skills, or with arguments that the tool does not have."""
    for name, key in {**{name: tool.key for name, tool in tools.items() if tool.key}, **keys}.items():
        if name not in tools:
            yield f"keys: there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"
            continue
        if tools[name].skill is not None:
            yield f"keys: {name}={key!r}: it is a skill, each call of which is a task; give its own tools a key"
            continue
        spec = tool_spec(tools[name].function)
        try:
            named = key_names(key)
            defaults_of(tools[name].function, named)
        except (ValueError, SkillError) as error:
            yield f"keys: {name}={key!r}: {error}"
            continue
        if not named or (spec is not None and not set(named) <= set(spec.takes)):
            takes = ", ".join(spec.takes) if spec is not None else "its arguments"
            yield f"keys: {name}={key!r} names arguments of the tool in braces; it takes: {takes}"
