"""Answers a task that waits, and prints its status: `python client/answer.py TASK_ID REPLY [SLOT]`."""

import argparse
import asyncio
import json
import sys

from refold import Content, RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(
    task_id: str, reply: str, slot: str | None = None, *, data: bool = False, engine: Engine | None = None
) -> TaskView:
    engine = engine or await connect()
    content = Content.from_data(json.loads(reply)) if data else Content.from_text(reply)
    view = await engine.send(task_id, content, slot=slot)
    print(f"{view.task_id}  {view.status}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id")
    parser.add_argument("reply", help="a text; JSON with --data")
    parser.add_argument("slot", nargs="?", help="which question it answers, where several are open")
    parser.add_argument("--data", action="store_true", help="the reply is JSON, for a question that wants data")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except (RefoldError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")
