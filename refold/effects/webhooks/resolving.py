"""Resolves names in threads of its own, which the domains share: names that resolve slowly leave others their turn.

Rule 1: at most `threads` names are resolved at once, and at most `per_domain` of them below one domain of two labels,
        such as example.org; others wait.
Rule 2: a free thread takes the name with the fewest lookups under way in its domain: of two labels first, then of
        three, and so on up to five. Among equals it takes the one that has waited longest.

Whoever asks may go away. A lookup that has begun keeps its thread all the same until the name server answers or the
system gives up; one that has not begun never does.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from threading import Lock

Address = IPv4Address | IPv6Address

TURN_S = 15.0
"""How long a name waits for its turn, in seconds."""

_LABELS = 5
"""The most labels of a domain whose lookups are counted, so that a long name costs no more than others."""

_waits: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("refold_names_wait", default=nullcontext)


class NoTurn(Exception):
    """Other names had all turns for `TURN_S`: the name server was not asked."""


@contextmanager
def while_waiting(block: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Lookups inside wait for their turn in such a block."""
    before = _waits.set(block)
    try:
        yield
    finally:
        _waits.reset(before)


@dataclass(eq=False, frozen=True, slots=True)
class _Lookup:
    """A name that is to be resolved.

    Attributes:
        begun: Done once a thread resolves the name; canceled, none ever does.
        found: What the name server says.
    """

    host: str
    port: int
    begun: Future[None] = field(default_factory=Future)
    found: Future[list[Address]] = field(default_factory=Future)

    @property
    def domains(self) -> list[str]:
        """The domains whose lookups are counted for this name, the widest first."""
        labels = self.host.rstrip(".").lower().split(".")
        return [".".join(labels[-n:]) for n in range(min(2, len(labels)), min(_LABELS, len(labels)) + 1)]


class Names:
    """Resolves names, from any event loop."""

    def __init__(self, threads: int, per_domain: int) -> None:
        """Start no thread yet.

        Args:
            threads: The most names that are resolved at once. The threads only wait.
            per_domain: The most of them of one domain.
        """
        self._at_once, self._per_domain = threads, per_domain
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="refold-names")
        self._lock = Lock()  # of all below
        self._waiting: dict[_Lookup, list[str]] = {}  # and their domains; the one that has waited longest comes first
        self._under_way = Counter[str]()  # by domain
        self._serving = 0  # calls of `_serve` that have not ended, or not begun

    async def resolved(self, host: str, port: int, *, within_s: float | None = None) -> list[Address]:
        """The IP addresses of a host.

        Args:
            host: The host's name.
            port: The port, which the addresses are for.
            within_s: The time limit in seconds, from the name's turn on.

        Raises:
            NoTurn: The name has had no turn.
            TimeoutError: The name server has not answered in time.
            OSError: The name cannot be resolved.
        """
        lookup = self._put(_Lookup(host, port))
        try:
            with _waits.get()():
                async with asyncio.timeout(TURN_S):
                    await asyncio.wrap_future(lookup.begun)
        except TimeoutError:
            raise NoTurn(f"too many other names were being resolved to resolve {host}") from None
        async with asyncio.timeout(within_s):
            return await asyncio.wrap_future(lookup.found)

    def _put(self, lookup: _Lookup) -> _Lookup:
        lookup.begun.add_done_callback(lambda begun: self._drop(lookup) if begun.cancelled() else None)
        with self._lock:
            self._waiting[lookup] = lookup.domains
            if self._serving < self._at_once:  # no more, or those that wait for a thread would pile up
                self._serving += 1
                self._threads.submit(self._serve)
        return lookup

    def _drop(self, lookup: _Lookup) -> None:
        with self._lock:
            self._waiting.pop(lookup, None)

    def _serve(self) -> None:
        """Resolve names while one of them may begin. The others begin in a thread that resolves a name of their domain
        now, once it has done so."""
        while (taken := self._take()) is not None:
            lookup, domains = taken
            lookup.found.set_running_or_notify_cancel()  # so that whoever goes away does not cancel it
            lookup.begun.set_result(None)
            try:
                lookup.found.set_result(_look_up(lookup.host, lookup.port))
            except Exception as error:  # noqa: BLE001 - raised where the name is awaited
                lookup.found.set_exception(error)
            finally:
                with self._lock:
                    self._under_way -= Counter(domains)

    def _take(self) -> tuple[_Lookup, list[str]] | None:
        with self._lock:
            while may := [one for one, (widest, *_) in self._waiting.items() if self._has_room(widest)]:
                lookup = min(may, key=lambda one: [self._under_way[domain] for domain in self._waiting[one]])
                domains = self._waiting.pop(lookup)
                if lookup.begun.set_running_or_notify_cancel():
                    self._under_way.update(domains)
                    return lookup, domains
            self._serving -= 1
            return None

    def _has_room(self, domain: str) -> bool:
        return self._under_way[domain] < self._per_domain


def _look_up(host: str, port: int) -> list[Address]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is not valid in DNS
        raise OSError(f"{host} is no name") from error
    return [ip_address(str(info[4][0]).partition("%")[0]) for info in infos]
