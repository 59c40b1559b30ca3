"""Decides at a gate, and prints the task's status: `python client/approve.py TASK_ID NAME [--deny] [--comment WHY]`."""

import argparse
import asyncio
import sys

from refold import RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(
    task_id: str, approver: str, *, deny: bool = False, comment: str = "", engine: Engine | None = None
) -> TaskView:
    engine = engine or await connect()
    view = await engine.decide(task_id, approved=not deny, approver=approver, comment=comment)
    print(f"{view.task_id}  {view.status}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id")
    parser.add_argument("approver", help="who decides")
    parser.add_argument("--deny", action="store_true", help="refuse it")
    parser.add_argument("--comment", default="", help="why")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except RefoldError as error:
        sys.exit(f"error: {error}")
