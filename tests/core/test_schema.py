"""Types by name: how a command says what its answer must fit, and how the answer is checked."""

import gc
import re
import subprocess
import sys
import weakref
from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, TypeAdapter

from refold import Cmd, SkillError
from refold.conversation import json_schema
from refold.core.codec import codec, misfit
from refold.core.schema import reference_of, resolve, schema_of, type_name


class Verdict(BaseModel):
    class Detail(BaseModel):
        line: int

    ok: bool


class Color(StrEnum):
    RED = "red"


def local() -> type[BaseModel]:
    class Local(BaseModel):
        ok: bool

    return Local


HERE = Verdict.__module__


def test_a_class_travels_by_name() -> None:
    """
    A class at module level, nested or built in, is `module:Name`, and is found again by it.
    """
    assert schema_of(Verdict) == f"{HERE}:Verdict"
    assert schema_of(Verdict.Detail) == f"{HERE}:Verdict.Detail"
    assert schema_of(int) == "builtins:int"
    assert resolve(f"{HERE}:Verdict.Detail") is Verdict.Detail
    assert reference_of(Verdict) == schema_of(Verdict)


@pytest.mark.parametrize(
    "kind", [list[int], dict[str, Verdict], int | None, Literal["a", "b"], local(), tuple[int, str]]
)
def test_other_types_travel_as_their_schema(kind: Any) -> None:
    """
    What has no name that leads back to it is sent as JSON schema.
    """
    assert schema_of(kind) == TypeAdapter(kind).json_schema()
    assert reference_of(kind) is None


def test_a_class_of_the_main_script_travels_as_its_schema() -> None:
    """
    Another process has another `__main__`.
    """
    script = (
        "from pydantic import BaseModel\n"
        "from refold import Cmd\n"
        "class Verdict(BaseModel):\n"
        "    ok: bool\n"
        "print(Cmd.llm('a', expect=Verdict).expect['title'], Cmd.ask_user('q', '?', expect=Verdict).expect)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout == "Verdict __main__:Verdict\n"


def test_nothing_is_expected_where_nothing_is_said() -> None:
    """
    None is plain text; a schema or a name is taken as it is.
    """
    assert schema_of(None) is None
    assert schema_of({"type": "integer"}) == {"type": "integer"}
    assert schema_of("other.module:Name") == "other.module:Name"


class Unknown:
    """Of a module, so it has a name; but no value of it can be told from JSON."""


@pytest.mark.parametrize("kind", ["Verdict", ":Verdict", "module:", object(), type("Odd", (), {}), Unknown])
def test_what_is_no_type_is_the_authors_error(kind: Any) -> None:
    """
    Named where it is asked for, before anything is sent.
    """
    with pytest.raises(SkillError, match="expect="):
        schema_of(kind)
    with pytest.raises(SkillError, match="expect="):
        Cmd.ask_user("q", "?", expect=kind)


def test_a_name_never_makes_code_run() -> None:
    """
    Only modules that are loaded already are looked at.
    """
    assert "this" not in sys.modules
    assert resolve("this:s") is None
    assert "this" not in sys.modules
    assert resolve(f"{HERE}:NoSuchClass") is None
    assert resolve({"type": "integer"}) is None


def test_a_schema_is_known_where_its_module_is() -> None:
    """
    Else the error says to import it.
    """
    assert json_schema(f"{HERE}:Verdict") == Verdict.model_json_schema()
    assert json_schema({"type": "integer"}) == {"type": "integer"}
    with pytest.raises(LookupError, match="type 'this:s' is not known here; import its module where this runs"):
        json_schema("this:s")


def test_misfits_are_said_in_one_line_without_the_value() -> None:
    """
    Where and what, not the data itself; what cannot be checked here is no misfit.
    """
    assert misfit(f"{HERE}:Verdict", {"ok": True}) == ""
    assert misfit(f"{HERE}:Verdict", {"ok": "secret"}).startswith("ok: Input should be a valid boolean")
    assert "secret" not in misfit(f"{HERE}:Verdict", {"ok": "secret"})
    assert misfit("this:s", "x") == ""
    assert misfit({"type": "integer"}, "x") == ""


def test_a_type_has_a_name_for_people() -> None:
    """
    The class's own, or its schema's title.
    """
    assert type_name(f"{HERE}:Verdict.Detail") == "Verdict.Detail"
    assert type_name({"title": "Verdict"}) == "Verdict"
    assert type_name({"type": "integer"}) == "its JSON schema"


def test_a_class_that_is_gone_leaves_nothing_behind() -> None:
    """
    A sandbox makes a skill's classes anew for each task; what is known of them goes with them.
    """
    kind = local()
    assert codec(kind).fresh({"ok": True}) == kind(ok=True)
    assert codec(kind) is codec(kind)
    assert schema_of(kind) == kind.model_json_schema()
    gone = weakref.ref(kind)

    del kind
    gc.collect()

    assert gone() is None


def test_a_subclass_is_not_taken_for_its_base() -> None:
    """
    What is known of a class is its own.
    """

    class More(Verdict):
        why: str

    assert codec(Verdict).fresh({"ok": True}) == Verdict(ok=True)
    assert codec(More).fresh({"ok": True, "why": "x"}) == More(ok=True, why="x")


@pytest.mark.parametrize("kind", [int, re.Pattern, Verdict, list[Verdict], Color], ids=str)
def test_a_codec_is_made_once(kind: Any) -> None:
    """
    For built-in classes, classes of one's own and types made of them.
    """
    assert codec(kind) is codec(kind)
