"""Protects against SSRF: restricts requests to an address that someone else chose, such as a webhook's receiver.

Such an address could point at a service that only this host reaches: its own ports, the private network, a cloud's
metadata. Therefore

1. an address must be plain: http or https, no user or password, no unusual notation of an IP address;
2. a name is resolved once for each connection, all its IP addresses must be public, and the connection goes to one of
   them: a name that resolves differently a moment later (DNS rebinding) has no effect;
3. certificates are checked against the name, and `Host` carries the name, as without this module.

Proxies of the environment are not used, since they would resolve the name again.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Self

import httpcore2
import httpx2

from refold.core.errors import DefinitionError, InputRejected
from refold.effects.http.certificates import trusted
from refold.effects.webhooks.resolving import Address, Names

ALLOW_ENV = "REFOLD_OUTBOUND_ALLOW"
PORTS_ENV = "REFOLD_OUTBOUND_PORTS"

PORTS = (range(80, 81), range(443, 444), range(1024, 65536))
"""The default ports: 80, 443 and those above the well-known ports, so that no request reaches a mail server."""

LONGEST_URL = 2_048
"""The longest URL accepted, in characters."""

RESOLVE_S = 5.0
"""Seconds that `Screen.check` waits for a name server."""

STAGGER_S = 0.25
"""Seconds after which a further address of a name is tried while those before it do not answer."""

Network = IPv4Network | IPv6Network

_LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_LOCALHOST: tuple[Address, ...] = (ip_address("127.0.0.1"), ip_address("::1"))
_PRIVATE: tuple[Network, ...] = tuple(
    ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
_NAMED = {"loopback": _LOOPBACK, "private": _PRIVATE}

# Networks that `is_global` calls public in some version of Python though they are not: carriers' own networks,
# protocol assignments, benchmarks, and tunnels to IPv4 addresses.
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        *("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15", "224.0.0.0/3"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

# Cloud metadata services, which hand out an account's credentials. No setting allows them.
_METADATA = frozenset(
    ip_address(text)
    for text in ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16")
) | {ip_address("fd00:ec2::254"), ip_address("fd00:ec2::23"), ip_address("fd20:ce::254")}

# Names that are only checked take no turns of those that are connected to.
_checked = Names(16, per_domain=4)
_connected = Names(64, per_domain=8)

_CONTROL = re.compile(r"[\x00-\x20\x7f\\]")
_NAME = re.compile(r"(?=.{1,253}\.?$)(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_NUMBER = re.compile(r"\d+|0[xX][0-9a-fA-F]*")


class AddressRefused(InputRejected):
    """Requests to an address are not allowed. The message names at most the host, since paths may hold secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Decides which addresses requests may go to.

    Attributes:
        allowed: Networks that are allowed besides public addresses.
        ports: Allowed ports; on loopback, if loopback is allowed, any port.
    """

    allowed: tuple[Network, ...] = ()
    ports: tuple[range, ...] = PORTS

    @classmethod
    def from_env(cls, *, loopback: bool = False) -> Self:
        """The screen that `REFOLD_OUTBOUND_ALLOW` and `REFOLD_OUTBOUND_PORTS` describe.

        The first lists networks, as `10.20.0.0/16`, `loopback` or `private`; the second ports, as `443,8000-8999`.

        Args:
            loopback: Allow loopback whatever the setting says.

        Raises:
            DefinitionError: A setting cannot be read.
        """
        allowed = _networks(os.environ.get(ALLOW_ENV, ""))
        return cls(allowed=(*allowed, *_LOOPBACK) if loopback else allowed, ports=_ports(os.environ.get(PORTS_ENV, "")))

    async def check(self, url: str) -> None:
        """Check an address in advance. A name that does not resolve within `RESOLVE_S` passes: it may resolve later.

        Raises:
            AddressRefused: Requests to the address are not allowed.
        """
        host, port = target(url)
        with suppress(OSError):  # which a timeout is, too
            async with asyncio.timeout(RESOLVE_S):
                self._judge(host, port, _known(host) or await _checked.resolved(host, port))

    async def addresses(self, host: str, port: int, *, within_s: float | None = None) -> list[str]:
        """The IP addresses that a host resolves to now, all of them allowed.

        Raises:
            AddressRefused: At least one of the addresses is not allowed.
            NoTurn: Too many other names are being resolved.
            TimeoutError: The name server has not answered within `within_s` seconds.
            OSError: The name cannot be resolved.
        """
        found = _known(host) or await _connected.resolved(host, port, within_s=within_s)
        self._judge(host, port, found)
        return [str(address) for address in found]

    def _judge(self, host: str, port: int, found: Iterable[Address]) -> None:
        if not all(self._may_reach(address, port) for address in found):
            # The message leaves the IP addresses out, or a caller could explore the inner network's names.
            raise AddressRefused(
                f"{host}, port {port}, cannot be reached from here: only public addresses are, at the usual ports. "
                f"The operator of this agent may allow others with {ALLOW_ENV} and {PORTS_ENV}"
            )

    def _may_reach(self, address: Address, port: int) -> bool:
        meant = _meant(address)
        if meant in _METADATA:
            return False
        allowed = _within(meant, self.allowed)
        if allowed and _within(meant, _LOOPBACK):
            return True
        return (allowed or _public(meant)) and any(port in ports for ports in self.ports)


class ScreenedTransport(httpx2.AsyncHTTPTransport):
    """An HTTP transport that connects only to allowed addresses: `AsyncClient(transport=ScreenedTransport(screen))`.

    Raises `AddressRefused` for any other request, and `NoTurn` if the name had no turn to be resolved. Each redirect
    that a client follows is checked again.
    """

    def __init__(self, screen: Screen, *, limits: httpx2.Limits | None = None) -> None:
        limits = limits or httpx2.Limits()
        context = trusted()  # SSL_CERT_FILE may name an authority of the operator's own
        super().__init__(verify=context, trust_env=False)
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_ScreenedNetwork(screen),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2."""
        target(str(request.url))
        return await super().handle_async_request(request)


class _ScreenedNetwork(httpcore2.AsyncNetworkBackend):
    """Resolves a name, checks its IP addresses, and connects to the first one that answers."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            addresses = await self._screen.addresses(host, port, within_s=timeout)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"resolving {host} took too long") from error
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error

        async def connect(address: str) -> httpcore2.AsyncNetworkStream:
            return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)

        return await _first(connect, addresses)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def _first(
    connect: Callable[[str], Coroutine[None, None, httpcore2.AsyncNetworkStream]], addresses: Iterable[str]
) -> httpcore2.AsyncNetworkStream:
    """The first connection that stands. The next address is tried when one fails, or after `STAGGER_S`.

    Source: RFC 8305 (Happy Eyeballs), section 5.
    """
    left, tries = iter(addresses), list[asyncio.Task[httpcore2.AsyncNetworkStream]]()
    first: httpcore2.AsyncNetworkStream | None = None
    failure: Exception | None = None
    going = set[asyncio.Task[httpcore2.AsyncNetworkStream]]()
    try:
        while first is None:
            if (address := next(left, None)) is not None:
                tries.append(asyncio.create_task(connect(address)))
                going.add(tries[-1])
            elif not going:
                assert failure is not None, "a name that resolves stands for one address at least"
                raise failure
            wait_s = None if address is None else STAGGER_S
            done, going = await asyncio.wait(going, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                try:
                    first = first or one.result()
                except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                    failure = failure or error
        return first
    finally:
        for one in tries:
            one.cancel()
        for stream in await asyncio.gather(*tries, return_exceptions=True):
            if stream is not first and not isinstance(stream, BaseException):
                await stream.aclose()


def target(url: str) -> tuple[str, int]:
    """The host and port of a URL.

    Raises:
        AddressRefused: The URL is not plain, or not http or https.
    """
    if len(url) > LONGEST_URL:
        raise AddressRefused(f"an address has at most {LONGEST_URL} characters, not {len(url)}")
    if _CONTROL.search(url):
        raise AddressRefused("an address holds no spaces, control characters or backslashes")
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise AddressRefused(f"no address can be read: {error}") from None
    if parsed.scheme not in ("http", "https"):
        raise AddressRefused(f"an address begins with https:// or http://, not {parsed.scheme or url!r}")
    if parsed.userinfo:
        raise AddressRefused("an address holds no user or password; give credentials apart from it")
    host = parsed.raw_host.decode("ascii")
    if _literal(host) is None and not _NAME.fullmatch(host):
        raise AddressRefused("an address names a host, as a plain name or an IP address")
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    if port > 65_535:
        raise AddressRefused(f"a port is a number up to 65535, not {port}")
    return host, port


def _literal(host: str) -> Address | None:
    """The IP address that a URL gives as its host; None for a name.

    Raises:
        AddressRefused: The host is a number in a notation that only some programs read as an IP address.
    """
    last = host.rstrip(".").rpartition(".")[2]
    if ":" not in host and not _NUMBER.fullmatch(last):
        return None
    try:
        return None if "%" in host else ip_address(host)
    except ValueError:
        raise AddressRefused("an IP address is written in full: four decimal numbers, or IPv6 in brackets") from None


def _known(host: str) -> list[Address]:
    """The IP addresses of a host that needs no name server; empty if one must be asked."""
    if (literal := _literal(host)) is not None:
        return [literal]
    return list(_LOCALHOST) if f".{host.rstrip('.').lower()}".endswith(".localhost") else []


def _meant(address: Address) -> Address:
    """The IPv4 address inside an IPv6 address that maps one; any other address unchanged."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else address


def _public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in _PUBLIC_IPV6:
        return False
    return address.is_global and not _within(address, _NOT_PUBLIC)


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _networks(listed: str) -> tuple[Network, ...]:
    found: list[Network] = []
    for word in _words(listed):
        try:
            found += _NAMED[word] if word in _NAMED else [ip_network(word)]
        except ValueError:
            raise DefinitionError(
                ALLOW_ENV,
                [f"{word!r} is no network; write one as 10.20.0.0/16, `loopback` or `private`"],
                what="setting",
            ) from None
    return tuple(found)


def _ports(listed: str) -> tuple[range, ...]:
    words = _words(listed)
    try:
        return tuple(_port_range(word) for word in words) if words else PORTS
    except ValueError:
        said = f"{listed!r} lists no ports; write them as 443,8000-8999"
        raise DefinitionError(PORTS_ENV, [said], what="setting") from None


def _port_range(word: str) -> range:
    first, dash, last = word.partition("-")
    found = range(int(first), int(last if dash else first) + 1)
    if not found or found.start < 1 or found.stop > 65_536:
        raise ValueError(word)
    return found


def _words(listed: str) -> list[str]:
    return [word for part in listed.split(",") if (word := part.strip().lower())]
