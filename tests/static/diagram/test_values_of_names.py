"""Which values a name may hold where a function reads it."""

import ast
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from itertools import count
from textwrap import dedent, indent
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.static.code.module import parse
from refold.static.code.units import unit_of
from refold.static.diagram.outcomes import Reader
from refold.static.diagram.values_of_names import held

SIMPLE = st.sampled_from(["a = N", "a: int = N", "b = a", "a = b", "use(N, a)", "fail()"])
LEAVING = st.sampled_from(["if going(): return", "if going(): raise Failed"])
JUMPING = st.sampled_from(["break", "if going(): break", "if going(): continue"])
COMPOUND = (
    "if going():\n{0}\nelse:\n{1}",
    "while going():\n{0}\nelse:\n{1}",
    "for _ in range(2):\n{0}\nelse:\n{1}",
    "try:\n{0}\nexcept Failed:\n{1}",
    "try:\n{0}\nfinally:\n{1}",
    "for _ in range(2):\n    try:\n{0}\n    finally:\n{1}",
    "try:\n{0}\nexcept Failed:\n    pass\nelse:\n{1}",
    "match going():\n    case True if going():\n{0}\n    case _:\n{1}",
    "match going():\n    case True:\n{0}\n    case False:\n{1}",
    "with suppressed:\n{0}\nif going():\n{1}",
)
LOOPS = tuple(one for one in COMPOUND if one.startswith(("while", "for")))


def bodies(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def filled(shape: str, first: str, second: str, jump: str) -> str:
        first = f"{first}\n{jump}\na = N" if shape in LOOPS else first
        return shape.format(*(indent(one, " " * 8) for one in (first, second))) + "\nuse(N, a)"

    compound = st.builds(filled, st.sampled_from(COMPOUND), inner, inner, JUMPING)
    return st.lists(compound | SIMPLE | LEAVING, min_size=1, max_size=5).map("\n".join)


PROGRAMS = st.recursive(st.lists(SIMPLE, min_size=1, max_size=5).map("\n".join), bodies, max_leaves=12)


def numbered(program: str) -> str:
    """The program as a function, with a number of its own in place of each N."""
    numbers = count(1)
    first, *rest = program.split("N")
    body = first + "".join(f"{next(numbers)}{part}" for part in rest)
    return f"def program(a, b, use, going, fail, suppressed):\n{indent(body, '    ')}\n"


class Failed(Exception):
    pass


@given(program=PROGRAMS, decisions=st.lists(st.booleans(), min_size=8, max_size=30))
def test_what_a_name_holds_is_among_the_values_found_for_it(program: str, decisions: list[bool]) -> None:
    """
    Whichever way a run of the function takes: through branches, rounds of loops, failures and jumps.
    """
    source = numbered(program)
    ways, reads = iter(decisions), list[tuple[int, int]]()

    def going() -> bool:
        return next(ways, False)

    def fail() -> None:
        if going():
            raise Failed

    space: dict[str, object] = {"Failed": Failed}
    exec(source, space)
    run = cast("Callable[..., None]", space["program"])
    with suppress(Failed):
        run(0, 0, lambda place, value: reads.append((place, value)), going, fail, nullcontext())

    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    found = dict(_found(function))
    assert [one for one in reads if one[1] and one[1] not in found[one[0]]] == []


def _found(function: ast.FunctionDef) -> Iterator[tuple[int, set[object]]]:
    """The numbers that each `use(place, name)` may be given, through `a = b` too."""
    values = held(function)
    for call in ast.walk(function):
        match call:
            case ast.Call(func=ast.Name(id="use"), args=[ast.Constant(value=int(place)), ast.Name() as name]):
                seen: set[ast.expr] = set()
                waiting: list[ast.expr] = [name]
                while waiting:
                    if (one := waiting.pop()) not in seen:
                        seen.add(one)
                        waiting += values.get(one, ()) if isinstance(one, ast.Name) else ()
                yield place, {one.value for one in seen if isinstance(one, ast.Constant)}
            case _:
                pass


@pytest.mark.parametrize(
    ("body", "numbers"),
    [
        ("a = 1\na = 2\nuse(0, a)", {2}),
        ("if x:\n    a = 1\n    return\na = 2\nuse(0, a)", {2}),
        ("match x:\n    case 1:\n        a = 1\n    case _:\n        a = 2\n        use(0, a)", {2}),
        ("a = 1\nuse(0, a)\na = 2", {1}),
        ("a = 1\nfor x in y:\n    use(0, a)\n    a = 2", {1, 2}),
        ("a = 1\nwhile x:\n    if y:\n        a = 3\n        break\n    a = 2\nuse(0, a)", {1, 2, 3}),
        ("a = 1\nmatch x:\n    case 1:\n        a = 2\n    case _:\n        a = 3\nuse(0, a)", {2, 3}),
        ("a = 1\ntry:\n    x()\n    a = 2\nfinally:\n    use(0, a)", {1, 2}),
        ("a = 1\ntry:\n    x()\n    a = 2\nfinally:\n    y()\nuse(0, a)", {2}),
    ],
)
def test_only_what_may_be_held_is_found(body: str, numbers: set[int]) -> None:
    """
    Values of other branches, later values, and values that are always replaced.
    """
    (function,) = ast.parse(f"def f(x, y):\n{indent(body, '    ')}\n").body
    assert isinstance(function, ast.FunctionDef)

    assert dict(_found(function)) == {0: numbers}


@pytest.mark.parametrize("again", ["t = t.cmd(Cmd.llm('x', x))", "t = t.cmd(Cmd.llm('x', x)) if y else t"])
def test_a_transition_is_one_outcome_however_much_is_chained_to_it(again: str) -> None:
    """
    A function with forty optional commands has one outcome, which asks for all, not one for each combination.
    """
    body = "\n".join(f"for x in y:\n    if x:\n        {again}" for _ in range(40))
    head = dedent("""
        from refold import Cmd, Transition
        def f(state, ctx, x, y):
            t = Transition.to(state)
        """)
    module = parse(f"{head}{indent(body, '    ')}\n    return t\n", "f.py", "f")

    (outcome,) = Reader(lambda _: None).outcomes(unit_of(module, module.functions["f"]))

    assert outcome.asks == ("llm x",) * 40
