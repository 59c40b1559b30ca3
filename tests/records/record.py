"""Records journals and histories: `python -m tests.records.record --help`."""

from __future__ import annotations

import argparse
import asyncio
import re

from tests.records import replaying, tapes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.records.record", description=__doc__)
    parser.add_argument("names", nargs="*", help="what to record, as regular expressions; without any, all journals")
    parser.add_argument("--script", action="store_true", help="from the script, even where there is a file")
    parser.add_argument("--histories", action="store_true", help="histories, on a Temporal server of its own")
    parser.add_argument("--replayed", action="store_true", help="what is seen of histories, as they were recorded")
    asked = parser.parse_args()
    if asked.histories:
        from tests.records.on_server import record  # needs a server, and the SDK

        asyncio.run(record(asked.names))
        return
    if asked.replayed:
        asyncio.run(replaying.rewrite(asked.names))
        return
    for name, tape in sorted(_tapes(asked.names, asked.script).items()):
        tapes.write(name, tape)


def _tapes(names: list[str], script: bool) -> dict[str, tapes.Tape]:
    """What is to be written, by name: from its file, or from its script where it has none."""
    recorded = {path.stem: path for path in tapes.JOURNALS.glob("*.jsonl")}
    found = {name: tapes.read(path)[0] for name, path in recorded.items() if _wanted(name, names)}
    missing = [name for name in names if not any(re.fullmatch(name, known) for known in found)]
    if script or missing or not recorded:
        from tests.records import chance, scenarios

        for name, tape in (*scenarios.every(), *chance.every()):
            if _wanted(name, names) and (script or name not in found):
                found[name] = tape
    return found


def _wanted(name: str, names: list[str]) -> bool:
    return not names or any(re.fullmatch(one, name) for one in names)


if __name__ == "__main__":
    main()
