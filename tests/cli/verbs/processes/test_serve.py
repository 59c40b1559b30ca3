"""`refold serve`: what it does not begin with."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from refold.cli.errors import CallError
from refold.cli.verbs.processes.serve import _completed, _settings
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_others_are_not_let_in_by_accident(host: str, refold: Shell) -> None:
    """
    An address that others reach takes a way to tell them apart, or a word that says there is none.
    """
    done = refold("serve", "--host", host, "--json")

    assert done.exit == 2
    assert "REFOLD_A2A_API_KEYS" in done.error["message"]


BEGINS = """
import contextlib
from refold.cli.app import app

with contextlib.suppress(SystemExit):
    app(["serve", "--host", "0.0.0.0"])  # refused, once the libraries are loaded
from a2a.utils import telemetry

print(telemetry.otel_enabled)
"""


@pytest.mark.parametrize(("wanted", "opened"), [(None, "False"), ("true", "True")])
def test_the_sdks_own_spans_are_for_who_asks_for_them(wanted: str | None, opened: str) -> None:
    """
    They cost time at each call, and what refold traces has no use for them.
    """
    name = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if wanted is not None:
        environment[name] = wanted

    done = subprocess.run(
        [sys.executable, "-c", BEGINS],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert done.stdout.split() == [opened]


@pytest.mark.parametrize(
    ("name", "value"), [("REFOLD_A2A_API_KEYS", "no-name"), ("REFOLD_A2A_RATE", "often"), ("REFOLD_A2A_MAX_PARTS", "0")]
)
def test_a_setting_that_cannot_be_is_named(
    name: str, value: str, refold: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before anything listens.
    """
    monkeypatch.setenv(name, value)
    done = refold("serve", "--json")

    assert done.exit == 2
    assert name in done.error["message"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        pytest.param(None, "cannot be read", id="no file"),
        pytest.param('{"url": 7}', "url", id="a number"),
        pytest.param('{"colour": "red"}', "colour", id="an unknown one"),
        pytest.param("{", "do not fit", id="no JSON"),
    ],
)
def test_a_file_of_settings_that_does_not_fit_is_told_of(
    written: str | None, said: str, refold: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before anything listens, with what is wrong in it.
    """
    monkeypatch.chdir(ROOT)
    file = tmp_path / "a2a.json"
    if written is not None:
        file.write_text(written)
    done = refold("serve", "--settings", str(file), "--json")

    assert done.exit == 2
    assert said in done.error["message"]


def test_a_port_of_grpc_that_is_taken_is_told_of(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By its number.
    """
    monkeypatch.chdir(ROOT)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = refold("serve", "--port", "0", "--grpc-port", str(port), "--json")

    assert done.exit == 2
    assert f"127.0.0.1:{port} for gRPC" in done.error["message"]


@pytest.mark.parametrize("verb", ["serve --port", "serve --grpc-port", "codec --port"])
@pytest.mark.parametrize("port", ["65536", "-1"])
def test_a_port_that_no_machine_has_is_refused(verb: str, port: str, refold: Shell) -> None:
    """
    A library would listen on what is left of it.
    """
    done = refold(*verb.split(), port)

    assert done.exit == 2
    assert f"Invalid value for '{verb.split()[1]}': Input should be" in done.err


def test_a_page_that_cannot_be_served_beside_grpc_says_why(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    In one line, as without gRPC.
    """
    monkeypatch.chdir(ROOT)
    done = refold("serve", "--port", "0", "--grpc-port", "0", "--anonymous", "--page", "--json")

    assert (done.exit, done.error["error"]) == (2, "CallError")
    assert done.error["message"].startswith("people need a way to say who they are")


def test_what_the_command_says_goes_before_the_file(tmp_path: Path) -> None:
    """
    And the file before what is usual.
    """
    file = tmp_path / "a2a.json"
    file.write_text('{"url": "https://a.example", "name": "A", "version": "2"}')
    told = _settings(file, url="https://b.example", name=None)

    assert (told.url, told.name, told.version) == ("https://b.example", "A", "2")


def test_a_setting_that_there_is_not_is_refused_with_the_file_and_the_names(tmp_path: Path) -> None:
    """
    Whoever misspelled one finds the right name beside it.
    """
    file = tmp_path / "a2a.json"
    file.write_text('{"urll": "https://a.example"}')
    with pytest.raises(CallError, match=r"settings in .*a2a\.json do not fit: urll: .*; there are: .*\burl\b"):
        _settings(file)
    file.write_text('{"url": 5}')
    with pytest.raises(CallError, match=r"do not fit: url: [^;]*$"):
        _settings(file)


@pytest.mark.parametrize(
    ("written", "on_the_card"),
    [("{}", "127.0.0.1:9001"), ('{"grpc_url": "a.example:443"}', "a.example:443"), ('{"grpc_url": null}', None)],
)
def test_grpc_may_be_served_without_a_word_on_the_card(written: str, on_the_card: str | None, tmp_path: Path) -> None:
    """
    Some clients refuse a card with such an address.
    """
    file = tmp_path / "a2a.json"
    file.write_text(written)
    told = _completed(_settings(file), url="http://127.0.0.1:9000", grpc_url="127.0.0.1:9001")

    assert (told.url, told.grpc_url) == ("http://127.0.0.1:9000", on_the_card)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["--router", "nobody"], "--router names no skill", id="no such router"),
        pytest.param(["--settings", "{private}"], "private names skills", id="no such private skill"),
    ],
)
def test_skills_that_are_named_are_served(
    words: list[str], said: str, refold: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A name that nobody has is a mistake.
    """
    monkeypatch.chdir(ROOT)
    (private := tmp_path / "private.json").write_text('{"private": ["nobody"]}')
    done = refold("serve", "--port", "0", "--json", *[word.format(private=private) for word in words])

    assert done.exit == 2
    assert said in done.error["message"]
