"""Which functions of a module run as part of a skill: reducers, steps, and the helpers they use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from refold.static.code.loaded import is_loaded_step, loaded_tool
from refold.static.code.module import FunctionNode, Module, Names, Reach, dotted, local_names, methods

STEP_DECORATORS = ("refold.step", "refold.core.step", "refold.core.steps.table.step")
STEP_ROWS = ("refold.Step", "refold.core.Step", "refold.core.steps.table.Step")
TOOL_DECORATORS = ("refold.tool", "refold.core.tool", "refold.core.authoring.tool.tool")
AROUND_DECORATORS = ("refold.agent.around", "refold.agent.middleware.around")
PLUGINS = ("refold.agent.Plugin", "refold.agent.plugins.Plugin")
# Methods of a value that run without being called by name.
SILENT_METHODS = {"__init__", "__post_init__", "__eq__", "__lt__", "__str__", "__repr__", "model_post_init"}
SILENT_DECORATORS = ("validator", "serializer", "computed_field", "property")
HOPS = 16  # a name may lead in a circle: `from .stamp import stamp`, where the module `.stamp` is not found


class Role(StrEnum):
    """What a function is to its skill."""

    REDUCER = "reducer"
    STEP = "step"
    HELPER = "helper"


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the application, and the module it stands in."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of code that runs as part of a skill.

    Attributes:
        module: Where it stands.
        node: The function; for a class that is used as data, the class, for its defaults.
        where: Its name for people: `ResearchLoop.on_event`.
        role: What it is to its skill.
        cls: The class it stands in.
        self_of: The class whose `self` it gets, which may inherit it from `cls`; None where it is `cls`.
    """

    module: Module
    node: FunctionNode | ast.Lambda | ast.ClassDef
    where: str
    role: Role
    cls: ast.ClassDef | None = None
    self_of: Class | None = None

    @property
    def names(self) -> Names:
        """What names stand for in it."""
        if isinstance(self.node, ast.ClassDef):
            return self.module.names
        return local_names(self.node, self.module)

    @property
    def owner(self) -> Class | None:
        """The class whose `self` it gets; None for a plain function."""
        return self.self_of or (None if self.cls is None else Class(self.module, self.cls))

    @property
    def me(self) -> str | None:
        """What it calls `self` or `cls`; None for a plain function."""
        if self.cls is None or not isinstance(self.node, FunctionNode) or not self.node.args.args:
            return None
        static = any(ast.unparse(one) == "staticmethod" for one in self.node.decorator_list)
        return None if static else self.node.args.args[0].arg


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a dotted name leads to in the application's source.

    Attributes:
        module: Where it stands.
        node: The function or class.
        cls: The class it stands in.
        self_of: The class that it was looked up in, and whose `self` it gets; it may inherit it from `cls`.
    """

    module: Module
    node: FunctionNode | ast.ClassDef
    cls: ast.ClassDef | None = None
    self_of: Class | None = None

    @property
    def is_tool(self) -> bool:
        """Whether it is a function declared with `@tool(...)`, or was made a tool by another decorator."""
        if not isinstance(self.node, FunctionNode) or not self.node.decorator_list:
            return False
        declared = _decorated(self.node, TOOL_DECORATORS, self.module.names)
        return declared or loaded_tool(f"{self.module.name}.{self.node.name}") is not None


def skills_in(module: Module, reach: Reach) -> list[Unit]:
    """The reducers and steps that a module defines, in the order they stand in; then what its agents are made with.

    Those that a class inherits from another module, and functions of other modules in a table, are among them.
    """
    found: list[Unit] = []
    for cls in module.classes.values():
        own = all_methods(Class(module, cls), reach)
        if _is_reducer(own):
            roles = {"on_event": Role.REDUCER, "initial": Role.HELPER}
            found += [_unit(own[name], role) for name, role in roles.items() if name in own]
        steps = _step_names(Class(module, cls), reach)
        found += [_unit(method, Role.STEP) for name, method in own.items() if name in steps]
    return [*found, *_table_steps(module, reach), *_agent_code(module)]


def _agent_code(module: Module) -> Iterator[Unit]:
    """Hooks, and middleware of workflow scope: code that runs as part of an agent's steps."""
    for name, function in module.functions.items():
        marks = [mark for mark in function.decorator_list if isinstance(mark, ast.Call)]
        arounds = [mark for mark in marks if dotted(mark.func, module.names) in AROUND_DECORATORS]
        if any(not _in_worker(mark) for mark in arounds) or _is_hook(function, module):
            yield Unit(module, function, name, Role.HELPER)
    for cls in module.classes.values():
        if any(dotted(base, module.names) in PLUGINS for base in cls.bases):
            for name, method in methods(cls).items():
                if name.startswith(("before_", "after_")) or name == "message_added":
                    yield Unit(module, method, f"{cls.name}.{name}", Role.HELPER, cls)


def _in_worker(mark: ast.Call) -> bool:
    said = [one.value for one in mark.keywords if one.arg == "scope"]
    return any(isinstance(one, ast.Constant) and one.value == "activity" for one in said)


def _is_hook(function: FunctionNode, module: Module) -> bool:
    args = function.args.args
    kind = dotted(args[0].annotation, module.names) if len(args) == 1 and args[0].annotation is not None else None
    home, _, event = (kind or "").rpartition(".")
    return home in ("refold.agent", "refold.agent.plugins") and event.startswith(("Before", "After", "MessageAdded"))


def units(module: Module, reach: Reach) -> list[Unit]:
    """All code that runs as part of the module's skills, each piece once, as far as names lead to it."""
    return reached(skills_in(module, reach), reach)


def reached(first: Iterable[Unit], reach: Reach) -> list[Unit]:
    """These pieces of code and all that they use, each once, as far as names lead to it.

    A method is there once for each class that inherits it, since its `self` leads to the methods of that class.
    """
    waiting = list(first)
    found: dict[tuple[int, int], Unit] = {}
    values: dict[int, Definition] = {}
    called: set[str] = set()
    while waiting:
        unit = waiting.pop(0)
        key = id(unit.node), 0 if unit.owner is None else id(unit.owner.node)
        if key in found:
            continue
        found[key] = unit
        called |= {one.attr for one in code_of(unit.node) if isinstance(one, ast.Attribute)}
        for definition in _used(unit, reach):
            if isinstance(definition.node, ast.ClassDef):
                values[id(definition.node)] = definition
            elif not definition.is_tool:
                waiting.append(_helper(definition))
        for definition in values.values():
            waiting.extend(_value_code(definition, called, reach))
    return list(found.values())


def all_methods(cls: Class, reach: Reach, hops: int = HOPS) -> dict[str, Definition]:
    """A class's methods, with those that it inherits from other classes of the application."""
    return _methods(_lineage(cls, reach, hops), cls)


def is_skill_class(cls: Class, reach: Reach) -> bool:
    """Whether a class is a skill, and not a value that skills use."""
    return _is_reducer(all_methods(cls, reach)) or bool(_step_names(cls, reach))


def _is_reducer(own: Mapping[str, Definition]) -> bool:
    """Whether a class of these methods is a reducer: other classes have an `on_event` too, of other parameters."""
    match own.get("on_event"):
        case Definition(node=ast.FunctionDef() | ast.AsyncFunctionDef() as method):
            return len([*method.args.posonlyargs, *method.args.args]) == 4  # self, state, event, ctx
        case _:
            return False


def _methods(line: list[Class], self_of: Class) -> dict[str, Definition]:
    """The methods of classes; a later class's replaces an earlier one's."""
    return {
        name: Definition(one.module, method, one.node, self_of)
        for one in line
        for name, method in methods(one.node).items()
    }


def _step_names(cls: Class, reach: Reach) -> set[str]:
    """The methods of a class that are steps: a method that overrides a step is one, marked or not."""
    return {name for one in _lineage(cls, reach) for name, method in methods(one.node).items() if _is_step(method, one)}


def _is_step(method: FunctionNode, cls: Class) -> bool:
    """Whether a method is declared with `@step`, or was made a step by another decorator."""
    if not method.decorator_list:
        return False
    declared = _decorated(method, STEP_DECORATORS, cls.module.names)
    return declared or is_loaded_step(f"{cls.module.name}.{cls.node.name}.{method.name}")


def _lineage(cls: Class, reach: Reach, hops: int = HOPS) -> list[Class]:
    """A class after its bases, as far as they are the application's."""
    found: list[Class] = []
    for base in reversed(cls.node.bases):
        named = base.value if isinstance(base, ast.Subscript) else base  # `Base[Order]`
        above = find(dotted(named, cls.module.names), cls.module, reach, hops - 1)
        if above is not None and isinstance(above.node, ast.ClassDef):
            found += _lineage(Class(above.module, above.node), reach, hops - 1)
    return [*found, cls]


def replaced_steps(module: Module) -> Iterator[Unit]:
    """The methods that replace a step of the same name, which stands before them in the same class."""
    for cls in module.classes.values():
        steps: set[str] = set()
        for method in cls.body:
            if isinstance(method, FunctionNode):
                if method.name in steps:
                    yield Unit(module, method, f"{cls.name}.{method.name}", Role.STEP, cls)
                if _decorated(method, STEP_DECORATORS, module.names):
                    steps.add(method.name)


def unit_of(module: Module, node: FunctionNode) -> Unit:
    """A function of a module as a unit, with the class it stands in."""
    cls = next((one for one in module.classes.values() if node in ast.walk(one)), None)
    where = node.name if cls is None else f"{cls.name}.{node.name}"
    return Unit(module, node, where, Role.HELPER, cls)


def find(name: str | None, module: Module, reach: Reach, hops: int = HOPS) -> Definition | None:
    """The function, class or method that a dotted name leads to, where it is the application's own.

    Args:
        name: Dotted, from an absolute module; None where that cannot be told.
        module: The module in which it is used.
        reach: Finds the source of another module.
        hops: How many modules may pass the name on to each other.
    """
    if name is None or "()" in name or not hops:
        return None
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        prefix = ".".join(parts[:end])
        home = module if prefix == module.name else (reach(prefix) if prefix else None)
        if home is not None:
            return _within(home, parts[end:], reach, hops)
    return None


def code_of(node: ast.AST) -> Iterator[ast.AST]:
    """Every node of a function's code: no annotations, no decorators. Of a class: its defaults alone."""
    match node:
        case ast.ClassDef():
            for statement in node.body:
                if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                    yield from _code(statement.value)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            for root in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
                yield from _code(root)
        case _:
            yield from _code(node)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    match node:
        case ast.AnnAssign(target=target, value=value):
            yield from _code(target)
            if value is not None:
                yield from _code(value)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from code_of(node)
        case ast.arg():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _code(child)


def _within(module: Module, path: list[str], reach: Reach, hops: int) -> Definition | None:
    match path:
        case [name] if name in module.functions:
            return Definition(module, module.functions[name])
        case [name] if name in module.classes:
            return Definition(module, module.classes[name])
        case [name, method] if name in module.classes:
            return all_methods(Class(module, module.classes[name]), reach, hops).get(method)
        case [name, *rest] if (other := module.names.get(name)) and other != f"{module.name}.{name}":
            return find(".".join([other, *rest]), module, reach, hops - 1)  # a name that the module itself imports
        case _:
            return None


def _used(unit: Unit, reach: Reach) -> Iterator[Definition]:
    names = unit.names
    owner = unit.owner
    for node in code_of(unit.node):
        match node:
            case ast.Attribute(value=ast.Name(id=me), attr=attr) if me == unit.me and owner is not None:
                if (method := all_methods(owner, reach).get(attr)) is not None:
                    yield method
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"), args=[]), attr=attr) if owner is not None:
                above = _lineage(Class(unit.module, unit.cls or owner.node), reach)[:-1]
                if (method := _methods(above, owner).get(attr)) is not None:
                    yield method
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                definition = find(dotted(node, names), unit.module, reach)
                if definition is not None:
                    yield definition
            case _:
                pass


def _helper(of: Definition) -> Unit:
    step = of.cls is not None and isinstance(of.node, FunctionNode) and _is_step(of.node, Class(of.module, of.cls))
    return _unit(of, Role.STEP if step else Role.HELPER)


def _unit(of: Definition, role: Role) -> Unit:
    where = of.node.name if of.cls is None else f"{of.cls.name}.{of.node.name}"
    return Unit(of.module, of.node, where, role, of.cls, of.self_of)


def _value_code(definition: Definition, called: set[str], reach: Reach) -> Iterator[Unit]:
    """What of a class runs when its values are made and used."""
    cls = definition.node
    assert isinstance(cls, ast.ClassDef)
    own = methods(cls)
    if is_skill_class(Class(definition.module, cls), reach):
        return  # another skill, named to be called as one
    yield Unit(definition.module, cls, cls.name, Role.HELPER)
    for name, method in own.items():
        marks = [ast.unparse(one) for one in method.decorator_list]
        silent = name in SILENT_METHODS or any(word in mark for mark in marks for word in SILENT_DECORATORS)
        if silent or name in called:
            yield Unit(definition.module, method, f"{cls.name}.{name}", Role.HELPER, cls)


def _table_steps(module: Module, reach: Reach) -> Iterator[Unit]:
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or dotted(call.func, module.names) not in STEP_ROWS:
            continue
        given = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "function")]
        match given:
            case [ast.Lambda() as function]:
                yield Unit(module, function, "a lambda", Role.STEP)
            case [ast.expr() as named]:
                definition = find(dotted(named, module.names), module, reach)
                if definition is not None and isinstance(definition.node, FunctionNode):
                    yield _unit(definition, Role.STEP)
            case _:
                pass


def _decorated(node: ast.AST, decorators: tuple[str, ...], names: Names) -> bool:
    marks = getattr(node, "decorator_list", [])
    return any(dotted(mark.func if isinstance(mark, ast.Call) else mark, names) in decorators for mark in marks)
