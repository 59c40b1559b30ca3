"""The command line's help texts, as the reference has them: `python -m tests.docs.help_texts` writes them there."""

from __future__ import annotations

from typer import Typer
from typer.testing import CliRunner

from refold.cli.app import app
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference.md"
HEADING = "## Command line\n"


def verbs() -> list[str]:
    """The verbs, in the order in which the help lists them; those of a group after its name."""
    grouped = [group.typer_instance for group in app.registered_groups if group.typer_instance is not None]
    return [*_verbs(app), *(f"{group.info.name} {verb}" for group in grouped for verb in _verbs(group))]


def _verbs(of: Typer) -> list[str]:
    return [str(command.name or command.callback.__name__) for command in of.registered_commands if command.callback]


def help_text(*words: str) -> str:
    """What `--help` prints on a terminal of 100 columns."""
    return CliRunner().invoke(app, [*words, "--help"], terminal_width=100).output


def section() -> str:
    """The reference's last section."""
    parts = [HEADING, f"```text\n{help_text()}```\n"]
    parts += [f"### refold {verb}\n\n```text\n{help_text(*verb.split())}```\n" for verb in verbs()]
    return "\n".join(parts)


if __name__ == "__main__":
    REFERENCE.write_text(REFERENCE.read_text().partition(HEADING)[0] + section())
