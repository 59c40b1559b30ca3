"""A reference library over real HTTP: an encyclopedia, a dictionary, and the memory of sessions.

with Library() as library:
    os.environ |= library.environment
    library.words["ebb"] = "the tide going out"
    ...
    assert [turn["asked"] for turn in library.sessions["s1"]] == ["What is an ebb?"]
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.services.serving import Serving


class Library(Serving):
    """The server; runs in a thread of its own while it is entered as a context manager.

    Attributes:
        words: What the dictionary knows.
        articles: What the encyclopedia knows.
        sessions: The turns of each session, oldest first.
        asked: The paths of all requests, oldest first.
        trouble: Status codes for the next requests, whatever they ask.
    """

    def __init__(self) -> None:
        self.words: dict[str, str] = {}
        self.articles: dict[str, str] = {}
        self.sessions: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        self.asked: list[str] = []
        self.trouble: list[int] = []
        routes = [
            Route("/api/v2/entries/en/{word}", self._word),
            Route("/api/rest_v1/page/summary/{title}", self._article),
            Route("/sessions/{session}/turns", self._open, methods=["POST"]),
            Route("/sessions/{session}/turns/answer", self._close, methods=["POST"]),
        ]
        super().__init__(Starlette(routes=routes))

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send the application's tools here."""
        return {"DICTIONARY_URL": self.address, "WIKIPEDIA_URL": self.address, "SESSIONS_URL": self.address}

    # --- routes

    def _troubled(self, request: Request) -> Response | None:
        self.asked.append(request.url.path)
        return Response(status_code=self.trouble.pop(0)) if self.trouble else None

    async def _word(self, request: Request) -> Response:
        if (troubled := self._troubled(request)) is not None:
            return troubled
        meaning = self.words.get(request.path_params["word"])
        if meaning is None:
            return JSONResponse({"title": "No Definitions Found"}, 404)
        return JSONResponse([{"meanings": [{"definitions": [{"definition": meaning}]}]}])

    async def _article(self, request: Request) -> Response:
        if (troubled := self._troubled(request)) is not None:
            return troubled
        title = request.path_params["title"]
        if title not in self.articles:
            return Response(status_code=404)
        return JSONResponse({"title": title, "extract": self.articles[title]})

    async def _open(self, request: Request) -> Response:
        if (troubled := self._troubled(request)) is not None:
            return troubled
        turns = self.sessions[request.path_params["session"]]
        key = request.headers["idempotency-key"]
        if key not in [turn["key"] for turn in turns]:
            turns.append({"key": key, "asked": (await request.json())["asked"], "answered": None})
        place = next(number for number, turn in enumerate(turns) if turn["key"] == key)
        last = int(request.query_params["last"])
        before = turns[max(0, place - last) : place]
        return JSONResponse([{"asked": turn["asked"], "answered": turn["answered"]} for turn in before])

    async def _close(self, request: Request) -> Response:
        if (troubled := self._troubled(request)) is not None:
            return troubled
        key, turns = request.headers["idempotency-key"], self.sessions[request.path_params["session"]]
        if key not in [turn.get("closed") for turn in turns]:
            turn = next((one for one in reversed(turns) if one["answered"] is None), None)
            if turn is None:
                return Response(status_code=409)
            turn |= {"closed": key, "answered": (await request.json())["answered"]}
        return Response(status_code=204)
