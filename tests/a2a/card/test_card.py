"""The agent card: what it says of the skills, how it is served, and that its signature holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from a2a.client import A2ACardResolver, ClientConfig, create_client
from a2a.compat.v0_3.types import AgentCard as AgentCard03
from a2a.types import AgentCard, ListTasksRequest, Message, Part, Role, SendMessageRequest
from a2a.utils.proto_utils import validate_proto_required_fields
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from google.protobuf.json_format import ParseDict
from jwt import PyJWK

from refold import Content, Ctx, DefinitionError, Transition, flow_skill, step
from refold.a2a import Provider, Security, Settings, a2a_app
from refold.a2a.card.signing import SigningKey
from refold.a2a.security.api_keys import api_keys
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling
from tests.a2a.tasks.test_sending import as_, known

CARD = "/.well-known/agent-card.json"


@flow_skill(
    id="painter",
    name="Painter",
    description="Paints what it is told.",
    tags=["art"],
    examples=["A boat"],
    input_modes=["text/plain", "image/*"],
    output_modes=["image/png"],
)
class Painter:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("Done.")


async def test_each_skill_is_listed_as_it_is_registered(fake: FakeEngine) -> None:
    """
    Id, name, description, tags, examples, and what it takes and gives; whatever the protocol requires is there.
    """
    settings = Settings(
        url=f"{BASE}/agents/",
        name="Studio",
        version="2.1",
        provider=Provider(organization="Example", url="https://example.org"),
        icon_url="https://example.org/icon.png",
        documentation_url="https://example.org/docs",
    )
    async with calling(a2a_app(fake, [skills.Echo, Painter], settings)) as calls:
        card = (await calls.rest("GET", CARD)).json()
    validate_proto_required_fields(ParseDict(card, AgentCard(), ignore_unknown_fields=True))

    assert card["skills"][1] == {
        "id": "painter",
        "name": "Painter",
        "description": "Paints what it is told.",
        "tags": ["art"],
        "examples": ["A boat"],
        "inputModes": ["text/plain", "image/*"],
        "outputModes": ["image/png"],
    }
    assert (card["name"], card["version"], card["provider"]["organization"]) == ("Studio", "2.1", "Example")
    assert card["defaultInputModes"] == ["text/plain", "application/json", "image/*"]
    assert card["supportedInterfaces"] == [
        {"url": f"{BASE}/agents/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": f"{BASE}/agents", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
        {"url": f"{BASE}/agents/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
        {"url": f"{BASE}/agents", "protocolBinding": "HTTP+JSON", "protocolVersion": "0.3"},
    ]


async def test_clients_of_0_3_can_read_the_card(fake: FakeEngine) -> None:
    """
    Both the one that everybody reads and the extended one; it tells them where the gateway is.
    """
    settings = Settings(url=BASE, private=("files",))
    async with calling(known(a2a_app(fake, skills.ALL, settings))) as calls:
        public = (await calls.rest("GET", CARD, **{"A2A-Version": "0.3"})).json()
        extended = await calls.result("agent/getAuthenticatedExtendedCard", **{"A2A-Version": "0.3"}, **as_("ada"))

    for card, size in ((public, len(skills.ALL) - 1), (extended, len(skills.ALL))):
        read = AgentCard03.model_validate(card)
        assert (read.url, read.preferred_transport, read.protocol_version) == (f"{BASE}/", "JSONRPC", "0.3")
        assert read.supports_authenticated_extended_card
        assert len(read.skills) == size


async def test_a_client_of_1_0_reads_nothing_else(fake: FakeEngine) -> None:
    """
    A strict parser knows every field; a client that names no version reads those of 0.3, too.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        new = await calls.rest("GET", CARD)
        old = await calls.http.get(f"{BASE}{CARD}")
        again = await calls.rest("GET", CARD, **{"If-None-Match": old.headers["etag"]})
    ParseDict(new.json(), AgentCard())

    assert "protocolVersion" in old.json()
    assert "url" not in new.json()
    assert new.headers["vary"] == "A2A-Version"
    assert again.status_code == 200


@pytest.mark.parametrize("version", ["1", "v1", "1.1"])
async def test_a_version_needs_no_minor_number(fake: FakeEngine, version: str) -> None:
    """
    Nor has it to be the first of 1.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        card = await calls.rest("GET", CARD, **{"A2A-Version": version})

    assert "url" not in card.json()


async def test_a_gateway_may_leave_0_3_out(fake: FakeEngine) -> None:
    """
    On its cards, and among its methods.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE, serves_0_3=False))) as calls:
        card = (await calls.http.get(f"{BASE}{CARD}")).json()
        error = await calls.error("message/send", {"message": {}}, **{"A2A-Version": "0.3"})
    ParseDict(card, AgentCard())

    assert {one["protocolVersion"] for one in card["supportedInterfaces"]} == {"1.0"}
    assert error["code"] == -32601


# --- a card for each skill


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_that_knows_a_cards_address_alone_chooses_a_skill(fake: FakeEngine, binding: str) -> None:
    """
    By the address that the skill's card has for each binding; without tenant and without metadata.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=f"{BASE}"))) as calls:
        config = ClientConfig(httpx_client=calls.http, supported_protocol_bindings=[binding])
        client = await create_client(f"{BASE}/echo", config)
        message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="Hello")])
        events = [event async for event in client.send_message(SendMessageRequest(message=message))]
        listed = await client.list_tasks(ListTasksRequest())
        await calls.send("x", metadata={"skill": "picky"})
        after = await client.list_tasks(ListTasksRequest())

    assert events[0].task.id.startswith("echo-")
    assert len(listed.tasks) == len(after.tasks) == 1


async def test_a_client_of_0_3_chooses_a_skill_by_its_card(fake: FakeEngine) -> None:
    """
    By the card's `url`.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        card = AgentCard03.model_validate((await calls.http.get(f"{BASE}/echo{CARD}")).json())
        params = {
            "message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": params}
        answer = (await calls.http.post(card.url, json=body)).json()

    assert answer["result"]["id"].startswith("echo-")
    assert [skill.id for skill in card.skills] == ["echo"]


async def test_a_client_of_0_3_chooses_a_skill_over_rest(fake: FakeEngine) -> None:
    """
    Every address on a skill's card leads to the skill, that of 0.3's REST too, with 0.3's checks; a task is read there.
    """
    message = {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "Hello"}]}
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        card = AgentCard03.model_validate((await calls.http.get(f"{BASE}/echo{CARD}")).json())
        (url,) = (one.url for one in card.additional_interfaces or () if one.transport == "HTTP+JSON")
        sent = (await calls.http.post(f"{url}/v1/message:send", json={"message": message})).json()["task"]
        read = await calls.http.get(f"{url}/v1/tasks/{sent['id']}")
        wrong = await calls.http.get(f"{url}/v1/tasks/{sent['id']}", params={"historyLength": "x"})
        streamed = await calls.http.post(f"{url}/v1/message:stream", json={"message": message})

    assert sent["id"].startswith("echo-")
    assert read.json()["id"] == sent["id"]
    assert wrong.status_code == 400
    assert "echo-" in streamed.text


async def test_a_private_skill_has_no_card_for_everybody(fake: FakeEngine) -> None:
    """
    Its own card is for callers that are known, under its tenant.
    """
    settings = Settings(url=BASE, private=("files",))
    async with calling(known(a2a_app(fake, skills.ALL, settings))) as calls:
        public = await calls.rest("GET", f"/files{CARD}", **as_("ada"))
        card = await calls.result("GetExtendedAgentCard", {"tenant": "files"}, **as_("ada"))
        nobody = await calls.error("GetExtendedAgentCard", {"tenant": "files"})

    assert public.status_code == 404
    assert [skill["id"] for skill in card["skills"]] == ["files"]
    assert nobody["code"] == -32004


async def test_the_cards_of_skills_need_no_credentials(fake: FakeEngine) -> None:
    """
    As the agent's own: a client reads there how to authenticate.
    """
    security = Security(keys=api_keys("ada=0123456789abcdef"), anonymous=None)
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE), security=security)) as calls:
        card = await calls.rest("GET", f"/echo{CARD}")
        call = await calls.rest("POST", "/echo/", {})

    assert (card.status_code, call.status_code) == (200, 401)
    assert card.json()["securitySchemes"]


async def test_the_card_of_one_skill_bears_its_name(fake: FakeEngine) -> None:
    """
    Nothing has to be said twice.
    """
    async with calling(a2a_app(fake, [Painter], Settings(url=BASE))) as calls:
        card = (await calls.rest("GET", CARD)).json()

    assert (card["name"], card["description"]) == ("Painter", "Paints what it is told.")


async def test_a_card_that_is_known_is_not_sent_again(gateway: Calls) -> None:
    """
    Its ETag tells; Last-Modified and Cache-Control are there for those in between.
    """
    first = await gateway.rest("GET", CARD)
    again = await gateway.rest("GET", CARD, **{"If-None-Match": first.headers["etag"]})

    assert first.headers["last-modified"].endswith("GMT")
    assert "max-age" in first.headers["cache-control"]
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        pytest.param(ec.generate_private_key(ec.SECP256R1()), "ES256", id="EC"),
        pytest.param(rsa.generate_private_key(65537, 2048), "RS256", id="RSA"),
        pytest.param(ed25519.Ed25519PrivateKey.generate(), "EdDSA", id="Ed25519"),
    ],
)
async def test_a_signed_card_is_verified_by_the_official_client(
    fake: FakeEngine,
    tmp_path: Path,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey,
    algorithm: str,
) -> None:
    """
    As it comes over the wire; a card that somebody changed on the way is not.
    """
    file = tmp_path / "key.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    settings = Settings(url=BASE, description="Grüße, 世界", signing_keys=(SigningKey(file=file, id="k1"),))
    verify = create_signature_verifier(lambda kid, _: public if kid == "k1" else b"", [algorithm])

    async with calling(a2a_app(fake, skills.ALL, settings)) as calls:
        card = await A2ACardResolver(calls.http, BASE).get_agent_card(signature_verifier=verify)
    card.description = "Changed"

    with pytest.raises(InvalidSignaturesError):
        verify(card)


async def test_a_key_is_replaced_while_clients_know_the_old_one(fake: FakeEngine, tmp_path: Path) -> None:
    """
    A card has a signature of each key, and the gateway serves the public halves where the signatures say.
    """
    keys = []
    for name in ("old", "new"):
        file = tmp_path / f"{name}.pem"
        made = ec.generate_private_key(ec.SECP256R1())
        file.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        keys.append(SigningKey(file=file, id=name))
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE, signing_keys=tuple(keys)))) as calls:
        answer = (await calls.http.get(f"{BASE}/.well-known/jwks.json")).json()
        public = {one["kid"]: PyJWK(one) for one in answer["keys"]}
        for known_key in ("old", "new"):

            def key_of(kid: str | None, jku: str | None, known: str = known_key) -> PyJWK:
                assert jku == f"{BASE}/.well-known/jwks.json"
                return public[known]

            verify = create_signature_verifier(key_of, ["ES256"])
            for path in ("", "/echo"):
                await A2ACardResolver(calls.http, f"{BASE}{path}").get_agent_card(signature_verifier=verify)

    assert all("d" not in key for key in answer["keys"])


@pytest.mark.parametrize("written", [None, b"no key"])
def test_a_key_that_cannot_be_used_is_a_mistake_at_the_start(
    fake: FakeEngine, tmp_path: Path, written: bytes | None
) -> None:
    """
    Not when somebody asks for the card.
    """
    file = tmp_path / "key.pem"
    if written is not None:
        file.write_bytes(written)

    with pytest.raises(ValueError, match=r"key\.pem holds no private key"):
        a2a_app(fake, skills.ALL, Settings(signing_keys=(SigningKey(file=file, id="k1"),)))


@pytest.mark.parametrize(
    ("private", "message"),
    [(("none",), "not served"), (tuple(one.__refold_skill__.options.card.id for one in skills.ALL), "every skill")],  # type: ignore[attr-defined]
)
def test_private_skills_are_served_and_not_all_there_are(
    fake: FakeEngine, private: tuple[str, ...], message: str
) -> None:
    """
    Else nobody would know what the agent is for.
    """
    with pytest.raises(ValueError, match=message):
        a2a_app(fake, skills.ALL, Settings(private=private))


def test_a_gateway_needs_a_skill(fake: FakeEngine) -> None:
    """
    There is nothing to serve without one.
    """
    with pytest.raises(ValueError, match="one skill or more"):
        a2a_app(fake, [])


def test_a_skill_given_alone_is_told_to_be_listed(fake: FakeEngine) -> None:
    """
    A worker says so, too.
    """
    with pytest.raises(DefinitionError, match=r"write \[Echo\]"):
        a2a_app(fake, skills.Echo)  # type: ignore[arg-type]  # the mistake


@pytest.mark.parametrize("mode", ["image/png", "IMAGE/JPEG; q=1"])
async def test_a_skill_takes_what_its_card_says(fake: FakeEngine, mode: str) -> None:
    """
    Types by pattern; whoever cannot read what it gives is told so.
    """
    part = {"url": "https://example.org/x", "mediaType": mode}
    request = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [part]}}
    async with calling(a2a_app(FakeEngine([Painter]), [Painter], Settings(url=BASE))) as calls:
        done = await calls.result("SendMessage", request)
        unread = await calls.error("SendMessage", {**request, "configuration": {"acceptedOutputModes": ["text/plain"]}})
        read = await calls.result("SendMessage", {**request, "configuration": {"acceptedOutputModes": ["image/*"]}})

    assert done["task"]["status"]["state"] == read["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert unread["code"] == -32005


@pytest.mark.parametrize("end", ["", "?X-Signature=a.b&until=1", "#page=2"])
async def test_the_type_of_a_file_is_that_of_its_address(end: str) -> None:
    """
    Where it names none itself; what follows the path, as in an address that is signed, says nothing of it.
    """
    part = {"url": f"https://files.example.org/x.png{end}"}
    request = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [part]}}
    async with calling(a2a_app(FakeEngine([Painter]), [Painter], Settings(url=BASE))) as calls:
        done = await calls.result("SendMessage", request)

    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("url", ["agents.example.org", "ftp://x", "https://", "https://x/?a=1", ""])
def test_an_address_that_nobody_can_call_is_no_setting(url: str) -> None:
    """
    It says what one looks like.
    """
    with pytest.raises(ValueError, match="https://HOST"):
        Settings(url=url)
