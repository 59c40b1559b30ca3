"""Who gets in, as whom, and what each may see and do; and what no other site can make a browser do."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator

import httpx2
import pytest

from refold import Content, Status
from refold.a2a.serve import bound, serve, url_of
from refold.core.events import CancelRequested
from refold.core.fold.journal import Entry
from refold.divergence import Difference
from refold.engine import CodeChanged, News, TaskFilter, TaskView
from refold.record import TaskRecord
from refold.testing import FakeEngine
from refold.web.page import Access, AccessError, access_from_env, page_app
from tests.web.page.conftest import HOST, SAME, Browser, Open
from tests.web.page.test_inbox import TEA, approval, decisions, gate_of, order

CROSS = {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}


async def guarded(engine: FakeEngine) -> dict[str, str | list[str]]:
    """A payment of dora's that two of ada, bob and cleo decide; returns the form of an approval."""
    await engine.start("guarded", Content.from_text("Pay?"), task_id="g1", owner="dora")
    return approval("g1", await gate_of(engine, "g1"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param(SAME, 303, id="same-origin"),
        pytest.param({"Origin": HOST}, 303, id="an-old-browser-of-this-page"),
        pytest.param({"Origin": HOST, **SAME}, 303, id="both"),
        pytest.param(CROSS, 403, id="another-site"),
        pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="a-neighbour-of-the-site"),
        pytest.param({"Sec-Fetch-Site": "none"}, 403, id="typed-in"),
        pytest.param({"Sec-Fetch-Site": "cross-site", "Origin": HOST}, 403, id="a-claimed-origin"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="an-old-browser-elsewhere"),
        pytest.param({"Origin": "null"}, 403, id="a-sandboxed-frame"),
        pytest.param({"Origin": "http://["}, 403, id="no-address"),
        pytest.param({"Origin": "http://127.0.0.1:9001"}, 403, id="another-port"),
        pytest.param({}, 403, id="nothing-said"),
    ],
)
async def test_only_the_pages_own_forms_count(
    engine: FakeEngine, ada: Browser, headers: dict[str, str], status: int
) -> None:
    """
    A form that another site sends is refused, before anything happens.
    """
    shown = await order(engine)
    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "approve"}

    sent = await ada.http.post("/decide", data=form, headers=headers)

    assert sent.status_code == status
    assert (await engine.look("o1")).status is (Status.COMPLETED if status == 303 else Status.INPUT_REQUIRED)


async def test_no_form_is_taken_from_another_site(engine: FakeEngine, ada: Browser) -> None:
    """
    Every address that changes something is guarded, those for signing in and out too.
    """
    await order(engine)
    forms = {
        "/act/o1": {"to": "cancel"},
        "/signin": {"name": "bob"},
        "/signout": {},
        "/bulk": {"task": "o1", "to": "cancel", "sure": "yes"},
        "/fork/o1": {"seq": "1"},
        "/skills/order": {'f:["item"]': "tea", 'f:["amount_cents"]': "5", 'f:["urgent"]': "false"},
        **{key: {"task": "o1"} for key in ("/decide", "/decide-all", "/answer", "/resolve")},
    }

    for path, form in forms.items():
        sent = await ada.http.post(path, data=form, headers=CROSS)
        assert (sent.status_code, "another site" in sent.text) == (403, True), path
    assert (await engine.look("o1")).status is Status.INPUT_REQUIRED
    assert [one.task_id for one in await engine.find(TaskFilter())] == ["o1"]


async def test_credentials_of_its_own_let_a_script_decide(engine: FakeEngine, open_page: Open) -> None:
    """
    A call with a key in a header needs no sign of a browser: no other site can add one.
    """
    shown = await order(engine)
    http = (await open_page(key="key-of-ada", see_all=("ada",))).http
    http.cookies.clear()
    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "approve"}

    assert (await http.post("/decide", data=form, headers={"X-API-Key": "key-of-nobody"})).status_code == 401
    assert (await http.post("/decide", data=form, headers={"Authorization": "Bearer key-of-ada"})).status_code == 303
    (decision,) = await decisions(engine, "o1")
    assert decision.approver == "ada"


async def test_a_stranger_signs_in_and_comes_to_where_they_wanted(engine: FakeEngine, open_page: Open) -> None:
    """
    A deep link leads to the door, and from there on; never to another site.
    """
    await order(engine)
    browser = await open_page(key="key-of-ada", see_all=("ada",))
    cookie = next(one for one in browser.http.cookies.jar if one.name == "refold_page")
    assert cookie.has_nonstandard_attr("HttpOnly")
    await browser.send("/signout")

    away = await browser.get("/task/o1?x=1")
    assert (away.status_code, away.headers["location"]) == (303, "/signin?to=%2Ftask%2Fo1%3Fx%3D1")
    door = (await browser.get(away.headers["location"])).text
    assert 'value="/task/o1?x=1"' in door
    wrong = await browser.send("/signin", key="key-of-nobody", to="/task/o1?x=1")
    door = (await browser.get(wrong.headers["location"])).text
    assert "nobody has this key or token" in door
    assert 'value="/task/o1?x=1"' in door
    assert (await browser.get("/")).status_code == 303
    back = await browser.send("/signin", key="key-of-ada", to="/task/o1?x=1")
    assert back.headers["location"] == "/task/o1?x=1"
    for elsewhere in ("//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\tx"):
        assert (await browser.send("/signin", key="key-of-ada", to=elsewhere)).headers["location"] == "/"


@pytest.mark.parametrize("cookie", ["", "x", "e30=.00", "W10=.é", ".", "a.b.c"])
async def test_a_forged_cookie_is_none(open_page: Open, cookie: str) -> None:
    """
    Only what this page has signed counts.
    """
    browser = await open_page(key="key-of-ada")
    browser.http.cookies.clear()
    answer = await browser.http.get("/", headers=[(b"cookie", f"refold_page={cookie}".encode())])

    assert answer.status_code == 303


async def test_a_session_ends_and_a_flash_is_no_session(open_page: Open) -> None:
    """
    A signed value counts for its time, and for what it was signed for.
    """
    access = access_from_env({"REFOLD_PAGE_SECRET": "s" * 32})

    assert access.read(access.signed({"name": "ada"}, "session", -1), "session") is None
    assert access.read(access.signed({"name": "ada"}, "said"), "session") is None
    other = access_from_env({"REFOLD_PAGE_SECRET": "t" * 32})
    assert other.read(access.signed({"name": "ada"}, "session"), "session") is None
    with pytest.raises(AccessError, match="shorter than 32"):
        access_from_env({"REFOLD_PAGE_SECRET": "short"})


async def test_loopback_is_for_this_machine(open_page: Open) -> None:
    """
    From elsewhere, through a proxy, or under another host's name, nobody gets in without signing in.
    """
    here, elsewhere = await open_page(loopback="ada"), await open_page(loopback="ada", address="10.0.0.9")

    assert "You are <strong" in (await here.get("/")).text
    assert (await here.get("/", headers={"X-Forwarded-For": "10.0.0.9"})).status_code == 303
    assert (await elsewhere.get("/")).status_code == 303
    assert "people on its own machine" in (await elsewhere.get("/signin")).text
    assert (await elsewhere.send("/signin", name="ada")).headers["location"] == "/signin?to=%2F&problem=none"
    assert (await elsewhere.get("/")).status_code == 303
    assert (await here.get("/", headers={"Host": "evil.example"})).status_code == 421


async def test_on_loopback_people_choose_their_name(engine: FakeEngine, ada: Browser) -> None:
    """
    As with `refold approve --as`: nobody vouches for the name, so a gate that restricts who decides refuses it.
    """
    form = await guarded(engine)
    await ada.send("/signin", name="bob")
    inbox = (await ada.get("/")).text
    assert "bob</strong>" in inbox
    assert "nobody vouches for your name here" in inbox
    assert 'value="approve"' not in inbox
    for wrong in ("", " ", "a\x00b", "x" * 300):
        assert (await ada.send("/signin", name=wrong)).headers["location"] == "/signin?to=%2F&problem=name"
    assert "bob</strong>" in (await ada.get("/")).text

    refused = await ada.send("/decide", **form)

    assert refused.status_code == 409
    assert await decisions(engine, "g1") == []


@pytest.mark.parametrize("address", ["10.0.0.1", "::ffff:10.0.0.1"])
async def test_a_proxy_names_people_and_nobody_else_can(engine: FakeEngine, open_page: Open, address: str) -> None:
    """
    The header counts from the proxy's address alone, however a socket writes it, and once.
    """
    form = await guarded(engine)
    proxied = await open_page(proxy_header="X-User", proxies=("10.0.0.1",), address=address)
    other = await open_page(proxy_header="X-User", proxies=("10.0.0.1",), address="10.0.0.2")

    assert (await other.get("/", headers={"X-User": "ada"})).status_code == 303
    assert (await proxied.get("/")).status_code == 303
    assert (await proxied.get("/", headers=[("X-User", "ada"), ("X-User", "bob")])).status_code == 303
    sent = await proxied.http.post("/decide", data=form, headers={**SAME, "X-User": "ada"})
    assert sent.status_code == 303
    (decision,) = await decisions(engine, "g1")
    assert (decision.approver, decision.asserted_by) == ("ada", "ada")


BASIC, BEARER = {"Authorization": "Basic YWRhOnB3"}, {"Authorization": "Bearer id.token.sig"}


@pytest.mark.parametrize("key", [None, "key-of-bob"])
@pytest.mark.parametrize("passed_on", [BASIC, BEARER])
async def test_a_proxy_may_pass_its_own_credentials_on(
    engine: FakeEngine, open_page: Open, passed_on: dict[str, str], key: str | None
) -> None:
    """
    nginx with `auth_basic` and oauth2-proxy send theirs beside the person's name. Nobody is locked out by these; and as
    a browser or the proxy adds them, they do not show that a form comes from no other site.
    """
    form = await guarded(engine)
    proxied = await open_page(proxy_header="X-User", proxies=("10.0.0.1",), address="10.0.0.1", key=key)
    headers = {"X-User": "ada", **passed_on}

    assert "ada</strong>" in (await proxied.get("/", headers=headers)).text
    for forged in ({}, CROSS):
        assert (await proxied.http.post("/decide", data=form, headers={**headers, **forged})).status_code == 403
    assert (await proxied.http.post("/decide", data=form, headers={**headers, **SAME})).status_code == 303
    (decision,) = await decisions(engine, "g1")
    assert (decision.approver, decision.asserted_by) == ("ada", "ada")


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("name", ["Jürgen", "José Voß"])
async def test_a_proxy_names_people_in_utf_8(open_page: Open, name: str, encoding: str) -> None:
    """
    Or in Latin-1, where the bytes are no UTF-8.
    """
    proxied = await open_page(proxy_header="X-User", proxies=("10.0.0.1",), address="10.0.0.1")

    page = await proxied.get("/", headers=[(b"x-user", name.encode(encoding))])

    assert f"{name}</strong>" in page.text


@contextlib.asynccontextmanager
async def served(engine: FakeEngine, access: Access) -> AsyncIterator[httpx2.AsyncClient]:
    """The page as `refold serve` runs it, on a port of this machine."""
    sock = bound("127.0.0.1", 0)
    stop, ready = asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(page_app(engine, access), sock, stop, ready=ready.set))
    await ready.wait()
    try:
        async with httpx2.AsyncClient(base_url=url_of(sock, "127.0.0.1")) as http:
            yield http
    finally:
        stop.set()
        await serving


async def test_a_proxy_on_this_machine_may_say_for_whom_it_forwards(engine: FakeEngine) -> None:
    """
    The name that the proxy gives counts also beside `X-Forwarded-For`, which nginx and others add: the connection comes
    from the proxy. Cookies are for https alone if the proxy says that the browser uses it.
    """
    headers = {"X-User": "ada", "X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    async with served(engine, access_from_env({"REFOLD_PAGE_PROXY_HEADER": "X-User"})) as http:
        page = await http.get("/", headers=headers)
        sent = await http.post("/views", data={"name": "mine", "skill": "ask"}, headers={**headers, **SAME})

    assert (page.status_code, "ada</strong>" in page.text) == (200, True)
    assert sent.headers["set-cookie"].endswith("; Secure")


async def test_no_process_of_this_machine_forges_the_address_of_a_proxy(engine: FakeEngine) -> None:
    """
    Only the proxy itself names people; `X-Forwarded-For` makes nobody the proxy.
    """
    settings = {"REFOLD_PAGE_PROXY_HEADER": "X-User", "REFOLD_PAGE_PROXIES": "10.0.0.5"}
    async with served(engine, access_from_env(settings)) as http:
        page = await http.get("/", headers={"X-User": "ada", "X-Forwarded-For": "10.0.0.5"})

    assert (page.status_code, page.headers["location"]) == (303, "/signin?to=%2F")


@pytest.mark.parametrize(("address", "secure"), [("10.0.0.1", True), ("10.0.0.2", False)])
async def test_a_proxy_elsewhere_says_that_browsers_use_https(open_page: Open, address: str, secure: bool) -> None:
    """
    From the proxy's own address alone.
    """
    browser = await open_page(key="key-of-ada", proxies=("10.0.0.1",), address=address)

    sent = await browser.http.post("/signout", headers={**SAME, "X-Forwarded-Proto": "https"})

    assert ("Secure" in sent.headers["set-cookie"]) is secure


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="the-session"),
        pytest.param(BASIC, 200, id="what-is-no-key-hides-no-session"),
        pytest.param({**BASIC, "X-API-Key": "key-of-bob"}, 200, id="nor-a-key"),
        pytest.param(BEARER, 303, id="a-wrong-key"),
        pytest.param({"X-API-Key": "key-of-nobody"}, 303, id="another-wrong-key"),
    ],
)
async def test_a_key_comes_before_the_session(open_page: Open, headers: dict[str, str], status: int) -> None:
    """
    A wrong key lets nobody in, whoever has signed in; a header that holds no key counts as none.
    """
    browser = await open_page(key="key-of-ada")

    assert (await browser.get("/", headers=headers)).status_code == status


async def test_basic_credentials_are_no_sign_of_a_script(engine: FakeEngine, open_page: Open) -> None:
    """
    A browser adds them by itself to what another site sends; a key in a header, it does not.
    """
    form = await guarded(engine)
    ada = await open_page(key="key-of-ada")

    assert (await ada.http.post("/decide", data=form, headers=BASIC)).status_code == 403
    assert (await ada.http.post("/signout", headers=BASIC)).status_code == 403
    assert await decisions(engine, "g1") == []
    assert (await ada.http.post("/decide", data=form, headers={"X-API-Key": "key-of-ada"})).status_code == 303


async def test_everybody_sees_their_own_and_what_they_decide(engine: FakeEngine, open_page: Open) -> None:
    """
    Whoever may not see a task gets the same answer as for a task that does not exist, at every address.
    """
    form = await guarded(engine)
    await order(engine)
    bob, eve = await open_page(key="key-of-bob"), await open_page(key="key-of-eve")

    assert "Pay?" in (await bob.get("/")).text
    assert "Buy tea?" not in (await bob.get("/")).text
    assert "Pay?" not in (await eve.get("/")).text
    assert "g1" not in (await eve.get("/tasks")).text
    for path in PATHS:
        there, missing = await eve.get(f"/{path}/g1"), await eve.get(f"/{path}/nope")
        assert (there.status_code, missing.status_code) == (404, 404), path
        assert there.text.replace("g1", "nope") == missing.text
    for path, fields in POSTS.items():
        assert (await eve.send(path, **{**form, **fields})).status_code == 404, path
    assert "g1" in (await eve.send("/bulk", task="g1", to="cancel", sure="yes")).text  # refused, by name
    assert await decisions(engine, "g1") == []
    assert (await engine.look("g1")).status is Status.INPUT_REQUIRED


async def test_who_is_listed_at_a_gate_only_decides_there(engine: FakeEngine, open_page: Open) -> None:
    """
    Another owner's task: an approver reads it and decides. Nothing else is offered, and what is sent is refused.
    """
    form = await guarded(engine)
    bob, dora = await open_page(key="key-of-bob"), await open_page(key="key-of-dora")

    for path, fields in POSTS.items():
        if not path.startswith("/decide"):
            refused = await bob.send(path, **{**form, **fields})
            assert (refused.status_code, "another owner" in refused.text) == (403, True), path
    for to in ("cancel", "recover", "release"):
        assert (await bob.get(f"/ask/g1?to={to}")).status_code == 403
        assert (await bob.send("/act/g1", to=to)).status_code == 403
    for to in ("cancel", "recover", "retry"):
        assert "another owner" in (await bob.send("/bulk", task="g1", to=to, sure="yes")).text
    assert [(one.task_id, one.status) for one in await engine.find(TaskFilter())] == [("g1", Status.INPUT_REQUIRED)]
    for path, offered in (("/task/g1", "to=cancel"), ("/at/g1?seq=1", 'action="/fork/g1"')):
        assert (offered in (await bob.get(path)).text, offered in (await dora.get(path)).text) == (False, True)
    assert 'value="approve"' in (await bob.get("/task/g1")).text
    assert (await bob.send("/decide", **form)).status_code == 303
    assert (await dora.send("/act/g1", to="cancel", reason="twice")).status_code == 303
    [*_, last] = [entry async for entry in engine.journal("g1")]
    assert last.event == CancelRequested(reason="twice", by="dora")


@pytest.mark.parametrize("back", ["task", ""])
async def test_an_approver_reads_that_the_decision_was_taken(engine: FakeEngine, open_page: Open, back: str) -> None:
    """
    In the inbox, without a link, where the task is not theirs to see any more; else on the page that they decided on.
    """
    form = {**await guarded(engine), "back": back}
    ada, bob = await open_page(key="key-of-ada"), await open_page(key="key-of-bob")

    for browser, where in ((ada, "/task/g1" if back else "/"), (bob, "/")):
        sent = await browser.send("/decide", **form)
        assert sent.headers["location"] == where
        page = await browser.get(where)
        assert (page.status_code, "You approved “pay”" in page.text) == (200, True)
        assert ("g1" in page.text) == (browser is ada)


async def test_only_its_owner_answers_a_task(engine: FakeEngine, open_page: Open) -> None:
    """
    A question beside a gate has no form for the approver, who reads why; the owner answers it.
    """
    await engine.start("beside", Content.from_text("go"), task_id="b1", owner="dora")
    bob, dora = await open_page(key="key-of-bob"), await open_page(key="key-of-dora")
    (asked,) = [one.gate for one in (await engine.record("b1")).waits if one.slot == "when"]

    for path in ("/", "/task/b1", "/waits/b1", f"/gate/b1?gate={asked}"):
        of_bob, of_dora = (await bob.get(path)).text, (await dora.get(path)).text
        assert ('action="/answer"' in of_bob, 'action="/answer"' in of_dora) == (False, True), path
        assert "only the owner of the task may do this" in of_bob, path
    assert (await bob.send("/answer", task="b1", gate=asked, text="now")).status_code == 403
    assert (await dora.send("/answer", task="b1", gate=asked, text="now")).status_code == 303


async def test_an_approvers_open_stream_ends_with_the_gate(
    engine: FakeEngine, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Once the gate is decided, an approver may not see the task any more, and hears nothing of it; its owner does.
    """
    form = await guarded(engine)
    ada, bob, dora = [await open_page(key=f"key-of-{name}") for name in ("ada", "bob", "dora")]
    watch, watching = engine.watch, asyncio.Event()

    def noted(task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        watching.set()
        return watch(task_id, after=after, follow=follow)

    monkeypatch.setattr(engine, "watch", noted)
    streams = []
    for one in (bob, dora):
        streams.append(asyncio.create_task(one.get("/live/g1?after=1")))
        await watching.wait()
        watching.clear()

    assert [(await one.send("/decide", **form)).status_code for one in (ada, bob)] == [303, 303]
    of_bob, of_dora = [one.text for one in await asyncio.wait_for(asyncio.gather(*streams), 5)]

    last = 'event: changed\ndata: {"seq":3}'
    assert (last in of_bob, last in of_dora) == (False, True)
    assert of_bob.endswith("\n\n")
    assert "event: ended" in of_bob


async def test_two_of_three_decide_in_their_own_names(engine: FakeEngine, open_page: Open) -> None:
    """
    The same person counts once; who is not listed is told so; the second grant lets the task go on.
    """
    form = await guarded(engine)
    ada, bob = await open_page(key="key-of-ada"), await open_page(key="key-of-bob")
    dora = await open_page(loopback="dora")

    assert "It waits for more people" in (await ada.get((await ada.send("/decide", **form)).headers["location"])).text
    page = (await ada.get("/")).text
    assert "you have granted it; it waits for somebody else" in page
    assert (await ada.send("/decide", **form)).status_code == 409
    assert "only ada, bob and cleo may decide, and you are dora" in (await dora.get("/")).text
    assert "Granted so far by <strong>ada</strong>" in (await bob.get("/")).text
    assert (await bob.send("/decide", **form)).status_code == 303
    assert (await engine.look("g1")).messages[-1].text == "paid"


async def test_who_only_reads_changes_nothing(engine: FakeEngine, open_page: Open) -> None:
    """
    There are no forms for a reader, and one that is sent is refused.
    """
    shown = await order(engine)
    rita = await open_page(key="key-of-rita", see_all=("*",), read_only=("rita",))

    for path in ("/", "/task/o1", "/tasks", "/at/o1?seq=1", "/skills/order"):
        page = (await rita.get(path)).text
        assert "<form" not in page.replace('<form method="post" action="/signout">', "").replace(
            '<form class="filters"', ""
        ).replace('<form class="travel"', ""), path
    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "approve"}
    for path, fields in {**POSTS, "/skills/order": {"text": "x"}, "/bulk": {"to": "cancel", "sure": "yes"}}.items():
        refused = await rita.send(path.replace("g1", "o1"), **{**form, **fields})
        assert (refused.status_code, "may read here" in refused.text) == (403, True), path


async def test_who_may_not_see_payloads_sees_none(engine: FakeEngine, open_page: Open) -> None:
    """
    What was said, asked, shown, written and returned is in no answer; that the task waits is.
    """
    await engine.start("echo", Content.from_text("sesame-opens"), task_id="e1")
    await engine.start("order", Content.from_data({**TEA, "item": "sesame-opens"}), task_id="o1")
    nora = await open_page(key="key-of-nora", see_all=("*",), no_payloads=("nora",))

    assert "e1" in (await nora.get("/")).text
    for path in (*(f"/{one}/e1" for one in PATHS if one != "live"), "/", "/tasks", "/task/o1", "/gate/o1?gate=o1/1.1"):
        assert "sesame" not in (await nora.get(path)).text, path
    for path in ("content", "artifact", "raw", "at", "explain", "show"):
        assert (await nora.get(f"/{path}/e1")).status_code == 403


async def test_who_may_not_see_payloads_reads_no_recorded_value_in_a_reason(
    engine: FakeEngine, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where the skill's code differs, the reason quotes what was recorded: they read that it differs; others, how.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    look, record, journal = engine.look, engine.record, engine.journal
    change = {"task_id": "a1", "seq": 1, "upto": 1, "field": "messages[0].parts[0].text"}
    found = Difference(**change, recorded="sesame-opens", now="nothing")

    async def told(task_id: str) -> TaskView:
        return (await look(task_id)).model_copy(update={"note": str(found), "differs": found.found})

    async def recorded(task_id: str) -> TaskRecord:
        return (await record(task_id)).changed({"differs": str(found)})

    async def stopped(task_id: str) -> TaskRecord:
        return (await record(task_id)).changed({"note": str(found), "waits": ()})

    async def refused(task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        async for entry in journal(task_id, after=after):
            if not after:
                raise CodeChanged(str(found))
            yield entry

    monkeypatch.setattr(engine, "look", told)
    nora = await open_page(key="key-of-nora", see_all=("*",), no_payloads=("nora",))
    ada = await open_page(key="key-of-ada", see_all=("*",))

    async def check(*paths: str) -> None:
        for path in paths:
            hers, all_of_it = (await nora.get(path)).text, (await ada.get(path)).text
            assert ("code differs from what was recorded" in hers, "sesame" in hers) == (True, False), path
            assert "sesame" in all_of_it, path

    monkeypatch.setattr(engine, "record", recorded)
    await check("/task/a1", "/head/a1", "/calls/a1")
    monkeypatch.setattr(engine, "record", stopped)
    await check("/")
    monkeypatch.setattr(engine, "journal", refused)
    await check("/task/a1", "/story/a1", "/calls/a1")


async def test_who_may_not_see_payloads_reads_no_refusal_of_a_start(
    engine: FakeEngine, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A task that left no journal has its end in the note, too, which may quote what it began with; others read it once.
    """
    await engine.start("echo", Content.from_text("go"), task_id="e1")
    look, why = engine.look, "its start was refused: no number: sesame-opens"

    async def told(task_id: str) -> TaskView:
        return (await look(task_id)).model_copy(update={"reason": why, "note": why, "seq": 0})

    monkeypatch.setattr(engine, "look", told)
    nora = await open_page(key="key-of-nora", see_all=("*",), no_payloads=("nora",))
    ada = await open_page(key="key-of-ada", see_all=("*",))

    for path in ("/task/e1", "/head/e1"):
        assert "sesame" not in (await nora.get(path)).text, path
        assert (await ada.get(path)).text.count("sesame-opens") == 1, path


PATHS = ("task", "head", "waits", "story", "calls", "content", "artifact", "raw", "live", "ask", "at", "explain",
         "beside", "gate", "show")  # fmt: skip
POSTS: dict[str, dict[str, str]] = {
    "/decide": {},
    "/decide-all": {},
    "/answer": {"text": "x"},
    "/resolve": {"command": "x", "how": "retry"},
    "/act/g1": {"to": "cancel"},
    "/fork/g1": {"seq": "1"},
}


async def test_each_answer_has_the_headers(engine: FakeEngine, ada: Browser) -> None:
    """
    No answer lets a browser run, frame, sniff or send anything but the page's own.
    """
    await order(engine)

    for path in ("/", "/task/o1", "/raw/o1", "/nope", "/static/page.css", "/signin", "/artifact/o1?name=x"):
        headers = (await ada.get(path)).headers
        policy = headers["content-security-policy"]
        assert "unsafe" not in policy, path
        assert "default-src 'none'" in policy, path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["x-frame-options"] == "DENY", path


async def test_an_approver_who_comes_too_late_reads_who_decided(engine: FakeEngine, open_page: Open) -> None:
    """
    The gate is closed, so that the task is not theirs to see any more; what they send says what they saw. To anybody
    else, and to who saw something else, there is no such task.
    """
    form = await guarded(engine)
    ada, bob, eve = [await open_page(key=f"key-of-{name}") for name in ("ada", "bob", "eve")]
    assert [(await one.send("/decide", **form)).status_code for one in (ada, bob)] == [303, 303]

    for one, said in ((ada, "You have approved “pay” already"), (bob, "You have approved “pay” already")):
        late = await one.send("/decide", **form)
        assert (late.status_code, said in late.text) == (409, True)
    assert (await eve.send("/decide", **form)).status_code == 404
    assert (await ada.send("/decide", **{**form, "digest": "0" * 32})).status_code == 404
    assert len(await decisions(engine, "g1")) == 2


async def test_what_is_sent_again_names_the_same_tasks(engine: FakeEngine, open_page: Open) -> None:
    """
    The filters of a bulk action stand in its address, and are not lost with the session: it would name all tasks.
    """
    await order(engine, "o1")
    await engine.start("ask", Content.from_text("go"), task_id="a1", owner="ada")
    ada = await open_page(key="key-of-ada", see_all=("ada",))
    ada.http.cookies.clear()

    kept = await ada.send("/bulk?skill=ask", all="yes", to="cancel")

    assert kept.status_code == 401
    assert 'action="/bulk?skill=ask"' in kept.text


async def test_every_form_says_whose_it_is(engine: FakeEngine, ada: Browser) -> None:
    """
    Each form that changes something names the person for whom its page was made; another person's is not taken.
    """
    shown = await order(engine)
    await engine.start("two", Content.from_text("go"), task_id="t1")
    await engine.start("ask", Content.from_text("go"), task_id="a1")
    await engine.start("charge", Content.from_text("x"), task_id="c1")
    paths = ["/", "/task/o1", "/task/t1", "/task/a1", "/gate/o1?gate=o1/1.1", "/at/o1", "/tasks", "/skills/order"]
    paths += ["/ask/o1?to=cancel", "/ask/c1?to=recover", "/ask/o1?to=release"]
    for path in paths:
        forms = re.findall(r"<form.*?</form>", (await ada.get(path)).text, re.DOTALL)
        changing = [one for one in forms if 'method="post"' in one and 'action="/views"' not in one]
        assert changing, path
        assert [one for one in changing if 'name="as" value="ada"' not in one] == [], path

    form = {"task": "o1", "gate": "o1/1.1", "digest": shown, "decision": "approve", "comment": "fine"}
    refused = await ada.send("/decide", **form, **{"as": "bob"})
    assert refused.status_code == 409
    assert "opened by bob, and you are ada now" in refused.text
    assert 'name="comment" value="fine"' in refused.text
    assert 'name="as" value="ada"' in refused.text
    assert await decisions(engine, "o1") == []
    for path in ("/act/o1", "/fork/o1", "/bulk", "/skills/order", "/answer", "/resolve", "/decide-all"):
        assert (await ada.send(path, **{"as": "bob"})).status_code == 409, path


async def test_a_form_of_somebody_signed_out_can_be_sent_again(engine: FakeEngine, open_page: Open) -> None:
    """
    A session that ends under a form: what was typed stays on the page, and is taken after a sign-in; a mistyped key
    does not forget where the person was going. Another site's form is not kept.
    """
    await engine.start("ask", Content.from_text("go"), task_id="a1", owner="ada")
    gate = (await engine.record("a1")).waits[0].gate
    ada = await open_page(key="key-of-ada")
    ada.http.cookies.clear()
    form = {"task": "a1", "gate": gate, "text": "Grace <Hopper>"}

    kept = await ada.send("/answer", **form)
    assert kept.status_code == 401
    assert 'name="text" value="Grace &lt;Hopper&gt;"' in kept.text
    assert 'action="/answer"' in kept.text
    forged = await ada.http.post("/answer", data=form, headers={"Sec-Fetch-Site": "cross-site"})
    assert "Hopper" not in forged.text
    mistyped = await ada.send("/signin", key="key-of-adb", to="/task/a1")
    assert 'name="to" value="/task/a1"' in (await ada.get(mistyped.headers["location"])).text

    assert (await ada.send("/signin", key="key-of-ada", to="/task/a1")).headers["location"] == "/task/a1"
    assert (await ada.send("/answer", **form)).status_code == 303
