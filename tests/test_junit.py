"""JUnit's XML of any text."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

from hypothesis import given
from hypothesis import strategies as st

from refold.junit import Case, junit

TEXT = st.text(st.characters(), max_size=40)


@given(cases=st.lists(st.builds(Case, name=TEXT, group=TEXT, failure=TEXT, error=TEXT)))
def test_any_text_is_xml(cases: list[Case]) -> None:
    """
    Whatever a model or a user has said, the document can be written and read, and counts what it holds.
    """
    read = fromstring(junit("runs", cases).encode())

    assert len(list(read.iter("testcase"))) == len(cases) == int(read.attrib["tests"])
    assert len(list(read.iter("failure"))) == sum(bool(case.failure) for case in cases) == int(read.attrib["failures"])
    assert len(list(read.iter("error"))) == sum(bool(case.error) for case in cases) == int(read.attrib["errors"])
