"""Storage for large values, named by the hash of their content: what every storage promises, and a folder.

Rule 1: a value's key is the SHA-256 of its bytes before encryption, so repeated writes and replays use the same file.
Rule 2: a value is stored whole or not at all, whichever process dies while writing.
Rule 3: every process that takes part in a task uses the same storage.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from stat import S_IMODE
from typing import Protocol

from google.protobuf.message import DecodeError as ProtobufError
from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)

from refold.engine import StorageError

ENV = "REFOLD_STORAGE"
VALUE_KEY = "refold-value"
"""The metadata that holds the key of a value that was encrypted: the hash of what it was before."""

OFF = "off"

_NEW = ".new-"
"""What the name of a file begins with that is being written, until it is renamed to the value's key."""

_LEFT_S = 3600.0
"""After how long, in seconds, a file that is being written is taken for one whose writer was killed."""

WRITTEN_LATELY = "it was written just now, and another task may be about to refer to it; purge again in a minute"


class StorageUnusable(StorageError):
    """The folder or bucket cannot be read or written.

    Attributes:
        place: The folder or bucket.
    """

    def __init__(self, place: str, problem: str) -> None:
        self.place = place
        super().__init__(f"large values cannot be kept in or read from {place}: {problem}")


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

    async def now(self) -> float:
        """The time, in seconds since 1970, by the clock that says when a value was put: another host's, for a disk that
        several share.

        Raises:
            StorageUnusable: Nobody can tell.
        """

    async def used(self, key: str, *, since: float) -> bool:
        """Whether somebody has put the value under a key since then, in seconds since 1970 by the storage's clock.

        False for a storage that removes nothing.

        Raises:
            StorageUnusable: Nobody can tell.
        """

    async def may_have_held(self, key: str) -> bool:
        """Whether a value that is missing may have been here, and have been removed; False if it certainly was not.

        Raises:
            StorageUnusable: The storage cannot be read.
        """

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        """Remove the value under a key, if there is one, and what a process left of it that was killed amid `put`.

        Args:
            key: The key.
            unused_since: Only if nobody has put it since then, in seconds since 1970 by the storage's clock; None
                removes it in any case.

        Returns:
            Why it stays; empty if it is gone.

        Raises:
            StorageUnusable: It cannot be removed.
        """


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

    async def now(self) -> float:
        return await asyncio.to_thread(self._now)

    async def used(self, key: str, *, since: float) -> bool:
        return await asyncio.to_thread(self._used, key, since)

    async def may_have_held(self, key: str) -> bool:
        return await asyncio.to_thread(self._may_have_held, key)

    async def remove(self, key: str, *, unused_since: float | None) -> str:
        return await asyncio.to_thread(self._remove, key, unused_since)

    def ready(self) -> bool:
        return self.make or (self.path.is_dir() and os.access(self.path, os.W_OK | os.X_OK))

    def _check(self) -> None:
        self._now()

    def _now(self) -> float:
        self._prepare()
        try:
            with tempfile.TemporaryFile(dir=self.path) as file:
                return os.fstat(file.fileno()).st_mtime
        except OSError as error:
            raise self._unusable(error) from error

    def _put(self, key: str, data: bytes) -> None:
        self._prepare()
        path, head = self._path(key), head_of(data)
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
            self._must_exist()
            raise ValueMissing(key, self.place) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _may_have_held(self, key: str) -> bool:
        self._must_exist()
        return self._path(key).parent.is_dir()  # it stays when a value is removed

    def _used(self, key: str, since: float) -> bool:
        try:
            return self._path(key).stat().st_mtime > since
        except FileNotFoundError:
            self._must_exist()
            return False
        except OSError as error:
            raise self._unusable(error) from error

    def _remove(self, key: str, unused_since: float | None) -> str:
        if unused_since is not None and self._used(key, unused_since):
            return WRITTEN_LATELY
        self._must_exist()
        path = self._path(key)
        try:
            # Out of the way of `_put` first, which then writes the value anew; what it has touched before, goes back.
            with suppress(FileNotFoundError):
                gone = path.replace(path.with_name(f"{_NEW}{key}"))
                if unused_since is not None and gone.stat().st_mtime > unused_since:
                    gone.replace(path)
                    return WRITTEN_LATELY
                gone.unlink()
            left = [*path.parent.glob(f"{_NEW}*")]
            now = self._now() if left else 0.0
            for new in left:
                with suppress(FileNotFoundError):  # its writer has just finished
                    if new.stat().st_mtime < now - _LEFT_S:
                        new.unlink()
        except OSError as error:
            raise self._unusable(error) from error
        return ""

    def _path(self, key: str) -> Path:
        return self.path / key[:2] / key

    def _must_exist(self) -> None:
        """Refuse a folder that a setting names and that is gone: what was stored in it is away, not missing."""
        if not self.make and not self.path.is_dir():
            make = f"make it (`mkdir -p {quote(str(self.path))}`)"
            problem = f"it does not exist; mount its disk, {make} or correct {ENV} in this process"
            raise StorageUnusable(self.place, problem)

    def _prepare(self) -> None:
        self._must_exist()
        if self.path.is_dir():
            return
        try:
            # Values hold what people wrote, so only this user may read the folder.
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StorageUnusable:
        way_out = f"make it writable for this user, or set {ENV} to another folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # another folder would lack the values of open tasks
            way_out = "free some space there, and the tasks that wait for it go on"
        return StorageUnusable(self.place, f"{error.strerror or error}; {way_out}")


def head_of(data: bytes) -> bytes:
    """What stored bytes begin with: the metadata of a payload, which name the codec's key; else nothing."""
    try:
        return data[: len(data) - len(Payload.FromString(data).data)]
    except ProtobufError:
        return b""


def _write(path: Path, data: bytes) -> None:
    # Written to a temporary file and then renamed; if two processes write the same value, either may win.
    descriptor, name = tempfile.mkstemp(prefix=_NEW, dir=path.parent)
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

    async def now(self) -> float:
        return time.time()

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
