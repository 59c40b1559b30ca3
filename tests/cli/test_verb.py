"""How a verb's process ends."""

from __future__ import annotations

import subprocess
import sys

LEAVES = """
import asyncio, sys, threading

from refold.cli.app import app, main
from refold.cli.verb import Call, add

async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

async def leaves(call: Call) -> int:
    kept.append(asyncio.create_task(stubborn()))
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await asyncio.sleep(0)
    call.out.say("left")
    return 1

kept = []
add(app, leaves, connects=False)
sys.argv = ["refold", "leaves"]
main()
"""

CLEANS_UP = """
import asyncio, sys

from refold.cli.app import app, main
from refold.cli.verb import Call, add

async def cleans_up(call: Call) -> None:
    async def beside():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            call.out.say("cleaned up")

    kept.append(asyncio.create_task(beside()))
    await asyncio.sleep(0)

kept = []
add(app, cleans_up, connects=False)
sys.argv = ["refold", "cleans_up"]
main()
"""


def test_a_process_waits_for_no_thread_and_for_no_task_that_ignores_its_cancellation() -> None:
    """
    A tool that left a call in a thread, or that swallows its cancellation, does not keep a worker that has stopped.
    """
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, timeout=250, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (1, "left\n", "")


def test_a_task_beside_a_verb_cleans_up_when_the_verb_has_returned() -> None:
    """
    It is canceled, and awaited.
    """
    done = subprocess.run([sys.executable, "-c", CLEANS_UP], capture_output=True, text=True, timeout=250, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\n", "")
