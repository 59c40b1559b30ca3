"""The page for people: what waits for them, what tasks did, how they were at any entry, and forms to go on."""

from refold.web.page.app import Pages, page_app
from refold.web.page.people import Access, AccessError, access_from_env

__all__ = ["Access", "AccessError", "Pages", "access_from_env", "page_app"]
