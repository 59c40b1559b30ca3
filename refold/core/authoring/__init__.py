"""What an author of a skill works with: the context, transitions, tools, reducers, and how a class becomes a skill."""
