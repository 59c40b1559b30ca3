"""Tasks as two SQL tables, and hooks on their transitions, both fed from journals; see `docs/projection.md`."""

from refold.projection.project import Hook, Projector
from refold.projection.rows import TransitionRow, checkpoint
from refold.projection.tables import Projection, ProjectionUnavailable

__all__ = ["Hook", "Projection", "ProjectionUnavailable", "Projector", "TransitionRow", "checkpoint"]
