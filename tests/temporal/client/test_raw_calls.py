"""Calls of the server's services that the SDK wraps in no method of its own: they say whether they are repeated.

Every five minutes the server ends each connection, and a call that was about to be sent on it fails as CANCELLED
("operation was canceled"); a busy server answers RESOURCE_EXHAUSTED. The SDK repeats its own calls then, and these only
if asked: else a purge, a schedule's trigger or a deploy would fail once in a while.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import refold
from tests.syntax import parsed

PACKAGE = Path(refold.__file__).parent
SERVICES = {"workflow_service", "operator_service"}


def raw_calls() -> Iterator[tuple[str, set[str | None]]]:
    """Where each is, and the keywords that it is given."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(parsed(file)):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=service)), keywords=given) if (
                    service in SERVICES
                ):
                    yield f"{file.relative_to(PACKAGE)}:{node.lineno}", {keyword.arg for keyword in given}


def test_every_raw_call_says_whether_it_is_repeated() -> None:
    """
    `retry=True`, or `retry=False` where whoever looks does so again soon.
    """
    calls = dict(raw_calls())

    assert [where for where, given in calls.items() if "retry" not in given] == []
    assert len(calls) > 10, "no such calls are found any more: does this test still see them?"
