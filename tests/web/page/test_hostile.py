"""Hostile text, odd addresses, and the page under a path."""

from __future__ import annotations

import asyncio
import gzip
import html
import re
from collections.abc import AsyncGenerator, AsyncIterator
from html.parser import HTMLParser
from urllib.parse import quote

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.routing import Mount
from structlog.testing import capture_logs

from refold import Content
from refold.core.fold.journal import Entry
from refold.engine import CodecError, EngineError, NotConnected, NoWorker, StorageError, TaskFilter
from refold.testing import FakeEngine
from refold.web.page import Access, Pages, page_app
from refold.web.page.templates import HERE
from tests.web.page.conftest import SAME, Browser, Open
from tests.web.page.skills import SKILLS
from tests.web.page.test_inbox import approval, order

BIDI = "\u202e\u2066evil"
TEXTS = {
    "script": "<script>alert(1)</script>",
    "attribute": "\"' onmouseover=alert(1) x='",
    "svg": "<svg onload=alert(1)>",
    "image": "<img src=x onerror=alert(1)>",
    "markdown": "[click](javascript:alert(1)) ![x](https://evil.example/x.png)",
    "template": "{{ 7*7 }}{% include 'x' %}${7*7}",
    "closing": "</textarea></title></style></script><h1>x",
    "comment": "<!-- --><![CDATA[x]]>",
    "htmx": "<div hx-get=/act/x hx-trigger=load data-on-change>",
    "bidi": f"pay 100 {BIDI}",
    "tags": "pay 100\U000e0065\U000e0076\U000e0069\U000e006c",
    "control": "a\x1b[31m\x00b\x07",
    "long": "x" * 1_000_000,
    "lines": "\n" * 5_000,
    "astral": "𝕏" * 300 + "\U0001f468‍\U0001f469",
}


class Read(HTMLParser):
    """What a browser would find in a page: elements and attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_hostile_text_does_nothing_anywhere(engine: FakeEngine, ada: Browser, text: str) -> None:
    """
    In a message, a question, data, keys, a progress line, an artifact, a reason and a comment: it is text. No element,
    attribute or address comes of it, and no page is longer than what it shows at the most.
    """
    await engine.start("echo", Content.from_text(text), task_id="e1", owner=None)
    wait = (await engine.record("e1")).waits[0]
    paths = ["/", "/task/e1", f"/gate/e1?gate={wait.gate}", "/content/e1", "/calls/e1", "/at/e1?seq=1", "/story/e1"]
    pages = [(await ada.get(path)).text for path in paths]
    form = approval("e1", wait)
    comment = text[:10_000].replace("\x00", "")
    await ada.send("/decide", **form, comment=comment)
    pages += [(await ada.get(path)).text for path in [*paths, "/at/e1?seq=2", "/beside/e1", "/tasks", "/decisions"]]

    for page in pages:
        assert len(page) < 400_000, len(page)
        found = Read(page).tags
        assert {tag for tag, _ in found} & {"img", "h4", "style", "object", "iframe"} == set()
        assert [str(attrs.get("src")).split("?")[0] for tag, attrs in found if tag == "script"] == SCRIPTS
        for tag, attrs in found:
            assert not any(name.startswith("on") or name == "style" for name in attrs), (tag, attrs)
            for name in ("href", "action", "hx-get"):
                assert str(attrs.get(name, "/")).startswith(("/", "#")) or attrs[name] == "", (tag, attrs)
        assert not set(page) & set("\u202e\u2066\U000e0065\x1b\x00\x07")


SCRIPTS = ["/static/htmx-4.0.1.min.js", "/static/page.js"]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_hostile_addresses_and_forms_do_nothing(engine: FakeEngine, ada: Browser, text: str) -> None:
    """
    In every part of an address and every field of a form it is a name that nothing has.
    """
    await order(engine)
    short = text[:1_000]
    for path in ("/tasks", "/", "/signin", "/at/o1", "/story/o1", "/ask/o1", "/explain/o1", "/gate/o1", "/raw/o1"):
        query = dict.fromkeys(
            ("skill", "lifecycle", "owner", "age", "text", "after", "seq", "to", "field", "gate"), short
        )
        answer = await ada.get(path, params=query)
        assert answer.status_code in (200, 404), path
        assert [tag for tag, _ in Read(answer.text).tags if tag in ("img", "style")] == []
    for path in ("/decide", "/answer", "/resolve", "/bulk", "/act/o1", "/fork/o1", "/skills/order", "/decide-all"):
        names = ("task", "gate", "digest", "decision", "command", "how", "to", "seq", "id", "text", 'f:["item"]')
        answer = await ada.send(path, **dict.fromkeys(names, text))
        assert answer.status_code in (200, 303, 400, 404, 409, 413), (path, answer.text[:500])
    assert [one.task_id for one in await engine.find(TaskFilter())] == ["o1"]


async def test_odd_requests_get_their_status(engine: FakeEngine, ada: Browser) -> None:
    """
    What is not there, not taken, not readable or too large says so in a page.
    """
    await order(engine)
    http = ada.http

    assert (await http.get("/nope")).status_code == 404
    assert (await http.get("/task/")).status_code == 404
    assert (await http.get("/skills/none")).status_code == 404
    assert (await http.get("/static/../page.py")).status_code == 404
    assert (await http.get(f"/static/{'x' * 300}")).status_code == 404
    assert (await http.get("/static/%00")).status_code == 404
    assert (await http.get("/static/%2e%2e%2fapp.py")).status_code == 404
    wrong = await http.get("/decide")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert (await http.put("/task/o1")).status_code == 405
    assert (await http.get("/task/o1", headers={"Accept": "application/json"})).status_code == 406
    assert (await http.get("/raw/o1", headers={"Accept": "application/json"})).status_code == 200
    assert (await http.post("/decide", json={}, headers=SAME)).status_code == 415
    assert (await ada.send("/decide", comment="x" * 3_000_000)).status_code == 413
    form = {**SAME, "Content-Type": "application/x-www-form-urlencoded"}
    assert (await http.post("/decide", content=b"task=%ff\xff", headers=form)).status_code == 400
    assert (await http.post("/decide", content=b"&".join([b"a=1"] * 5_000), headers=form)).status_code == 400
    assert (await ada.send("/decide", comment="")).status_code == 400


@pytest.mark.parametrize("path", ["/signin", "/decide"])
async def test_a_form_that_does_not_end_is_given_up(ada: Browser, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """
    Whoever sends a byte now and then holds no connection: 408 once the time for a form is over.
    """
    monkeypatch.setattr("refold.web.page.frame.FORM_S", 0.05)

    async def drops() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.Future()

    form = {**SAME, "Content-Type": "application/x-www-form-urlencoded"}
    async with asyncio.timeout(10):
        answer = await ada.http.post(path, content=drops(), headers=form)

    assert answer.status_code == 408
    assert "nothing happened" in answer.text


@pytest.mark.parametrize("number", ["9" * 5_000, "-1", "1e3", "٣", "0x1", " 1", "1_000", "+1", "0" * 4_999 + "1"])
async def test_a_number_of_any_form_is_one_or_is_none(engine: FakeEngine, ada: Browser, number: str) -> None:
    """
    Too large, negative, in other digits: an address shows what there is, and a form names no entry.
    """
    await order(engine)
    names = (
        "at/o1?seq=",
        "story/o1?after=",
        "story/o1?until=",
        "artifact/o1?name=x&part=",
        "explain/o1?field=item&upto=",
    )
    for path in (*(f"/{name}" for name in names), "/skills/order?recent="):
        answer = await ada.get(f"{path}{quote(number)}")
        assert answer.status_code in (200, 404), path
    assert (await ada.send("/fork/o1", seq=number)).status_code in (400, 409)
    typed = {'f:["item"]': "tea", 'f:["amount_cents"]': number}
    assert (await ada.send("/skills/order", **typed)).status_code in (303, 409)


async def test_a_part_that_is_gone_says_so_to_scripts_as_to_people(engine: FakeEngine, ada: Browser) -> None:
    """
    A task that was deleted while its page is open: each part of the page is not found, and its stream ends.
    """
    await order(engine)
    assert (await ada.get("/task/o1")).status_code == 200
    del engine._tasks["o1"]

    for path in ("head", "waits", "story", "task", "calls", "content", "raw", "at", "gate", "show"):
        answer = await ada.get(f"/{path}/o1", headers={"HX-Request": "true"})
        assert (answer.status_code, "no task" in answer.text) == (404, True), path
    assert (await ada.get("/live/o1?after=1")).status_code == 404
    form = {"task": "o1", "gate": "o1/1.1", "digest": "x", "decision": "approve"}
    assert (await ada.send("/decide", **form)).status_code == 404


@pytest.mark.parametrize(
    "fault",
    [
        NotConnected("no server answers at localhost:7233"),
        CodecError("the value was written with key 'a', which is not here"),
        StorageError("value a1b2 is not in the storage"),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_what_cannot_be_read_is_said(engine: FakeEngine, ada: Browser, fault: EngineError) -> None:
    """
    The server is away, a value is encrypted with a key that is not here, or is lost: each page says so in a sentence.
    """
    await order(engine)
    engine.fault = fault

    for path in ("/", "/tasks", "/task/o1", "/calls/o1", "/at/o1", "/skills/order?task=o1", "/skills/order?recent=5"):
        answer = await ada.get(path)
        assert (answer.status_code, html.escape(str(fault), quote=False) in answer.text.replace("&#39;", "'")) == (
            503, True), path  # fmt: skip


async def test_a_bug_is_a_number_in_the_log(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whoever looks gets a page with a number, and nothing of what went wrong.
    """

    async def broken(*args: object, **more: object) -> None:
        raise RuntimeError("a secret of the server")

    monkeypatch.setattr(engine, "find", broken)
    structlog.reset_defaults()
    app = page_app(engine, Access(loopback="ada"))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1), raise_app_exceptions=False)
    with capture_logs() as logs:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            answer = await http.get("/")

    assert answer.status_code == 500
    [number] = [line["reference"] for line in logs if line["event"] == "request_failed"]
    assert f"in the log as {number}" in answer.text
    assert "secret" not in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_without_a_worker_nothing_is_lost(engine: FakeEngine, ada: Browser) -> None:
    """
    Pages show what is known with a note; a decision that nobody can take says so, and can be sent again.
    """
    await order(engine)
    wait = (await engine.record("o1")).waits[0]
    engine.worker = False
    for path in ("task", "at"):
        assert "no worker answers" in (await ada.get(f"/{path}/o1")).text, path
    form = approval("o1", wait)
    assert (await ada.send("/decide", **form)).status_code == 503
    engine.worker = True
    assert (await ada.send("/decide", **form)).status_code == 303


async def test_a_raw_journal_that_cannot_be_read_is_said(
    engine: FakeEngine, ada: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Before the answer begins: an empty one would read as a task without entries.
    """

    journal = engine.journal

    async def unread(task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        async for entry in journal(task_id, after=after):
            if not after:
                raise NoWorker("no worker polls task queue 'refold'")
            yield entry

    await order(engine)
    monkeypatch.setattr(engine, "journal", unread)

    raw = await ada.get("/raw/o1?what=journal")

    assert (raw.status_code, "no worker polls" in raw.text) == (503, True)


async def test_without_a_server_a_start_can_be_sent_again(engine: FakeEngine, ada: Browser) -> None:
    """
    The page keeps what the task begins with, and the form's number, so that it starts one task.
    """
    engine.fault = NotConnected("no server answers at 127.0.0.1:7233")
    kept = await ada.send("/skills/ask", text="Grace & Co", once="0000000a")
    assert (kept.status_code, 'name="text" value="Grace &amp; Co"' in kept.text) == (503, True)
    assert 'name="once" value="0000000a"' in kept.text

    engine.fault = None
    assert (await ada.send("/skills/ask", text="Grace & Co", once="0000000a")).status_code == 303


@pytest.mark.parametrize("prefix", ["/tools/refold", "/ä b"])
async def test_under_any_path_every_link_stays_there(engine: FakeEngine, prefix: str) -> None:
    """
    Mounted in another application, no link, form, cookie or redirect leaves the path.
    """
    await order(engine)
    outer = Starlette(routes=[Mount(prefix, page_app(engine, Access(loopback="ada"), Pages(skills=SKILLS)))])
    transport = httpx2.ASGITransport(app=outer, client=("127.0.0.1", 1))
    quoted = str(httpx2.URL("http://127.0.0.1/").join(prefix).raw_path, "ascii")
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for path in ("/", "/task/o1", "/tasks", "/skills/order", "/at/o1", "/signin", "/nope"):
            page = (await http.get(prefix + path)).text
            for address in re.findall(r'(?:href|action|src|hx-get|data-live)="([^"]*)"', page):
                assert address.startswith((prefix, quoted, "#")) or not address, (path, address)
            for static in re.findall(r'(?:src|href)="([^"]*/static/[^"]*)"', page):
                assert (await http.get(static.replace("&amp;", "&"))).status_code == 200
        sent = await http.post(f"{prefix}/signin", data={"name": "bob"}, headers=SAME)
        assert sent.headers["location"] in (f"{prefix}/", f"{quoted}/")
        assert "bob</strong>" in (await http.get(f"{prefix}/")).text


def test_the_page_is_small() -> None:
    """
    All that a browser loads once is within 60 KB, compressed.
    """
    files = [file for file in (HERE / "static").iterdir() if file.suffix in (".css", ".js", ".svg")]

    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < 30_000


def test_what_comes_from_others_brings_its_licence() -> None:
    """
    Each script that is not ours has its licence beside it.
    """
    static = HERE / "static"
    theirs = [file for file in static.glob("*.js") if file.name != "page.js"]

    assert theirs
    for file in theirs:
        assert (static / file.name.replace(".min.js", ".LICENSE.txt")).exists()


async def test_a_file_is_kept_only_under_the_address_of_its_version(open_page: Open) -> None:
    """
    While a new release is rolled out, its page may ask an old server for a script: what that server has is not kept as
    the new version.
    """
    browser = await open_page(loopback="ada")
    address = re.findall(r'src="([^"]*/static/page.js[^"]*)"', (await browser.get("/")).text)[0]

    right, wrong = await browser.get(address), await browser.get("/static/page.js?v=0123456789ab")

    assert right.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert wrong.status_code == 200
    assert wrong.headers["cache-control"] == "no-store"
