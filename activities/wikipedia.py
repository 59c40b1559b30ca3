"""Looking things up in Wikipedia."""

import os
from urllib.parse import quote

from pydantic import BaseModel

from refold import tool
from refold.effects import current


class Summary(BaseModel):
    """An article in a few sentences."""

    title: str
    extract: str


@tool(effect="read_only", timeout_s=30)
async def wikipedia_summary(title: str) -> Summary:
    """The first paragraph of a Wikipedia article.

    It handles no failures: 404 is final and 503 is retried, as refold classifies them.

    Args:
        title: The article's title, for example `Tides`.
    """
    # The host is set by the application, never by the caller: a tool that fetches any address can be sent to addresses
    # inside your network.
    server = os.environ.get("WIKIPEDIA_URL", "https://en.wikipedia.org")
    path = quote(title.replace(" ", "_"), safe="")
    response = await current().http.get(f"{server}/api/rest_v1/page/summary/{path}", follow_redirects=True)
    response.raise_for_status()
    return Summary.model_validate_json(response.content)
