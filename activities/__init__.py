"""The application's tools: the effects that its skills can request. `worker.py` registers `TOOLS`.

The models are a setting, not code: `REFOLD_MODEL=openai:gpt-5`, or the command's own `model`.
"""

from collections.abc import Callable
from typing import Any

from activities.dates import weekday
from activities.dictionary import define_word
from activities.facts import FACTS
from activities.notices import send_mail
from activities.orders import find_order
from activities.payments import charge_card, give_back, pay_refund
from activities.sessions import close_turn, open_turn
from activities.wikipedia import wikipedia_summary

TOOLS: list[Callable[..., Any]] = [
    charge_card,
    close_turn,
    define_word,
    find_order,
    give_back,
    open_turn,
    pay_refund,
    send_mail,
    weekday,
    wikipedia_summary,
    *FACTS.values(),
]
