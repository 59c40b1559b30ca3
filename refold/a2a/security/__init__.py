"""Who may call the gateway, from where, how much, and how often."""

from refold.a2a.security.guard import guarded
from refold.a2a.security.settings import Security, SettingsError

__all__ = ["Security", "SettingsError", "guarded"]
