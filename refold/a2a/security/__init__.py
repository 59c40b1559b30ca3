"""Who may call the gateway, from where, how much, and how often."""

from refold.a2a.security.guard import guards, known_caller
from refold.a2a.security.host_and_origin import as_origin
from refold.a2a.security.settings import Security, SettingsError, security_from_env

__all__ = ["Security", "SettingsError", "as_origin", "guards", "known_caller", "security_from_env"]
