"""What the author of a skill uses: context, transitions, tools, reducers, and the decorator that compiles a class."""
