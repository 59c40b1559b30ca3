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


KEY, URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        (KEY, "Zq81hunter2\n", f"{KEY} has a line break"),
        (KEY, "", "'openai:gpt-5' cannot be used: Missing credentials"),
        (KEY, "“Zq81hunter2”", f"{KEY} has a line break, another control character or one that is not ASCII"),
        (URL, "localhost:11434/v1", f"{URL}='localhost:11434/v1' is no address"),
        (URL, "ftp://me:Zq81hunter2@host/v1?key=Zq81hunter2", f"{URL}='host/v1' is no address"),
        (URL, "", f"{URL}='' is no address"),
        (URL, " http://localhost:1/v1", f"{URL}=' http://localhost:1/v1' is no address"),
        (URL, "http://localhost:1/v1\n", f"{URL}='http://localhost:1/v1\\n' is no address"),
        (URL, "http://localhost:abc/v1", f"{URL}='http://localhost:abc/v1' is no address"),
        (URL, "http://[::1/v1", f"{URL}='http://[::1/v1' is no address"),
    ],
)
async def test_a_setting_that_no_server_can_be_asked_with(
    setting: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Is named, and no secret of it shown.
    """
    monkeypatch.setenv(KEY, "sk-test")
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.setenv(setting, value)

    async with Effects(model="openai:gpt-5") as effects:
        (found,) = await effects.unusable_models(())

    assert says in found
    assert "Zq81hunter2" not in found
