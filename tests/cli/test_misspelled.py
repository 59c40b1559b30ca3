"""A setting that is misspelled is named, with the one that was meant."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from refold.a2a.security.settings import security_from_env
from refold.cli.misspelled import SETTINGS, TEMPORALS, misspelled
from refold.web.page.people import access_from_env
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]
NO_SETTINGS = {"REFOLD_CRASH_AT", "REFOLD_PAGE_PROXY", "REFOLD_LEGDER"}
"""What a process of the crash sweep is told, how some settings begin, and the reference's misspelled one."""


class Read(Mapping[str, str]):
    """An environment without settings; knows which were looked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def named_in(*files: Path) -> set[str]:
    """The settings that files name."""
    return {name for file in files for name in re.findall(r"\bREFOLD_[A-Z0-9_]*[A-Z0-9]\b", file.read_text("utf-8"))}


def test_all_settings_are_known() -> None:
    """
    Those that the code reads and those that the reference lists.
    """
    read = Read()
    for prefix in ("REFOLD_A2A_", "REFOLD_CODEC_"):
        security_from_env(read, prefix=prefix)
    access_from_env(read)
    code = named_in(*(ROOT / "refold").rglob("*.py"))
    docs = named_in(*(ROOT / "docs").glob("*.md"), ROOT / "docker-compose.yml")

    assert read.names | code | docs <= SETTINGS | NO_SETTINGS
    assert {name for name in SETTINGS if not name.startswith("REFOLD_CODEC_")} <= docs


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("REFOLD_LEGDER", "REFOLD_LEDGER"),
        ("REFOLD_TASKQUEUE", "REFOLD_TASK_QUEUE"),
        ("REFOLD_ENCRYPTION_KEY", "REFOLD_ENCRYPTION_KEYS"),
        ("REFOLDSTORAGE", "REFOLD_STORAGE"),
        ("TEMPORAL_ADRESS", "TEMPORAL_ADDRESS"),
        ("TEMPORAL_NAME_SPACE", "TEMPORAL_NAMESPACE"),
        ("TEMPORAL_TLS_CLIENT_CERT", "TEMPORAL_TLS_CLIENT_CERT_PATH"),
    ],
)
def test_a_misspelled_setting_is_named(name: str, meant: str, refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before the verb does what it does without it; a name that is like none is somebody else's. Programs get JSON alone.
    """
    monkeypatch.setenv(name, "x")
    monkeypatch.setenv("REFOLD_OF_MY_OWN", "x")
    monkeypatch.setenv("TEMPORAL_UI_PORT", "x")

    said = refold("--version").err
    whose = "refold" if name.startswith("REFOLD") else "Temporal"
    assert said == f"{name} is no setting of {whose}, and nothing reads it; did you mean {meant}?\n"
    assert json.loads(refold("check", "no_such_module", "--json").err)["error"]


def test_settings_are_not_misspelled() -> None:
    """
    However much one is like another.
    """
    assert not list(misspelled(SETTINGS | TEMPORALS | {"TEMPORAL_TLS_CERT", "TEMPORAL_GRPC_META_TEAM"}))
