"""The comparison with other engines: its tables, its page, and what is left out; what it finds is no test's affair."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

import pytest

from bench.peers import compare, page, setup
from bench.peers.found import Found
from bench.peers.table import SIDES
from tests.syntax import parsed

FOLDER = Path(setup.__file__).parent


def one(step_ms: float, *, twice: int = 1) -> dict[str, float]:
    """A turn's figures."""
    cpu = {f"{how}.{of}_cpu_ms": 1.0 for how in ("alone", "at_once") for of in ("process", "server")}
    steps = {"alone.step_ms": step_ms, "at_once.step_ms": step_ms / 10}
    return {"load": 0.5, **steps, **cpu, "kill.ready_s": 1.0, "kill.done_s": 2.0, "kill.twice": twice}


def found(*rounds: dict[str, dict[str, float]], missing: dict[str, str] | None = None) -> Found:
    """What a run of these rounds found."""
    data: dict[str, Any] = {"settings": {"at_once": 100, "lengths": [20]}, "missing": missing or {}}
    lengths = {"20": {"bytes": 2048, "step_ms": 1.0}}
    return Found({**data, "rounds": list(rounds), "lengths": dict.fromkeys(rounds[0], lengths) if rounds else {}})


def test_the_page_shows_the_recorded_run() -> None:
    """
    Tables and pictures are those of recorded.json. `python -m bench peers --page` writes them anew.
    """
    recorded = page.recorded()

    assert page.PAGE.read_text() == page.filled(page.PAGE.read_text(), recorded)
    assert {name: (page.PICTURES / name).read_text() for name in page.pictures(recorded)} == page.pictures(recorded)


def test_a_figure_is_the_median_of_the_rounds_and_a_ratio_that_of_their_ratios() -> None:
    """
    What disturbs one round, for all sides alike, changes no ratio.
    """
    run = found(
        {"refold": one(20), "hand-tuned": one(20)},
        {"refold": one(300), "hand-tuned": one(200)},
        {"refold": one(33), "hand-tuned": one(22)},
    )
    (_, refold, _) = run.steps()

    assert list(refold) == ["refold", "33.0", "20.0–300", "1.50", "303", "33.3–500", "0.67", "1.00 + 1.00"]


def test_effects_that_ran_twice_are_counted_over_all_rounds() -> None:
    """
    A side that repeats effects in one round only is not said to repeat none.
    """
    run = found({"refold": one(1, twice=0)}, {"refold": one(1, twice=10)}, {"refold": one(1, twice=0)})

    assert run.kills()[1][-1] == "0–10"


def test_a_side_that_repeats_effects_without_a_kill_is_named() -> None:
    """
    Figures of steps that ran twice are not shown as if they were of steps that ran once.
    """
    run = found({"refold": one(1), "dbos": {**one(1), "at_once.twice": 3}}, {"refold": one(1), "dbos": one(1)})

    assert run.repeated() == [["DBOS", "3 effects ran twice"]]
    assert "DBOS: 3 effects ran twice" in run.as_text()


def test_a_side_that_could_not_run_is_named() -> None:
    """
    It has no row, and its reason stands in the text.
    """
    run = found({"refold": one(20)}, missing={"dbos": "there is no PostgreSQL"})

    assert [row[0] for row in run.steps()] == ["", "refold"]
    assert "left out: DBOS: there is no PostgreSQL" in run.as_text()


async def test_what_is_not_set_up_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """
    A run goes on without an engine whose environment is missing, and says which command makes it.
    """
    monkeypatch.setattr(setup, "HOME", tmp_path)
    options = argparse.Namespace(only=["dbos", "burr"], rounds=1, steps=20, at_once=1, quick=True, record=False)

    run = await compare.measured(options)

    assert run.data["rounds"] == [{}]
    assert set(run.data["missing"]) == {"dbos", "burr"}
    assert all("python -m bench peers --setup" in why for why in run.data["missing"].values())


def test_a_part_of_a_run_is_not_recorded() -> None:
    """
    The page compares all sides of one run, so `--record` takes no `--only`.
    """
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)

    with pytest.raises(SystemExit) as refused:
        compare.run(parser.parse_args(["--record", "--only", "refold"]))

    assert refused.value.code == 2


@pytest.mark.parametrize("side", SIDES, ids=lambda side: side.key)
def test_each_engine_has_the_same_three_functions_and_pinned_versions(side: Any) -> None:
    """
    A file for each, with `serving`, `perform` and `kept`; an environment of its own holds exact versions.
    """
    tree = parsed(FOLDER / "sides" / f"{side.module}.py")
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}

    assert {"serving", "perform", "kept"} <= functions
    if side.environment is not None:
        pins = (setup.REQUIREMENTS / f"{side.environment}.txt").read_text().splitlines()
        assert pins
        assert [line for line in pins if "==" not in line] == []
