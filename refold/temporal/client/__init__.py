"""The client's side: the engine over a Temporal client, and all that reads, lists, follows and recovers tasks."""
