"""The rules about a skill's requests: tools and skills exist, arguments fit, types and gates are valid.

These rules need the application's modules loaded, to look up registered tools and skills and the values of names.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from refold.core.authoring.cmd import Cmd, by_place
from refold.core.authoring.context import Ctx
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.core.authoring.tool import ToolSpec, tool_spec
from refold.core.commands import EffectPolicy
from refold.core.errors import RefoldError, SkillError
from refold.core.gates import GatePolicy, written_as
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import problems, resolve
from refold.static.code.asked import Asked, asked_in
from refold.static.code.evaluated import UNKNOWN, value_of
from refold.static.code.units import Unit, code_of
from refold.static.finding import Finding
from refold.static.models import models_of
from refold.static.parts import Parts
from refold.static.rules.purity import finding

OPTIONS = {
    one.name
    for one in inspect.signature(Ctx.tool).parameters.values()
    if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
}
"""What a call of a tool takes beside the tool's own arguments."""

EXPECTING = {"activity", "ask", "await_input", "chat", "llm", "workflow"}
REPLIES = {"ask", "await_input"}
"""Verbs whose answer is a person's, and so is checked before it is taken."""

MADE: Mapping[type[GatePolicy | RetryPolicy], str] = {GatePolicy: "gate", RetryPolicy: "call"}
"""The policies that a skill's code may make, and the rule under which a wrong one is found."""

# Source: JSON Schema 2020-12, the keywords that say what a value may be.
_SCHEMA_WORDS = {
    "$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "items", "not", "oneOf", "prefixItems",
    "properties", "type",
}  # fmt: skip
_SCHEMA_TYPES = {"array", "boolean", "integer", "null", "number", "object", "string"}


@dataclass(frozen=True, slots=True)
class Known:
    """What an application registers.

    Attributes:
        tools: The declarations by name.
        skills: The ids.
        servers: The names of the MCP servers; None if they are not known.
        undeclared: Functions in a list of tools that are not declared as such, by `id`: the worker refuses them.
    """

    tools: Mapping[str, ToolSpec]
    skills: Collection[str]
    servers: Collection[str] | None = None
    undeclared: Collection[int] = ()


def known_of(parts: Parts, servers: Collection[str] | None = None) -> Known:
    """What the modules of an application register."""
    specs = {spec.name: spec for one in parts.tools if (spec := tool_spec(one)) is not None}
    return Known(specs, list(parts.skills), servers, [id(one) for one in parts.tools if tool_spec(one) is None])


def unfit(unit: Unit, known: Known) -> Iterator[Finding]:
    """Findings for requests that no registered tool, skill, type or approver can satisfy."""
    for asked in asked_in(unit):
        match asked.verb:
            case "tool":
                tool = asked.argument(0 if asked.by == "ctx" else 1)
                yield from _tool(asked, tool, known)
            case "chat":
                for offered in _elements(asked.argument(99, "tools")):
                    yield from _named_tool(asked, offered, known)
            case "skill":
                yield from _skill(asked, known)
            case "llm" if not (asked.has_more or asked.argument(1, "prompt") or asked.argument(2, "input")):
                text = f"asks a model nothing: write `{asked.by}.llm(id, prompt, input)`, the call's own name first"
                yield _found(asked, "call", text)
            case _:
                pass
        yield from _models(asked)
        if asked.verb in EXPECTING:
            yield from _expect(asked)
        if asked.verb in ("approve", "await_approval"):
            yield from _policy(asked)
    yield from _policies_made(unit)


# --- tools and skills


def _tool(asked: Asked, node: ast.expr | None, known: Known) -> Iterator[Finding]:
    spec = yield from _named_tool(asked, node, known)
    given = {name for name in asked.named if name not in OPTIONS or (asked.by == "Cmd" and name == "id")}
    if spec is not None:
        yield from _endless(asked, spec)
    if spec is None or asked.has_more:
        return
    args = asked.argument(1 if asked.by == "ctx" else 2, "args")
    if args is not None:
        more = value_of(args, asked.unit)
        named = isinstance(more, Mapping) and all(isinstance(name, str) for name in more)
        if not (named or more is UNKNOWN or more is None):
            yield _found(asked, "call", by_place(spec.name, more))
            return
        names = _keys(args) if more is UNKNOWN else set(more or ())
        if names is None:
            return
        given |= names
    if why := spec.unfit(given):
        yield _found(asked, "call", f"calls the tool {spec.name!r} with ({', '.join(sorted(given))}): {why}")


def _endless(asked: Asked, spec: ToolSpec) -> Iterator[Finding]:
    """A finding if an effect is to be repeated without end that refold may neither repeat nor look up."""
    node = asked.named.get("retry")
    policy = None if node is None else _made(node, asked.unit)
    once = spec.effect in (EffectPolicy.AT_MOST_ONCE, EffectPolicy.COMPENSATE)
    if isinstance(policy, RetryPolicy) and policy.on_unknown == "repeat" and once and spec.probe is None:
        yield _found(
            asked,
            "call",
            f"says on_unknown='repeat' for the tool {spec.name!r}, which is {spec.effect.value} and so is not repeated "
            "if its outcome is unknown: give the tool a `probe=`, or say 'ask' or 'fail'",
        )


def _made(node: ast.expr, unit: Unit) -> Any:
    """The value of an expression, or the policy that a call makes; None if `_policies_made` finds that policy wrong."""
    policy = _policy_of(node, unit)
    if policy is None or not isinstance(node, ast.Call):
        return value_of(node, unit)
    with contextlib.suppress(ValidationError):
        return policy(**_given(node, unit))


def _policy_of(node: ast.AST, unit: Unit) -> type[GatePolicy | RetryPolicy] | None:
    """The kind of policy that an expression makes; None if it makes none."""
    made = value_of(node.func, unit) if isinstance(node, ast.Call) else None
    return next((one for one in MADE if one is made), None)


def _given(node: ast.Call, unit: Unit) -> dict[str, Any]:
    """The named arguments of a call, as far as they are known."""
    given = {one.arg: value_of(one.value, unit) for one in node.keywords if one.arg is not None}
    return {name: value for name, value in given.items() if value is not UNKNOWN}


def _named_tool(asked: Asked, node: ast.expr | None, known: Known) -> Any:
    """A finding if the name is not a tool or the tool is not registered; returns the tool's declaration, if any."""
    value = UNKNOWN if node is None else value_of(node, asked.unit)
    if isinstance(value, str):
        yield from _unregistered(asked, value, known)
        spec = known.tools.get(value)
        if spec is not None and spec.undo is not None and asked.verb == "tool":
            yield _found(
                asked,
                "call",
                f"names the tool {value!r} by a string, and so cannot say how its effect is undone; give the "
                f"function: `ctx.tool({spec.function.__name__}, ...)`",
            )
        return spec
    spec = tool_spec(value)
    if spec is not None:
        yield from _unregistered(asked, spec.name, known)
    elif callable(value) and not isinstance(value, type) and id(value) not in known.undeclared:
        choices = ", ".join(repr(policy.value) for policy in EffectPolicy)
        own = getattr(value, "__name__", "it")
        yield _found(
            asked,
            "call",
            f"asks for {own!r}, which is not declared as a tool: write `@tool(effect=...)` above `def {own}`, with one "
            f"of {choices}",
        )
    return spec


def _unregistered(asked: Asked, name: str, known: Known) -> Iterator[Finding]:
    if name in known.tools or "queue" in asked.named:  # of another queue, by other workers
        return
    server, dot, _ = name.partition(".")
    if not dot:
        yield _found(
            asked,
            "call",
            f"asks for the tool {name!r}, which no module of the application registers: {_near(name, known.tools)}; "
            "declare it with `@tool(effect=...)` in a module of `activities`, and list it in `TOOLS`",
        )
    elif known.servers is not None and server not in known.servers:
        there = _near(server, known.servers)
        yield _found(asked, "call", f"asks for the tool {name!r}, and there is no MCP server {server!r}: {there}")


def _models(asked: Asked) -> Iterator[Finding]:
    """Findings for models that no worker can ask: a model's name has its provider's before it."""
    for name in models_of(asked):
        if not all(name.partition(":")):
            text = f"names the model {name!r}, which has no provider: write provider:model, for example openai:gpt-5"
            yield _found(asked, "call", text)


def _skill(asked: Asked, known: Known) -> Iterator[Finding]:
    node = asked.argument(1)
    value = UNKNOWN if node is None else value_of(node, asked.unit)
    if value is UNKNOWN:
        return
    try:
        id = value if isinstance(value, str) else skill_id(skill_of(value))
    except RefoldError:
        text = f"asks for {ast.unparse(node or asked.node)!r} as a skill, and it is none: give a skill's id, or a class"
        yield _found(asked, "call", f"{text} with `@flow_skill`")
        return
    if id not in known.skills:
        yield _found(
            asked,
            "call",
            f"asks for the skill {id!r}, which no module of the application has: {_near(id, known.skills)}; a skill's "
            "id is what `@flow_skill(id=...)` says, else its class's name in snake_case",
        )


def _elements(node: ast.expr | None) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.List | ast.Tuple) else []


def _keys(node: ast.expr) -> set[str] | None:
    """The keys of a dict whose values only a task knows; None where a key is not literal."""
    if not isinstance(node, ast.Dict):
        return None
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return set(keys) if len(keys) == len(node.keys) else None


def _near(name: str, there: Iterable[str]) -> str:
    names = sorted(there)
    near = difflib.get_close_matches(name, names, 1)
    listed = ", ".join(names) or "none"
    return f"did you mean {near[0]!r}? There are: {listed}" if near else f"there are: {listed}"


# --- types


def _expect(asked: Asked) -> Iterator[Finding]:
    node = asked.named.get("expect")
    value = UNKNOWN if node is None else value_of(node, asked.unit)
    if value is UNKNOWN or node is None:
        return
    said = f"expect={ast.unparse(node)}"
    if isinstance(value, dict) and asked.verb not in REPLIES:
        if why := _no_schema(value):
            yield _found(asked, "expect", f"says {said}, which is no JSON schema: {why}")
        return
    try:
        # The same call as in a running task, so it raises the same errors.
        _ = Cmd.ask_user("slot", "", expect=value) if asked.verb in REPLIES else Cmd.llm("id", expect=value)
    except SkillError as error:
        yield _found(asked, "expect", str(error))
        return
    if isinstance(value, str) and resolve(value) is None:
        module, _, name = value.partition(":")
        why = f"module {module!r} has no {name!r}" if module in sys.modules else f"nobody imports a module {module!r}"
        yield _found(
            asked, "expect", f"says {said}, and {why}; give the class itself, `expect={name}`, and import it here"
        )


def _no_schema(schema: dict[Any, Any]) -> str:
    if schema and not _SCHEMA_WORDS & schema.keys():
        return (
            f"it has none of its words (type, properties, ...); give a class, or "
            f'`{{"type": "object", "properties": {{{", ".join(repr(key) for key in schema)}: ...}}}}`'
        )
    named = schema.get("type")
    wrong = [one for one in (named if isinstance(named, list) else [named]) if isinstance(one, str)]
    wrong = [one for one in wrong if one not in _SCHEMA_TYPES]
    return f"there is no type {wrong[0]!r}; the types are: {', '.join(sorted(_SCHEMA_TYPES))}" if wrong else ""


# --- gates


def _policy(asked: Asked) -> Iterator[Finding]:
    node = asked.named.get("policy")
    value = UNKNOWN if node is None else value_of(node, asked.unit)
    if isinstance(value, GatePolicy):
        yield from (_found(asked, "gate", f"has a gate that {why}") for why in _impassable(value))


def _policies_made(unit: Unit) -> Iterator[Finding]:
    for node in code_of(unit.node):
        kind = _policy_of(node, unit)
        if kind is None or not isinstance(node, ast.Call):
            continue
        try:
            policy = kind(**_given(node, unit))
        except ValidationError as error:
            said = _said(error, [one.arg for one in node.keywords if one.arg is not None], kind)
            yield finding(unit, node, MADE[kind], f"makes a policy that cannot be: {said}")
            continue
        if isinstance(policy, GatePolicy):
            yield from (finding(unit, node, "gate", f"has a gate that {why}") for why in _impassable(policy))


def _said(error: ValidationError, given: Collection[str], kind: type[GatePolicy | RetryPolicy]) -> str:
    fields = ", ".join(kind.model_fields)
    misspelt = [name for name in given if name not in kind.model_fields]
    return f"{problems(error)}; its fields are: {fields}" if misspelt else problems(error)


def _impassable(policy: GatePolicy) -> Iterator[str]:
    if policy.timeout_s == 0:
        yield "nobody can pass: its timeout_s=0 ends it at once; give seconds, or None to wait for ever"
    if any(not one.strip() for one in policy.approvers):
        yield "nobody can pass: an approver has no name; name people as they sign in"
    if policy.needed > (people := len({written_as(one, ()) for one in policy.approvers})) > 0:
        yield f"nobody can pass: it needs {policy.needed} grants, but its approvers are {people} people"


def _found(asked: Asked, rule: str, message: str) -> Finding:
    return finding(asked.unit, asked.node, rule, message)
