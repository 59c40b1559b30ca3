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

READS_ON = """
import asyncio, sys

from refold.cli.app import app, main
from refold.cli.verb import Call, add

async def reads_on(call: Call) -> None:
    async def news():
        try:
            reading.set()
            await asyncio.Event().wait()
            yield
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            call.out.say("cleaned up")

    async def beside():
        async for _ in news():
            pass

    reading = asyncio.Event()
    kept.append(asyncio.create_task(beside()))
    await reading.wait()

kept = []
add(app, reads_on, connects=False)
sys.argv = ["refold", "reads_on"]
main()
"""

UNREAD = """
import asyncio, sys

from refold.cli.app import app, main
from refold.cli.verb import Call, add

async def lines():
    try:
        yield 1
    finally:
        for _ in range(10):
            await asyncio.sleep(0)
        sys.stderr.write("cleaned up\\n")

async def entries():
    async for line in lines():
        yield line

async def unread(call: Call) -> None:
    async for _ in entries():
        raise BrokenPipeError

add(app, unread, connects=False)
sys.argv = ["refold", "unread"]
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


def test_a_generator_is_not_closed_while_a_canceled_task_still_reads_it() -> None:
    """
    Python refuses to, and prints the error: a second Ctrl-C leaves the task of `--wait` so, which reads the news.
    """
    done = subprocess.run([sys.executable, "-c", READS_ON], capture_output=True, text=True, timeout=250, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\n", "")


def test_what_a_verb_reads_is_closed_to_the_end_when_nobody_reads_its_output() -> None:
    """
    `refold journal TASK | head -1`: also what is read by what the verb reads, and without a word from Python.
    """
    done = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True, timeout=250, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (141, "", "cleaned up\n")
