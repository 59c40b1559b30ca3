"""The application's own tool, against a server that answers as Wikipedia does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.exceptions import ApplicationError

from activities import TOOLS
from activities.wikipedia import wikipedia_summary
from refold import Cmd
from refold.effects.activities import Effects
from tests.effects.conftest import Bench, failure_in
from tests.services.serving import Serving


async def summary(request: Request) -> Response:
    match request.path_params["title"]:
        case "Ebb_and/or_flow":
            return JSONResponse({"title": "Ebb and/or flow", "extract": "Water comes and goes.", "lang": "en"})
        case "Busy":
            return Response(status_code=503, headers={"Retry-After": "3"})
        case _:
            return Response(status_code=404)


@pytest.fixture(autouse=True)
def wikipedia(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    route = Route("/api/rest_v1/page/summary/{title:path}", summary)
    with Serving(Starlette(routes=[route])) as server:
        monkeypatch.setenv("WIKIPEDIA_URL", server.address)
        yield


async def test_a_title_is_looked_up() -> None:
    """
    The tool uses the worker's pooled client, and its result is its type's JSON.
    """
    async with Effects(TOOLS) as effects:
        found = await Bench(effects).tool(Cmd.tool("t", wikipedia_summary, title="Ebb and/or flow"))

    assert found == {"title": "Ebb and/or flow", "extract": "Water comes and goes."}


@pytest.mark.parametrize(("title", "type", "wait"), [("Nothing", "http_404", None), ("Busy", "http_503", 3.0)])
async def test_failures_need_no_code(title: str, type: str, wait: float | None) -> None:
    """
    What the server answers is classified without a line in the tool.
    """
    async with Effects(TOOLS) as effects:
        with pytest.raises(ApplicationError) as caught:
            await Bench(effects).tool(Cmd.tool("t", wikipedia_summary, title=title))

    failure = failure_in(caught.value)
    assert (failure.type, failure.retry_after) == (type, wait)
    assert "127.0.0.1 answered" in failure.message
