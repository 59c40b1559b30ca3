"""Results as JUnit XML, which CI services show as tests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

MESSAGE_CHARS = 500
"""The most that stands in an attribute; the whole text is the element's."""

# Text comes from models, tools and users, and XML has no place for these at all.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One result.

    Attributes:
        name: What was looked at.
        group: What it belongs to, such as its skill.
        failure: What is wrong with it, in short in the first line; empty if nothing.
        error: Why it could not be looked at; empty if it could.
        seconds: How long it took; None where nobody measured.
    """

    name: str
    group: str
    failure: str = ""
    error: str = ""
    seconds: float | None = None


def junit(suite: str, cases: Sequence[Case]) -> str:
    """A suite of results as an XML document; characters that XML forbids are shown as `�`."""
    count = {kind: str(sum(bool(getattr(case, kind)) for case in cases)) for kind in ("failure", "error")}
    counts: dict[str, Any] = {"tests": str(len(cases)), "failures": count["failure"], "errors": count["error"]}
    root = Element("testsuites", name=suite, **counts)
    inner = SubElement(root, "testsuite", name=suite, **counts)
    for case in cases:
        took: dict[str, Any] = {} if case.seconds is None else {"time": f"{case.seconds:.3f}"}
        element = SubElement(inner, "testcase", classname=_clean(case.group), name=_clean(case.name), **took)
        for kind in ("failure", "error"):
            if text := _clean(getattr(case, kind)):
                SubElement(element, kind, message=text.partition("\n")[0][:MESSAGE_CHARS]).text = text
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
