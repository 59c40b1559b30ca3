"""Journal entries and model text as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from rich.text import Text

from refold.cli.text.output import Output
from refold.core.events import ChatResult
from refold.core.fold.journal import Entry
from refold.engine import News, Progress, Tokens
from refold.words.entries import consequences, event_text, moves_text, shown_value
from refold.words.reasoning import reasoning_in
from refold.words.text import clean, snippet

INDENT = "    "


class Story:
    """Prints what happens to a task, line by line, to people or to programs."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self._day: date | None = None
        self._writing: tuple[str, int, int | None] | None = None
        self._shown: dict[tuple[str, int, int | None], int] = {}

    def tell(self, news: News) -> None:
        """Print one entry, one piece of model text, or one report of a tool."""
        if self.out.json:
            self.out.value(news)
        elif isinstance(news, Tokens):
            self._write(news)
        elif isinstance(news, Progress):
            self._writing = None
            self.out.say(f"{INDENT}{clean(news.invocation_id)} {clean(news.tool)}: {snippet(shown_value(news.said))}")
        else:
            self._writing = None
            day = news.at.astimezone().date()
            if self._day is not None and day != self._day:
                self.out.say(day.isoformat())
            self._day = day
            self.out.say(*entry_lines(news, reasoning=self.out.reasoning))

    def _write(self, tokens: Tokens) -> None:
        key = (tokens.invocation_id, tokens.attempt, tokens.call)
        if key != self._writing:
            self.out.end_line()
            doing = f"asks for {clean(tokens.tool)}" if tokens.tool else "writes"
            self.out.stream(f"{INDENT}{tokens.invocation_id} {doing}: ")
            self._writing = key
        # A watcher that came late misses the beginning of the text; one that reconnects gets parts of it twice.
        seen = self._shown.get(key, 0)
        gap = "…" if tokens.offset > seen else ""
        self.out.stream(gap + clean(tokens.text[max(0, seen - tokens.offset) :]))
        self._shown[key] = max(seen, tokens.offset + len(tokens.text))


def entry_lines(entry: Entry, *, reasoning: bool = False) -> Iterator[str | Text]:
    """`#5 12:00:03  critique answered: …`, followed by the entry's effects, a line each; on request with reasoning."""
    style = "dim" if entry.refused else ""
    yield Text(f"#{entry.seq} {entry.at.astimezone():%H:%M:%S}  {event_text(entry.event)}", style)
    if reasoning and isinstance(entry.event, ChatResult) and not entry.refused:
        yield from (f"{INDENT}reasons: {snippet(said, 2000)}" for said in reasoning_in(entry.event.reply))
    yield from (Text(f"{INDENT}{line}", style) for line in consequences(entry))
    if moved := moves_text(entry):
        yield Text(f"{INDENT}{moved}", "bold")
