"""Each alert fires just over its threshold, and not just under it; each names metrics that there are, and a runbook."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from refold.seen.metrics import METRICS, Kind
from tests.services.prometheus import ROOT, RULES, promtool, rules

STEP_S = 15
EACH_RULE = pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])


@dataclass(frozen=True, kw_only=True)
class Case:
    """What Prometheus has, in promtool's notation: a value each 15 s, from time 0 on.

    Attributes:
        over: Series under which the alert fires at `at_s`.
        under: Series under which it does not.
        at_s: When it is looked at, in seconds.
    """

    over: dict[str, str]
    under: dict[str, str]
    at_s: int = 1200


def level(series: str, over: float, under: float, at_s: int = 1200) -> Case:
    """A gauge that stays at one value."""
    return Case(over={series: f"{over}x200"}, under={series: f"{under}x200"}, at_s=at_s)


def happened(series: str, window_s: int) -> Case:
    """A counter's one increase: just inside the window that the alert looks at, and just before it."""
    steps = window_s // STEP_S
    recent, long_ago = 80 - steps + 2, 80 - steps - 2
    return Case(over={series: f"0x{recent} 1x200"}, under={series: f"0x{long_ago} 1x200"})


def ended(failed: int, completed: int) -> dict[str, str]:
    """Tasks that ended in the last quarter of an hour."""
    name = "refold_tasks_ended_total"
    return {
        f'{name}{{skill="a",ending="failed"}}': f"0x40 {failed}x200",
        f'{name}{{skill="a",ending="completed"}}': f"0x40 {completed}x200",
    }


CASES = {
    "RefoldTaskRunningTooLong": level('refold_oldest_task_seconds{state="running"}', 1801, 1800),
    "RefoldTaskRetryFlapping": happened('refold_high_retries_total{skill="a"}', 600),
    "RefoldTaskPausedAbandoned": level('refold_oldest_task_seconds{state="paused"}', 14401, 14400),
    "RefoldTaskBlockedProlonged": level('refold_oldest_task_seconds{state="blocked"}', 7201, 7200),
    "RefoldTooManyFailedTasks": Case(over=ended(31, 69), under=ended(29, 71)),
    "RefoldInvalidTransitionSpike": Case(
        over={'refold_invalid_moves_total{skill="a"}': "0+2.75x200"},  # eleven in a minute
        under={'refold_invalid_moves_total{skill="a"}': "0+2.5x200"},  # ten
    ),
    "RefoldTaskNotTaken": level('refold_oldest_task_seconds{state="untaken"}', 301, 300),
    "RefoldOutcomeUnknown": happened('refold_needs_person_total{skill="a"}', 900),
    "RefoldEffectNotUndone": happened('refold_compensations_total{skill="a",outcome="not_done"}', 900),
    "RefoldCodeDiffers": happened("refold_code_differs_total", 900),
    "RefoldWorkflowTaskFails": happened('temporal_workflow_task_execution_failed_total{workflow_type="a"}', 600),
    "RefoldLedgerAway": happened('refold_ledger_total{event="unavailable"}', 120),
    "RefoldReceiptLost": happened('refold_ledger_total{event="not_written"}', 900),
    "RefoldReceiptsOwed": level("refold_receipts_owed", 1, 0),
    "RefoldStorageAway": happened("refold_storage_awaited_total", 120),
    "RefoldNoWorker": level('refold_queue_pollers{queue="refold",type="workflow"}', 0, 1),
    "RefoldQueueOld": level('refold_queue_age_seconds{queue="refold",type="activity"}', 61, 60),
    "RefoldWebhookGivenUp": happened('refold_webhooks_total{outcome="given_up"}', 900),
    "RefoldOpenTasksUnknown": level("refold_open_tasks_asked_at_seconds", 1200 - 301, 1200 - 300),
    "RefoldProcessDown": level('up{job="refold",instance="worker:9464"}', 0, 1),
}
MORE: dict[str, tuple[str, dict[str, str], int] | tuple[str, dict[str, str], int, int]] = {
    "one failure at night": ("RefoldTooManyFailedTasks", ended(4, 0), 0),
    "five failures of five": ("RefoldTooManyFailedTasks", ended(5, 0), 1),
    "a compensation that took place": (
        "RefoldEffectNotUndone", {'refold_compensations_total{skill="a",outcome="done"}': "0x60 1x200"}, 0,
    ),
    "a cancellation is no failure": (
        "RefoldTooManyFailedTasks", {'refold_tasks_ended_total{skill="a",ending="canceled"}': "0x40 9x200"}, 0,
    ),
    "nobody was ever asked": ("RefoldOpenTasksUnknown", {"up": "1x200"}, 1),
    "Prometheus starts before anybody was asked": (
        "RefoldOpenTasksUnknown", {"up": "1x3", "refold_open_tasks_asked_at_seconds": "_x4 60+15x200"}, 0, 60,
    ),
    "the process that asks restarts": (
        "RefoldOpenTasksUnknown", {"refold_open_tasks_asked_at_seconds": "0+15x75 stale _x3 1200"}, 0, 1185,
    ),
    "the process that asks was killed": (
        "RefoldOpenTasksUnknown", {"refold_open_tasks_asked_at_seconds": "0+15x59 stale"}, 1, 1200,
    ),
    "the process that asks was killed a moment ago": (
        "RefoldOpenTasksUnknown", {"refold_open_tasks_asked_at_seconds": "0+15x60 stale"}, 0, 1200,
    ),
    "seen once a minute, asked each two minutes": (
        "RefoldOpenTasksUnknown",
        {"refold_open_tasks_asked_at_seconds": " ".join(f"{at // 120 * 120} _x3" for at in range(0, 1200, 60))}, 0,
    ),
    "ten refusals at once are no spike": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "0x77 10x200"}, 0,
    ),
    "six at once, seen twice a minute": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "_ 100 " * 39 + "_ 106 _"}, 0,
    ),
    "eleven at once are one": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "0x77 11x200"}, 1,
    ),
    "eleven at once, seen once a minute": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "0 _x3 " * 20 + "11 _x3"}, 1, 1215,
    ),
    "eleven at once, in a worker's first minute": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "_x77 0 11x200"}, 1, 1215,
    ),
    "eleven at once in one of two workers, after the other has restarted": (
        "RefoldInvalidTransitionSpike",
        {
            'refold_invalid_moves_total{skill="a",instance="a"}': "0x77 11x200",
            'refold_invalid_moves_total{skill="a",instance="b"}': "90x78 0x200",
        },
        1,
    ),
    "a worker that restarts": (
        "RefoldInvalidTransitionSpike", {'refold_invalid_moves_total{skill="a"}': "90x70 0x200"}, 0,
    ),
    "workers whose slots for effects are all taken": (
        "RefoldNoWorker",
        {
            'refold_queue_pollers{queue="refold",type="workflow"}': "1x100",
            'refold_queue_pollers{queue="refold",type="activity"}': "0x100",
        },
        0,
    ),
    "workers of activities alone": (
        "RefoldNoWorker",
        {
            'refold_queue_pollers{queue="refold",type="workflow"}': "0x100",
            'refold_queue_pollers{queue="refold",type="activity"}': "1x100",
        },
        0,
    ),
    "one of two workers is enough": (
        "RefoldNoWorker", {'refold_queue_pollers{queue="refold",type="workflow"}': "2x100"}, 0,
    ),
}  # fmt: skip


def _test(name: str, alert: str, series: dict[str, str], fires: int, at_s: int = 1200) -> dict[str, object]:
    fired = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    return {
        "name": name,
        "interval": f"{STEP_S}s",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {"expr": fired, "eval_time": f"{at_s}s", "exp_samples": [{"labels": "{}", "value": fires}]}
        ],
    }


@pytest.mark.slow
def test_each_fires_over_its_threshold_and_not_under_it(tmp_path: Path) -> None:
    """
    Said by Prometheus' own tool, for each alert of the file.
    """
    wanted = [_test(f"{alert}, over", alert, case.over, 1, case.at_s) for alert, case in CASES.items()]
    wanted += [_test(f"{alert}, under", alert, case.under, 0, case.at_s) for alert, case in CASES.items()]
    wanted += [_test(name, *more) for name, more in MORE.items()]
    file = tmp_path / "alerts_test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": wanted}))

    done = promtool("test", "rules", str(file))

    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    """
    A new alert needs a case of its own.
    """
    assert [rule["alert"] for rule in rules()] == list(CASES)


def test_the_file_is_one_that_prometheus_reads() -> None:
    """
    The rules and the scrape configuration are without mistakes.
    """
    for done in (
        promtool("check", "rules", str(RULES)),
        promtool("check", "config", "--syntax-only", str(RULES.with_name("prometheus.yml"))),
    ):
        assert done.returncode == 0, done.stdout + done.stderr


SUFFIXES = {Kind.COUNTER: ("_total",), Kind.GAUGE: ("",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
SHOWN = {f"{one.name}{suffix}" for one in METRICS for suffix in SUFFIXES[one.kind]}


def unknown_in(expression: str) -> set[str]:
    """The metrics of refold that an expression names and the catalogue does not have."""
    return set(re.findall(r"\brefold_\w+", expression)) - SHOWN


@EACH_RULE
def test_an_alert_names_what_there_is(rule: dict[str, dict[str, str]]) -> None:
    """
    Its metrics are in the catalogue, its runbook is a section of the docs, and somebody is told or gets a ticket.
    """
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (\w+)$", (ROOT / page).read_text(), re.MULTILINE)

    assert not unknown_in(str(rule["expr"]))
    assert rule["alert"] in headings
    assert anchor == str(rule["alert"]).lower()
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_dashboard_asks_for_what_there_is() -> None:
    """
    Its metrics are in the catalogue; a misspelt one would be drawn as zero for ever.
    """
    panels = json.loads((ROOT / "deploy/grafana/dashboards/refold.json").read_text())["panels"]
    queries = [each["expr"] for one in panels if one["type"] != "row" for each in one["targets"]]

    assert len(queries) > 30
    assert not set().union(*map(unknown_in, queries))
