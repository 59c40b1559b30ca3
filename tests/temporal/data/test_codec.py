"""Encryption: which codec is used, what it covers, and how its keys change."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    ExternalStorage,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
)
from temporalio.exceptions import ActivityError, ApplicationError

from refold.core.retry_policy import NOT_READABLE
from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.receipts import Begun, Finished, LedgerAnswer, LedgerUnavailable
from refold.engine import CodecError, StorageError
from refold.temporal import RefoldPlugin
from refold.temporal.data.codec import CodecSeal, codec_from_env
from refold.temporal.data.payloads import Stored, codec_in, data_converter, load
from refold.temporal.data.storage import Folder, Off, ValueCorrupt, ValueDriver, ValueMissing, key_of
from refold.temporal.encryption import Encryption, from_env
from refold.temporal.worker.task.outcomes import LOST_S, failure_of

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = "a secret diagnosis"
LARGE = SECRET * 10_000


class Plain(PayloadCodec):
    """A program's own codec; leaves everything as it is."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


class ForEachWorkflow(Plain, WithSerializationContext):
    """A codec that would have a key for each workflow."""

    def with_context(self, context: SerializationContext) -> ForEachWorkflow:
        return self


class OfOneLoop(Plain):
    """A codec that keeps what belongs to the loop of its first use, as the clients of key services do."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.asked(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return await self.asked(payloads)

    async def asked(self, payloads: Sequence[Payload]) -> list[Payload]:
        await asyncio.sleep(0)
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("it is bound to a different event loop")
        return list(payloads)


class OwnConverter(PydanticPayloadConverter):
    """A program's own payload converter."""


class OwnFailures(DefaultFailureConverter):
    """A program's own failure converter."""


def ring(**keys: bytes) -> Encryption:
    return Encryption(keys)


def client_of(plugin: RefoldPlugin, given: DataConverter) -> DataConverter:
    """The converter of a client that is connected with its own converter and the plugin."""
    config: Any = plugin.configure_client({"data_converter": given})  # type: ignore[typeddict-item]
    converter: DataConverter = config["data_converter"]
    return converter


def written(folder: Folder) -> list[bytes]:
    return [path.read_bytes() for path in folder.path.rglob("*") if path.is_file()]


def file_of(folder: Folder, reference: Payload) -> Path:
    """Where the value is that a payload refers to."""
    return next(path for path in folder.path.rglob("*") if path.is_file() and path.name.encode() in reference.data)


# --- whose codec


@pytest.mark.parametrize("given", [DataConverter.default, pydantic_data_converter], ids=["default", "pydantic"])
@pytest.mark.parametrize("failures", [DefaultFailureConverter, DefaultFailureConverterWithEncodedAttributes])
def test_a_client_keeps_its_codec(folder: Folder, given: DataConverter, failures: Any) -> None:
    """
    A program that encrypts goes on doing so when it adopts refold.
    """
    codec = Plain()
    own = DataConverter(given.payload_converter_class, codec, failures)

    assert codec_in(client_of(RefoldPlugin(storage=folder), own)) is codec
    assert codec_in(client_of(RefoldPlugin(storage=folder), data_converter(Off(), codec))) is codec
    assert codec_in(client_of(RefoldPlugin(storage=folder, codec=codec), own)) is codec
    assert codec_in(client_of(RefoldPlugin(storage=folder, codec=codec), given)) is codec


@pytest.mark.parametrize(
    ("converter", "said"),
    [
        (
            DataConverter(OwnConverter),
            "a payload converter of its own, OwnConverter.*name RefoldPlugin before that plugin",
        ),
        (DataConverter(failure_converter_class=OwnFailures), "a failure converter of its own, OwnFailures"),
        (DataConverter(external_storage=ExternalStorage(drivers=[ValueDriver(Off())])), "an external storage of its"),
        (DataConverter(payload_codec=Plain()), "has a codec, and RefoldPlugin"),
        (DataConverter(payload_codec=ForEachWorkflow()), "serialization context"),
    ],
)
def test_what_refold_would_drop_is_refused(folder: Folder, converter: DataConverter, said: str) -> None:
    """
    A converter of a program's own is not replaced in silence.
    """
    other = Plain() if said.startswith("has a codec") else None

    with pytest.raises(CodecError, match=said):
        client_of(RefoldPlugin(storage=folder, codec=other), converter)


def test_a_workers_client_has_refolds_converter(folder: Folder) -> None:
    """
    A plugin that only the worker has cannot change its client's converter, and says so.
    """
    with pytest.raises(CodecError, match=r"connect it with plugins=\[RefoldPlugin"):
        codec_in(DataConverter(payload_codec=Plain()))


def test_the_environment_names_a_codec(monkeypatch: pytest.MonkeyPatch, folder: Folder) -> None:
    """
    Where the program names none; every process of refold reads the setting.
    """
    monkeypatch.setenv("REFOLD_CODEC", "refold.temporal.encryption:from_env")
    monkeypatch.setenv("REFOLD_ENCRYPTION_KEYS", f"k={base64.b64encode(NEW).decode()}")

    assert isinstance(codec_in(data_converter(folder)), Encryption)
    assert isinstance(codec_in(client_of(RefoldPlugin(storage=folder), DataConverter.default)), Encryption)
    assert isinstance(codec_in(client_of(RefoldPlugin(storage=folder, codec=Plain()), DataConverter.default)), Plain)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("refold.temporal.encryption", "is module:factory"),
        ("nobody.knows:this", "No module named 'nobody'"),
        ("refold.temporal.encryption:nothing", "has no attribute 'nothing'"),
        ("refold.temporal.encryption:from_env", "REFOLD_ENCRYPTION_KEYS"),
        ("builtins:object", "object is no temporalio.converter.PayloadCodec"),
        ("tests.temporal.data.test_codec:ForEachWorkflow", "serialization context"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(named: str, said: str) -> None:
    """
    A process with a codec that cannot be made does not go on without one.
    """
    with pytest.raises(CodecError, match=said):
        codec_from_env({"REFOLD_CODEC": named})


# --- what it covers


async def test_a_large_value_is_stored_once(folder: Folder) -> None:
    """
    Each encryption writes other bytes; a replay, and another task with the same value, find the stored one.
    """
    converter = data_converter(folder, ring(k=NEW))
    first, second, third = [(await converter.encode([LARGE]))[0] for _ in range(3)]

    assert first.data == second.data == third.data
    assert len(written(folder)) == 1
    assert SECRET.encode() not in written(folder)[0]
    assert await converter.decode([first], [str]) == [LARGE]


async def test_a_stored_value_is_compared_with_its_name(folder: Folder) -> None:
    """
    Bytes that were damaged, or are another value's, are never taken for the value.
    """
    converter = data_converter(folder, ring(k=NEW))
    [one], [other] = await converter.encode([LARGE]), await converter.encode([LARGE + "!"])
    mine, others = file_of(folder, one), file_of(folder, other)

    mine.write_bytes(others.read_bytes())
    with pytest.raises(ValueCorrupt):
        await converter.decode([one], [str])
    raw = others.read_bytes()
    others.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ValueCorrupt):
        await converter.decode([other], [str])


@pytest.mark.parametrize("key", ["x", "../x", "0" * 64, key_of(b"")])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_payload_that_only_says_that_it_was_stored(folder: Folder, key: str, encrypted: bool) -> None:
    """
    Anybody can send one; it is an input that cannot be read, and no damage of the storage, which a task would wait for.
    """
    converter = data_converter(folder, ring(k=NEW))
    await folder.put(key_of(b""), b"another value")
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b'"hi"')
    if encrypted:
        [payload] = await ring(k=NEW).encode([payload])
    payload.metadata["refold-value"] = key.encode()
    assert converter.payload_codec is not None
    [read] = await converter.payload_codec.decode([payload])

    assert read.metadata["encoding"] == b"another value than its metadata name"


async def test_failures_are_encrypted_with_their_causes(folder: Folder) -> None:
    """
    Messages and stack traces are readable by who has the key, and by nobody else.
    """
    converter = data_converter(folder, ring(k=NEW))
    failure = Failure()
    try:
        try:
            raise ValueError(f"cannot help with: {SECRET}")
        except ValueError as error:
            raise ApplicationError(f"sorry: {SECRET}", {"why": SECRET}) from error
    except ApplicationError as error:
        await converter.encode_failure(error, failure)

    assert SECRET.encode() not in failure.SerializeToString()
    read = await converter.decode_failure(failure)
    assert SECRET in str(read)
    assert SECRET in str(read.__cause__)
    again = Failure()
    await converter.encode_failure(read, again)
    assert SECRET.encode() not in again.SerializeToString()


async def test_a_missing_key_is_said_in_plain_text(folder: Folder) -> None:
    """
    Whoever looks why a worker cannot go on may not have that key, either.
    """
    failure = Failure()
    await data_converter(folder, ring(k=NEW)).encode_failure(CodecError("encrypted by the key 'other'"), failure)

    assert failure.message == "encrypted by the key 'other'"


@pytest.mark.parametrize("cause", [CodecError("the key 'other'"), ValueMissing("0" * 64, "a folder")])
@pytest.mark.parametrize("codec", [None, ring(k=NEW)], ids=["plain", "encrypted"])
@pytest.mark.parametrize("what", ["arguments", "heartbeat details"])
async def test_an_activity_that_cannot_be_read_here_is_left_to_others(
    folder: Folder, cause: Exception, codec: Encryption | None, what: str
) -> None:
    """
    Whoever has the key or the value performs it: the SDK's failure would end the command. Everybody can read why.
    """
    undecoded, failure = ApplicationError(f"Failed decoding {what}", non_retryable=True), Failure()
    undecoded.__cause__ = cause
    await data_converter(folder, codec).encode_failure(undecoded, failure)
    about = failure.application_failure_info

    assert failure.message == f"this worker cannot read the command: {cause}"
    assert (about.type, about.non_retryable, len(about.details.payloads)) == (NOT_READABLE, False, 0)
    read = await data_converter(folder).decode_failure(failure)
    assert failure_of(of_activity(read)).again_s == LOST_S


def of_activity(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "failed", scheduled_event_id=1, started_event_id=2, identity="", activity_type="", activity_id="",
        retry_state=None,
    )  # fmt: skip
    error.__cause__ = cause
    return error


async def test_without_a_codec_failures_stay_readable(folder: Folder) -> None:
    """
    Nothing is hidden where nothing is encrypted.
    """
    failure = Failure()
    await data_converter(folder).encode_failure(ApplicationError("why"), failure)

    assert failure.message == "why"
    assert not failure.HasField("encoded_attributes")


def test_the_ledger_is_encrypted(tmp_path: Path) -> None:
    """
    Results and reasons on receipts; the rules of the ledger work on what they say.
    """
    file = tmp_path / "ledger.db"
    with Ledger(str(file)) as plain:
        before = plain.ask("before", "pay", {})
        plain.begin(before)
        plain.finish("before", 1, "long ago")
    ledger = Ledger(str(file))
    ledger.store.seal = CodecSeal(ring(k=NEW))
    with ledger:
        ask = ledger.ask("key", "pay", {})
        assert isinstance(ledger.begin(ask), Begun)
        ledger.doubt("key", 1, f"no answer about {SECRET}")
        found = ledger.look("key")
        assert found is not None
        assert found.why == f"no answer about {SECRET}"
        ledger.resolve(ask, {"paid": SECRET})
        assert [_value(ledger.begin(one)) for one in (ask, before)] == [{"paid": SECRET}, "long ago"]
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    with Ledger(str(file)) as keyless, pytest.raises(LedgerUnavailable, match="give this process the codec"):
        keyless.begin(ask)
    other = Ledger(str(file))
    other.store.seal = CodecSeal(ring(k=OLD))
    with other, pytest.raises(LedgerUnavailable, match=r"not by the key 'k': .* this id stands for different keys"):
        other.begin(ask)
    with closing(sqlite3.connect(file)) as records:
        assert records.execute("select why from refold_receipts where key = 'before'").fetchone() == ("",)


async def test_a_codec_with_a_client_encrypts_the_ledger(monkeypatch: pytest.MonkeyPatch, folder: Folder) -> None:
    """
    All the ledger's threads use it in one loop, and the factory makes it for that loop: the worker's own loop has
    another one.
    """
    monkeypatch.setenv("REFOLD_CODEC", "tests.temporal.data.test_codec:OfOneLoop")
    converter = data_converter(folder)
    codec = codec_in(converter)
    assert codec is not None
    seal = CodecSeal(codec)

    await converter.encode([SECRET])
    sealed = [await asyncio.to_thread(seal.sealed, text) for text in ("one", "two")]
    opened = await asyncio.gather(*(asyncio.to_thread(seal.opened, text) for text in sealed))
    await converter.encode([SECRET])

    assert opened == ["one", "two"]


FORKED = """
import os, signal
from refold.temporal.data.codec import CodecSeal, codec_from_env

seal = CodecSeal(codec_from_env())
seal.sealed("one")
if (child := os.fork()) == 0:
    signal.alarm(20)  # ends a child that waits for ever
    print(seal.opened(seal.sealed("two")), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(seal.opened(seal.sealed("three")))
"""


def test_a_fork_encrypts_the_ledger_in_a_loop_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The thread of its parent's loop is not there, as where a web server forks; the parent goes on with its own.
    """
    monkeypatch.setenv("REFOLD_CODEC", "tests.temporal.data.test_codec:OfOneLoop")
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["two", "three"]


class Exiting(Plain):
    """A codec that ends the process, as the `main()` of a program does."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise SystemExit(1)


def test_a_codec_that_exits_stops_no_other_seal() -> None:
    """
    They share a loop, which `SystemExit` would end; the ledger would then wait for ever.
    """
    with pytest.raises(CodecError, match="SystemExit"):
        CodecSeal(Exiting()).sealed("one")

    assert CodecSeal(Plain()).opened(CodecSeal(Plain()).sealed("two")) == "two"


class Quoting(Plain):
    """A codec whose key service is away, and whose error quotes what it was to encrypt."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ConnectionError(f"cannot send {payloads[0].data!r}")

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        raise ConnectionError(f"cannot send {payloads[0].data!r}")


@pytest.mark.parametrize("call", ["sealed", "opened"])
def test_a_ledger_whose_codec_is_away_quotes_nothing(folder: Folder, call: str) -> None:
    """
    Its error stands in the worker's log for as long as receipts wait for the codec.
    """
    ledger = Ledger(str(folder.path / "ledger.db"))
    written = SECRET
    if call == "opened":
        ledger.store.seal = CodecSeal(Plain())
        written = ledger.store.sealed(SECRET)
    ledger.store.seal = CodecSeal(Quoting())
    with pytest.raises(LedgerUnavailable, match=r"the codec Quoting cannot (en|de)crypt a value: Conn") as raised:
        getattr(ledger.store, call)(written)

    assert SECRET not in str(raised.value)


def _value(answer: LedgerAnswer) -> JsonValue:
    assert isinstance(answer, Finished)
    return answer.value


# --- keys


async def test_keys_are_rotated(folder: Folder) -> None:
    """
    The first key encrypts, and names itself; what older keys wrote is read.
    """
    before, after = data_converter(folder, ring(old=OLD)), data_converter(folder, ring(new=NEW, old=OLD))
    small, large = (await before.encode([SECRET]))[0], (await before.encode([LARGE]))[0]
    part = Stored[str](value=LARGE)
    [kept] = await before.decode(await before.encode([part]), [Stored[str]])
    [now] = await after.encode([SECRET])

    assert (small.metadata["encryption-key-id"], now.metadata["encryption-key-id"]) == (b"old", b"new")
    assert await after.decode([small, large], [str, str]) == [SECRET, LARGE]
    assert await load(kept, after) == LARGE
    assert (await after.encode([LARGE]))[0].data == large.data
    assert len(written(folder)) == 2
    with pytest.raises(CodecError, match="by the key 'new', which is not here"):
        await before.decode([now], [str])


async def test_two_keys_of_one_id_are_told_apart(folder: Folder) -> None:
    """
    As where each shell has made a key of its own by the command of the documentation.
    """
    payloads = await data_converter(folder, ring(k=OLD)).encode([SECRET])

    with pytest.raises(CodecError, match=r"not by the key 'k': .* this id stands for different keys"):
        await data_converter(folder, ring(k=NEW)).decode(payloads, [str])


@pytest.mark.parametrize("value", [LARGE, Stored[str](value=LARGE)], ids=["value", "part"])
async def test_a_stored_value_under_another_key_of_its_id_is_not_called_damaged(
    folder: Folder, value: str | Stored[str]
) -> None:
    """
    Nobody is told to remove what those with the right key can read.
    """
    payloads = await data_converter(folder, ring(k=OLD)).encode([value])
    [part] = await data_converter(folder, ring(k=OLD)).decode(payloads, [type(value)])
    other = data_converter(folder, ring(k=NEW))

    with pytest.raises(ValueCorrupt, match="not by the key 'k' that this process has; give it the key") as found:
        await (load(part, other) if isinstance(part, Stored) else other.decode(payloads, [str]))
    assert "remove" not in str(found.value)


@pytest.mark.parametrize("value", [LARGE, Stored[str](value=LARGE)], ids=["value", "part"])
async def test_a_value_that_is_sent_again_is_under_the_new_key(folder: Folder, value: str | Stored[str]) -> None:
    """
    Also where the ids of both keys have one length, and the stored bytes do, too: the old key is needed no longer.
    """
    before, rotated, after = (
        data_converter(folder, codec) for codec in (ring(old=OLD), ring(new=NEW, old=OLD), ring(new=NEW))
    )
    await before.encode([value])
    [read] = await after.decode(await rotated.encode([value]), [type(value)])

    assert len(written(folder)) == 1
    assert (read if isinstance(read, str) else await load(read, after)) == LARGE


async def test_what_was_written_before_is_read(folder: Folder) -> None:
    """
    Encryption may begin at any time: earlier tasks are read as they are, and so are the journals that they stored,
    packed or, by earlier releases, as they were.
    """
    before, now = data_converter(folder), data_converter(folder, ring(k=NEW))
    payloads = await before.encode([SECRET, LARGE, Stored[str](value=SECRET)])
    bare = to_json(LARGE)
    await folder.put(key_of(bare), bare)

    *read, stored = await now.decode(payloads, [str, str, Stored[str]])
    assert [*read, await load(stored, now)] == [SECRET, LARGE, SECRET]
    assert await load(Stored[str](sha256=key_of(bare), size=len(bare)), now) == LARGE


@pytest.mark.parametrize("codec", [None, ring(k=NEW)], ids=["plain", "encrypted"])
async def test_a_damaged_journal_is_said_to_be(folder: Folder, codec: Encryption | None) -> None:
    """
    Whatever its bytes are by now.
    """
    converter = data_converter(folder, codec)
    [stored] = await converter.decode(await converter.encode([Stored[str](value=SECRET)]), [Stored[str]])
    assert stored.sha256 is not None
    [file] = [one for one in folder.path.rglob("*") if one.is_file()]
    for damaged in (b"", b"\xff" * 10, file.read_bytes()[:-1]):
        file.write_bytes(damaged)
        with pytest.raises(StorageError, match=stored.sha256):
            await load(stored, converter)


async def test_a_process_without_the_codec_says_so_of_a_journal(folder: Folder) -> None:
    """
    And not that it is damaged.
    """
    encrypting, plain = data_converter(folder, ring(k=NEW)), data_converter(folder)
    [stored] = await encrypting.decode(await encrypting.encode([Stored[str](value=SECRET)]), [Stored[str]])

    with pytest.raises(CodecError, match=r"encrypted by the key 'k', .* set REFOLD_CODEC"):
        await load(stored, plain)


async def test_a_process_without_the_codec_says_so(folder: Folder) -> None:
    """
    It never takes what is encrypted for something that cannot be read.
    """
    payloads = await data_converter(folder, ring(k=NEW)).encode([SECRET])

    with pytest.raises(CodecError, match=r"encrypted by the key 'k', .* set REFOLD_CODEC"):
        await data_converter(folder).decode(payloads, [str])


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 100])
async def test_bytes_that_only_say_that_they_are_encrypted(data: bytes) -> None:
    """
    Anybody can send them; they are an input that cannot be read, and no error of the codec.
    """
    payload = Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": b"k"}, data=data)
    [read] = await ring(k=NEW).decode([payload])

    assert read.metadata["encoding"] == b"encrypted, but not by the key 'k'"


def test_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    """
    One a line or separated by commas, the current one first.
    """
    old, new = (base64.b64encode(key).decode() for key in (OLD, NEW))
    file = tmp_path / "keys"
    file.write_text(f"# rotated in May\n2026-05={new}\n\n2025-11={old}\n")
    made: list[Callable[[], Encryption]] = [
        lambda: from_env({"REFOLD_ENCRYPTION_KEYS": f"2026-05={new},2025-11={old}"}),
        lambda: from_env({"REFOLD_ENCRYPTION_KEYS_FILE": str(file)}),
    ]

    for make in made:
        assert make()._current == "2026-05"
        assert list(make()._ciphers) == ["2026-05", "2025-11"]


def test_keys_behind_a_hash_are_not_there(tmp_path: Path) -> None:
    """
    All of them, to the end of the line: a comment has commas, as a line of several keys that was taken out.
    """
    old, new = (base64.b64encode(key).decode() for key in (OLD, NEW))
    file = tmp_path / "keys"
    file.write_text(f"# 2025-11={old}, 2025-12={old}\n# rotated in May, by Ada\n2026-05={new}  # the current one\n")

    made = from_env({"REFOLD_ENCRYPTION_KEYS_FILE": str(file)})

    assert list(made._ciphers) == ["2026-05"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "set one of them"),
        ({"REFOLD_ENCRYPTION_KEYS": "k", "REFOLD_ENCRYPTION_KEYS_FILE": "f"}, "set one of them"),
        ({"REFOLD_ENCRYPTION_KEYS_FILE": "/nowhere"}, "cannot be read: No such file"),
        ({"REFOLD_ENCRYPTION_KEYS": "#"}, "needs a key"),
        ({"REFOLD_ENCRYPTION_KEYS": "topsecret"}, "key 1 is not ID=KEY"),
        ({"REFOLD_ENCRYPTION_KEYS": "k=topsecret!"}, "'k' is not base64"),
        ({"REFOLD_ENCRYPTION_KEYS": "k=topsecrét"}, "'k' is not base64"),
        ({"REFOLD_ENCRYPTION_KEYS_FILE": sys.executable}, "is no text"),
        ({"REFOLD_ENCRYPTION_KEYS": "k=dG9wc2VjcmV0"}, "'k' has 9 bytes, not 32"),
        ({"REFOLD_ENCRYPTION_KEYS": "k k=dG9wc2VjcmV0"}, "unlike 'k k'"),
        ({"REFOLD_ENCRYPTION_KEYS": "k=dG9w,k=dG9w"}, "two keys have the id 'k'"),
    ],
)
def test_a_wrong_key_is_named_and_not_shown(environ: dict[str, str], said: str) -> None:
    """
    Never the key itself.
    """
    with pytest.raises(CodecError, match=said) as caught:
        from_env(environ)

    assert "topsecret" not in str(caught.value)
