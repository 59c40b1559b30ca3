"""Storage for large values: files named by the hash of their content, in one folder or bucket.

Rule 1: a value's key is the SHA-256 of its bytes before encryption, so repeated writes and replays use the same file.
Rule 2: a value is stored whole or not at all, whichever process dies while writing.
Rule 3: every process that takes part in a task uses the same storage.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError as ProtobufError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from refold.engine import StorageError

if TYPE_CHECKING:
    from temporalio.contrib.aws.s3driver import S3StorageDriverClient

ENV = "REFOLD_STORAGE"
VALUE_KEY = "refold-value"
"""The metadata that holds the key of a value that was encrypted: the hash of what it was before."""

OFF = "off"

WRITTEN_LATELY = "it was written just now, and another task may be about to refer to it; purge again in a minute"


class StorageUnusable(StorageError):
    """The folder or bucket cannot be read or written.

    Attributes:
        place: The folder or bucket.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"large values cannot be kept in {place}: {problem}")


class ValueMissing(StorageError):
    """A task refers to a value that is not in this process's storage.

    Attributes:
        key: The value's SHA-256, in hex.
        place: The folder or bucket that was searched.
    """

    def __init__(self, key: str, place: str) -> None:
        self.key = key
        self.place = place
        super().__init__(
            f"the value {key} is not in {place}; is {ENV} the same for the client and for every worker, and does it "
            "lead to the same disk or bucket?"
        )


class ValueCorrupt(StorageError):
    """A stored value no longer matches its key.

    Attributes:
        key: The SHA-256 of the value as written, in hex.
        place: The folder or bucket.
        found: The SHA-256 of the bytes stored now, in hex.
    """

    def __init__(self, key: str, place: str, found: str, unlike: str = "") -> None:
        """Take what is known; `unlike` says that the key of its name has not encrypted it."""
        self.key = key
        self.place = place
        self.found = found
        problem = f"damaged (it now hashes to {found})"
        way_out = "restore it from a backup, or remove it so that the worker that replays its task writes it again"
        if unlike:
            problem = f"{unlike} that this process has"
            way_out = "give it the key of the others; if they cannot read it either, restore it from a backup"
        super().__init__(f"the value {key} in {place} is {problem}; {way_out}")


class Storage(Protocol):
    """Stores bytes by key. Called concurrently from any event loop of any process.

    An exception reaches the code that sends or reads the value: a client's caller; an activity, which Temporal retries;
    or a workflow task, which Temporal retries until the storage answers.
    """

    @property
    def place(self) -> str:
        """The folder or bucket, for people."""

    def ready(self) -> bool:
        """Whether values can be stored, as far as known without I/O; called for each large value."""

    async def check(self) -> None:
        """Check that values can be stored; called when a worker starts, so that no task fails later.

        Raises:
            StorageUnusable: Values cannot be stored.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Store `data` durably before returning. The same key always comes with the same value.

        Raises:
            StorageUnusable: The value cannot be written.
        """

    async def get(self, key: str) -> bytes:
        """The value that was put under a key.

        Raises:
            ValueMissing: No value is stored under this key.
            StorageUnusable: The storage cannot be read.
        """

    async def used(self, key: str, *, since: float) -> bool:
        """Whether somebody has put the value under a key since then, in seconds since 1970.

        False for a storage that removes nothing.

        Raises:
            StorageUnusable: Nobody can tell.
        """

    async def may_have_held(self, key: str) -> bool:
        """Whether a value that is missing may have been here, and have been removed; False if it certainly was not."""

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        """Remove the value under a key, if there is one.

        Args:
            key: The key.
            unused_since: Only if nobody has put it since then, in seconds since 1970; None removes it in any case.

        Returns:
            Why it stays; empty if it is gone.

        Raises:
            StorageUnusable: It cannot be removed.
        """


def storage_from_env(environ: Mapping[str, str] = os.environ) -> Storage:
    """The storage that `REFOLD_STORAGE` names.

    Unset: a folder in the user's data folder, created on first use. `off`: no storage. `s3://bucket/prefix` or
    `gs://bucket/prefix`: a bucket. Anything else: a folder, which must exist.

    Raises:
        StorageUnusable: The setting has an unknown scheme, a package is missing, or this user has no home folder.
    """
    named = environ.get(ENV, "").strip()
    if named == OFF:
        return Off()
    scheme, found, rest = named.partition("://")
    if found:
        return _bucket(scheme, rest, named)
    if named:
        return Folder(_expanded(named).absolute())
    data_home = Path(environ.get("XDG_DATA_HOME", ""))
    # The XDG specification: a relative path is to be ignored.
    if not data_home.is_absolute():
        data_home = _expanded("~/.local/share")
    return Folder(data_home / "refold" / "values", make=True)


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:  # how pathlib says that this user has no home
        raise StorageUnusable(f"the folder {path}", f"this user has no home folder; set {ENV} to a folder") from None


def key_of(data: bytes) -> str:
    """The storage key of `data`: its SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()


def is_key(text: object) -> bool:
    """Whether a text may be what `key_of` made."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def verified(key: str, data: bytes, place: str) -> bytes:
    """Return `data` after checking it against its key.

    Raises:
        ValueCorrupt: The hash of `data` is not `key`.
    """
    found = key_of(data)
    if found != key:
        raise ValueCorrupt(key, place, found)
    return data


@dataclass(frozen=True, slots=True)
class Folder:
    """Values as files in one folder, `ab/abcdef…`, shared by any number of processes.

    Attributes:
        path: The folder.
        make: Create the folder if it is missing. A folder that a setting names is not created: a missing one means an
            unmounted disk or a misspelt name, and an empty folder would hide that until a task fails to read a value.
    """

    path: Path
    make: bool = False

    @property
    def place(self) -> str:
        return f"the folder {self.path}"

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.to_thread(self._put, key, data)

    async def get(self, key: str) -> bytes:
        return await asyncio.to_thread(self._get, key)

    async def check(self) -> None:
        # A disk that does not answer would hold one of asyncio's threads, for which the process waits at its end.
        outcome = Future[None]()

        def check() -> None:
            try:
                self._check()
            except BaseException as error:  # noqa: BLE001 - raised again below
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        outcome.set_running_or_notify_cancel()
        threading.Thread(target=check, name="refold-storage-check", daemon=True).start()
        await asyncio.wrap_future(outcome)

    async def used(self, key: str, *, since: float) -> bool:
        return await asyncio.to_thread(self._used, key, since)

    async def may_have_held(self, key: str) -> bool:
        return await asyncio.to_thread(self._path(key).parent.is_dir)  # it stays when a value is removed

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        return await asyncio.to_thread(self._remove, key, unused_since)

    def ready(self) -> bool:
        return self.make or (self.path.is_dir() and os.access(self.path, os.W_OK | os.X_OK))

    def _check(self) -> None:
        self._prepare()
        try:
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except OSError as error:
            raise self._unusable(error) from error

    def _put(self, key: str, data: bytes) -> None:
        self._prepare()
        path, head = self._path(key), _head(data)
        try:
            # Written anew where it is another user's, which this one may replace but not touch.
            with suppress(FileNotFoundError, PermissionError), path.open("rb") as file:
                # A file of another length is damaged; writing it again repairs it. One with another head is encrypted
                # by another key, which may be removed before this value's task ends.
                if os.fstat(file.fileno()).st_size == len(data) and file.read(len(head)) == head:
                    os.utime(path)  # so that a purge sees that it is used
                    return
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                path.parent.chmod(S_IMODE(self.path.stat().st_mode))  # whoever may write in one may in the other
                _sync_folder(self.path)
            _write(path, data)
        except OSError as error:
            raise self._unusable(error) from error

    def _get(self, key: str) -> bytes:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            place = self.place if self.path.is_dir() else f"{self.place}, which does not exist"
            raise ValueMissing(key, place) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _used(self, key: str, since: float) -> bool:
        try:
            return self._path(key).stat().st_mtime > since
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._unusable(error) from error

    def _remove(self, key: str, unused_since: float | None) -> str:
        if unused_since is not None and self._used(key, unused_since):
            return WRITTEN_LATELY
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise self._unusable(error) from error
        return ""

    def _path(self, key: str) -> Path:
        return self.path / key[:2] / key

    def _prepare(self) -> None:
        if self.path.is_dir():
            return
        if not self.make:
            raise StorageUnusable(
                self.place, f"it does not exist; make it (`mkdir -p {self.path}`) or correct {ENV} in this process"
            )
        try:
            # Values hold what people wrote, so only this user may read the folder.
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StorageUnusable:
        return StorageUnusable(
            self.place, f"{error.strerror or error}; make it writable for this user, or set {ENV} to another folder"
        )


def _head(data: bytes) -> bytes:
    """What stored bytes begin with: the metadata of a payload, which name the codec's key; else nothing."""
    try:
        return data[: len(data) - len(Payload.FromString(data).data)]
    except ProtobufError:
        return b""


def _write(path: Path, data: bytes) -> None:
    # Written to a temporary file and then renamed; if two processes write the same value, either may win.
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        # mkstemp allows only this user to read; other users' workers may share the folder, whose mode decides.
        new.chmod(0o644)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    # A new name is durable only once its folder is; Windows neither needs nor allows this.
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Objects(Protocol):
    """What refold needs of a bucket's client."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None: ...

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        """When it was written last, in seconds since 1970; None if there is no such object."""

    async def get_object(self, *, bucket: str, key: str) -> bytes: ...


RENEWED_S = 86400.0
"""An object older than this, in seconds, is written again when it is put, so that the bucket's lifecycle rule counts
from there. Younger ones are not: a restarted worker puts all values of its tasks again."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values as objects in a bucket.

    Attributes:
        url: Scheme, bucket and prefix, for people.
        name: The bucket.
        prefix: What the objects' names begin with; empty or without slashes at its ends.
        connect: Opens a client, anew for each value: values are few and large, and every client program would have to
            close a shared connection.
    """

    url: str
    name: str
    prefix: str
    connect: Callable[[], AbstractAsyncContextManager[Objects]]

    @property
    def place(self) -> str:
        return f"the bucket {self.url}"

    def ready(self) -> bool:
        return True

    async def check(self) -> None:
        async with self._client() as client:
            await client.put_object(bucket=self.name, key=self._object("check"), data=b"")
            # Who may not list S3's objects is refused where one is missing, and each new value is looked for.
            await client.object_written_at(bucket=self.name, key=self._object("missing"))

    async def put(self, key: str, data: bytes) -> None:
        at = {"bucket": self.name, "key": self._object(key)}
        async with self._client() as client:
            written_at = await client.object_written_at(**at)
            if written_at is not None and time.time() - written_at < RENEWED_S:
                # One of another length or head is damaged, or encrypted otherwise, as in a folder.
                found = await client.get_object(**at)
                if len(found) == len(data) and found.startswith(_head(data)):
                    return
            await client.put_object(**at, data=data)

    async def get(self, key: str) -> bytes:
        at = {"bucket": self.name, "key": self._object(key)}
        async with self._client() as client:
            if await client.object_written_at(**at) is None:
                raise ValueMissing(key, self.place)
            return await client.get_object(**at)

    async def used(self, key: str, *, since: float) -> bool:
        return False

    async def may_have_held(self, key: str) -> bool:
        return True

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        return "refold deletes no objects of buckets; delete it there, or let a lifecycle rule do so"

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Objects]:
        try:
            async with self.connect() as client:
                yield client
        except StorageError:
            raise
        except Exception as error:  # the clients' libraries share no base of errors
            raise StorageUnusable(
                self.place, f"{type(error).__name__}: {error}; check credentials, region and the bucket's name"
            ) from error

    def _object(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


_EXTRAS = {"s3": ("s3", "aioboto3"), "gs": ("gcs", "gcloud")}  # scheme: refold's extra, the package it brings


def _bucket(scheme: str, rest: str, named: str) -> Bucket:
    if scheme not in _EXTRAS:
        raise StorageUnusable(named, f"{ENV} is `{OFF}`, a folder, s3://bucket/prefix or gs://bucket/prefix")
    name, _, prefix = rest.partition("/")
    if not name:
        raise StorageUnusable(named, "it names no bucket")
    extra, package = _EXTRAS[scheme]
    if importlib.util.find_spec(package) is None:
        raise StorageUnusable(named, f"the package for it is missing; `pip install 'refold[{extra}]'`")
    return Bucket(named, name, prefix.strip("/"), _s3 if scheme == "s3" else _gcs)


@asynccontextmanager
async def _s3() -> AsyncIterator[Objects]:
    # Looked up by name: the extras are not installed where refold is type-checked.
    driver = importlib.import_module("temporalio.contrib.aws.s3driver.aioboto3")
    session = importlib.import_module("aioboto3").Session()
    async with session.client("s3") as client:
        yield _S3Objects(client, driver.new_aioboto3_client(client))


@asynccontextmanager
async def _gcs() -> AsyncIterator[Objects]:
    async with importlib.import_module("gcloud.aio.storage").Storage() as storage:
        yield _GcsObjects(storage)


@dataclass(frozen=True, slots=True)
class _S3Objects:
    """The SDK's client for S3, and aioboto3's, which knows when an object was written."""

    client: Any
    driver: S3StorageDriverClient

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await self.driver.put_object(bucket=bucket, key=key, data=data)

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        try:
            found = await self.client.head_object(Bucket=bucket, Key=key)
        except self.client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "404":
                return None
            raise
        written_at: float = found["LastModified"].timestamp()
        return written_at

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        return await self.driver.get_object(bucket=bucket, key=key)


@dataclass(frozen=True, slots=True)
class _GcsObjects:
    """Google's storage. The SDK's client for it never writes an object again."""

    storage: Any

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await self.storage.upload(
            bucket, key, data, content_type="application/octet-stream", force_resumable_upload=False
        )

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        try:
            found = await self.storage.download_metadata(bucket, key)
        except Exception as error:
            if getattr(error, "status", None) == 404:  # aiohttp's `ClientResponseError`
                return None
            raise
        return datetime.fromisoformat(found["timeCreated"]).timestamp()

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        found: bytes = await self.storage.download(bucket, key)
        return found


@dataclass(frozen=True, slots=True)
class Off:
    """No storage: no value is stored, and values that other processes stored cannot be read."""

    @property
    def place(self) -> str:
        return f"no storage ({ENV}={OFF} in this process)"

    def ready(self) -> bool:
        return False

    async def check(self) -> None:
        return None

    async def put(self, key: str, data: bytes) -> None:
        raise StorageUnusable(self.place, f"set {ENV} to a folder for a value of {len(data):,} bytes")

    async def get(self, key: str) -> bytes:
        raise ValueMissing(key, self.place)

    async def used(self, key: str, *, since: float) -> bool:
        return False

    async def may_have_held(self, key: str) -> bool:
        return False

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        return f"this process has no storage; set {ENV} as it was where the value was written"


class ValueDriver(StorageDriver):
    """Stores whole payloads in a `Storage`, for the SDK's `ExternalStorage`.

    A reference in history holds only the hash, so it stays valid after the values move to another folder or bucket.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    NAME = "refold"

    def name(self) -> str:
        return self.NAME

    def type(self) -> str:
        return "refold.values"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        return list(await asyncio.gather(*(self._store(payload) for payload in payloads)))

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        return list(await asyncio.gather(*(self._retrieve(claim.claim_data["sha256"]) for claim in claims)))

    async def _store(self, payload: Payload) -> StorageDriverClaim:
        # Deterministic, since the key must not depend on the order of the payload's map.
        data = payload.SerializeToString(deterministic=True)
        key = payload.metadata[VALUE_KEY].decode() if VALUE_KEY in payload.metadata else key_of(data)
        await self.storage.put(key, data)
        return StorageDriverClaim(claim_data={"sha256": key})

    async def _retrieve(self, key: str) -> Payload:
        data = await self.storage.get(key)
        with suppress(ProtobufError):
            payload = Payload.FromString(data)
            if payload.metadata.get(VALUE_KEY) == key.encode():
                return payload  # encrypted: the codec compares what it decrypts with the key
        return Payload.FromString(verified(key, data, self.storage.place))
