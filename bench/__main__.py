"""`python -m bench NAME [--json]`: run one benchmark; exit 1 if a limit is broken."""

from __future__ import annotations

import argparse
import sys

from bench import a2a, conversation, fair, ledger, overhead, page, short
from bench.peers import compare

BENCHMARKS = {
    "a2a": a2a,
    "conversation": conversation,
    "fair": fair,
    "ledger": ledger,
    "overhead": overhead,
    "page": page,
    "peers": compare,
    "short": short,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark that the command line names; returns whether it kept its limits."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        summary = (benchmark.__doc__ or "").partition("\n")[0]
        own = names.add_parser(
            name, help=summary, description=benchmark.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        own.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
        benchmark.add_arguments(own)
    options = parser.parse_args(arguments)
    report = BENCHMARKS[options.name].run(options)
    print(report.as_json() if options.json else report.as_text())
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
