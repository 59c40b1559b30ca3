"""Reads from a skill's source which transitions its functions return, and in which case."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from refold.static.code.asked import CALLS
from refold.static.code.evaluated import UNKNOWN, value_of
from refold.static.code.module import FunctionNode, Reach, ctx_names, dotted
from refold.static.code.units import Role, Unit, code_of, find
from refold.static.diagram.gates import Gate, gate_in
from refold.static.diagram.values_of_names import held, makers
from refold.static.diagram.wording import condition

ENDINGS = {"complete": "completed", "fail": "failed", "reject": "rejected"}
TRIGGERS = {
    "ActivityResult": "activity",
    "ChatResult": "chat",
    "CommandFailed": "failed",
    "DecisionMade": "decision",
    "LlmResult": "llm",
    "SkillResult": "skill",
    "TimerFired": "timer",
    "ToolResult": "tool",
    "UserMessage": "message",
    "WorkflowResult": "workflow",
}
AWAITED = CALLS - {"callback"}  # an address is no effect
_DEPTH = 8  # of helpers that call helpers
Path: TypeAlias = tuple[FunctionNode, ...]
"""Functions, each called by the one before it."""


@dataclass(frozen=True, slots=True)
class Case:
    """The case in which code is reached, by `match` and `isinstance`.

    Attributes:
        states: The possible states; empty means any.
        trigger: The event, for people: `llm research`; empty means any.
        guard: Further conditions, for people.
    """

    states: tuple[str, ...] = ()
    trigger: str = ""
    guard: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transition that the code may return.

    Attributes:
        case: The case in which the code returns the transition.
        target: The next state or step; empty if it stays the same.
        ending: How the task ends; empty if it does not.
        asks: The transition's commands, for people: `llm research`.
        question: The slot of the question that the transition asks; the next step receives the answer.
        gate: The gate that the transition opens; the next step receives the decision.
    """

    case: Case
    target: str = ""
    ending: str = ""
    asks: tuple[str, ...] = ()
    question: str = ""
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads outcomes.

    Attributes:
        reach: Finds the source of other modules.
        kinds: The names of the state's classes; none for steps.
    """

    reach: Reach
    kinds: frozenset[str] = frozenset()

    def outcomes(self, unit: Unit, case: Case | None = None, path: Path = ()) -> list[Outcome]:
        """All transitions that a function may return, in source order.

        Args:
            unit: The function.
            case: The case in which it is called.
            path: The functions whose calls led to this one; none of them is read again.
        """
        if not isinstance(unit.node, FunctionNode) or unit.node in path or len(path) > _DEPTH:
            return []
        found = self._statements(unit.node.body, unit, case or Case(), (*path, unit.node))
        return list(dict.fromkeys(found))

    def asked(self, unit: Unit) -> list[str]:
        """The effects that a step and its helpers request by ctx, for people; in source order, each once."""
        return list(dict.fromkeys(_asking(verb, call) for verb, call, _ in self._calls(code_of(unit.node), unit)))

    def gates(self, unit: Unit) -> list[Gate]:
        """The gates that a step and its helpers wait for on their way."""
        calls = self._calls(code_of(unit.node), unit)
        return list(
            dict.fromkeys(gate_in(_slot(call), call, where) for verb, call, where in calls if verb == "approve")
        )

    def _calls(
        self, code: Iterable[ast.AST], unit: Unit, read: set[FunctionNode] | None = None
    ) -> Iterator[tuple[str, ast.Call, Unit]]:
        """The calls of ctx in some code of a function, and in the helpers that it awaits; each helper is read once."""
        if not isinstance(unit.node, FunctionNode):
            return
        read = set() if read is None else read
        ctx = ctx_names(unit.node)
        for node in code:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=id), attr=attr)) if id in ctx and attr in AWAITED:
                    yield attr, node, unit
                case ast.Await(value=ast.Call(func=func)):
                    helper = self._helper(func, unit)
                    if helper is not None and isinstance(helper.node, FunctionNode) and helper.node not in read:
                        read.add(helper.node)
                        yield from self._calls(code_of(helper.node), helper, read)
                case _:
                    pass

    # --- statements

    def _statements(self, body: Sequence[ast.stmt], unit: Unit, case: Case, path: Path) -> Iterator[Outcome]:
        for statement in body:
            match statement:
                case ast.Return(value=ast.expr() as value):
                    yield from self._value(value, unit, case, path)
                case ast.Match(cases=cases):
                    for one in cases:
                        matched = self._matched(one.pattern, case)
                        matched = matched if one.guard is None else self._tested(one.guard, matched)
                        yield from self._statements(one.body, unit, matched, path)
                case ast.If(test=test, body=then, orelse=otherwise):
                    yield from self._statements(then, unit, self._tested(test, case), path)
                    yield from self._statements(otherwise, unit, case, path)
                case ast.Try(body=tried, handlers=handlers, orelse=otherwise, finalbody=final):
                    for handler in handlers:
                        yield from self._statements(handler.body, unit, self._caught(handler, tried, unit, case), path)
                    for part in (tried, otherwise, final):
                        yield from self._statements(part, unit, case, path)
                case ast.For(body=inner, orelse=after) | ast.While(body=inner, orelse=after):
                    yield from self._statements([*inner, *after], unit, case, path)
                case ast.With(body=inner):
                    yield from self._statements(inner, unit, case, path)
                case _:
                    pass

    def _caught(self, handler: ast.ExceptHandler, tried: list[ast.stmt], unit: Unit, case: Case) -> Case:
        """The case of an `except` that catches a failure of an awaited effect."""
        caught = ast.unparse(handler.type) if handler.type is not None else "Exception"
        if not any(name in caught for name in ("CommandError", "DecodeError", "Exception")):
            return replace(case, guard=_joined(case.guard, caught))
        asked = dict.fromkeys(_asking(verb, call) for verb, call, _ in self._calls(_nodes(tried), unit))
        return replace(case, trigger=f"{' or '.join(asked)} failed".strip())

    def _matched(self, pattern: ast.pattern, case: Case) -> Case:
        states: list[str] = []
        triggers: list[str] = []
        guards: list[str] = []
        alternatives = pattern.patterns if isinstance(pattern, ast.MatchOr) else [pattern]
        for node in ast.walk(pattern):
            match node:
                case ast.MatchClass(cls=cls) if (name := ast.unparse(cls).rpartition(".")[2]) in self.kinds:
                    states.append(name)
                case ast.MatchClass(cls=cls) if (name := ast.unparse(cls).rpartition(".")[2]) in TRIGGERS:
                    triggers.append(_trigger(TRIGGERS[name], node))
                case ast.MatchValue(value=ast.Constant(value=str(text))) if node in alternatives:
                    guards.append(text)
                case _:
                    pass
        return Case(
            tuple(states) or case.states,
            " or ".join(triggers) or case.trigger,
            " or ".join(guards) or case.guard,
        )

    def _tested(self, test: ast.expr, case: Case) -> Case:
        states: list[str] = []
        triggers: list[str] = []
        for node in ast.walk(test):
            match node:
                case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                    names = [
                        ast.unparse(one).rpartition(".")[2] for one in ast.walk(kinds) if isinstance(one, ast.Name)
                    ]
                    states.extend(name for name in names if name in self.kinds)
                    triggers.extend(TRIGGERS[name] for name in names if name in TRIGGERS)
                case _:
                    pass
        if not states and not triggers:
            return replace(case, guard=_joined(case.guard, condition(test)))
        return replace(case, states=tuple(states) or case.states, trigger=" or ".join(triggers) or case.trigger)

    # --- values

    def _value(self, value: ast.expr, unit: Unit, case: Case, path: Path) -> Iterator[Outcome]:
        assert isinstance(unit.node, FunctionNode)
        for maker, chained in makers(value, unit.node):
            for outcome in self._by(maker, unit, case, path):
                for call in chained:
                    outcome = _with(outcome, call, unit)
                yield outcome

    def _by(self, maker: ast.Call, unit: Unit, case: Case, path: Path) -> Iterator[Outcome]:
        """What a call of `Transition`, of the context or of a helper makes."""
        if isinstance(maker.func, ast.Attribute) and self._is_source(maker.func.value, unit):
            yield from self._made(maker, maker.func.attr, unit, case)
        elif (helper := self._helper(maker.func, unit)) is not None:
            yield from self.outcomes(helper, case, path)

    def _is_source(self, base: ast.expr, unit: Unit) -> bool:
        """Whether it is `Transition` or the context, whose methods make transitions."""
        assert isinstance(unit.node, FunctionNode)
        if isinstance(base, ast.Name) and base.id in ctx_names(unit.node):
            return True
        return (dotted(base, unit.names) or "").endswith(".Transition")

    def _made(self, call: ast.Call, how: str, unit: Unit, case: Case) -> Iterator[Outcome]:
        first = call.args[0] if call.args else None
        match how:
            case "to":
                yield Outcome(case, target=self._state(first, unit))
            case "goto":
                name = value_of(first, unit) if first is not None else UNKNOWN
                yield Outcome(case, target=name if isinstance(name, str) else "")
            case "await_input" | "await_approval":
                state = call.args[2] if len(call.args) > 2 else _keyword(call, "state")
                target, slot = self._state(state, unit), _slot(call)
                if how == "await_input":
                    yield Outcome(case, target=target, asks=(f"ask {slot}",), question=slot)
                else:
                    yield Outcome(case, target=target, asks=(f"gate {slot}",), gate=gate_in(slot, call, unit))
            case "complete" | "fail" | "reject":
                given = call.args[1:2] if how != "complete" else call.args[:1]
                state = given[0] if given else _keyword(call, "state")
                yield Outcome(case, target=self._state(state, unit), ending=ENDINGS[how])
            case _:
                pass

    def _state(self, value: ast.expr | None, unit: Unit, seen: set[ast.expr] | None = None) -> str:
        """The class of the next state; empty if the state stays the same or is not known."""
        assert isinstance(unit.node, FunctionNode)
        seen = set() if seen is None else seen
        match value:
            case ast.Call(func=func) if (name := ast.unparse(func).rpartition(".")[2]) in self.kinds:
                return name
            case ast.Call(func=ast.Attribute(value=base, attr="model_copy")):
                return self._state(base, unit, seen)
            case ast.Name(id=id) if value not in seen:
                seen.add(value)
                for assigned in held(unit.node).get(value, ()):
                    if name := self._state(assigned, unit, seen):
                        return name
                annotation = _annotation(unit, id)
                return annotation if annotation in self.kinds else ""
            case ast.IfExp(body=then):
                return self._state(then, unit, seen)
            case _:
                return ""

    def _helper(self, func: ast.expr, unit: Unit) -> Unit | None:
        match func:
            case ast.Attribute(value=ast.Name(id=me), attr=attr) if me == unit.me and unit.cls is not None:
                definition = find(f"{unit.module.name}.{unit.cls.name}.{attr}", unit.module, self.reach)
            case _:
                definition = find(dotted(func, unit.names), unit.module, self.reach)
        if definition is None or isinstance(definition.node, ast.ClassDef) or definition.is_tool:
            return None
        return Unit(definition.module, definition.node, definition.node.name, Role.HELPER, definition.cls)


def _annotation(unit: Unit, name: str) -> str:
    assert isinstance(unit.node, FunctionNode)
    found = (one.annotation for one in unit.node.args.args if one.arg == name and one.annotation is not None)
    return next((ast.unparse(one).rpartition(".")[2] for one in found), "")


def _command(call: ast.Call) -> Iterator[str]:
    """What `.cmd(Cmd.llm("research", ...))` asks for."""
    match call.args:
        case [ast.Call(func=ast.Attribute(value=base, attr=kind)) as made] if ast.unparse(base).endswith("Cmd"):
            if kind not in ("message", "artifact"):
                yield _asking({"ask_user": "ask", "ask_approval": "gate"}.get(kind, kind), made, command=True)
        case _:
            pass


def _asking(kind: str, call: ast.Call, *, command: bool = False) -> str:
    """`llm research`, `tool charge_card`, `ask guidance`: as people read it of a running task."""
    position = 1 if command and kind in ("tool", "skill", "activity", "workflow") else 0
    if not command and kind in ("skill", "activity", "workflow"):
        position = 1
    if not command and kind == "sleep":
        return "sleep"
    given = call.args[position] if len(call.args) > position else None
    return f"{'gate' if kind == 'approve' else kind} {_text(given) or ''}".strip()


def _text(node: ast.expr | None) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=id):
            return id
        case ast.Attribute(attr=attr):
            return attr
        case ast.Subscript():
            return ast.unparse(node)
        case _:
            return None


def _slot(call: ast.Call) -> str:
    return _text(call.args[0] if call.args else _keyword(call, "slot")) or ""


def _with(outcome: Outcome, chained: ast.Call, unit: Unit) -> Outcome:
    """The outcome with what a call adds to it: `.cmd(...)`; all others add nothing that is drawn."""
    if not isinstance(chained.func, ast.Attribute) or chained.func.attr != "cmd":
        return outcome
    return replace(outcome, asks=(*outcome.asks, *_command(chained)), **_waits(chained, unit))


def _waits(chained: ast.Call, unit: Unit) -> dict[str, Any]:
    """The question or gate that `.cmd(Cmd.ask_user(...))` asks."""
    match chained.args:
        case [ast.Call(func=ast.Attribute(attr="ask_user")) as made]:
            return {"question": _slot(made)}
        case [ast.Call(func=ast.Attribute(attr="ask_approval")) as made]:
            return {"gate": gate_in(_slot(made), made, unit)}
        case _:
            return {}


def _nodes(statements: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in statements for node in ast.walk(statement))


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def _trigger(kind: str, pattern: ast.MatchClass) -> str:
    """`llm research`, `tool pay failed`, `refund denied`."""
    said = {
        name: _text(inner.value) or ""
        for name, inner in zip(pattern.kwd_attrs, pattern.kwd_patterns, strict=True)
        if isinstance(inner, ast.MatchValue)
    }
    if kind == "failed":
        return f"{said.get('id', '')} failed".strip()
    if kind == "decision":
        return f"{said.get('slot', '')} {said.get('decision', 'decision')}".strip()
    return f"{kind} {said.get('id', '')}".strip()
