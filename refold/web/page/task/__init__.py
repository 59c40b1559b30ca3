"""One task: its story, what it waits for and why, what it made, what people can do about it, and its past."""
