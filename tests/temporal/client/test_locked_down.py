"""Servers that allow less than the dev server does, as Temporal Cloud and companies' servers do."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from refold import Content, InputRejected, Status
from refold.engine import EngineError, NotConnected, UnknownSkill
from refold.temporal import TemporalEngine, connect
from refold.temporal.client.index import search
from refold.temporal.data.search_attributes import KINDS
from refold.temporal.dev import DevServer
from tests.temporal.client.between import Call, between
from tests.temporal.test_task import text

DENIED = RPCStatusCode.PERMISSION_DENIED


def locked(client: Client, **refused: RPCStatusCode) -> Client:
    """A client of a server that refuses these calls."""

    async def refuse(rpc: str, call: Call) -> Any:
        if (status := refused.get(rpc)) is not None:
            raise RPCError("Request unauthorized.", status, b"")
        return await call()

    return between(client, refuse)


@pytest.fixture
async def without_one(client: Client) -> AsyncIterator[None]:
    """An attribute is missing, as where another release of refold has registered the others."""
    operator = client.operator_service
    await operator.remove_search_attributes(
        RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=["RefoldOrigin"])
    )
    yield
    await search.register(client)


@pytest.mark.parametrize(
    "status", [DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED], ids=lambda status: str(status.name)
)
@pytest.mark.parametrize("call", ["list_search_attributes", "add_search_attributes"])
async def test_a_worker_starts_where_somebody_else_registers(client: Client, call: str, status: RPCStatusCode) -> None:
    """
    All attributes are there, and a worker may not ask the operator service for them: nothing is wrong.
    """
    with capture_logs() as logs:
        await search.register(locked(client, **{call: status}))

    assert logs == []


@pytest.mark.parametrize("call", ["list_search_attributes", "add_search_attributes"])
async def test_a_missing_attribute_is_named(client: Client, without_one: None, call: str) -> None:
    """
    No task could start: the worker says so at once, with the commands for every kind of server.
    """
    with pytest.raises(EngineError) as caught:
        await search.register(locked(client, **{call: DENIED}))

    assert "temporal operator search-attribute create --name RefoldOrigin --type Keyword" in str(caught.value)
    assert "tcld namespace search-attributes add --namespace NAMESPACE --search-attribute" in str(caught.value)
    assert all(f"--search-attribute {name}={kind}" in str(caught.value) for name, kind in KINDS.items())


async def test_a_namespace_that_the_server_does_not_have_is_named(client: Client) -> None:
    """
    No task, schedule or attribute is said to be missing: whoever mistypes a namespace would take a task for purged.
    """
    elsewhere = Client(client.service_client, namespace="nope", data_converter=client.data_converter)
    engine = TemporalEngine(elsewhere, "refold")
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "register": lambda: search.register(elsewhere),
        "start": lambda: engine.start("hello", text("x")),
        "send": lambda: engine.send("t", text("x")),
        "look": lambda: engine.look("t"),
        "cancel": lambda: engine.cancel("t"),
        "watch": lambda: anext(engine.watch("t")),
        "journal": lambda: anext(engine.journal("t")),
        "purge": lambda: anext(aiter(engine.purge().run(["t"], dry=True))),
        "list": lambda: anext(engine.list()),
        "schedule": lambda: engine.schedules.look("s"),
        "delete": lambda: engine.schedules.delete("s"),
    }
    for name, call in calls.items():
        with pytest.raises(EngineError) as caught:
            await call()

        assert "it has no namespace 'nope'; name another with --namespace or" in str(caught.value), name
        assert type(caught.value) is EngineError, name


async def test_a_worker_that_cannot_know_starts_with_a_warning(client: Client) -> None:
    """
    Listing and counting are denied alike: the tasks may work for all that, and the log has the commands if not.
    """
    with capture_logs() as logs:
        await search.register(locked(client, list_search_attributes=DENIED, count_workflow_executions=DENIED))

    (warning,) = logs
    assert (warning["event"], warning["log_level"]) == ("search_attributes_unchecked", "warning")
    assert "tcld namespace search-attributes add" in warning["hint"]


async def test_a_refused_start_is_told_where_nothing_may_be_deleted(engine: TemporalEngine) -> None:
    """
    As on any server; only its id stays used.
    """
    kept = TemporalEngine(locked(engine.client, delete_workflow_execution=DENIED), engine.task_queue)
    task_id = f"kept-{uuid4().hex[:8]}"

    with pytest.raises(UnknownSkill):
        await kept.start("nobody_serves_this", text("go"))
    with pytest.raises(InputRejected) as refused:
        await kept.start("stubborn", Content.from_data({"key": "k"}), task_id=task_id)

    assert "failures" in str(refused.value)
    view = await kept.look(task_id)
    assert (view.status, view.note) == (Status.FAILED, f"its start was refused, and its id is free: {refused.value}")


# --- TLS, client certificates, API keys


def uses(*, ca: bool) -> x509.KeyUsage:
    """What a key is for."""
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=ca, crl_sign=ca, key_encipherment=False, content_commitment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def certificate(folder: Path, name: str, issuer: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """A certificate and its key, written to `name.pem` and `name.key`; without an issuer it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer, signing = issuer or (None, key)
    made = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=subject if signer is None else signer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        # From Python 3.13 on, certificates without these are refused.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
        .add_extension(uses(ca=signer is None), critical=True)
        .sign(signing, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made, key


@pytest.fixture
async def guarded(server: DevServer, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a port that lets only those with a certificate pass to the server."""
    authority = certificate(tmp_path, "authority")
    certificate(tmp_path, "server", authority)
    certificate(tmp_path, "worker", authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "authority.pem"))
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    host, _, port = server.address.rpartition(":")

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copied(reader, inner_writer), copied(inner_reader, writer))

    async with await asyncio.start_server(passed_on, "localhost", 0, ssl=context) as port_of_ours:
        yield f"localhost:{port_of_ours.sockets[0].getsockname()[1]}"


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, ssl.SSLError):
        while read := await reader.read(65536):
            writer.write(read)
            await writer.drain()
    writer.close()


async def test_a_client_with_a_certificate_and_a_key_is_set_up_as_temporals_own_tools(
    engine: TemporalEngine, server: DevServer, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    By the environment alone; without the certificate the error says what was refused, and who should be asked.
    """
    monkeypatch.setenv("TEMPORAL_ADDRESS", guarded)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", server.namespace)
    monkeypatch.setenv("TEMPORAL_API_KEY", "key-of-the-tests")
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", str(tmp_path / "authority.pem"))
    with pytest.raises(NotConnected, match=f"no Temporal server answers at {guarded}"):
        await connect()
    with pytest.raises(NotConnected, match=r"its certificate is refused; TEMPORAL_TLS_SERVER_CA_CERT_PATH"):
        await connect(address=guarded.replace("localhost", "127.0.0.1"))
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_CERT_PATH", str(tmp_path / "worker.pem"))
    monkeypatch.setenv("TEMPORAL_TLS_CLIENT_KEY_PATH", str(tmp_path / "worker.key"))

    outside = await connect(task_queue=engine.task_queue)

    assert outside.client.service_client.config.api_key == "key-of-the-tests"
    view = await outside.start("hello", text("Ada"))
    assert (await engine.look(view.task_id)).task_id == view.task_id


async def test_tls_where_a_server_has_none_is_told_with_the_way_out(
    server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As where the key of another server is still set.
    """
    monkeypatch.setenv("TEMPORAL_API_KEY", "key-of-the-tests")

    with pytest.raises(NotConnected, match=rf"at {server.address}: .* speaks no TLS.* set TEMPORAL_TLS=false\. Start"):
        await connect(address=server.address)
    monkeypatch.setenv("TEMPORAL_TLS", "false")
    await connect(address=server.address, namespace=server.namespace)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b""])
@pytest.mark.parametrize("read", [0, 1, 1_000])
async def test_what_closes_the_connection_is_told_from_a_server_that_is_down(read: int, said: bytes) -> None:
    """
    Temporal's web UI answers in HTTP/1, and a proxy without a server says nothing. How much was read decides whether
    the close is a reset, which the SDK's core words otherwise.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(read)
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as page:
        port = page.sockets[0].getsockname()[1]
        with pytest.raises(
            NotConnected, match=rf":{port}: what answers there closed the connection: .* web UI \(.* 7233"
        ):
            await connect(address=f"127.0.0.1:{port}")
