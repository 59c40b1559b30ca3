"""Answers a task that waits, and says how it stands: `python client/answer.py TASK_ID TEXT [SLOT]`."""

import argparse
import asyncio
import sys

from refold import Content, RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(task_id: str, text: str, slot: str | None = None, engine: Engine | None = None) -> TaskView:
    engine = engine or await connect()
    view = await engine.send(task_id, Content.from_text(text), slot=slot)
    print(f"{view.task_id}  {view.status}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id")
    parser.add_argument("text", help="the reply")
    parser.add_argument("slot", nargs="?", help="which question it answers, where several are open")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except RefoldError as error:
        sys.exit(f"error: {error}")
