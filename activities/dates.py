"""Calendar facts that models get wrong."""

from datetime import date

from refold import tool

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@tool(effect="read_only", timeout_s=5)
def weekday(day: int, month: int, year: int) -> str:
    """Which weekday a date is, in English."""
    return WEEKDAYS[date(year, month, day).weekday()]
