"""Skills over A2A: one agent card for all of them, JSON-RPC and REST, 1.0 and 0.3."""

try:
    from refold.a2a.app import a2a_app
    from refold.a2a.security import Security, security_from_env
    from refold.a2a.settings import Provider, Settings
    from refold.a2a.streams.feed import WebhookFeed
    from refold.a2a.tasks.push import WebhookPush
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "refold":
        raise
    raise ModuleNotFoundError(f"{__name__} needs {error.name!r}: pip install 'refold[a2a]'") from error

__all__ = ["Provider", "Security", "Settings", "WebhookFeed", "WebhookPush", "a2a_app", "security_from_env"]
