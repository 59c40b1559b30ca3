"""What a webhook's delivery workflow is called: its type and its id.

Apart from the delivery itself, whose library for signatures is an extra that a purge does without.
"""

from __future__ import annotations

from urllib.parse import quote

WORKFLOW = "refold.webhook"


def workflow_id(task_id: str, id: str) -> str:
    """The id of the workflow that delivers to a webhook of a task."""
    return f"webhook/{quote(task_id, safe='')}/{quote(id, safe='')}"
