"""Prints a task's status: `python client/show.py TASK_ID`."""

import argparse
import asyncio
import sys

from refold import RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(task_id: str, engine: Engine | None = None) -> TaskView:
    engine = engine or await connect()
    view = await engine.look(task_id)
    print(f"{view.task_id}  {view.skill}  {view.status}  {view.reason or view.note}".rstrip())
    for message in view.messages:
        print(f"{message.role}: {message.text}")
    for artifact in view.artifacts:
        print(f"{artifact.name}: {artifact.text or artifact.data or artifact.url}")
    for wait in view.waiting_for:
        print(f"waits for {wait.slot}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except RefoldError as error:
        sys.exit(f"error: {error}")
