"""How decisions at several gates of a task are taken together."""
