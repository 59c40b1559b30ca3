"""The benchmarks run and say what they found; what they find is no test's affair."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.report import Check, Report, figure
from bench.script import Plan, draft, verdict

ROOT = Path(__file__).parents[2]
STYLES = {"reducer", "steps", "table"}
LIMITS = {"cpu": 1.10, "history_bytes": 1.15, "memory": 1.20, "replay.sandboxed.cpu": 1.20}
WITHOUT_LIMIT = ("sandboxed.wall", "unsandboxed.cpu", "unsandboxed.wall")


async def quick(name: str, *words: str) -> dict[str, Any]:
    """What a benchmark prints that only shows that it runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench", name, "--quick", "--json", *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out.splitlines()[-1])  # the SDK's core writes its warnings to stdout, too
    # So little says nothing, so both verdicts are right; anything else is a crash.
    assert process.returncode == (0 if found["passed"] else 1)
    return found


@pytest.mark.sweep
@pytest.mark.server
@pytest.mark.parametrize("parts", [pytest.param(["history"], id="some"), pytest.param([], id="all")])
async def test_overhead_tells_every_figure_with_its_limit(parts: list[str]) -> None:
    """
    `python -m bench overhead --json` prints one object: each figure on both sides, its limit, and whether it holds.
    """
    found = await quick("overhead", *(word for part in parts for word in ("--only", part)))

    limits = {key: one["limit"] for key, one in found["figures"].items()}
    for name, limit in LIMITS.items():
        keys = [key for key in limits if key.startswith(f"{name}.")]
        measured = not parts or name.split("_")[0] in parts
        assert {key.rpartition(".")[2] for key in keys} == (STYLES if measured else set())
        assert {limits[key] for key in keys} == ({limit} if measured else set())
    without = {f"replay.{way}.{style}" for way in WITHOUT_LIMIT for style in STYLES}
    assert {key for key in limits if limits[key] is None} == (set() if parts else without)
    assert all(one["ours"] > 0 and one["twin"] > 0 for key, one in found["figures"].items() if "memory" not in key)
    # Events are counted, not measured: these hold however slow the machine is.
    assert len(found["checks"]) == 2 * len(STYLES)
    assert all(check["passed"] for check in found["checks"].values())


@pytest.mark.sweep
@pytest.mark.server
async def test_conversation_puts_three_histories_side_by_side() -> None:
    """
    `python -m bench conversation --json`: ours and the peer's against the one by hand, and what holds or does not.
    """
    found = await quick("conversation")

    assert set(found["figures"]) == {"history_bytes.refold", "history_bytes.peer"}
    assert found["figures"]["history_bytes.refold"]["limit"] == 1.15
    # Bytes are counted, not measured; what is said once in ten turns is a larger part than in a hundred.
    assert found["figures"]["history_bytes.refold"]["ratio"] < 1.2
    assert found["figures"]["history_bytes.peer"]["ratio"] > 5
    assert set(found["checks"]) == {"growth.refold", "long", "first_token_ms", "streamed_events"}
    assert all(found["checks"][one]["passed"] for one in ("growth.refold", "long", "streamed_events"))


@pytest.mark.server
@pytest.mark.sweep
async def test_the_gateways_benchmark_tells_every_figure_with_its_limit() -> None:
    """
    `python -m bench a2a --json`: each request beside the SDK's server, and what open streams cost.
    """
    found = await quick("a2a")

    kinds = {"get_task", "get_ended_task", "send", "stream"}
    assert set(found["figures"]) == {
        "first_event",
        *(f"{kind}.{what}" for kind in kinds for what in ("cpu", "cpu_of_all", "per_s")),
    }
    limits = {key: one["limit"] for key, one in found["figures"].items() if one["limit"] is not None}
    assert limits == {"get_task.cpu": 4.0, "get_ended_task.cpu": 4.0}
    assert all(one["ours"] > 0 and one["twin"] > 0 for one in found["figures"].values())
    assert set(found["checks"]) == {"first_event_ms", "waiting_cpu", "waiting_memory"}


@pytest.mark.server
@pytest.mark.sweep
async def test_both_ways_beside_each_other() -> None:
    """
    `python -m bench short --json`: time, throughput and history of effects within workflow tasks.
    """
    found = await quick("short")

    limits = {key: one["limit"] for key, one in found["figures"].items() if one["limit"] is not None}
    assert limits == {"time.plain": 0.35, "at_once.plain": 0.4, "bytes.20": 0.4}
    assert all(one["ours"] > 0 and one["twin"] > 0 for one in found["figures"].values())


@pytest.mark.server
@pytest.mark.sweep
async def test_refold_beside_other_engines() -> None:
    """
    `python -m bench peers --json`: each side's figures of each round, and what a killed process repeated.
    """
    sides = ("refold-ledger", "refold-once", "hand-local")
    found = await quick("peers", *(word for side in sides for word in ("--only", side)))

    (figures,) = found["rounds"]
    assert found["missing"] == {}
    assert {side: one["kill.twice"] for side, one in figures.items()} == dict(zip(sides, (1, 0, 10), strict=True))
    assert all(value > 0 for one in figures.values() for name, value in one.items() if "twice" not in name)


@pytest.mark.parametrize(
    ("rounds", "passed"),
    [
        pytest.param([(1.1, 1.0), (9.0, 1.0), (1.0, 1.0)], True, id="one-bad-round"),
        pytest.param([(1.3, 1.0), (1.3, 1.0), (1.0, 1.0)], False, id="two-bad-rounds"),
    ],
)
def test_a_limit_holds_for_the_median_of_the_rounds(rounds: list[tuple[float, float]], passed: bool) -> None:
    """
    What disturbs one round does not break a limit.
    """
    one = figure("what", "what", "ms", rounds, limit=1.2)
    report = Report(benchmark="made_up", settings={}, figures=[one])

    assert report.passed is passed
    assert json.loads(report.as_json())["figures"]["what"]["passed"] is passed
    assert ("TOO HIGH" in report.as_text()) is not passed


def test_a_check_that_fails_breaks_the_report() -> None:
    """
    A check counts as much as a limit.
    """
    failed = Check(name="nothing more", key="more", passed=False, found="two more")

    assert not Report(benchmark="made_up", settings={}, checks=[failed]).passed


def test_the_script_pauses_once_and_approves_at_the_end() -> None:
    """
    What the model says follows from what it is asked, so that it needs no memory.
    """
    plan = Plan(name="short", cycles=3, pause=2, topic_chars=40, draft_chars=60)
    brief, decisions = plan.topic, []
    for _ in range(plan.cycles):
        text = draft(brief)
        brief += f"\n{text} | "
        decisions.append(verdict(text)["decision"])

    assert decisions == ["NeedsRevision", "NeedsHumanInput", "Approved"]


@pytest.mark.server
@pytest.mark.sweep
async def test_fairness_is_measured_with_and_without() -> None:
    """
    `python -m bench fair --json`: ten tasks beside a burst and alone; the limit is on what the server's fairness gives.
    """
    found = await quick("fair")

    limits = {key: one["limit"] for key, one in found["figures"].items()}
    assert limits == {"fair": 2.0, "burst_as_a_batch": 2.0, "without": None}
    assert all(one["ours"] > 0 and one["twin"] > 0 for one in found["figures"].values())
