"""`refold codec`: who reads what in Temporal's web UI."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import DataConverter

from refold.a2a.security.api_keys import api_keys
from refold.a2a.security.settings import Security, security_from_env
from refold.cli.verb import CODEC_ENV
from refold.cli.verbs.processes.codec import PREFIX, app_of
from refold.temporal.data.codec import ENV
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.remote import RemoteCodec
from refold.temporal.data.storage import Folder, StorageUnusable, key_of
from refold.temporal.encryption import Encryption
from tests.a2a.security.guarding import ADA_KEY, ELSEWHERE, HERE
from tests.cli.conftest import Shell

UI = "http://localhost:8233"
SECRET = "a secret diagnosis"
LARGE = SECRET * 10_000


@pytest.fixture
def converter(tmp_path: Path) -> DataConverter:
    """What the tasks are written by."""
    return data_converter(Folder(tmp_path), Encryption({"k": b"k" * 32}))


def client(converter: DataConverter, security: Security, at: tuple[str, int] = HERE) -> httpx2.AsyncClient:
    """A client of the codec server."""
    transport = httpx2.ASGITransport(app=app_of(RemoteCodec(converter), security), client=at)
    return httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9002")


@pytest.fixture
async def codec(converter: DataConverter) -> AsyncIterator[httpx2.AsyncClient]:
    """The web UI of this machine."""
    async with client(converter, Security(origins=(UI,), prefix=PREFIX)) as http:
        http.headers["Origin"] = UI
        yield http


def body(*payloads: Payload) -> Any:
    return MessageToDict(Payloads(payloads=payloads))


def data(answer: httpx2.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [json.loads(one.data) for one in ParseDict(answer.json(), Payloads()).payloads]


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("path", ["/decode", "/default/decode", "/codec/default/decode"])
async def test_it_decodes(codec: httpx2.AsyncClient, converter: DataConverter, path: str) -> None:
    """
    Whatever stands before the operation; stored values in place of their references.
    """
    answer = await codec.post(
        path, json=body(*await converter.encode([SECRET, LARGE])), headers={"X-Namespace": "default"}
    )

    assert data(answer) == [SECRET, LARGE]
    assert answer.headers["access-control-allow-origin"] == UI
    assert answer.headers["cache-control"] == "no-store"


async def test_stored_values_are_fetched_when_they_are_opened(
    codec: httpx2.AsyncClient, converter: DataConverter
) -> None:
    """
    The web UI asks for a history with its references, and for a value once somebody opens it.
    """
    payloads = await converter.encode([SECRET, LARGE])

    said, reference = data(await codec.post("/decode?preserveStorageRefs=true", json=body(*payloads)))
    assert said == SECRET
    assert reference["driverName"] == "refold"
    assert data(await codec.post("/download", json=body(payloads[1]))) == [LARGE]


async def test_it_encodes(codec: httpx2.AsyncClient, converter: DataConverter) -> None:
    """
    What a person sends from the web UI is encrypted before Temporal sees it.
    """
    plain = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(SECRET).encode())
    answer = await codec.post("/encode", json=body(plain))
    [payload] = ParseDict(answer.json(), Payloads()).payloads

    assert payload.metadata["encoding"] == b"binary/encrypted"
    assert await converter.decode([payload], [str]) == [SECRET]


async def test_what_is_encoded_writes_over_nothing(codec: httpx2.AsyncClient, tmp_path: Path) -> None:
    """
    A payload may claim to carry a part of any name: a stored value stays as it is, and so does a file elsewhere.
    """
    [stored] = await data_converter(Folder(tmp_path)).encode([LARGE])
    key = json.loads(stored.data)["claimData"]["sha256"]
    before = contents(tmp_path)
    for name in (key, str(tmp_path / "elsewhere")):
        made_up = Payload(metadata={"encoding": b"json/plain", f"refold-part-{name}": b"forged"}, data=b'"hello"')
        encoded = await codec.post("/encode", json=body(made_up))
        assert data(await codec.post("/decode", json=encoded.json())) == ["hello"]

    assert contents(tmp_path) == before


async def test_a_reference_to_what_is_no_payload(
    codec: httpx2.AsyncClient, converter: DataConverter, tmp_path: Path
) -> None:
    """
    Is refused as any value that cannot be read, and says which one.
    """
    [_, reference] = await converter.encode([SECRET, LARGE])
    key = key_of(b"a part")
    await Folder(tmp_path).put(key, b"a part")
    about = json.loads(reference.data)
    reference.data = json.dumps({**about, "claimData": {"sha256": key}}).encode()
    answer = await codec.post("/decode", json=body(reference))

    assert (answer.status_code, answer.json()) == (
        422, {"message": f"the stored value {key} is no payload of Temporal's"},
    )  # fmt: skip


async def test_a_preflight_names_one_origin(codec: httpx2.AsyncClient) -> None:
    """
    Pages of the web UI may call, with its headers; pages of others may not.
    """
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-namespace"}
    allowed = await codec.options("/decode", headers=ask)
    foreign = await codec.options("/decode", headers={**ask, "Origin": "https://evil.example.org"})

    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, UI)
    assert foreign.status_code == 400
    assert "access-control-allow-origin" not in foreign.headers


async def test_nothing_is_decoded_for_others(converter: DataConverter) -> None:
    """
    Without a key of the codec server, or from a page of another origin, nobody reads anything.
    """
    asked = body(*await converter.encode([SECRET]))
    keys = Security(keys=api_keys(f"ada={ADA_KEY}"), anonymous=None, prefix=PREFIX)
    async with client(converter, keys, at=ELSEWHERE) as http:
        refused = [
            await http.post("/decode", json=asked),
            await http.post("/decode", json=asked, headers={"X-API-Key": "no-such-key-no-such-key"}),
            await http.post("/callbacks/decode", json=asked),  # in the gateway, whoever has such an address may call it
            await http.post(
                "/decode", json=asked, headers={"X-API-Key": ADA_KEY, "Origin": "https://evil.example.org"}
            ),
        ]
        allowed = await http.post("/decode", json=asked, headers={"Authorization": f"Bearer {ADA_KEY}"})
    async with client(converter, Security(prefix=PREFIX), at=ELSEWHERE) as http:
        refused.append(await http.post("/decode", json=asked))
        refused.append(await http.post("/callbacks/decode", json=asked))
    async with client(converter, Security(prefix=PREFIX)) as http:
        refused.append(await http.post("/decode", json=asked, headers={"Host": "rebound.example.org"}))

    assert [answer.status_code for answer in refused] == [401, 401, 401, 403, 403, 403, 421]
    assert "REFOLD_CODEC_ORIGINS" in refused[3].text
    assert "REFOLD_CODEC_HOSTS" in refused[6].text
    assert data(allowed) == [SECRET]


async def test_what_cannot_be_decoded_says_why(
    codec: httpx2.AsyncClient, converter: DataConverter, tmp_path: Path
) -> None:
    """
    A key that is not here, a value that is not stored, a body that holds no payloads.
    """
    [other] = await data_converter(None, Encryption({"other": b"o" * 32})).encode([SECRET])
    [stored] = await converter.encode([LARGE])
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()  # noqa: ASYNC240 - a folder that is gone is away

    answers = [
        await codec.post("/decode", json=body(other)),
        await codec.post("/decode", json=body(stored)),
        await codec.post("/decode", json={"payload": []}),
        await codec.post("/reverse", json=body(other)),
    ]

    assert [answer.status_code for answer in answers] == [422, 422, 400, 404]
    assert "'other', which is not here" in answers[0].json()["message"]
    assert "is not in the folder" in answers[1].json()["message"]


class KeysAway(Encryption):
    """A codec whose key service does not answer."""

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ConnectionError("no answer")


class DiskAway(Folder):
    """A folder whose disk does not answer."""

    async def get(self, key: str) -> bytes:
        raise StorageUnusable(self.place, "input/output error")


async def test_what_is_away_is_asked_again_later(converter: DataConverter, tmp_path: Path) -> None:
    """
    Unlike a payload that is refused, which the caller need not send again.
    """
    keys = {"k": b"k" * 32}
    [said, stored] = await converter.encode([SECRET, LARGE])
    for away, payload, why in [
        (data_converter(Folder(tmp_path), KeysAway(keys)), said, "KeysAway cannot decrypt a value: ConnectionError"),
        (data_converter(DiskAway(tmp_path), Encryption(keys)), stored, "input/output error"),
    ]:
        async with client(away, Security(prefix=PREFIX)) as http:
            answer = await http.post("/decode", json=body(payload))

        assert answer.status_code == 503
        assert why in answer.json()["message"]


def test_its_callers_are_not_the_gateways() -> None:
    """
    A customer with a key of the gateway reads his own tasks, and decrypts nothing.
    """
    environ = {"REFOLD_A2A_API_KEYS": f"customer={ADA_KEY}"}

    assert security_from_env(environ, prefix=PREFIX).keys is None
    assert security_from_env({"REFOLD_CODEC_API_KEYS": f"ada={ADA_KEY}"}, prefix=PREFIX).keys == api_keys(
        f"ada={ADA_KEY}"
    )


def test_without_a_codec_there_is_nothing_to_serve(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Before anything listens; nor is everybody let in by accident.
    """
    assert "REFOLD_CODEC names no codec" in refold("codec", "--json").error["message"]
    monkeypatch.setenv("REFOLD_CODEC", "tests.temporal.data.test_codec:Plain")
    assert "REFOLD_CODEC_API_KEYS" in refold("codec", "--json", "--host", "0.0.0.0").error["message"]


def test_a_page_of_the_web_ui_is_no_origin(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The address that a browser shows: no page has it as its origin, so that every call would be refused.
    """
    monkeypatch.setenv("REFOLD_CODEC", "tests.temporal.data.test_codec:Plain")

    said = refold("codec", "--json", "--origin", f"{UI}/namespaces/default/workflows").error["message"]

    assert said.startswith(f"--origin: '{UI}/namespaces/default/workflows' is no origin, such as https:")


def test_the_setting_has_one_name() -> None:
    """
    The command line spells it out, since its help must not wait for Temporal's SDK.
    """
    assert CODEC_ENV == ENV
