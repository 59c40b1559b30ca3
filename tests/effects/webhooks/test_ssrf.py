"""Where a request may go whose address somebody else chose."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpcore2
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response

from refold.core.errors import DefinitionError
from refold.effects.webhooks import ssrf
from refold.effects.webhooks.resolving import Address
from refold.effects.webhooks.ssrf import AddressRefused, Screen, ScreenedTransport
from tests.services.receiver import Receiver

PUBLIC = Screen()
OPEN_AT_HOME = Screen.from_env(loopback=True)


@pytest.mark.parametrize(
    "url",
    [
        "https://93.184.216.34/hook",
        "http://93.184.216.34:8080/",
        "https://[2606:2800:220:1:248:1893:25c8:1946]/hook?a=b#c",
        "https://[64:ff9b::5db8:d822]/",  # 93.184.216.34 by way of a NAT64
        "https://[::ffff:93.184.216.34]/",
    ],
)
async def test_public_addresses_pass(url: str) -> None:
    """
    What everybody can reach may be reached.
    """
    await PUBLIC.check(url)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.255.0.9",
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "169.254.1.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "100.100.100.200",
        "168.63.129.16",
        "[::]",
        "[::1]",
        "[::127.0.0.1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b:1::7f00:1]",
        "[2001::1]",
        "[2001:db8::1]",
        "[2002:7f00:1::]",
        "[3fff::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[100::1]",
        "localhost",
        "LOCALHOST.",
        "sub.localhost",
        "127。0。0。1",
    ],
)
async def test_other_addresses_are_refused(host: str) -> None:
    """
    Loopback, private, link-local, metadata and reserved ranges, in IPv4, in IPv6 and one inside the other.
    """
    with pytest.raises(AddressRefused):
        await PUBLIC.check(f"https://{host}/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "93.184.216.34",
        "//93.184.216.34/",
        "file:///etc/passwd",
        "gopher://93.184.216.34/",
        "http://",
        "http:///hook",
        "http://user@93.184.216.34/",
        "http://user:secret@93.184.216.34/",
        "http://93.184.216.34@127.0.0.1/",
        "http://93.184.216.34\\@127.0.0.1/",
        "http://93.184.216.34 /",
        "http://93.184.216.34/\r\nX-Header: 1",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://127.0.0.0x1/",
        "http://①②⑦.⓪.⓪.①/",
        "http://%31%32%37.0.0.1/",
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://93.184.216.34:0x50/",
        "http://93.184.216.34:99999/",
        "http://.com/",
        "http://a..com/",
        f"http://{'a' * 64}.com/",
        f"http://93.184.216.34/{'a' * 2048}",
    ],
)
async def test_an_address_is_written_plainly(url: str) -> None:
    """
    What one program reads as one address and another as a different one is none.
    """
    with pytest.raises(AddressRefused) as refused:
        await OPEN_AT_HOME.check(url)
    assert "secret" not in str(refused.value)


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_alike_in_ipv6(number: int) -> None:
    """
    Mapped into IPv6, or reached by way of a NAT64, an address is as public or private as it is.
    """
    plain = ipaddress.IPv4Address(number)
    wrapped: list[Address] = [
        ipaddress.IPv6Address(f"::ffff:{plain}"),
        ipaddress.IPv6Address(f"64:ff9b::{plain}"),
    ]

    assert len({PUBLIC._may_reach(address, 443) for address in (plain, *wrapped)}) == 1
    assert not (plain.is_private and PUBLIC._may_reach(plain, 443))


@given(st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address))
def test_ipv6_is_public_only_where_addresses_are_given_out(address: ipaddress.IPv6Address) -> None:
    """
    Outside 2000::/3 there is nothing to reach but IPv4 by another name.
    """
    if PUBLIC._may_reach(address, 443):
        assert address in ipaddress.IPv6Network("2000::/3") or ssrf._meant(address) != address


@given(st.text())
def test_any_text_is_judged(url: str) -> None:
    """
    Whatever comes is an address or is refused; nothing else is raised.
    """
    for candidate in (url, f"http://{url}", f"https://{url}/"):
        try:
            host, port = ssrf.target(candidate)
        except AddressRefused:
            continue
        assert host
        assert 0 <= port <= 65_535


@pytest.mark.parametrize("port", [1, 22, 25, 79, 444, 1023])
async def test_well_known_ports_are_refused(port: int) -> None:
    """
    A webhook is sent to web servers.
    """
    with pytest.raises(AddressRefused):
        await PUBLIC.check(f"http://93.184.216.34:{port}/")


async def test_settings_open_networks_and_close_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The operator may allow networks, and name the ports.
    """
    monkeypatch.setenv(ssrf.ALLOW_ENV, "10.20.0.0/16, loopback")
    monkeypatch.setenv(ssrf.PORTS_ENV, "443,8000-8999")
    chosen = Screen.from_env()

    await chosen.check("http://10.20.1.1:8080/")
    await chosen.check("http://127.0.0.1:22/")
    for url in ("http://10.21.1.1:8080/", "http://10.20.1.1/", "http://93.184.216.34/"):
        with pytest.raises(AddressRefused):
            await chosen.check(url)


async def test_no_setting_opens_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A cloud's credentials are never fetched.
    """
    monkeypatch.setenv(ssrf.ALLOW_ENV, "private,169.254.0.0/16,fd00::/8")
    chosen = Screen.from_env()

    for host in ("169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"):
        with pytest.raises(AddressRefused):
            await chosen.check(f"http://{host}/latest/meta-data/")


@pytest.mark.parametrize(
    ("name", "value"),
    [(ssrf.ALLOW_ENV, "home"), (ssrf.ALLOW_ENV, "10.0.0.1/8"), (ssrf.PORTS_ENV, "http"), (ssrf.PORTS_ENV, "0")],
)
def test_a_setting_that_cannot_be_read_is_an_error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A typo must not open or close anything by accident.
    """
    monkeypatch.setenv(name, value)

    with pytest.raises(DefinitionError, match=name):
        Screen.from_env()


async def test_a_name_that_does_not_resolve_may_do_so_later() -> None:
    """
    It is judged again when something is sent; a name server that is away is no reason to refuse.
    """
    await PUBLIC.check("https://no-such-host.invalid/hook")


def test_a_slow_name_server_keeps_nothing_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Neither whoever names the address, since it is judged again later, nor the threads that read stored values.
    """
    monkeypatch.setattr(ssrf, "RESOLVE_S", 0.01)
    answers = threading.Event()

    def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
        answers.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async def check() -> bool:
        async with asyncio.timeout(10):
            for n in range(40):
                await PUBLIC.check(f"https://slow-{n}.example/")
            return await asyncio.to_thread(answers.is_set)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with asyncio.Runner() as runner:  # a loop of its own: the other tests' keeps its threads
        runner.get_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        try:
            assert runner.run(check()) is False
        finally:
            answers.set()


async def test_one_private_address_of_a_name_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A name that stands for a public address and a private one is refused, and the message names neither.
    """
    _resolves(monkeypatch, [["93.184.216.34", "10.0.0.7"]])

    with pytest.raises(AddressRefused) as refused:
        await PUBLIC.check("https://two-faced.example/")
    assert "10.0.0.7" not in str(refused.value)


async def test_a_name_that_changes_its_mind_is_judged_when_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Public when checked, loopback when used: nothing is sent, for the connection goes to what was judged.
    """
    asked = _resolves(monkeypatch, [["93.184.216.34"], ["127.0.0.1"]])
    await PUBLIC.check("http://rebinding.example:8080/")

    async with httpx2.AsyncClient(transport=ScreenedTransport(PUBLIC)) as client:
        with pytest.raises(AddressRefused):
            await client.get("http://rebinding.example:8080/")
    assert len(asked) == 2


async def test_a_request_keeps_its_name_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The connection goes to the address; `Host` is the name; the name is asked for once.
    """
    asked = _resolves(monkeypatch, [["127.0.0.1"]])
    there = Response(status_code=302, headers={"location": "http://10.0.0.1/"})
    with Receiver(lambda _: there) as receiver:
        url = f"http://hooks.example:{receiver.port}/"
        async with httpx2.AsyncClient(transport=ScreenedTransport(OPEN_AT_HOME)) as client:
            assert (await client.post(url)).status_code == 302
            assert receiver.posts[0].headers["host"] == f"hooks.example:{receiver.port}"
            with pytest.raises(AddressRefused):
                await client.post(url, follow_redirects=True)
    assert asked == ["hooks.example"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, and loopback has one address")
async def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A receiver with a dead IPv6 address, or a dead host among several, gets its post all the same.
    """
    _resolves(monkeypatch, [["127.0.0.2", "127.0.0.1"]])
    with Receiver() as receiver, contextlib.ExitStack() as sockets:
        dead = sockets.enter_context(socket.socket())
        dead.bind(("127.0.0.2", receiver.port))
        dead.listen(0)
        for _ in range(4):  # fill the queue, from which nobody accepts
            sockets.enter_context(one := socket.socket()).setblocking(False)
            one.connect_ex(("127.0.0.2", receiver.port))
        async with (
            httpx2.AsyncClient(transport=ScreenedTransport(OPEN_AT_HOME), timeout=60) as client,
            asyncio.timeout(20),
        ):
            assert (await client.post(f"http://two.example:{receiver.port}/")).status_code == 204


class Stream(httpcore2.AsyncNetworkStream):
    """A connection that knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


@given(
    fates=st.lists(st.sampled_from(["stands", "fails", "hangs"]), min_size=1, max_size=4),
    turns=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_one_connection_stays_of_those_that_stand(fates: list[str], turns: list[int]) -> None:
    """
    Whichever addresses answer, and in whatever order: one that stands is taken, and all others are closed; without one
    the failure is raised.
    """
    made: list[Stream] = []

    async def connect(address: str) -> httpcore2.AsyncNetworkStream:
        for _ in range(turns[int(address)]):
            await asyncio.sleep(0)
        match fates[int(address)]:
            case "stands":
                made.append(Stream())
                return made[-1]
            case "fails":
                raise httpcore2.ConnectError(address)
            case _:
                return await asyncio.Future[httpcore2.AsyncNetworkStream]()

    async def first() -> object:
        async with asyncio.timeout(None if "hangs" not in fates or "stands" in fates else 0):
            return await ssrf._first(connect, [str(number) for number in range(len(fates))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssrf, "STAGGER_S", 0.0)
        if "stands" in fates:
            stream = asyncio.run(first())
            assert [one for one in made if not one.closed] == [stream]
        else:
            with pytest.raises(TimeoutError if "hangs" in fates else httpcore2.ConnectError):
                asyncio.run(first())


async def test_a_certificate_is_checked_for_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """
    The connection goes to the address, and the name is who answers there: another name's certificate will not do.
    """
    monkeypatch.setenv("SSL_CERT_FILE", str(_certificate(tmp_path, "hooks.example")))
    asked = _resolves(monkeypatch, [["127.0.0.1"], ["127.0.0.1"]])
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(tmp_path / "certificate.pem")
    named: list[str] = []
    server_side.sni_callback = lambda _socket, name, _context: named.append(str(name))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_side)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx2.AsyncClient(transport=ScreenedTransport(OPEN_AT_HOME)) as client:
        assert (await client.get(f"https://hooks.example:{port}/")).status_code == 204
        with pytest.raises(httpx2.ConnectError):
            await client.get(f"https://other.example:{port}/")
    assert named == asked == ["hooks.example", "other.example"]


async def test_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A proxy would resolve the name again.
    """
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    async with httpx2.AsyncClient(transport=ScreenedTransport(PUBLIC)) as client:
        with pytest.raises(AddressRefused):
            await client.get("http://127.0.0.1:8080/")


def _resolves(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[str]:
    """Let names resolve to these in turn; the list of what was asked is filled as it goes."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answers[len(asked) - 1]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def _certificate(folder: Path, name: str) -> Path:
    """A certificate for one name, signed by itself, with its key before it."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    raw = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(raw + made.public_bytes(pem))
    (folder / "authority.pem").write_bytes(made.public_bytes(pem))
    return folder / "authority.pem"
