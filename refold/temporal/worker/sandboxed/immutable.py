"""Tells whether an imported module is immutable, so that the tasks of a worker can share one copy.

Strict: a value of a type that is not known to be immutable makes the module mutable. So does a function that imports,
because the imported module cannot be judged yet, that rebinds a global, or that sets an attribute of a module, a class
or a skill. Lists, dicts and sets that a module holds by name count as immutable if functions only read them.
"""

from __future__ import annotations

import dis
import logging
import re
import types
from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from operator import attrgetter, itemgetter
from pathlib import PurePath
from types import ModuleType
from typing import Any, ForwardRef, TypeVar
from uuid import UUID

from pydantic import BaseModel, TypeAdapter

from refold.core.authoring.reducer import ReducerSkill
from refold.core.contracts.contract import Contract, Fallback, Invariant, Move, Requirement, StepContract
from refold.core.steps.machine import StepMachine
from refold.core.steps.table import Step
from refold.temporal.worker.sandboxed.uses import Uses

_FUTURE = type(annotations)  # what `from __future__ import annotations` leaves in a module
_FIELD_OF_A_TUPLE = type(vars(namedtuple("Pair", "left right"))["left"])
_IMMUTABLE: tuple[type, ...] = (
    *(str, bytes, bool, int, float, complex, type(None), type(Ellipsis), type(NotImplemented), range, slice),
    *(Decimal, Fraction, UUID, date, time, timedelta, tzinfo, PurePath, re.Pattern, TypeVar, ForwardRef),
    *(ModuleType, types.CodeType, types.GenericAlias, types.UnionType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
    *(_FIELD_OF_A_TUPLE, _FUTURE, TypeAdapter, itemgetter, attrgetter),
    logging.Logger,  # the process's own, whatever is shared
)
_DATACLASSES_REPR = ("_recursive_repr.", "recursive_repr.")
_SDK = "temporalio."
_OURS = "refold."
_PASSED = ("typing", "typing_extensions", "structlog")
"""Packages whose objects count as immutable: type hints, and loggers, which are the process's own."""

# Names that Python and pydantic set on modules, classes and functions.
_THEIR_OWN = re.compile(
    r"__(?!refold_skill)\w+__|_abc_impl|_fields|_field_defaults|model_config|model_fields|model_computed_fields"
)
_REACHING_OUT = frozenset({"IMPORT_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"})
_ENUMS_OWN = re.compile(r"_\w+_")


def mutable_in(module: ModuleType, uses: Uses) -> str | None:
    """The first name of the module under which something can change; None if there is none.

    A class or a function that another module defines is judged with that module.

    Args:
        module: The module.
        uses: What the module and all that may reach it do with names.
    """
    seen: set[int] = set()
    for name, value in _own_names(vars(module)).items():
        try:
            if type(value) in (list, dict, set):
                immutable = _all(_members(value), module.__name__, seen) and uses.only_read(name)
            else:
                immutable = _is_immutable(value, module.__name__, seen)
        except Exception:  # noqa: BLE001 - a value may raise anything when it is looked at
            immutable = False
        if not immutable:
            return name
    return uses.setter(module.__name__)


def _members(value: Iterable[Any]) -> Iterable[Any]:
    return [*value, *value.values()] if isinstance(value, Mapping) else value


def _own_names(names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in names.items() if not _THEIR_OWN.fullmatch(name) or _is_written(value)}


def _is_written(value: object) -> bool:
    """Whether it is a function of somebody's source, and none that Python or pydantic has made."""
    if not isinstance(value, types.FunctionType):
        return False
    code = value.__code__
    return not (code.co_filename.startswith("<") or code.co_qualname.startswith(_DATACLASSES_REPR))


def _own(names: Mapping[str, Any]) -> list[Any]:
    return list(_own_names(names).values())


def _attributes(cls: type) -> list[Any]:
    enum = issubclass(cls, Enum)
    return _own({name: value for name, value in vars(cls).items() if not (enum and _ENUMS_OWN.fullmatch(name))})


def _all(values: Iterable[Any], module: str, seen: set[int]) -> bool:
    return all(_is_immutable(value, module, seen) for value in values)


def _is_immutable(value: Any, module: str, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    kind = type(value)
    if kind.__module__.startswith(_SDK):
        return True  # the sandbox's proxy of a module, or the SDK's definition of a workflow
    if isinstance(value, type):
        # A class of another module is checked with that module.
        return value.__module__ != module or _all(_attributes(value), module, seen)
    if isinstance(value, types.FunctionType):
        return _is_immutable_function(value, module, seen)
    if (parts := _parts(value)) is not None:
        return _all(parts, module, seen)
    return isinstance(value, _IMMUTABLE) or kind.__module__.partition(".")[0] in _PASSED


def _is_immutable_function(value: types.FunctionType, module: str, seen: set[int]) -> bool:
    home, code = value.__module__ or "", value.__code__
    if (home == module and _reaches_out(code)) or _rebinds(code):
        return False
    within = "<locals>" in code.co_qualname  # another function, which no module holds
    if home != module and (not within or home.startswith((_OURS, "pydantic."))):
        return True  # it is judged with that module
    cells = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
    defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    return _all([*defaults, *cells, *_own(vars(value)), vars(value).get("__wrapped__")], module, seen)


def _parts(value: Any) -> Iterable[Any] | None:
    """What makes a value mutable if it is: what it holds; None for a value of another kind."""
    match value:
        case staticmethod() | classmethod():
            return [value.__func__]
        case property():
            return [value.fget, value.fset, value.fdel]
        case tuple() | frozenset():
            return value
        case types.MappingProxyType():
            return _members(value)  # the dict behind it is looked at under its own name, if it has one
        case types.BuiltinFunctionType():
            return [value.__self__]  # the module of a function, or what a method is bound to
        case types.MethodType():
            bound = value.__self__
            ours = type(bound).__module__.startswith(_OURS) or hasattr(bound, "__refold_skill__")  # `uses` knows skills
            return [value.__func__, *(getattr(bound, "__dict__", {}).values() if ours else [bound])]
        case cached_property():
            return [value.func]
        case partial():
            return [value.func, *value.args, *value.keywords.values()]
        case _:
            return _parts_of_object(value)


def _parts_of_object(value: Any) -> Iterable[Any] | None:
    match value:
        case Step():
            return [value.function, *value.terms.values()]
        case Contract() | StepContract() | Move() | Invariant() | Requirement() | Fallback():
            return [getattr(value, field.name) for field in fields(value)]
        case StepMachine():
            held = [part for step in value.steps.values() for part in (step.run, step.contract)]
            return [value.options.upgrade, value.options.contract, *held, *value.references]
        case ReducerSkill():
            return [value.options.upgrade, *getattr(value.author, "__dict__", {}).values()]
        case BaseModel() if value.model_config.get("frozen"):
            return [*vars(value).values(), *(value.__pydantic_private__ or {}).values()]
        case Enum():
            return vars(value).values()
        case _:
            kind = type(value)
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # where it is kept
        # Fields of refold's that begin with `_` are caches, excluded from comparison; tasks do not read them.
        ours = kind.__module__.startswith(_OURS)
        own = {one.name: getattr(value, one.name) for one in fields(value)} | getattr(value, "__dict__", {})
        return [one for name, one in own.items() if not (ours and name.startswith("_"))]
    return None


@lru_cache(maxsize=4096)
def _reaches_out(code: types.CodeType) -> bool:
    """Whether the code imports, or rebinds a global."""
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return any(one.opname in _REACHING_OUT for one in dis.get_instructions(code)) or any(map(_reaches_out, inner))


@lru_cache(maxsize=4096)
def _rebinds(code: types.CodeType) -> bool:
    """Whether a call leaves another value in a cell of the function's, by `nonlocal`."""
    return any(one.opname == "STORE_DEREF" and one.argval in code.co_freevars for one in dis.get_instructions(code))


def _filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asking is what raises
    except ValueError:
        return False
    return True
