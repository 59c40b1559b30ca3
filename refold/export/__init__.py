"""A task in one file: written from an engine, verified by anyone, read again without a server."""

from refold.export.engine import ExportEngine
from refold.export.layout import DamagedExport, ExportError, Header
from refold.export.read import Exported, read_export
from refold.export.verify import Verified, verify
from refold.export.write import written

__all__ = [
    "DamagedExport",
    "ExportEngine",
    "ExportError",
    "Exported",
    "Header",
    "Verified",
    "read_export",
    "verify",
    "written",
]
