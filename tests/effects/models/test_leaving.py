"""A worker that is told to leave while its models' libraries load."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, sys, threading
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from refold.effects.http.client import open_client
from refold.effects.models.model_calls import ModelCalls
from refold.effects.threads import leave_threads


class Endless(MetaPathFinder, Loader):
    def find_spec(self, name, path, target=None):
        return ModuleSpec(name, self) if name == "pydantic_ai" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()


async def main():
    global begun, loop
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    leave_threads(loop)
    sys.meta_path.insert(0, Endless())
    calls = ModelCalls(None, open_client())
    asked = asyncio.create_task(calls.unusable(["scripted:demo"]))
    await begun.wait()
    asked.cancel()
    await calls.close()
    print("left")


asyncio.run(main())
"""


def test_nobody_waits_for_libraries_that_nobody_needs_any_more() -> None:
    """
    They may take long to load, or for ever, and their thread cannot be stopped: there is nothing to close yet.
    """
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)

    assert (done.stdout, done.stderr, done.returncode) == ("left\n", "", 0)
