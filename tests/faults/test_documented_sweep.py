"""The crash sweep that docs/gates.md shows, as it stands there, with a bank that counts payments."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.docs.pages import blocks
from tests.faults.processes import ROOT
from tests.services.serving import Serving

PAGE = ROOT / "docs" / "gates.md"


class Bank(Serving):
    """Pays whatever it is asked to, and says what it paid under a key.

    Attributes:
        payments: The key of each payment, oldest first.
    """

    def __init__(self) -> None:
        self.payments: list[str] = []
        routes = [
            Route("/payments", self._find, methods=["GET"]),
            Route("/payments", self._pay, methods=["POST"]),
        ]
        super().__init__(Starlette(routes=routes))

    def forget(self) -> None:
        """Begin anew."""
        self.payments.clear()

    async def _find(self, request: Request) -> Response:
        key = request.query_params["key"]
        if key not in self.payments:
            return Response(status_code=404)
        return JSONResponse({"number": f"P-{self.payments.index(key) + 1}"})

    async def _pay(self, request: Request) -> Response:
        self.payments.append(request.headers["Idempotency-Key"])
        return JSONResponse({"number": f"P-{len(self.payments)}"})


def documented() -> Callable[[Bank], Awaitable[None]]:
    """The test in the block about sweeps."""
    found: dict[str, Any] = {}
    [block] = [block.text for block in blocks(PAGE, "python") if "CrashSweep" in block.text]
    exec(compile(block, PAGE, "exec", dont_inherit=True), found)
    test: Callable[[Bank], Awaitable[None]] = found["test_a_payout_is_paid_once"]
    return test


@pytest.mark.sweep
@pytest.mark.timeout(180)
async def test_the_sweep_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The first block is a module of `workflows`, the block about sweeps a test: wherever the worker dies, one payment.
    """
    workflows = tmp_path / "workflows"
    workflows.mkdir()
    (workflows / "__init__.py").touch()
    (workflows / "payout.py").write_text(blocks(PAGE, "python")[0].text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path / "receipts.db"))

    with Bank() as bank:
        await documented()(bank)

        assert len(bank.payments) == 1
