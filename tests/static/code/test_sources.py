"""Which files a name stands for."""

from pathlib import Path

import pytest

from refold.static import NotFound, find_sources


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for file in (
        "package/__init__.py",
        "package/inner/__init__.py",
        "package/inner/one.py",
        "plain/two.py",
        "three.py",
    ):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "package" / "__pycache__").mkdir()
    (tmp_path / "package" / "__pycache__" / "four.py").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("package", ["package", "package.inner", "package.inner.one"]),
        ("package.inner.one", ["package.inner.one"]),
        ("plain", ["plain.two"]),
        ("plain.two", ["plain.two"]),
        ("three", ["three"]),
        ("./package/inner", ["package.inner", "package.inner.one"]),
        ("./three.py", ["three"]),
        ("three.py", ["three"]),
    ],
)
def test_a_module_a_file_or_a_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, target: str, names: list[str]
) -> None:
    """
    A package or a folder stands for all below it, each under the name it is imported by.
    """
    monkeypatch.chdir(root)

    found = find_sources(target, [root])

    assert [one.name for one in found] == names
    assert all(one.file.exists() and one.root == root for one in found)


def test_an_installed_module_is_found_where_it_is() -> None:
    """
    What is not in the folder may be on the import path.
    """
    (found,) = find_sources("pydantic.errors", [])

    assert found.name == "pydantic.errors"


def test_a_file_elsewhere_is_named_from_its_outermost_package(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    Outside the import path, packages alone say what a file is called.
    """
    elsewhere = tmp_path_factory.mktemp("elsewhere")

    (found,) = find_sources(str(root / "package" / "inner" / "one.py"), [elsewhere])

    assert (found.name, found.root) == ("package.inner.one", root)


@pytest.mark.parametrize("target", ["nowhere", "no/where.py", "not-a-name", "package.nowhere"])
def test_what_is_not_there_is_said_to_be(root: Path, target: str) -> None:
    """
    The error names what was looked for.
    """
    with pytest.raises(NotFound, match=target):
        find_sources(target, [root])


def test_a_package_of_packages_is_found_and_an_empty_folder_is_none(tmp_path: Path) -> None:
    """
    A folder of an application may hold its skills in folders of their own, and may hold nothing yet.
    """
    (tmp_path / "nothing_yet").mkdir()
    (tmp_path / "workflows" / "billing").mkdir(parents=True)
    (tmp_path / "workflows" / "billing" / "refund.py").touch()

    assert [found.name for found in find_sources("workflows", [tmp_path])] == ["workflows.billing.refund"]
    with pytest.raises(NotFound, match="nothing_yet"):
        find_sources("nothing_yet", [tmp_path])


@pytest.mark.parametrize("target", ["src", "src/shop", "src/shop/skill.py"])
def test_a_file_is_named_from_the_innermost_import_root(tmp_path: Path, target: str) -> None:
    """
    In the layout with `src`, which an editable install puts on the import path; else a skill would be imported twice.
    """
    (tmp_path / "src" / "shop").mkdir(parents=True)
    for name in ("__init__.py", "skill.py"):
        (tmp_path / "src" / "shop" / name).touch()

    found = find_sources(str(tmp_path / target), [tmp_path, tmp_path / "src", tmp_path / "src" / "shop"])

    assert found[-1].name == "shop.skill"
