"""Models that a worker cannot use are named when it starts, not when the first task needs one."""

from __future__ import annotations

import pytest

from refold.effects.activities import Effects


@pytest.mark.parametrize(
    ("own", "named", "says"),
    [
        pytest.param("openai:gpt-5", (), ["'openai:gpt-5' cannot be used"], id="no key"),
        pytest.param(None, ("nobody:x",), ["there is no provider 'nobody'"], id="no provider, of an agent"),
        pytest.param(None, (None, "scripted:demo"), [], id="scripted"),
    ],
)
async def test_an_unusable_model_is_named(
    own: str | None, named: tuple[str | None, ...], says: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A missing key and an unknown provider are found without a call; the scripted model is always there.
    """
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "REFOLD_MODEL"):
        monkeypatch.delenv(name, raising=False)

    async with Effects(model=own) as effects:
        found = await effects.unusable_models(named)

    assert len(found) == len(says)
    assert all(part in message for part, message in zip(says, found, strict=True))
