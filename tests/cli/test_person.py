"""In whose name a command acts."""

from __future__ import annotations

import pwd

import pytest

from refold.a2a.security import Security
from refold.cli.errors import CallError
from refold.cli.verbs.processes.page import access
from tests.cli.conftest import Shell


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id that the machine has no name for, as OpenShift gives one to a container."""

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "REFOLD_APPROVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.usefixtures("nameless")
def test_a_user_without_a_name_is_told_what_to_set(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The task is not started under no name; a name by an option or a setting is enough.
    """
    refused = refold("start", "hello", "I am Ada", "--id", "t1")
    assert refused.exit == 2
    assert "has no name on this machine; set REFOLD_APPROVER to your name" in refused.err

    assert refold("start", "hello", "I am Ada", "--id", "t1", "--as", "ada").exit == 0
    monkeypatch.setenv("REFOLD_APPROVER", "bob")
    assert refold("start", "hello", "I am Bob", "--id", "t2").exit == 0


@pytest.mark.parametrize(
    "words",
    [
        ("start", "hello", "I am Ada"),
        ("answer", "t1", "For sailors"),
        ("cancel", "t1"),
        ("approve", "t1"),
        ("recover", "t1"),
        ("fork", "t1", "--at", "1"),
        ("schedule", "create", "s", "hello", "I am Ada", "--every", "2h"),
    ],
)
def test_a_name_of_no_characters_is_nobodys(refold: Shell, words: tuple[str, ...]) -> None:
    """
    `--as "$WHO"`, where WHO is not set, does not act in the name of the user of the machine.
    """
    refold.start("research_loop", "Tides", "t1")
    refused = refold(*words, "--as", "")

    assert refused.exit == 2
    assert "it is empty; give a value, or leave it out" in refused.err


@pytest.mark.usefixtures("nameless")
def test_whoever_has_no_name_can_cancel(refold: Shell) -> None:
    """
    To stop a task is never refused for that; its journal names nobody.
    """
    refold.start("research_loop", "Tides", "t1")

    assert refold("cancel", "t1", "--reason", "enough").exit == 0
    assert "cancel requested: enough" in refold("journal", "t1").out


@pytest.mark.usefixtures("nameless")
def test_the_page_asks_for_a_name_where_it_acts_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Where people sign in, or a proxy names them, nobody acts in the name of whoever serves the page.
    """
    with pytest.raises(CallError, match="set REFOLD_APPROVER"):
        access(Security(), "127.0.0.1")

    monkeypatch.setenv("REFOLD_PAGE_PROXY_HEADER", "X-User")
    assert access(Security(), "127.0.0.1").loopback is None
