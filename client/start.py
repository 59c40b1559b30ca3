"""Starts a task and prints its status: `python client/start.py SKILL TEXT [TASK_ID]`."""

import argparse
import asyncio
import json
import sys

from refold import Content, RefoldError
from refold.engine import Engine, TaskView
from refold.temporal import connect


async def main(
    skill: str, text: str, task_id: str | None = None, engine: Engine | None = None, *, data: bool = False
) -> TaskView:
    engine = engine or await connect()
    content = Content.from_data(json.loads(text)) if data else Content.from_text(text)
    view = await engine.start(skill, content, task_id=task_id)
    print(f"{view.task_id}  {view.status}")
    return view


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("skill", help="the skill's id, for example research_loop")
    parser.add_argument("text", help="the first message: a text; JSON with --data")
    parser.add_argument("task_id", nargs="?", help="an id never used before; one is made up")
    parser.add_argument("--data", action="store_true", help="the message is JSON, for a skill that takes data")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except (RefoldError, json.JSONDecodeError) as error:
        sys.exit(f"error: {error}")
