"""Turns values into HTML: the templates, and what they call to show times, data and hostile text."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from refold.callbacks.address import without_addresses
from refold.core.lifecycle import TaskState
from refold.web.page.brief import LONGEST, brief
from refold.words.text import UNSEEN, clean, snippet

HERE = Path(__file__).parent
LINE = 300
"""How much of a text is shown in one line, in characters."""


def plain(text: object, limit: int = LONGEST) -> str:
    """Text as it is shown: whole lines, not endless, without callbacks' addresses or characters that hide others."""
    whole = str(text)
    shown = clean(without_addresses(whole[:limit]))
    return shown if len(whole) <= limit else f"{shown}… (cut here; {len(whole):,} characters in all)"


def as_long(text: str) -> str:
    """Text as `plain` shows it, but with as many characters as it has, since a stream counts them."""
    seen = UNSEEN.sub("\N{REPLACEMENT CHARACTER}", without_addresses(text.replace("\r", "\n"), "•"))
    return clean(seen)


def line(text: object, limit: int = LINE) -> str:
    """Text in one line."""
    return plain(snippet(str(text)[: limit * 4], limit))


def data(value: Any, limit: int = LONGEST, *, reasoning: bool = True) -> str:
    """A value as people read it: text as it is, else JSON on several lines."""
    if isinstance(value, str):
        return plain(value, limit)
    some = brief(value, limit, reasoning=reasoning)
    text = json.dumps(some.value, ensure_ascii=False, indent=2)
    if len(text) <= limit and not some.left:
        return plain(text, limit)
    return (
        f"{plain(text[:limit], limit)}… (cut here{f'; it lacks {some.left:,} fields and items' if some.left else ''})"
    )


def all_of(value: Any) -> str:
    """All of a value that is the beginning of a longer one already: text as it is, else JSON on several lines."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return plain(text, len(text))


def moment(at: datetime | None) -> Markup:
    """A time in UTC, which the page's script writes in the reader's time zone."""
    if at is None:
        return Markup("–")
    at = at.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S} UTC")


def title(name: str) -> str:
    """A field's name as a label: `amount_cents` as `Amount cents`."""
    words = plain(name, 80).replace("_", " ").strip()
    return words[:1].upper() + words[1:] if words else name


STATES = {
    TaskState.PLANNED: "Not begun",
    TaskState.RUNNING: "Working",
    TaskState.PAUSED: "Waits for people",
    TaskState.BLOCKED: "Blocked",
    TaskState.RETRYING: "Tries again",
    TaskState.DONE: "Done",
    TaskState.FAILED: "Failed or canceled",
}
"""The lifecycle states as people read them."""


@cache
def _environment() -> Environment:
    """Compiled once for all pages of a process."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(plain=plain, line=line, data=data, all_of=all_of)
    environment.filters.update(moment=moment, title=title, brief=brief)
    environment.globals.update(version=version, state_words=STATES)
    return environment


def render(name: str, **values: Any) -> str:
    """The HTML of a template."""
    return _environment().get_template(name).render(**values)


def version(name: str) -> str:
    """A version that changes with the file, so that browsers may cache it for ever; `KeyError` for no such file."""
    return _VERSIONS[name]


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


_VERSIONS = {file.name: _hash(file) for file in (HERE / "static").iterdir() if file.is_file()}
