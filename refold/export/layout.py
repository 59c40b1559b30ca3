"""The layout of an export: one JSON object a line, `{"<kind>":<body>,"digest":"<24 hex digits>"}`.

| kind       | body                                                                          | how many               |
| ---------- | ----------------------------------------------------------------------------- | ---------------------- |
| `header`   | format, task, skill, versions, how the task ended, its entries' numbers       | one; then one per part |
| `task`     | the task as `refold show --json` prints it                                    | one                    |
| `base`     | the task before the first entry of a run                                      | one per run            |
| `entry`    | a journal entry                                                               | one per entry          |
| `redacted` | `{"digest": …, "entry": …}`: a redacted entry, and the digest of the original | in place of an `entry` |
| `receipt`  | a receipt of the ledger                                                       | with `--receipts`      |
| `history`  | `{"run_id": …, "history": …}`: Temporal's history of a run                    | with `--history`       |
| `end`      | how many lines and entries there are                                          | one, the last          |

The digest of an `entry` continues the journal's digests (`refold.digests`); it does not depend on anything else in the
file. The digest of any other line continues the seal, a digest of all lines so far, entries included: SHA-256 of the
seal before and of the line without its own digest, shortened to 12 bytes. So each line has one possible digest, and the
last line covers the file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Literal

from refold.core.errors import RefoldError
from refold.core.lifecycle import Status
from refold.core.values import Value, lean, shortened
from refold.digests import DIGEST_BYTES
from refold.formats import numbered

FORMAT: Literal["export/1"] = "export/1"

KINDS = ("header", "task", "base", "entry", "redacted", "receipt", "history", "end")

_LINE = re.compile(rb'\{"([a-z]{1,20})":(.*),"digest":"([0-9a-f]{24})"\}\n', re.DOTALL)


class ExportError(RefoldError):
    """An export cannot be used as asked; the message says why, and what to do."""


class DamagedExport(ExportError):
    """A file is no export, or is not as it was written.

    Attributes:
        line: The number of the first wrong line, from 1.
        why: What is wrong with it.
        file: The file's name; empty where only its lines are known.
    """

    def __init__(self, line: int, why: str, file: str = "") -> None:
        self.line = line
        self.why = why
        self.file = file
        super().__init__(f"{f'the export {file!r} is damaged: ' if file else ''}line {line}: {why}")


class Header(Value):
    """What an export says of its task first.

    Attributes:
        refold: The layout of the file.
        format: Of the snapshots and entries in it (`refold.formats`).
        version: The version of refold that wrote the file.
        skill_version: The version of the skill that the task began with.
        status: How the task stood: how it ended, if it had ended.
        reason: Why it failed; empty otherwise.
        first: The number of the first entry.
        last: The number of the last entry.
        redacted: Texts and values are replaced by their kind and size.
        part_of: The task that this task is a part of.
        note: Why the entries do not tell how the task ended: Temporal ended it from outside, for example.
    """

    refold: Literal["export/1"] = FORMAT
    format: int = numbered()
    version: str
    task_id: str
    skill: str
    skill_version: int
    status: Status
    reason: str = lean("")
    first: int
    last: int
    redacted: bool = lean(False)
    part_of: str | None = lean()
    note: str = lean("")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an export.

    Attributes:
        number: From 1.
        body: The JSON of the body, byte for byte.
        digest: What the line says its digest is.
    """

    number: int
    kind: str
    body: bytes
    digest: bytes

    @classmethod
    def read(cls, number: int, raw: bytes) -> Line:
        """A line of a file.

        Raises:
            DamagedExport: It has another form.
        """
        found = _LINE.fullmatch(raw)
        if found is None or (kind := found[1].decode()) not in KINDS:
            raise DamagedExport(number, _no_line(number, raw))
        return cls(number, kind, found[2], bytes.fromhex(found[3].decode()))

    def with_digest(self, digest: bytes) -> Line:
        """The line with another digest."""
        return replace(self, digest=digest)

    def written(self) -> bytes:
        """The line as it stands in a file."""
        return f'{{"{self.kind}":'.encode() + self.body + f',"digest":"{self.digest.hex()}"}}\n'.encode()


def _no_line(number: int, raw: bytes) -> str:
    """Why a line has another form, as far as its bytes tell."""
    came = shortened(raw.decode(errors="replace").rstrip("\r\n"), 60)
    if raw.endswith(b"\r\n") and _LINE.fullmatch(raw[:-2] + b"\n"):
        return "it ends with a carriage return: a program has translated the line ends; copy the file as bytes"
    if number > 1 and not raw.endswith(b"\n"):
        return f"the file ends in the middle of it: its rest is missing; got {came!r}"
    no_export = "; `refold export` writes one" if number == 1 else ""
    return f'no line of an export, which is {{"<kind>":…,"digest":"…"}}{no_export}; got {came!r}'


def sealed(seal: bytes, kind: str, body: bytes) -> bytes:
    """The seal after one more line."""
    return hashlib.sha256(seal + kind.encode() + b":" + body).digest()[:DIGEST_BYTES]
