"""Filters of the list of tasks that a person has saved under a name: in a cookie of their browser, and nowhere else.

The cookie is not signed: it holds nothing but filters, which anybody may type, and is read as strictly as they are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from refold.core.errors import InputRejected
from refold.web.page.frame import Call, set_cookie

FILTERS = ("skill", "lifecycle", "owner", "age", "text", "anywhere")
"""The names of the filters in the address."""

COOKIE = "refold_views"
KEPT_S = 365 * 24 * 3600
NAME_CHARS = 60
LARGEST = 3_500
"""The largest cookie, in characters; browsers keep 4,096 bytes of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Filters under a name.

    Attributes:
        name: What the person calls them.
        given: The filters; empty ones are left out.
    """

    name: str
    given: Mapping[str, str]


def views_of(call: Call) -> list[View]:
    """What the person has saved in this browser, in the order in which it was."""
    try:
        kept = json.loads(base64.urlsafe_b64decode(call.request.cookies.get(COOKIE, "")))
        mine = kept["views"] if kept["of"] == call.person.name else {}
        return [View(name=str(name), given=_filters(given)) for name, given in mine.items()]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return []  # there is none, or somebody wrote it by hand


def _filters(given: Mapping[str, object]) -> dict[str, str]:
    return {name: str(given[name]) for name in FILTERS if given.get(name)}


async def save(call: Call) -> Response:
    """`POST /views`: save filters under a name, which they replace; or remove a name."""
    given = _filters(call.form)
    views = {one.name: one.given for one in views_of(call)}
    if removed := call.form.get("remove", ""):
        views.pop(removed, None)
        said = f"“{removed}” is removed."
    else:
        name = call.form.get("name", "").strip()
        if not 0 < len(name) <= NAME_CHARS or not name.isprintable():
            raise InputRejected(f"a name has 1 to {NAME_CHARS} characters that can be printed; nothing was saved")
        views[name] = given
        said = f"Saved as “{name}”, in this browser."
    kept = json.dumps({"of": call.person.name, "views": views}).encode()
    text = base64.urlsafe_b64encode(kept).decode()
    if len(text) > LARGEST:
        raise InputRejected("there is no room for more; remove a saved view first, or save fewer filters")
    response = call.go("/tasks", said, **given)
    set_cookie(call.site, call.request, response, COOKIE, text, KEPT_S)
    return response
