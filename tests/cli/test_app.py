"""The command as a whole: its help and its version."""

import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from refold.cli.app import app
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
EXPORT = ROOT / "tests" / "export" / "format-1.jsonl"
VERBS = [
    "dev", "worker", "serve", "metrics", "codec", "start", "release", "answer", "cancel", "inbox", "approve", "deny",
    "resolve", "recover", "fork", "show", "list", "cost", "watch", "journal", "at", "explain", "export", "purge",
    "project", "eval", "graph", "check", "replay", "upgrade", "schedule create", "schedule list", "schedule show",
    "schedule pause", "schedule resume", "schedule run", "schedule delete", "ledger show", "ledger refused",
    "ledger prune", "ledger adopt",
]  # fmt: skip


def test_help_lists_every_verb(refold: Shell) -> None:
    """
    Without a verb, help is shown; nothing is wrong with asking.
    """
    done = refold()

    assert done.exit == 0
    listed = list(dict.fromkeys(verb.split()[0] for verb in VERBS))
    assert [line.split()[0] for line in done.out.split("Commands:\n")[1].splitlines()[: len(listed)]] == listed
    assert "..." not in done.out.split("Commands:\n")[1]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(verb: str, refold: Shell) -> None:
    """
    Each verb says what it is for, and speaks JSON.
    """
    done = refold(*verb.split(), "--help")

    assert done.exit == 0
    assert done.out.startswith(f"Usage: refold {verb} ")
    assert "--json" in done.out


def test_text_that_looks_like_an_option_has_a_way_in(refold: Shell) -> None:
    """
    A script of the scripted model begins so, and so does a negative number.
    """
    done = refold("start", "clerk", "-> stock()")

    assert done.exit == 2
    assert done.err.endswith("shows how it is called, and text that begins with `-` stands after `--`\n")


def test_a_group_of_verbs_names_them(refold: Shell) -> None:
    """
    One line, like any other wrong call, instead of the whole help as an error.
    """
    done = refold("schedule")

    assert done.exit == 2
    assert done.err == (
        "error: Missing command, one of create, list, show, pause, resume, run, delete; "
        "`refold schedule --help` shows how it is called\n"
    )


def test_an_option_without_its_value_names_the_verbs_help(refold: Shell) -> None:
    """
    The parser does not say where it was, and the first word does.
    """
    done = refold("journal", "--verify")

    assert done.err == "error: Option '--verify' requires an argument; `refold journal --help` shows how it is called\n"


def test_a_wrong_choice_is_said_plainly(refold: Shell) -> None:
    """
    Without the prefix of the library that checks it.
    """
    done = refold("cost", "--by", "planet")

    assert done.err.startswith("error: Invalid value for '--by': 'planet' is not one of 'task', ")


def with_one_empty() -> Iterator[Any]:
    """A call of each verb for each of its parameters, which is given an empty text, but for those that may be empty."""
    for verb in (*VERBS, "memory list", "memory forget"):
        command: Any = get_command(app)
        for word in verb.split():
            command = command.commands[word]
        for one in command.params:
            if one.name in ("words", "comment", "reason", "note") or getattr(one, "is_bool_flag", False):
                continue
            if one.name == "owner" and verb in ("list", "cost", "purge"):
                continue
            places = [p for p in command.params if p.param_type_name == "argument" and (p.required or p is one)]
            words = ["" if place is one else "1" for place in places]
            words += [] if one in places else [one.opts[0], ""]
            name = one.metavar if one in places else one.opts[0]
            yield pytest.param([*verb.split(), *words], name, id=f"{verb} {name}")


@pytest.mark.parametrize(("words", "name"), list(with_one_empty()))
def test_an_empty_text_is_no_value(words: list[str], name: str, refold: Shell) -> None:
    """
    Of a shell's variable that is not set, mostly; before a server is asked. What would be taken in its place, such as
    any question for `--slot ""` or nobody for `--owner ""`, is not what was meant. Who asks for help gets it.
    """
    done, helped = refold(*words), refold(*words, "--help")

    assert (done.exit, refold.server) == (2, None)
    said, _, way_out = done.err.partition(": it is empty; ")
    assert (name in said, way_out.startswith("give a value")) == (True, True)
    assert (helped.exit, helped.out.partition(" ")[0]) == (0, "Usage:")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("list", "--limit", "few"),
            "'--limit': Input should be a valid integer, unable to parse string as an integer, got 'few'",
        ),
        (("upgrade", "--pace", "nan"), "'--pace': Input should be greater than or equal to 0.01, got 'nan'"),
        (("start", "hello", "--data", "{"), "--data is no JSON"),
        (("start", "hello", "Ada", "--delay", "soon"), "'soon' is no length of time"),
        (("answer", "t1", "--file", "nowhere"), "--file 'nowhere' cannot be read"),
        (("resolve", "t1", "--outcome", "done"), "--outcome takes JSON"),
    ],
)
def test_a_value_that_is_none_is_said_before_a_server_is_asked(
    words: tuple[str, ...], said: str, refold: Shell
) -> None:
    """
    What came, too.
    """
    done = refold(*words)

    assert (done.exit, refold.server) == (2, None)
    assert said in done.err


def test_a_port_that_is_none_is_refused(refold: Shell) -> None:
    """
    Before anything is started.
    """
    assert "'--port'" in refold("dev", "--port", "99999").err


@pytest.mark.slow
def test_python_runs_the_command_by_the_name_of_the_package() -> None:
    """
    `python -m refold` is `refold`, as people try it where the script is not on the PATH.
    """
    command = [sys.executable, "-m", "refold", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"refold {importlib.metadata.version('refold')}\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    """
    A caller that has closed stdin, stdout or stderr does not change how a command ends.
    """
    command = shlex.join([sys.executable, "-m", "refold.cli", "--version"])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, "")


PRINTING = [["--version"], ["--help"], ["graph", "hello"], ["graph", "hello", "--json"]]


@pytest.mark.slow
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_that_nobody_reads_any_more_is_no_failed_task(words: list[str]) -> None:
    """
    `refold … | head` ends as a shell's own commands do, and quietly; 1 would say that a task failed.
    """
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as closed:
        command = [sys.executable, "-m", "refold.cli", *words]
        done = subprocess.run(command, cwd=ROOT, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (141, b"")


def test_what_the_encoding_of_the_output_lacks_is_escaped() -> None:
    """
    As JSON does it, so that JSON stays valid: a journal has arrows, and ids and texts have any letters.
    """
    command, env = [sys.executable, "-m", "refold.cli"], {**os.environ, "PYTHONIOENCODING": "ascii"}
    journal = subprocess.run([*command, "journal", str(EXPORT)], env=env, capture_output=True, timeout=60, check=False)
    words = ["graph", "caf\u00e9 \U0001f375", "--json"]
    error = subprocess.run([*command, *words], cwd=ROOT, env=env, capture_output=True, timeout=60, check=False)

    assert journal.returncode == 0
    assert b"planned \\u2192 running" in journal.stdout
    assert json.loads(error.stderr)["message"].startswith("no skill 'caf\u00e9 \U0001f375'")


@pytest.mark.slow
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_that_cannot_be_written_is_an_error_of_one_line(words: list[str]) -> None:
    """
    A full disk has its sentence, and no traceback.
    """
    command, env = [sys.executable, "-m", "refold.cli", *words], {**os.environ, "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)

    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"cannot be written: No space left on device" in done.stderr


def test_what_a_library_writes_past_python_is_no_result(tmp_path: Path) -> None:
    """
    Temporal's core writes its log to the process's stdout; who reads there what `--json` prints gets the results alone.
    """
    (tmp_path / "workflows.py").write_text('import os\nos.write(1, b"WARN of a library\\n")\n')
    command = [sys.executable, "-m", "refold.cli", "check", "workflows.py", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "WARN of a library\n")


def test_the_version_is_the_packages(refold: Shell) -> None:
    """
    `refold --version` prints it.
    """
    assert refold("--version").out == f"refold {importlib.metadata.version('refold')}\n"


def test_the_process_ends_with_the_commands_code() -> None:
    """
    A wrong call ends the process with 2, its output whole, with a server that is not there too.
    """
    command = [sys.executable, "-m", "refold.cli", "show", "t1", "--address", "127.0.0.1:1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert '"error": "NotConnected"' in done.stderr
    assert "refold dev" in done.stderr


@pytest.mark.parametrize("module", ["refold", "refold.cli"])
def test_ctrl_c_while_the_command_loads_ends_it_without_a_traceback(module: str) -> None:
    """
    A second is long enough to see that a word is wrong.
    """
    script = f"""
import runpy, sys

class Pressed:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
