"""What a name may hold where a function reads it: the values of the assignments that may come last before."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from refold.static.code.asked import CHAINED
from refold.static.code.module import FunctionNode

Held: TypeAlias = dict[str, tuple[ast.expr, ...]]
"""The values that each name may hold; a name without an entry has none."""


@lru_cache(maxsize=64)
def held(function: FunctionNode) -> Mapping[ast.Name, tuple[ast.expr, ...]]:
    """For each place where a function reads a name: the values that the name may hold there.

    Values of other branches are left out, and values that are replaced before. Only assignments give values: what a
    parameter, a pattern, `for` or `with` binds is not known.
    """
    flow = _Flow()
    flow.through(function.body, {})
    return flow.found


def makers(value: ast.expr, function: FunctionNode) -> Iterator[tuple[ast.Call, list[ast.Call]]]:
    """The calls that may make the transition that a value holds, each with all calls that may be chained to it.

    For `t = Transition.to(state)`, `for q in qs: t = t.cmd(...)`, the value `t` is made by `Transition.to(state)`, and
    `t.cmd(...)` is chained to that: once, however often the loop repeats it.
    """
    parts: dict[ast.expr, Sequence[ast.expr]] = {}
    waiting = [value]
    while waiting:
        if (one := waiting.pop()) not in parts:
            parts[one] = _parts(one, held(function))
            waiting += reversed(parts[one])
    uses: dict[ast.expr, list[ast.expr]] = {}
    for one, inner in parts.items():
        for part in inner:
            uses.setdefault(part, []).append(one)
    for maker in parts:
        if isinstance(maker, ast.Call) and not parts[maker]:
            chained = [one for one in _all_uses(maker, uses) if isinstance(one, ast.Call)]
            yield maker, sorted(chained, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))


def _parts(value: ast.expr, values: Mapping[ast.Name, Sequence[ast.expr]]) -> Sequence[ast.expr]:
    """The values, one of which makes the transition that this value holds; none for a call that makes one itself."""
    match value:
        case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in CHAINED:
            return [base]
        case ast.Name():
            return values.get(value, ())
        case ast.IfExp(body=then, orelse=otherwise):
            return [then, otherwise]
        case ast.Await(value=inner):
            return [inner]
        case _:
            return ()


def _all_uses(value: ast.expr, uses: Mapping[ast.expr, list[ast.expr]]) -> list[ast.expr]:
    found: dict[ast.expr, None] = {}
    waiting = [*uses.get(value, ())]
    while waiting:
        if (one := waiting.pop()) not in found:
            found[one] = None
            waiting += uses.get(one, ())
    return list(found)


class _Flow:
    """Goes through a function's statements in the order they run, and notes what each read name may hold."""

    def __init__(self) -> None:
        self.found: dict[ast.Name, tuple[ast.expr, ...]] = {}
        self.jumps: list[list[Held]] = []  # what names hold at each `break` and `continue`, by loop, outermost first

    def through(self, body: Sequence[ast.stmt], before: Held | None) -> Held | None:
        """What names hold after some statements; None where the code after these is not reached."""
        for statement in body:
            if before is None:
                return None
            before = self._after(statement, before)
        return before

    def _after(self, statement: ast.stmt, before: Held) -> Held | None:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._read(value, before)
                return {**before, name: (value,)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._read(value, before)
                return {**before, name: (value,)}
            case ast.Return() | ast.Raise():
                self._read(statement, before)
                return None
            case ast.Break() | ast.Continue() if self.jumps:
                self.jumps[-1].append(before)
                return None
            case ast.If(test=test, body=then, orelse=otherwise):
                self._read(test, before)
                return _joined(self.through(then, before), self.through(otherwise, before))
            case ast.Match(subject=subject, cases=cases):
                self._read(subject, before)
                return self._after_cases(cases, before)
            case ast.For(iter=header, body=body, orelse=after) | ast.AsyncFor(iter=header, body=body, orelse=after):
                return self._after_loop(header, body, after, before)
            case ast.While(test=header, body=body, orelse=after):
                return self._after_loop(header, body, after, before)
            case ast.With(body=body) | ast.AsyncWith(body=body):
                return self.through(body, before)
            case ast.Try() | ast.TryStar():
                return self._after_try(statement, before)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return before
            case _:
                self._read(statement, before)
                return before

    def _after_cases(self, cases: Sequence[ast.match_case], before: Held) -> Held | None:
        ends: list[Held | None] = []
        for case in cases:
            if case.guard is not None:
                self._read(case.guard, before)
            ends.append(self.through(case.body, before))
        takes_all = any(isinstance(one.pattern, ast.MatchAs) and one.pattern.pattern is None for one in cases)
        guarded = any(one.guard is not None for one in cases)
        return _joined(*ends, *([before] if guarded or not takes_all else []))

    def _after_loop(
        self, header: ast.expr, body: Sequence[ast.stmt], after: Sequence[ast.stmt], before: Held
    ) -> Held | None:
        """Goes through the body twice: what its first round assigns may be read at the beginning of the next."""
        ends: list[Held | None] = [before]
        self.jumps.append([])
        for _ in range(2):
            start = _joined(*ends, *self.jumps[-1]) or before
            self._read(header, start)
            ends.append(self.through(body, start))
        jumps = self.jumps.pop()
        return _joined(self.through(after, _joined(*ends, *jumps)), *jumps)  # `break` leaves out the `else`

    def _after_try(self, statement: ast.Try | ast.TryStar, before: Held) -> Held | None:
        failed = _joined(before, *_assigned(statement.body))
        jumps = self.jumps[-1] if self.jumps else []
        earlier = len(jumps)
        ends = [self.through(statement.orelse, self.through(statement.body, before))]
        ends += [self.through(one.body, failed) for one in statement.handlers]
        end = _joined(*ends)
        jumped = (self.through(statement.finalbody, one) for one in jumps[earlier:])
        jumps[earlier:] = [one for one in jumped if one is not None]
        # `finally` is also reached where something fails or returns, and what follows it is not.
        self.through(statement.finalbody, _joined(failed, *_assigned(statement.handlers), *_assigned(statement.orelse)))
        return None if end is None else self.through(statement.finalbody, end)

    def _read(self, node: ast.AST, before: Held) -> None:
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load):
                self.found[name] = tuple(dict.fromkeys((*self.found.get(name, ()), *before.get(name.id, ()))))


def _assigned(within: Sequence[ast.AST]) -> Iterator[Held]:
    """What each assignment gives its name: whichever comes last before something fails."""
    for node in (node for one in within for node in ast.walk(one)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield {name: (value,)}
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                yield {name: (value,)}
            case _:
                pass


def _joined(*ways: Held | None) -> Held | None:
    """What names may hold where several ways meet; None where no way leads here."""
    known = [way for way in ways if way is not None]
    names = dict.fromkeys(name for way in known for name in way)
    merged = {name: tuple(dict.fromkeys(value for way in known for value in way.get(name, ()))) for name in names}
    return merged if known else None
