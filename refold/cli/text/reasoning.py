"""The option with which people ask for a model's reasoning."""

from __future__ import annotations

from typing import Annotated

import typer

Reasoning = Annotated[
    bool, typer.Option("--reasoning", help="Show the models' reasoning too, where their provider tells it.")
]
