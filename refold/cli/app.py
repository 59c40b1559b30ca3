"""The `refold` command: all verbs together."""

from __future__ import annotations

import codecs
import contextlib
import importlib.metadata
import io
import json
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from refold.cli.errors import DONE, INTERRUPTED, UNREAD, WRONG_CALL, explain, report
from refold.cli.misspelled import misspelled
from refold.cli.verbs import (
    code,
    decisions,
    evals,
    history,
    ledger,
    look,
    memory,
    records,
    replay,
    schedule,
    tasks,
    upgrade,
)
from refold.cli.verbs.processes import codec, dev, metrics, serve, worker
from refold.core.values import shortened

EPILOG = (
    "Results go to stdout, talk and errors to stderr. Exit codes: 0 done; 1 the task failed, was rejected or canceled, "
    "what was checked has findings (`check`, `replay`, `eval`, `journal --verify`), or `upgrade` has not moved all "
    "tasks; 2 the command could not be carried out. The Temporal server is set as for Temporal's own tools: by "
    "TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, or a profile. REFOLD_DEBUG=1 shows tracebacks."
)


class _Verbs(TyperGroup):
    """The group of all verbs: reports wrong calls in one line, or as JSON."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line `args`, and exit."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        if "--json" not in words:
            sys.stderr.writelines(f"{problem}\n" for problem in misspelled(os.environ))
        try:
            code = super().main(words, prog_name or "refold", complete_var, standalone_mode=False, **extra)
        except typer.Abort:
            code = INTERRUPTED
        except typer.TyperException as error:
            verb = words[0] if words[0] in self.commands else ""
            report(type(error).__name__, _usage(error, verb), as_json="--json" in words)
            code = WRONG_CALL
        if not standalone_mode:
            return code
        sys.exit(code or 0)


app = typer.Typer(
    name="refold",
    cls=_Verbs,
    help="Agents that cannot lose their work: start tasks, answer, watch and inspect them.",
    epilog=EPILOG,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"refold {importlib.metadata.version('refold')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


_GROUPS = (
    dev,
    worker,
    serve,
    metrics,
    codec,
    tasks,
    decisions,
    look,
    schedule,
    history,
    records,
    evals,
    code,
    replay,
    upgrade,
    ledger,
    memory,
)

for group in _GROUPS:
    group.add_to(app)


def _usage(error: typer.TyperException, verb: str) -> str:
    """What is wrong with a call, and where its help is.

    Args:
        error: Its context is missing where an option lacks its value, and its message is the help of a group of verbs
            of which none was named.
        verb: The verb that was called; empty if there is none of this name.
    """
    context = getattr(error, "ctx", None)
    message = getattr(error, "format_message", error.__str__)()
    path = context.command_path if context is not None else f"refold {verb}".rstrip()
    if context is not None and isinstance(context.command, TyperGroup) and message.startswith("Usage:"):
        message = f"Missing command, one of {', '.join(context.command.commands)}"
    message = message.replace(": Value error, ", ": ", 1)
    if isinstance(error.__cause__, ValidationError):
        given = repr(shortened(str(error.__cause__.errors()[0]["input"]), 60))
        message += "" if given in message else f", got {given}"
    text = ", and text that begins with `-` stands after `--`" if message.startswith("No such option") else ""
    return f"{message.rstrip('.')}; `{path} --help` shows how it is called{text}"


def _code() -> Any:
    """Run the command line of this process, and write all of its output; returns the exit code."""
    code: Any = DONE
    try:
        try:
            app()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # the libraries that print exit with 1
                return UNREAD
            code = end.code
        sys.stdout.flush()
    except BrokenPipeError:
        return code or UNREAD
    except OSError as error:
        if code != WRONG_CALL:  # else the verb has reported its error, which may be this one
            report(*explain(error), as_json="--json" in sys.argv)
        return WRONG_CALL
    return code


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What the output's encoding lacks, as JSON escapes it, in which it stays valid; people can read it, too."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _keep_stdout_for_results() -> None:
    """Send to stderr what libraries write past `sys.stdout`: Temporal's core logs to the process's stdout."""
    out = sys.stdout
    with contextlib.suppress(OSError):  # a stream that is closed, or no file
        if not isinstance(out, io.TextIOWrapper) or out.fileno() != 1:
            return
        results = os.dup(1)
        os.dup2(2, 1)
        by_line = out.line_buffering or out.write_through
        # A descriptor, so no `Path`; open until the process ends, so no `with`.
        apart = open(results, "w", 1 if by_line else -1, out.encoding, out.errors)  # noqa: SIM115, PTH123
        for name in ("stdout", "__stdout__"):
            setattr(sys, name, apart)


def main() -> None:
    """Run the command line of this process."""
    codecs.register_error("refold", _escaped)
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # its caller has closed it
            nothing, mode = os.open(os.devnull, os.O_RDWR), "r" if name == "stdin" else "w"
            # Open until the process ends, also where another stream takes the place of this one.
            setattr(sys, name, open(nothing, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="refold")
    _keep_stdout_for_results()
    code = _code()
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if (tracing := sys.modules.get("refold.temporal.tracing")) is not None:
        tracing.flush()
    # Not sys.exit: threads of the Temporal SDK may still be on their way out of Python, which then aborts (exit 134).
    os._exit(code if isinstance(code, int) else WRONG_CALL)
