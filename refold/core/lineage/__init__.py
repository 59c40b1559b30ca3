"""What tasks made from other tasks have in common: the ids of their commands, and states that are upgraded."""
