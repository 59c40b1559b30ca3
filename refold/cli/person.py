"""The name of whoever calls a command: for the journal, and for gates that say who may decide."""

from __future__ import annotations

import getpass
import os
from typing import Annotated

import typer

from refold.cli.errors import CallError

As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Your name. Else REFOLD_APPROVER, else your user name.",
        envvar="REFOLD_APPROVER",
    ),
]
"""Who calls; give it to `caller`."""


def known_caller(named: str | None = None) -> str | None:
    """As `caller`; None where the user has no name."""
    try:
        return caller(named)
    except CallError:
        return None


def caller(named: str | None = None) -> str:
    """The name that a call gives with `--as`, else REFOLD_APPROVER, else the user's.

    Raises:
        CallError: The user has no name, as in a container that runs under any user id.
    """
    try:
        return named or os.environ.get("REFOLD_APPROVER") or getpass.getuser()
    except (KeyError, OSError):
        raise CallError(
            f"the user with the id {os.getuid()} has no name on this machine; set REFOLD_APPROVER to your name"
        ) from None
