"""Which data parts are decisions, and what is said of one that does not fit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from a2a.utils.errors import InvalidParamsError

from refold import Content
from refold.a2a.tasks.deciding import decisions_in

GATE = {"gate": "t1/1.1", "digest": "9f2c"}
FIELDS = "a decision has gate, digest, decision, comment?, approver?, changes?"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({**GATE, "decision": "approved", "coment": "by phone"}, "coment: Extra inputs are not permitted"),
        ({"gate": "t1/1.1", "decision": "approved"}, "digest: Field required"),
        ({**GATE, "decision": "yes"}, "decision: Input should be 'approved' or 'denied'"),
        ({**GATE, "decison": "approved"}, "decision: Field required"),
    ],
)
def test_a_decision_that_does_not_fit_says_what_one_has(data: dict[str, Any], why: str) -> None:
    """
    Also where its `decision` is misspelt: it would be the answer to another question of the task.
    """
    with pytest.raises(InvalidParamsError, match=rf"{re.escape(why)}.*; {re.escape(FIELDS)}"):
        decisions_in(Content.from_data(data))


@pytest.mark.parametrize("data", [{"gate": "north"}, {"digest": "9f2c"}, {"decision": "approved"}, "gate, digest"])
def test_other_data_is_no_decision(data: Any) -> None:
    """
    It is the answer to a question.
    """
    assert decisions_in(Content.from_data(data)) == []
