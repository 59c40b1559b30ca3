"""Looking words up in a dictionary."""

import os
from urllib.parse import quote

from refold import tool
from refold.effects import Never, current


@tool(effect="read_only", timeout_s=30)
async def define_word(word: str) -> str:
    """What an English word means, by its first definition; 404 is final.

    Args:
        word: One word, for example `ebb`.
    """
    server = os.environ.get("DICTIONARY_URL", "https://api.dictionaryapi.dev")
    response = await current().http.get(f"{server}/api/v2/entries/en/{quote(word, safe='')}")
    response.raise_for_status()
    try:
        return str(response.json()[0]["meanings"][0]["definitions"][0]["definition"])
    except (ValueError, LookupError, TypeError):
        raise Never("the dictionary's answer is in another form than expected", type="malformed") from None
