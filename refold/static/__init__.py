"""What can be known about a skill without running a task of it: what is wrong with its code, and its graph."""

from refold.static.check import check, check_source
from refold.static.code.sources import NotFound, Source, find_sources
from refold.static.diagram.graph import graph
from refold.static.finding import Finding
from refold.static.parts import Parts, parts_of
from refold.static.stages import stages_of, verify_stages

__all__ = [
    "Finding",
    "NotFound",
    "Parts",
    "Source",
    "check",
    "check_source",
    "find_sources",
    "graph",
    "parts_of",
    "stages_of",
    "verify_stages",
]
