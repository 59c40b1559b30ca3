"""Where large values live: whole or not at all, found by their hash, and clear about what is wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext

from refold.temporal.data.buckets.bucket import RENEWED_S, Bucket, Objects, S3Objects
from refold.temporal.data.payloads import Stored, data_converter
from refold.temporal.data.storage import (
    ENV,
    WRITTEN_LATELY,
    Folder,
    Off,
    StorageUnusable,
    ValueCorrupt,
    ValueDriver,
    ValueMissing,
    key_of,
)
from refold.temporal.data.storage_setting import storage_from_env
from refold.temporal.encryption import Encryption

DATA = b"a large value"
KEY = key_of(DATA)
PAYLOAD = Payload(metadata={"encoding": b"json/plain", "another": b"entry"}, data=DATA)

WRITER = """
import asyncio, sys
from pathlib import Path
from refold.temporal.data.storage import Folder, key_of

async def main():
    folder = Folder(Path(sys.argv[1]))
    for n in range(int(sys.argv[2])):
        data = str(n).encode() * 50_000
        await folder.put(key_of(data), data)
        print(n, flush=True)

asyncio.run(main())
"""


def _writer(folder: Path, values: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITER, str(folder), str(values)], stdout=subprocess.PIPE, text=True)


def _values(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*/*")}


class Shelf:
    """A bucket's client that keeps its objects in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.ages_s: dict[str, float] = {}
        self.written = 0

    async def put_object(self, *, bucket: str, key: str, data: bytes) -> None:
        self.objects[f"{bucket}/{key}"] = data
        self.ages_s[f"{bucket}/{key}"] = 0
        self.written += 1

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        return time.time() - self.ages_s[f"{bucket}/{key}"] if f"{bucket}/{key}" in self.objects else None

    async def get_object(self, *, bucket: str, key: str) -> bytes | None:
        return self.objects.get(f"{bucket}/{key}")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Objects]:
        yield self


class LockedShelf(Shelf):
    """A bucket that its client may not use."""

    async def object_written_at(self, *, bucket: str, key: str) -> float | None:
        raise PermissionError("signature does not match")


class ClientError(Exception):
    """What botocore raises of S3's answers; of its errors it gives a few a class of their own."""

    def __init__(self, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}}


class NoSuchKey(ClientError):
    """The bucket is there, and has no such object."""


class S3:
    """S3 with one bucket, as botocore's client and the SDK's: the answer to HEAD has no body that says what lacks."""

    exceptions: Any = type("exceptions", (), {"ClientError": ClientError, "NoSuchKey": NoSuchKey})

    def __init__(self, *, bucket: str) -> None:
        self.bucket = bucket

    async def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        raise ClientError("404")

    async def get_object(self, *, bucket: str, key: str) -> bytes:
        raise NoSuchKey("NoSuchKey") if bucket == self.bucket else ClientError("NoSuchBucket")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Objects]:
        driver: Any = self
        yield S3Objects(self, driver)


# --- a folder


async def test_a_value_is_kept_under_its_hash(folder: Folder) -> None:
    """
    A person finds a value by the hash that history shows.
    """
    await folder.put(KEY, DATA)

    assert (folder.path / KEY[:2] / KEY).read_bytes() == DATA
    assert await folder.get(KEY) == DATA


async def test_writing_again_changes_nothing(folder: Folder) -> None:
    """
    Replay writes what is there already, and leaves it alone.
    """
    await folder.put(KEY, DATA)
    before = (folder.path / KEY[:2] / KEY).stat()
    await folder.put(KEY, DATA)

    assert (folder.path / KEY[:2] / KEY).stat().st_ino == before.st_ino


@pytest.mark.parametrize("why", [PermissionError, FileNotFoundError])
async def test_a_value_that_cannot_be_touched_is_written_again(
    why: type[OSError], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Workers of several users may share a folder, and one may write what another has written; and a purge may come
    between two statements.
    """
    await folder.put(KEY, DATA)
    before = (folder.path / KEY[:2] / KEY).stat()

    def untouchable(path: Path) -> None:
        raise why(path)

    monkeypatch.setattr("os.utime", untouchable)
    await folder.put(KEY, DATA)

    assert await folder.get(KEY) == DATA
    assert (folder.path / KEY[:2] / KEY).stat().st_ino != before.st_ino


async def test_a_truncated_file_is_written_again(folder: Folder) -> None:
    """
    What a failing disk cut short is whole again once its task is replayed.
    """
    await folder.put(KEY, DATA)
    (folder.path / KEY[:2] / KEY).write_bytes(DATA[:5])
    await folder.put(KEY, DATA)

    assert await folder.get(KEY) == DATA


async def test_a_missing_value_says_where_it_was_looked_for(folder: Folder) -> None:
    """
    The usual cause is a client and a worker with different folders, so the error asks for that.
    """
    with pytest.raises(ValueMissing, match="is REFOLD_STORAGE the same for the client and for every worker") as caught:
        await folder.get(KEY)

    assert (caught.value.key, caught.value.place) == (KEY, folder.place)


async def test_a_folder_that_was_named_is_not_made(tmp_path: Path) -> None:
    """
    A disk that is not mounted is told apart from an empty one, by writer, reader, check and purge: its values are away,
    and nobody takes them for missing or removed.
    """
    missing = Folder(tmp_path / "missing")

    assert not missing.ready()
    with pytest.raises(StorageUnusable, match="mkdir -p"):
        await missing.put(KEY, DATA)
    with pytest.raises(StorageUnusable, match="does not exist"):
        await missing.check()
    for asked in (
        missing.get(KEY),
        missing.used(KEY, since=0.0),
        missing.may_have_held(KEY),
        missing.remove(KEY, unused_since=None),
    ):
        with pytest.raises(StorageUnusable, match="does not exist; mount its disk"):
            await asked
    assert not missing.path.exists()


async def test_the_users_own_folder_is_made(tmp_path: Path) -> None:
    """
    The default needs no preparation, and nobody else may look into it. No disk was unmounted where it is not there yet.
    """
    mine = Folder(tmp_path / "share" / "values", make=True)

    assert mine.ready()
    with pytest.raises(ValueMissing):
        await mine.get(KEY)
    await mine.check()
    await mine.put(KEY, DATA)
    assert mine.path.stat().st_mode & 0o777 == 0o700


async def test_a_folder_that_users_share_is_shared_below(folder: Folder) -> None:
    """
    A group that may write in it may write each value, whoever has written the first one with the same beginning.
    """
    folder.path.chmod(0o2775)
    await folder.put(KEY, DATA)

    assert (folder.path / KEY[:2]).stat().st_mode & 0o7777 == 0o2775


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """
    The reason of the system is part of the error.
    """
    (tmp_path / "file").write_text("")
    unmakable = Folder(tmp_path / "file" / "values", make=True)

    with pytest.raises(StorageUnusable, match="Not a directory"):
        await unmakable.put(KEY, DATA)


async def test_a_folder_that_takes_no_files_is_named(folder: Folder) -> None:
    """
    The reason of the system is part of the error, and nothing half is left.
    """
    (folder.path / KEY[:2]).write_text("in the way")

    with pytest.raises(StorageUnusable, match="Not a directory"):
        await folder.put(KEY, DATA)
    assert [path.name for path in folder.path.iterdir()] == [KEY[:2]]


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_asks_for_room(folder: Folder, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Another mode of the folder, or another folder, which has no value of the open tasks, would not help.
    """

    def fsync(_: int) -> None:
        raise OSError(full, os.strerror(full))

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(StorageUnusable, match=f"{os.strerror(full)}; free some space there") as caught:
        await folder.put(KEY, DATA)
    assert ENV not in str(caught.value)
    assert [path for path in folder.path.rglob("*") if path.is_file()] == []


@pytest.mark.fault
def test_processes_may_write_the_same_values_at_once(tmp_path: Path) -> None:
    """
    Each value is there once, whole, whoever came first.
    """
    writers = [_writer(tmp_path, 20) for _ in range(3)]
    for writer in writers:
        writer.communicate()

    assert [writer.returncode for writer in writers] == [0, 0, 0]
    values = _values(tmp_path)
    assert len(values) == 20
    assert all(key_of(data) == name for name, data in values.items())


@pytest.mark.fault
def test_a_killed_writer_leaves_no_half_value(tmp_path: Path) -> None:
    """
    Whatever bears a value's name is that value.
    """
    with _writer(tmp_path, 100_000) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            writer.stdout.readline()
        writer.kill()
        told = 5 + len(writer.stdout.readlines())

    values = {name: data for name, data in _values(tmp_path).items() if not name.startswith(".new-")}
    assert len(values) >= told
    assert all(key_of(data) == name for name, data in values.items())


@pytest.mark.parametrize("stored", [True, False], ids=["stored later", "never stored"])
async def test_what_a_killed_writer_left_goes_with_its_value(folder: Folder, stored: bool) -> None:
    """
    It holds the value, too; a file that another process may still be writing stays.
    """
    place = folder.path / KEY[:2]
    place.mkdir()
    if stored:
        await folder.put(KEY, DATA)
    left, now_written = place / ".new-left", place / ".new-now"
    for file in (left, now_written):
        file.write_bytes(DATA)
    two_hours_ago = time.time() - 7200
    os.utime(left, (two_hours_ago, two_hours_ago))

    assert await folder.remove(KEY, unused_since=None) == ""
    assert sorted(place.iterdir()) == [now_written]


# --- a bucket


async def test_a_value_that_is_put_while_it_is_removed_stays(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Another process puts an equal one between the look at its age and its removal: its task would lack it.
    """
    await folder.put(KEY, DATA)
    file, old = folder.path / KEY[:2] / KEY, time.time() - 3600
    os.utime(file, (old, old))
    used = Folder._used

    def used_and_then_put(self: Folder, key: str, since: float) -> bool:
        found = used(self, key, since)
        self._put(KEY, DATA)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "_used", used_and_then_put)
        assert await folder.remove(KEY, unused_since=old + 60) == WRITTEN_LATELY

    assert await folder.get(KEY) == DATA
    assert [*file.parent.iterdir()] == [file]
    os.utime(file, (old, old))
    assert await folder.remove(KEY, unused_since=old + 60) == ""
    assert [*file.parent.iterdir()] == []


async def test_a_bucket_keeps_values_under_its_prefix() -> None:
    """
    Two deployments can share a bucket; a value is written once.
    """
    shelf = Shelf()
    bucket = Bucket("s3://files/refold", "files", "refold", shelf.connect)
    await bucket.check()
    await bucket.put(KEY, DATA)
    await bucket.put(KEY, DATA)

    assert shelf.objects == {"files/refold/check": b"", f"files/refold/{KEY}": DATA}
    assert shelf.written == 2
    assert await bucket.get(KEY) == DATA


@pytest.mark.parametrize(("age_s", "written"), [(RENEWED_S - 60, 1), (RENEWED_S + 60, 2)])
async def test_an_old_object_that_is_used_is_renewed(age_s: float, written: int) -> None:
    """
    A rule that deletes objects by their age leaves those of young tasks; a replay soon after writes nothing.
    """
    shelf = Shelf()
    bucket = Bucket("s3://files", "files", "", shelf.connect)
    await bucket.put(KEY, DATA)
    shelf.ages_s[f"files/{KEY}"] = age_s
    await bucket.put(KEY, DATA)

    assert shelf.written == written
    assert await bucket.get(KEY) == DATA


async def test_an_object_from_before_encryption_is_replaced() -> None:
    """
    Also a young one, and one that an older key encrypted; a replay with the same key writes nothing.
    """
    shelf = Shelf()
    bucket = Bucket("s3://files", "files", "", shelf.connect)
    text = "a secret diagnosis" * 10_000
    for codec in (None, Encryption({"old": b"o" * 32}), Encryption({"new": b"n" * 32})):
        for _ in range(2):
            await data_converter(bucket, codec).encode([text, Stored[str](value=text)])
            assert any(b"diagnosis" in data for data in shelf.objects.values()) is (codec is None)

    assert (len(shelf.objects), shelf.written) == (2, 6)
    assert all(b"new" in data for data in shelf.objects.values())


async def test_a_bucket_says_what_it_lacks() -> None:
    """
    A missing value and a failing service are two errors, both naming the bucket.
    """
    with pytest.raises(ValueMissing, match="s3://files"):
        await Bucket("s3://files", "files", "", Shelf().connect).get(KEY)
    with pytest.raises(StorageUnusable, match=r"s3://files.*PermissionError: signature does not match"):
        await Bucket("s3://files", "files", "", LockedShelf().connect).put(KEY, DATA)


async def test_a_bucket_that_is_gone_is_no_missing_value() -> None:
    """
    As while the disk behind it is not mounted: who reads waits, and refuses nothing for ever.
    """
    with pytest.raises(StorageUnusable, match=r"s3://files.*NoSuchBucket"):
        await Bucket("s3://files", "files", "", S3(bucket="another").connect).get(KEY)
    with pytest.raises(ValueMissing, match="s3://files"):
        await Bucket("s3://files", "files", "", S3(bucket="files").connect).get(KEY)


async def test_a_worker_that_may_write_and_not_look_does_not_start() -> None:
    """
    S3 answers 403 for an object that is missing to who may not list objects: no new value could be written.
    """
    with pytest.raises(StorageUnusable, match=r"s3://files.*PermissionError"):
        await Bucket("s3://files", "files", "", LockedShelf().connect).check()


# --- the driver


async def test_a_reference_is_the_hash_alone(folder: Folder) -> None:
    """
    Values can move to another folder or bucket while histories refer to them.
    """
    [claim] = await ValueDriver(folder).store(StorageDriverStoreContext(), [PAYLOAD])
    [payload] = await ValueDriver(folder).retrieve(StorageDriverRetrieveContext(), [claim])

    assert claim.claim_data == {"sha256": key_of(PAYLOAD.SerializeToString(deterministic=True))}
    assert payload == PAYLOAD


async def test_damage_is_found_when_a_value_is_read(folder: Folder) -> None:
    """
    A value that is not what was stored reaches no task.
    """
    driver = ValueDriver(folder)
    [claim] = await driver.store(StorageDriverStoreContext(), [PAYLOAD])
    [path] = folder.path.glob("*/*")
    path.write_bytes(b"x" * path.stat().st_size)

    with pytest.raises(ValueCorrupt, match="is damaged") as caught:
        await driver.retrieve(StorageDriverRetrieveContext(), [claim])
    assert caught.value.key == claim.claim_data["sha256"]


async def test_without_storage_nothing_is_kept_or_found() -> None:
    """
    A process that has it switched off says so.
    """
    with pytest.raises(StorageUnusable, match="REFOLD_STORAGE=off"):
        await ValueDriver(Off()).store(StorageDriverStoreContext(), [PAYLOAD])
    with pytest.raises(ValueMissing, match="REFOLD_STORAGE=off"):
        await ValueDriver(Off()).retrieve(
            StorageDriverRetrieveContext(), [StorageDriverClaim(claim_data={"sha256": KEY})]
        )


# --- settings


@pytest.mark.parametrize(
    ("environ", "storage"),
    [
        pytest.param({"XDG_DATA_HOME": "/data"}, Folder(Path("/data/refold/values"), make=True), id="data home"),
        pytest.param({}, Folder(Path.home() / ".local/share/refold/values", make=True), id="default"),
        pytest.param(
            {"XDG_DATA_HOME": "data"}, Folder(Path.home() / ".local/share/refold/values", make=True), id="relative"
        ),
        pytest.param(
            {"REFOLD_STORAGE": "/srv/values", "XDG_DATA_HOME": "/data"}, Folder(Path("/srv/values")), id="set"
        ),
        pytest.param({"REFOLD_STORAGE": "~/values"}, Folder(Path.home() / "values"), id="home"),
        pytest.param({"REFOLD_STORAGE": "values"}, Folder(Path.cwd() / "values"), id="here"),
        pytest.param({"REFOLD_STORAGE": "off"}, Off(), id="off"),
    ],
)
def test_the_environment_says_where(environ: dict[str, str], storage: Folder | Off) -> None:
    """
    Unset is a folder of one's own; a folder that is named is expected to exist.
    """
    assert storage_from_env(environ) == storage


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        pytest.param("ftp://host/values", "`off`, a folder, s3://bucket/prefix or gs://bucket/prefix", id="scheme"),
        pytest.param("s3://", "names no bucket", id="no bucket"),
        pytest.param("s3://files/refold", r"pip install 'refold\[s3\]'", id="no package"),
        pytest.param("gs://files", r"pip install 'refold\[gcs\]'", id="no package either"),
    ],
)
def test_a_setting_that_cannot_be_used_is_explained(named: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A wrong scheme, a missing bucket and a missing package are found before anything is sent.
    """
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(StorageUnusable, match=problem):
        storage_from_env({"REFOLD_STORAGE": named})


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gcs")])
async def test_a_package_that_the_client_lacks_is_named(scheme: str, extra: str) -> None:
    """
    The extra brings several packages, and its first one may be there without the others.
    """

    def lacking() -> NoReturn:
        raise ModuleNotFoundError("No module named 'types_aiobotocore_s3'")

    bucket = Bucket(f"{scheme}://files", "files", "", lacking)
    with pytest.raises(StorageUnusable, match=rf"types_aiobotocore_s3.*pip install 'refold\[{extra}\]'") as refused:
        await bucket.get(key_of(b"1"))

    assert "cannot be kept in or read from" in str(refused.value)
    assert "credentials" not in str(refused.value)


HANGS = """
import asyncio, tempfile, threading
from pathlib import Path
from refold.temporal.data.storage import Folder

tempfile.TemporaryFile = lambda **_: threading.Event().wait()

async def main():
    try:
        await asyncio.wait_for(Folder(Path(".")).check(), 0.2)
    except TimeoutError:
        print("left")

asyncio.run(main())
"""


def test_a_check_that_hangs_keeps_no_process_alive(tmp_path: Path) -> None:
    """
    A disk that does not answer holds a thread, and a worker that is told to leave leaves all the same.
    """
    left = subprocess.run(
        [sys.executable, "-c", HANGS], cwd=tmp_path, timeout=30, check=True, capture_output=True, text=True
    )

    assert left.stdout == "left\n"
