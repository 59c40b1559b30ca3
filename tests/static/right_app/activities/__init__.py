"""The application's tools."""

from activities.shop import charge, find_order, give_back

TOOLS = [charge, find_order, give_back]
