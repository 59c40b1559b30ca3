"""Where large values live: files named by the hash of what they hold, in one folder or bucket.

Rule 1: a value's key is the SHA-256 of its bytes. Writing it twice is writing it once, and replay names the same file.
Rule 2: a value is there whole or not at all, whichever process dies while writing it.
Rule 3: every process that takes part in a task uses the same storage.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from refold.core.errors import StorageError

if TYPE_CHECKING:
    from temporalio.contrib.gcp.gcsdriver import GCSStorageDriverClient

ENV = "REFOLD_STORAGE"
OFF = "off"


class StorageUnusable(StorageError):
    """The folder or bucket takes or gives no values.

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
        place: Where it was looked for.
    """

    def __init__(self, key: str, place: str) -> None:
        self.key = key
        self.place = place
        super().__init__(
            f"the value {key} is not in {place}; is {ENV} the same for the client and for every worker, and does it "
            "lead to the same disk or bucket?"
        )


class ValueCorrupt(StorageError):
    """What is stored under a key is not what was stored there.

    Attributes:
        key: The value's SHA-256, in hex, as it was written.
        place: Where it was found.
        found: The SHA-256 of what is there now.
    """

    def __init__(self, key: str, place: str, found: str) -> None:
        self.key = key
        self.place = place
        self.found = found
        super().__init__(
            f"the value {key} in {place} is damaged (it now hashes to {found}); restore it from a backup, or remove it "
            "so that the worker that replays its task writes it again"
        )


class Storage(Protocol):
    """Keeps bytes under their key. Called from any event loop of any process, at any time, several at once.

    An exception reaches whoever sends or reads the value: a client's caller; an activity, which is retried; or a
    workflow task, which Temporal tries again until the storage answers.
    """

    @property
    def place(self) -> str:
        """The folder or bucket, for people."""

    def ready(self) -> bool:
        """Whether values can be kept, as far as can be told without waiting; asked for each large value."""

    async def check(self) -> None:
        """Make sure that values can be kept, so that a worker says so at start and not in the middle of a task.

        Raises:
            StorageUnusable: They cannot.
        """

    async def put(self, key: str, data: bytes) -> None:
        """Keep `data`; when this returns it outlives a power cut. The same key always comes with the same value.

        Raises:
            StorageUnusable: It cannot be written.
        """

    async def get(self, key: str) -> bytes:
        """What `put` was given.

        Raises:
            ValueMissing: Nothing is kept under this key.
            StorageUnusable: It cannot be read.
        """


def storage_from_env(environ: Mapping[str, str] = os.environ) -> Storage:
    """The storage that `REFOLD_STORAGE` names.

    Unset: a folder of the user's own, made when first needed. `off`: none. `s3://bucket/prefix` or
    `gs://bucket/prefix`: a bucket. Anything else: that folder, which has to exist.

    Raises:
        StorageUnusable: What it names cannot be used: an unknown scheme, a missing package, no home folder.
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
    """The key that `data` is kept under."""
    return hashlib.sha256(data).hexdigest()


def is_key(text: object) -> bool:
    """Whether a text may be what `key_of` made."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def verified(key: str, data: bytes, place: str) -> bytes:
    """`data`, if it is what `key` promises.

    Raises:
        ValueCorrupt: It is something else.
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
        make: Make it when it is missing. A folder that was named on purpose is not made: where it is missing a disk
            is not mounted or a name is misspelt, and a new empty one would hide that until a task cannot go on.
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
        await asyncio.to_thread(self._check)

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
        path = self._path(key)
        try:
            # Another length is a file that someone else damaged: written again, it is whole.
            if path.exists() and path.stat().st_size == len(data):
                return
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
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
            # Values hold what people wrote: nobody else's business.
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StorageUnusable:
        return StorageUnusable(
            self.place, f"{error.strerror or error}; make it writable for this user, or set {ENV} to another folder"
        )


def _write(path: Path, data: bytes) -> None:
    # Written beside its place and moved there when whole; of two writers of one value either may win.
    descriptor, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        # mkstemp is for secrets; whether others may read is the folder's affair, and they may be workers.
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
    """What refold needs of a bucket's client; the SDK's `S3StorageDriverClient` is one."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None: ...

    async def object_exists(self, *, bucket: str, key: str) -> bool: ...

    async def get_object(self, *, bucket: str, key: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Bucket:
    """Values as objects in a bucket.

    Attributes:
        url: Scheme, bucket and prefix, for people.
        name: The bucket.
        prefix: What the objects' names begin with; empty or without slashes at its ends.
        connect: Opens a client. It is opened for each value: values are few and large, and a connection that stays
            open would need an owner in every client program.
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

    async def put(self, key: str, data: bytes) -> None:
        async with self._client() as client:
            if not await client.object_exists(bucket=self.name, key=self._object(key)):
                await client.put_object(bucket=self.name, key=self._object(key), data=data)

    async def get(self, key: str) -> bytes:
        async with self._client() as client:
            if not await client.object_exists(bucket=self.name, key=self._object(key)):
                raise ValueMissing(key, self.place)
            return await client.get_object(bucket=self.name, key=self._object(key))

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
        yield driver.new_aioboto3_client(client)


@asynccontextmanager
async def _gcs() -> AsyncIterator[Objects]:
    driver = importlib.import_module("temporalio.contrib.gcp.gcsdriver.gcloud_aio")
    async with importlib.import_module("gcloud.aio.storage").Storage() as client:
        yield _GcsObjects(driver.new_gcloud_aio_client(client))


@dataclass(frozen=True, slots=True)
class _GcsObjects:
    """The SDK's client for Google's storage, which names a key `object_name`."""

    client: GCSStorageDriverClient

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await self.client.put_object(bucket=bucket, object_name=key, data=data)

    async def object_exists(self, *, bucket: str, key: str) -> bool:
        return await self.client.object_exists(bucket=bucket, object_name=key)

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        return await self.client.get_object(bucket=bucket, object_name=key)


@dataclass(frozen=True, slots=True)
class Off:
    """No storage: nothing is kept, and a value that another process kept cannot be read."""

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


class ValueDriver(StorageDriver):
    """Keeps whole payloads in a `Storage`, for the SDK's `ExternalStorage`.

    A reference in history is the hash alone: it stays valid when the values move to another folder or bucket.
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
        # A payload holds a map, whose order protobuf leaves open; the key must not depend on it.
        data = payload.SerializeToString(deterministic=True)
        key = key_of(data)
        await self.storage.put(key, data)
        return StorageDriverClaim(claim_data={"sha256": key})

    async def _retrieve(self, key: str) -> Payload:
        return Payload.FromString(verified(key, await self.storage.get(key), self.storage.place))
