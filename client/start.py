"""Starts a task and prints its status: `python client/start.py SKILL TEXT [TASK_ID]`."""

import argparse
import asyncio
import sys

from refold import Content, RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(skill: str, text: str, task_id: str | None = None, engine: Engine | None = None) -> TaskView:
    engine = engine or await connect()
    view = await engine.start(skill, Content.from_text(text), task_id=task_id)
    print(f"{view.task_id}  {view.status}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("skill", help="the skill's id, for example research_loop")
    parser.add_argument("text", help="the first message")
    parser.add_argument("task_id", nargs="?", help="an id never used before; one is made up")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except RefoldError as error:
        sys.exit(f"error: {error}")
