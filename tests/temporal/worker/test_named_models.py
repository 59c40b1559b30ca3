"""Models that skills name in their code are looked for when the worker starts."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from refold import Content
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from tests.temporal.conftest import PATIENT
from tests.temporal.worker import named_models

pytestmark = pytest.mark.server


async def test_a_model_without_its_package_is_named_before_the_first_task(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With the package to install: of a call in a step, and of one in a helper.
    """
    monkeypatch.delenv("REFOLD_MODEL", raising=False)
    plugin = RefoldPlugin([named_models])
    async with make_worker(client, plugin, task_queue="named-models"):
        await TemporalEngine(client, "named-models", patience=PATIENT).start("polyglot", Content.from_text("Tides"))
        found = await plugin.unusable_models()

    assert [why.partition(" (")[0] for why in found] == [
        "model 'cohere:command' cannot be used: a package is missing: pip install 'pydantic-ai-slim[cohere]'",
        "model 'groq:llama' cannot be used: a package is missing: pip install 'pydantic-ai-slim[groq]'",
    ]
