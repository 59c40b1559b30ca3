"""Skills over A2A: one agent card for all of them, JSON-RPC and REST, 1.0 and 0.3."""

from refold.a2a.app import a2a_app
from refold.a2a.security import Security, security_from_env
from refold.a2a.settings import Provider, Settings
from refold.a2a.streams.feed import WebhookFeed
from refold.a2a.tasks.push import WebhookPush

__all__ = ["Provider", "Security", "Settings", "WebhookFeed", "WebhookPush", "a2a_app", "security_from_env"]
