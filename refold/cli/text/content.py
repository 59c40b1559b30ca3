"""From the words of a command line to the content of a message, and to a time."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import takewhile

from pydantic import JsonValue

from refold.cli.errors import CallError
from refold.cli.files import parts_of
from refold.core.content import Content, Part
from refold.core.values import shortened
from refold.words.as_json import KeyTwice, json_value

_TIME = re.compile(r"(\d{1,12})([dhms])", re.ASCII)
_LONGEST_S = 999_999 * 86_400
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PAIR = re.compile(r"([^\W\d][\w.-]*)=(.*)", re.DOTALL)


def content_of(words: Sequence[str], data: str | None, files: Sequence[str] = ()) -> Content:
    """A text, `key=value` pairs, JSON and files as one content: the text first, then the data, then the files.

    Args:
        words: At most one text (`-` reads stdin), then any number of pairs. A pair's value is parsed as JSON; a value
            that is not JSON is a string. A text after a pair is refused: it may be the rest of a value without quotes.
        data: JSON; pairs are added to it if it is an object.
        files: See `parts_of`.

    Raises:
        CallError: There is nothing to send, more than one text, a text after a pair, text that is not JSON as `data`,
            a key that is given twice, pairs beside JSON that is not an object, bytes that are no UTF-8, an empty text
            or stdin, or a file that cannot be sent.
    """
    pairs: dict[str, JsonValue] = {}
    texts: list[str] = []
    for at, word in enumerate(words):
        if pair := _PAIR.fullmatch(word):
            if pair[1] in pairs:
                raise CallError(f"{pair[1]}= is given twice; give it once")
            pairs[pair[1]] = _value(pair[1], _whole(f"{pair[1]}=", pair[2]))
        elif pairs:
            raise CallError(_after_a_pair(words[at - 1], *words[at:]))
        else:
            texts.append(word)
    if len(texts) > 1:
        raise CallError(
            f"one text is expected, got {len(texts)}: {', '.join(map(repr, texts))}; put a text of several words in "
            "quotes, and write data as key=value"
        )
    parts = [Part(text=_read() if text == "-" else _text("the text", text)) for text in texts]
    value = _with_pairs(None if data is None else _json(data), pairs)
    if value is not None:
        parts.append(Part(data=value))
    parts += parts_of(files)
    if not parts:
        raise CallError("there is nothing to send: give a text, key=value pairs, --data JSON, or --file PATH")
    return Content(parts=tuple(parts))


def _after_a_pair(pair: str, text: str, *later: str) -> str:
    key, _, value = pair.partition("=")
    meant = [value, text, *takewhile(lambda word: not _PAIR.fullmatch(word), later)]
    whole = f"{key}={shortened(' '.join(meant), 60)!r}"
    return (
        f"the text {shortened(text, 60)!r} comes after {key}=; if it belongs to the value, put the value in quotes: "
        f"{whole}; a text of its own comes before the first key=value"
    )


def _read() -> str:
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        text = error.object[error.start : error.end].decode(errors="surrogateescape")
    return _text("stdin", text)


def _text(what: str, text: str) -> str:
    """The text, checked. An empty one is refused: it may come from a shell variable that is not set."""
    if not text.strip():
        raise CallError(f"there is nothing to send: {what} is empty; --data '\"\"' sends an empty string on purpose")
    return _whole(what, text)


def _whole(what: str, text: str) -> str:
    """The text, checked. Bytes that are no UTF-8 are refused: Python passes them on as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CallError(f"{what} is no UTF-8 text; --file PATH sends any bytes") from None
    return text


def _with_pairs(data: JsonValue, pairs: dict[str, JsonValue]) -> JsonValue:
    if not pairs:
        return data
    if data is not None and not isinstance(data, dict):
        raise CallError(f"key=value pairs are added to an object, and --data is {json.dumps(data)[:60]}")
    both = sorted(pairs.keys() & (data or {}).keys())
    if both:
        raise CallError(f"{', '.join(both)}: given both in --data and as key=value")
    return {**(data or {}), **pairs}


def _value(key: str, text: str) -> JsonValue:
    try:
        return json_value(text)
    except KeyTwice as error:
        raise CallError(f"{key}={shortened(text, 60)}: {error}") from None
    except ValueError:
        return text


def _json(data: str) -> JsonValue:
    text = _read() if data == "-" else data
    try:
        value = json_value(text)
    except KeyTwice as error:
        raise CallError(f"--data: {error}; got {text[:60]!r}") from None
    except ValueError as error:
        raise CallError(f"--data is no JSON: {error}; got {text[:60]!r}") from None
    if value is None:
        raise CallError("--data is null, which is no data: leave it out")
    return value


def seconds_of(time: str) -> float:
    """A length of time as it is typed in, such as 30d or 12h, in seconds.

    Raises:
        CallError: It is none.
    """
    written = _TIME.fullmatch(time)
    if written is None:
        raise CallError(f"{time!r} is no length of time; write a number and a unit (d, h, m or s), such as 30d")
    if (seconds := int(written[1]) * _SECONDS[written[2]]) > _LONGEST_S:
        raise CallError(f"{time!r} is too long; the longest time is 999999d")
    return seconds
