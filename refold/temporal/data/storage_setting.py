"""The storage that the setting `REFOLD_STORAGE` names."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from refold.temporal.data.buckets.bucket import EXTRAS, Bucket, gcs, s3
from refold.temporal.data.buckets.client_cache import Kept
from refold.temporal.data.storage import ENV, OFF, Folder, Off, Storage, StorageUnusable


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


def _bucket(scheme: str, rest: str, named: str) -> Bucket:
    if scheme not in EXTRAS:
        raise StorageUnusable(named, f"{ENV} is `{OFF}`, a folder, s3://bucket/prefix or gs://bucket/prefix")
    name, _, prefix = rest.partition("/")
    if not name:
        raise StorageUnusable(named, "it names no bucket")
    extra, package = EXTRAS[scheme]
    if importlib.util.find_spec(package) is None:
        raise StorageUnusable(named, f"the package for it is missing; `pip install 'refold[{extra}]'`")
    return Bucket(named, name, prefix.strip("/"), Kept(s3 if scheme == "s3" else gcs))
