"""Evals on recorded runs: an exported task is folded with the code at hand, and compared with what was recorded.

No effect fires: tools answer from the record, and only tools that are `read_only` can be called, where asked for.
"""

from refold.evals.evaluate import evaluate, evaluated
from refold.evals.result import Evaluation, Row, junit

__all__ = ["Evaluation", "Row", "evaluate", "evaluated", "junit"]
