"""The application's tools: what its skills may ask the world for. `worker.py` registers `TOOLS`.

The models they use are a setting, not code: `REFOLD_MODEL=openai:gpt-5`, or the command's own `model`.
"""

from activities.wikipedia import wikipedia_summary

TOOLS = [wikipedia_summary]
