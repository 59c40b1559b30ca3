"""Prints a task's journal until the task pauses or ends: `python client/watch.py TASK_ID [--follow]`."""

import argparse
import asyncio
import sys

from refold import RefoldError
from refold.engine import Engine, Progress, Tokens
from refold.temporal import connect


async def main(task_id: str, follow: bool = False, engine: Engine | None = None) -> None:
    engine = engine or await connect()
    async for news in engine.watch(task_id, follow=follow):
        if isinstance(news, Tokens):
            print(news.text, end="", flush=True)
            continue
        if isinstance(news, Progress):
            print(f"   {news.tool}: {news.said}")
            continue
        moves = ", ".join(move.to_state for move in news.moves)
        asked = ", ".join(f"{one.command.kind} {one.command.subject}" for one in news.commands)
        print(f"#{news.seq}  {news.event.kind}  {moves or '-'}  asks: {asked or '-'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task_id")
    parser.add_argument("--follow", action="store_true", help="stay over pauses, until the task ends")
    try:
        asyncio.run(main(**vars(parser.parse_args())))
    except RefoldError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
