"""A bucket as the storage for large values, and the clients for its kinds."""

from __future__ import annotations

import importlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from refold.engine import StorageError
from refold.temporal.data.storage import StorageUnusable, ValueMissing, head_of

if TYPE_CHECKING:
    from temporalio.contrib.aws.s3driver import S3StorageDriverClient


EXTRAS = {"s3": ("s3", "aioboto3"), "gs": ("gcs", "gcloud")}
"""By scheme: refold's extra, and a package that it brings."""


class Objects(Protocol):
    """What refold needs of a bucket's client."""

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None: ...

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        """When it was written last, in seconds since 1970; None if there is no such object."""

    async def get_object(self, *, bucket: str, key: str) -> bytes | None:
        """What was put; None if there is no such object. A bucket that is gone is an error, where one can tell."""


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
        connect: Gives a client for one value.
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
                if found is not None and len(found) == len(data) and found.startswith(head_of(data)):
                    return
            await client.put_object(**at, data=data)

    async def get(self, key: str) -> bytes:
        async with self._client() as client:
            found = await client.get_object(bucket=self.name, key=self._object(key))
        if found is None:
            raise ValueMissing(key, self.place)
        return found

    async def now(self) -> float:
        return time.time()  # it removes nothing, whatever the time

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
        except ImportError as error:  # the extra brings several packages
            extra, _ = EXTRAS[self.url.partition("://")[0]]
            raise StorageUnusable(
                self.place, f"a package for it is missing ({error}); `pip install 'refold[{extra}]'`"
            ) from error
        except Exception as error:  # the clients' libraries share no base of errors
            raise StorageUnusable(
                self.place, f"{type(error).__name__}: {error}; check credentials, region and the bucket's name"
            ) from error

    def _object(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key


CONNECTIONS = 100
"""How many values are sent or fetched at a time; more wait. As many as Google's client allows, where S3's has 10."""


@asynccontextmanager
async def s3() -> AsyncIterator[Objects]:
    """A client of S3. To open one takes some 90 ms of CPU."""
    # Looked up by name: the extras are not installed where refold is type-checked.
    driver = importlib.import_module("temporalio.contrib.aws.s3driver.aioboto3")
    config = importlib.import_module("aiobotocore.config").AioConfig(max_pool_connections=CONNECTIONS)
    async with importlib.import_module("aioboto3").Session().client("s3", config=config) as client:
        yield S3Objects(client, driver.new_aioboto3_client(client))


@asynccontextmanager
async def gcs() -> AsyncIterator[Objects]:
    """A client of Google's storage."""
    async with importlib.import_module("gcloud.aio.storage").Storage() as storage:
        yield _GcsObjects(storage)


@dataclass(frozen=True, slots=True)
class S3Objects:
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

    async def get_object(self, *, bucket: str, key: str) -> bytes | None:
        try:
            return await self.driver.get_object(bucket=bucket, key=key)
        except self.client.exceptions.NoSuchKey:  # and not `NoSuchBucket`, as while its disk is not mounted
            return None


@dataclass(frozen=True, slots=True)
class _GcsObjects:
    """Google's storage. The SDK's client for it never writes an object again."""

    storage: Any

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        await self.storage.upload(
            bucket, key, data, content_type="application/octet-stream", force_resumable_upload=False
        )

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        found = await _unless_missing(self.storage.download_metadata(bucket, key))
        return None if found is None else datetime.fromisoformat(found["timeCreated"]).timestamp()

    async def get_object(self, *, bucket: str, key: str) -> bytes | None:
        found: bytes | None = await _unless_missing(self.storage.download(bucket, key))
        return found


async def _unless_missing(answer: Awaitable[Any]) -> Any:
    """An answer of Google's storage; None if there is no such object."""
    try:
        return await answer
    except Exception as error:
        if getattr(error, "status", None) == 404:  # aiohttp's `ClientResponseError`
            return None
        raise
