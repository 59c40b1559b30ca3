"""Results as JUnit XML, which CI services show as tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement, tostring

from refold.cli.text.output import clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One result.

    Attributes:
        name: What was looked at.
        group: What it belongs to, such as its skill.
        failure: What is wrong with it; empty if nothing.
        error: Why it could not be looked at; empty if it could.
    """

    name: str
    group: str
    failure: str = ""
    error: str = ""


def junit(suite: str, cases: Sequence[Case]) -> str:
    """A suite of results as an XML document."""
    count = {kind: str(sum(bool(getattr(case, kind)) for case in cases)) for kind in ("failure", "error")}
    counts: dict[str, Any] = {"tests": str(len(cases)), "failures": count["failure"], "errors": count["error"]}
    root = Element("testsuites", name=suite, **counts)
    inner = SubElement(root, "testsuite", name=suite, **counts)
    for case in cases:
        element = SubElement(inner, "testcase", classname=clean(case.group), name=clean(case.name))
        for kind in ("failure", "error"):
            if text := clean(getattr(case, kind)):
                SubElement(element, kind, message=text.partition("\n")[0]).text = text
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'
