"""Workflow instances that share modules and compiled code. The only module that uses the inside of the SDK's sandbox.

Raises `ImportError` where the SDK's sandbox is made in another way: then each task imports its modules for itself, as
the SDK's own instances do, which takes more memory and time and changes nothing else (see `sandbox`).
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Collection
from functools import cache
from types import CodeType, ModuleType
from typing import Any, cast

from temporalio.worker import WorkflowInstanceDetails, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxRestrictions
from temporalio.worker.workflow_sandbox._importer import Importer
from temporalio.worker.workflow_sandbox._restrictions import RestrictedModule, RestrictionContext
from temporalio.worker.workflow_sandbox._runner import _Instance

from refold.temporal.worker.sandboxed.immutable import mutable_in
from refold.temporal.worker.sandboxed.uses import Uses

_OVERRIDDEN = {
    "__init__": ("instance_details", "runner_class", "restrictions"),
    "_create_instance": (),
    "_run_code": ("code", "extra_globals"),
    "_workflow_module_name": (),
}
_IMPORTER = ("restrictions", "restriction_context", "workflow_module_name")


def _refuse_another() -> None:
    """Check that the SDK's classes take what they are given here."""
    found = {name: getattr(_Instance, name, None) for name in _OVERRIDDEN}
    for name, method in [*found.items(), ("Importer", Importer.__init__)]:
        wanted = _IMPORTER if name == "Importer" else _OVERRIDDEN[name]
        if method is None or tuple(inspect.signature(method).parameters)[1:] != wanted:
            raise ImportError(f"the SDK's sandbox is made in another way: {name}")


_refuse_another()


class _PerThread(threading.local, RestrictionContext):
    """The sandbox's flag for running workflow code, one per thread: tasks that share modules use several threads."""


class SharedImporter(Importer):
    """An importer that checks whether tasks may share its modules, and checks again when a task imports more."""

    _judged = 0
    _mutable: str | None = None

    def mutable(self) -> str | None:
        """The first mutable value of the modules imported inside the sandbox, as `module.name`; None if there is none.

        Modules that are shared with the process do not count.
        """
        found = list(self.new_modules.items())  # a copy: a task of another thread may import meanwhile
        if len(found) > self._judged:
            inside = {
                name: one
                for name, one in found
                if not (name == "__main__" or one is sys.modules.get(name) or isinstance(one, RestrictedModule))
            }
            odd = next((name for name, one in inside.items() if not isinstance(one, ModuleType)), None)
            self._mutable = odd or _first_mutable(inside.values())
            self._judged = len(found)
        return self._mutable


def _first_mutable(modules: Collection[ModuleType]) -> str | None:
    uses = Uses(modules)
    names = ((one.__name__, mutable_in(one, uses)) for one in modules)
    return next((f"{module}.{name}" for module, name in names if name is not None), None)


@cache
def _compiled(code: str) -> CodeType:
    """The lines that enter the sandbox: a few texts in all, which the SDK compiles for each activation."""
    return compile(code, "<string>", "exec")


class SharingModules(_Instance):
    """The SDK's workflow instance, which reuses the modules of an earlier task if they are immutable."""

    def __init__(
        self,
        det: WorkflowInstanceDetails,
        runner_class: type[WorkflowRunner],
        restrictions: SandboxRestrictions,
        shared: dict[str, SharedImporter | str],
    ) -> None:
        self._shared = shared
        super().__init__(det, runner_class, restrictions)

    def _create_instance(self) -> None:
        name = self._workflow_module_name()
        known = self._shared.get(name)
        if isinstance(known, SharedImporter):
            known = self._shared[name] = known.mutable() or known
        if not isinstance(known, SharedImporter):
            known = SharedImporter(self.importer.restrictions, _PerThread(), workflow_module_name=name)
        self.importer = known
        super()._create_instance()  # reuses the importer's modules
        if name not in self._shared:
            self._shared[name] = known.mutable() or known

    def _run_code(self, code: str, **extra_globals: Any) -> None:
        super()._run_code(cast(str, _compiled(code)), **extra_globals)
