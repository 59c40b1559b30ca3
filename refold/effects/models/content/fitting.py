"""Makes a conversation one that providers accept: each call with one result, names and ids that fit, no empty text.

The journal keeps what was said as it was said; only what is sent is changed, the same way each time, so that a
provider's cache of the conversation's beginning still applies.

| providers require                                                        | what is sent                           |
| ------------------------------------------------------------------------ | -------------------------------------- |
| one result for each tool call, right after the reply, in order           | `UNANSWERED`, where one is missing     |
| a tool's name of letters, digits, `_`, `-`, at most 64                   | other characters are `_`, and a hash   |
| a call's id of letters, digits, `_`, `-`, at most 40, once a conversation| the same; a repeated id has a number   |
| no text that is empty or blank                                           | left out, or a note in brackets        |
| a user's message first                                                   | a note in brackets                     |

Source: the references of OpenAI's chat completions and Anthropic's messages, and what their servers refuse.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from pydantic import JsonValue

from refold.conversation import UNANSWERED
from refold.core.chat import Reply, Said, ToolCall, ToolReturn, UserSaid
from refold.core.content import Content
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict

NAME_CHARS = 64
ID_CHARS = 40
EMPTY = "(an empty message)"
CUT_OFF = "(earlier messages are left out)"
GO_ON = "(go on)"

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def fit_name(name: str) -> str:
    """A tool's name as providers accept it; a name that fits is unchanged, and two names never become one."""
    return _fit(name, NAME_CHARS)


def _fit(text: str, chars: int) -> str:
    if text and len(text) <= chars and not _UNFIT.search(text):
        return text
    mark = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
    return f"{_UNFIT.sub('_', text)[: chars - len(mark) - 1]}_{mark}"


def fitted(said: Sequence[Said], *, since: int = 0) -> list[Said]:
    """A conversation in the form that is sent.

    Args:
        said: All turns, oldest first.
        since: How many of the oldest turns are left out. Results of calls that are left out are left out too.

    Raises:
        Verdict: There is a result without a call, or a second one for a call.
    """
    ids, sent = _Ids(), list[Said]()
    for reply, after in _rounds(said[since:]):
        cut = since and reply is None
        sent += _answered(reply, [one for one in after if not (cut and isinstance(one, ToolReturn))], ids)
    if sent and not isinstance(sent[0], UserSaid):
        sent.insert(0, _note(CUT_OFF))
    if not sent or isinstance(sent[-1], Reply):
        sent.append(_note(GO_ON))
    return sent


def _rounds(said: Sequence[Said]) -> Iterator[tuple[Reply | None, list[Said]]]:
    """Each reply with what was said after it; first, without a reply, what was said before them all."""
    reply: Reply | None = None
    after: list[Said] = []
    for one in said:
        if isinstance(one, Reply):
            yield reply, after
            reply, after = one, []
        else:
            after.append(one)
    yield reply, after


def _answered(reply: Reply | None, after: Sequence[Said], ids: _Ids) -> Iterator[Said]:
    """A reply, one result for each of its calls in their order, and whatever else was said before the next reply."""
    returned: dict[str, list[ToolReturn]] = {}
    for one in after:
        if isinstance(one, ToolReturn):
            returned.setdefault(one.id, []).append(one)
    calls = () if reply is None else reply.tool_calls
    results = [_result(call, returned) for call in calls]
    if left := next((one for ones in returned.values() for one in ones), None):
        known = ", ".join(repr(call.id) for call in calls) or "none"
        message = (
            f"the conversation has a result of tool {left.name!r} for call {left.id!r}, and the reply before it has no "
            f"such call without a result; its calls are: {known}. Give one result for each call"
        )
        raise Verdict(Failure(kind=FailureKind.PERMANENT, type="conversation", message=message))
    if reply is not None and not _says_nothing(reply):
        made = [ids.made(call.id) for call in calls]
        yield _sent_reply(reply, made)
        for id, one in zip(made, results, strict=True):
            yield one.model_copy(update={"id": id, "name": fit_name(one.name)})
    for one in after:
        if isinstance(one, UserSaid):
            yield one


def _result(call: ToolCall, returned: dict[str, list[ToolReturn]]) -> ToolReturn:
    found = returned.get(call.id)
    if not found:
        return ToolReturn(id=call.id, name=call.name, value=UNANSWERED, failed=True)
    return found.pop(0).model_copy(update={"name": call.name})


def _sent_reply(reply: Reply, ids: Sequence[str]) -> Reply:
    calls = tuple(
        call.model_copy(update={"id": id, "name": fit_name(call.name)})
        for call, id in zip(reply.tool_calls, ids, strict=True)
    )
    left = iter(ids)
    aside = tuple({**one, "call": next(left)} if "call" in one else one for one in _aside_now(reply))
    return reply.model_copy(update={"tool_calls": calls, "aside": aside})


def _aside_now(reply: Reply) -> Sequence[dict[str, JsonValue]]:
    """What a reply's provider requires back, if the reply is what it was.

    Of a reply that middleware has changed, reasoning is left, and only before calls, where some providers require it.
    Files are left out if some were removed: which ones is not known.
    """
    aside = reply.aside
    if sum("file" in one for one in aside) > len(reply.files):
        aside = tuple(one for one in aside if "file" not in one)
    chars = sum(cast(int, one["text"]) + cast(int, one.get("gap", 0)) for one in aside if "text" in one)
    known = {str(one["call"]): one for one in aside if "call" in one}
    if not aside or (chars == len(reply.text) and [*known] == [call.id for call in reply.tool_calls]):
        return aside
    if not reply.tool_calls:
        return ()
    thinking = [one for one in aside if "thinking" in one]
    return *thinking, {"text": len(reply.text)}, *(known.get(one.id, {"call": one.id}) for one in reply.tool_calls)


class _Ids:
    """The ids of a conversation's calls, as they are sent: each one once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def made(self, id: str) -> str:
        fit, number = _fit(id, ID_CHARS), 1
        while fit in self._used:
            number += 1
            fit = _fit(f"{id}_{number}", ID_CHARS)
        self._used.add(fit)
        return fit


def unrepeated(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls of a reply, each with an id of its own: some servers give two calls of a reply the same id, or none."""
    used: set[str] = set()
    made = []
    for call in calls:
        id, number = call.id or "call", 1
        while id in used:
            number += 1
            id = f"{call.id or 'call'}_{number}"
        used.add(id)
        made.append(call if id == call.id else call.model_copy(update={"id": id}))
    return tuple(made)


def _says_nothing(reply: Reply) -> bool:
    return not (reply.text.strip() or reply.tool_calls or reply.value is not None or reply.aside)


def _note(text: str) -> UserSaid:
    return UserSaid(content=Content.from_text(text))


# --- schemas


def fit_schema(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A JSON schema of an object as providers accept it, and whether OpenAI's strict mode accepts it too.

    A tuple becomes a list of its types; a list without a type of items has items of any type; alternatives at the top,
    which no provider accepts there, are left out, since the receiver checks the arguments anyway. Left out, too, are
    keywords whose value is null or of the wrong kind, as some servers of tools write them for what is not there.
    """
    made = _fit_part(schema)
    for word in ("oneOf", "anyOf", "allOf", "enum", "not"):
        if "$ref" not in made:
            made.pop(word, None)
    if "$ref" not in made:
        made = {**made, "type": "object", "properties": made.get("properties", {})}
    return made, not _is_loose(made)


_PARTS = ("properties", "$defs", "definitions", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf")
_TYPED = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(_PARTS, (dict,)),
    **dict.fromkeys((*_LISTS, "prefixItems", "required", "enum"), (list,)),
    **dict.fromkeys(("additionalProperties", "propertyNames", "contains"), (dict, bool)),
    "items": (dict, bool, list),
    "type": (str, list),
    "$ref": (str,),
    "minItems": (int,),
}
"""What the values of the keywords are that the providers' clients read."""
_VALUES = ("default", "const")
"""The keywords whose value may be null."""


def _fit_part(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else {}
    made = {word: value for word, value in schema.items() if _is_fit(word, value)}
    for word in _PARTS:
        if word in made:
            made[word] = {name: _fit_part(part) for name, part in made[word].items()}
    for word in _LISTS:
        if word in made:
            made[word] = [_fit_part(part) for part in made[word]]
    for word in ("items", "additionalProperties", "propertyNames", "contains"):
        if isinstance(made.get(word), dict):
            made[word] = _fit_part(made[word])
    if "required" in made:
        made["required"] = [name for name in made["required"] if isinstance(name, str)]
    is_list = made.get("type") == "array" or "prefixItems" in made or isinstance(made.get("items"), list)
    return _fit_list(made) if is_list else made


def _is_fit(word: str, value: Any) -> bool:
    """Whether a keyword of a schema can have this value."""
    if word == "type" and isinstance(value, list):
        return all(isinstance(one, str) for one in value)
    if isinstance(value, bool):
        return bool in _KINDS.get(word, (bool,))
    return isinstance(value, _KINDS[word]) if word in _KINDS else value is not None or word in _VALUES


def _fit_list(made: dict[str, Any]) -> dict[str, Any]:
    first = made.pop("prefixItems", None)
    if isinstance(made.get("items"), list):  # the older form of a tuple
        first = made.pop("items")
    if isinstance(first, list) and first:
        kinds: list[Any] = []
        for one in map(_fit_part, first):
            if one not in kinds:
                kinds.append(one)
        rest = made.get("items")
        kinds += [rest] if isinstance(rest, dict) and rest and rest not in kinds else []
        made["items"] = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if not isinstance(made.get("items"), dict):
        made["items"] = {}
    return made


def _is_loose(schema: Any) -> bool:
    """Whether a part of a schema has no type, which strict mode refuses."""
    if not isinstance(schema, dict):
        return schema is True
    parts = [
        *(part for word in _PARTS for part in schema.get(word, {}).values()),
        *(part for word in _LISTS for part in schema.get(word, ())),
        *([schema["items"]] if "items" in schema else []),
    ]
    return not any(word in schema for word in _TYPED) or any(map(_is_loose, parts))
