"""What is recorded as journals: scripts of shipped skills, and tasks driven by hand that show each feature."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from refold.testing import approve, calls, cancel, deny, fails, permanent, play, refused, reply, transient, user
from tests.records.hand import BUSY, NEVER, UNKNOWN, Hand, failure
from tests.records.tapes import Tape, compact

Recorded = Iterator[tuple[str, Tape]]


def played(skill: str, *script: Any, **more: Any) -> Tape:
    """What a script did to a skill."""
    tape = Tape(skill=skill if ":" in skill else f"tests.records.skills:{skill}", planned="", events=())
    story = play(tape.compiled, *script, **more)
    events = [(entry.event, entry.at) for entry in story.entries]
    return Tape(
        skill=tape.skill,
        planned=story.snapshots[0].model_dump_json(),
        events=tuple((compact(event.model_dump(mode="json")), _time(at)) for event, at in events),
    )


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- the shipped skills

ORDER = {"order_id": "A1", "customer": "a1@example.org", "paid_cents": 50000}
PAID = {"payment_id": "P1", "order_id": "A1", "amount_cents": 19900}
REFUND = {"order_id": "A1", "amount_cents": 19900, "reason": "broken"}
PAY = {"recommendation": "pay", "text": "The parcel was lost."}
GOOD, BAD = {"decision": "Approved"}, {"decision": "NeedsRevision", "text": "Too short."}
UNCLEAR = {"decision": "NeedsHumanInput", "text": "For whom?"}
EBB = {"intent": "define ebb", "suggested_tools": [{"tool": "define_word", "about": "ebb"}]}
BOTH = {"intent": "x", "suggested_tools": [{"tool": "define_word", "about": "ebb"},
                                           {"tool": "wikipedia_summary", "about": "Tide"}]}  # fmt: skip


def shipped() -> Recorded:
    yield "hello", played("workflows.hello:Hello", "Ada", reply("greeting", "Hello, Ada!"))
    yield (
        "hello-retried",
        played(
            "workflows.hello:Hello", "Ada", fails("greeting", transient("busy", retry_after=7)), reply("greeting", "H")
        ),
    )
    yield "hello-failed", played("workflows.hello:Hello", "Ada", fails("greeting", permanent("no such model")))
    wish = [calls("weekday", day=1, month=1, year=2026)]
    yield "planner", played("workflows.planner:Planner", "When?", reply("model", wish), reply("weekday", "Thursday"),
                            reply("model", "On a Thursday."))  # fmt: skip
    for name, skill in (("research_loop", "ResearchLoop"), ("research_loop_steps", "ResearchLoopSteps"),
                        ("research_loop_table", "RESEARCH_LOOP_TABLE")):  # fmt: skip
        critiques = [BAD, UNCLEAR, GOOD]
        answers = {"research": ["One.", "Two.", "Three."], "critique": critiques}
        yield name, played(f"workflows.{name}:{skill}", "Tides", "For sailors", answers=answers)
    script = [user(REFUND), reply("find_order", ORDER), reply("policy", PAY)]
    after = [reply("pay_refund", PAID), reply("send_mail")]
    yield "refund", played("workflows.refund:RefundSkill", *script, refused(approve("approval", by="Olga")),
                           approve("approval", by="Ann", comment="fine"), *after, owner="Olga")  # fmt: skip
    yield "refund-denied", played("workflows.refund:RefundSkill", *script, deny("approval", by="Ann", comment="no"),
                                  owner="Olga")  # fmt: skip
    yield "refund-too-much", played("workflows.refund:RefundSkill", *script[:1],
                                    reply("find_order", {**ORDER, "paid_cents": 5}))  # fmt: skip
    yield "refund-not-fit", Hand("workflows.refund:RefundSkill").say({"order_id": ""}).tape()
    thoughts = [{"thought": f"step {n}", "tool": t} for n, t in enumerate(
        ["look_up_stock", "charge_card", "look_up_price", "send_mail", "look_up_route"])]  # fmt: skip
    errand = {"order_id": "A1", "amount_cents": 500, "customer": "a1@example.org", "steps": 6}
    forty = {"decide": [*thoughts, {"thought": "done", "result": "Bought."}], "charge_card": PAID, "send_mail": None,
             "look_up_stock": 3, "look_up_price": [transient("busy"), 5], "look_up_route": permanent("no")}  # fmt: skip
    yield "forty_steps", played("workflows.forty_steps:FortySteps", user(errand), answers=forty)
    undone = {**forty, "decide": [*thoughts[:2], {"thought": "lost"}], "give_back": None}
    del undone["look_up_price"], undone["look_up_route"], undone["send_mail"]
    yield "forty_steps-undone", played("workflows.forty_steps:FortySteps", user(errand), answers=undone)
    yield from desk()
    yield from react()


def desk() -> Recorded:
    found = [calls("find_order", order_id="A1"), calls("look_up_route", order_id="A1")]
    pay = calls("pay_refund", order_id="A1", amount_cents=500)
    mail = calls("send_mail", to="a1@example.org", subject="Refund", text="500 cents.")
    done = {"find_order": ORDER, "look_up_route": [transient("busy"), 7], "pay_refund": PAID, "send_mail": None}
    skill = "workflows.order_desk:OrderDesk"
    yield "order_desk", played(skill, "A1 cost 5 too much", approve("pay_refund", by="Ann"),
                               answers={"model": [found, [pay, mail], "Five are on their way."], **done})  # fmt: skip
    yield "order_desk-denied", played(skill, "money!", deny("pay_refund", by="Ann", comment="it was used"),
                                      answers={"model": [pay, "4111 1111 1111 1111"]})  # fmt: skip
    yield "order_desk-canceled", played(skill, "go", reply("model", found), cancel("enough"))
    careful = {name: done[name] for name in ("find_order", "pay_refund", "send_mail")}
    said = [
        "Look, then pay.",
        "5 back.",
        found[0],
        pay,
        "Paid.",
        "No: be kind.",
        "Write.",
        "5.",
        mail,
        "Gladly.",
        "Yes.",
    ]
    yield "careful_desk", played("workflows.careful_desk:CarefulDesk", "A1 cost 5 too much",
                                 approve("pay_refund", by="Ann"),
                                 answers={"model": said, "model.2": ["5 owed.", "5 owed."], **careful})  # fmt: skip
    tea = [calls("price", item="tea"), calls("price", item="tea")]
    said = [tea, [calls("buy", item="tea"), calls("price", item="tea")], "hm", "Card 4111.", calls("weather", city="x")]
    story = {"model": said, "price": 300, "buy": "1 tea", "weather": permanent("no weather")}
    yield "shop", played("SHOP", "tea", approve("buy", by="Ann"), "more?", approve("budget"), answers=story)
    bill = {"total": 300, "items": ["tea"]}
    yield "bills", played("BILLS", "a bill", reply("model", calls("price", item="tea")), fails("price"),
                          reply("model", bill), "again", reply("model", bill), cancel())  # fmt: skip


def react() -> Recorded:
    skill = "workflows.react:React"
    more, enough = {"summary": "not yet clear", "need_loop": True}, {"summary": "it is the tide going out"}
    yield "react", played(skill, "What is an ebb?", reply("think", BOTH), reply("define_word", "a reflux"),
                          fails("wikipedia_summary", permanent("no such page")), reply("observe", more),
                          reply("think", EBB), reply("define_word", "the tide going out"), reply("observe", enough),
                          reply("answer", "The tide going out."))  # fmt: skip
    yield "react-without-tools", played(skill, "Hello", reply("think", {"intent": "greet"}), reply("answer", "Hello!"))
    session = user({"text": "And a flood?", "session_id": "s1", "settings": {"window": 2}})
    turns = [{"asked": "What is an ebb?", "answered": "The tide going out."}]
    yield "react-session", played(skill, session, reply("open_turn", turns), reply("think", {"intent": "x"}),
                                  reply("answer", "The tide coming in."), reply("close_turn"))  # fmt: skip
    spent = user({"text": "Why?", "settings": {"max_iterations": 2, "when_exhausted": "fail"}})
    yield "react-exhausted", played(skill, spent, answers={"think": EBB, "define_word": "hm", "observe": more})
    yield "react-failed", played(skill, "What is an ebb?", reply("think", EBB), fails("define_word", transient("x")),
                                 *[fails("define_word", transient("x"))] * 3)  # fmt: skip
    yield "react-no-question", played(skill, "  ")
    yield "react-no-intent", played(skill, "Why?", reply("think", {"intent": "", "suggested_tools": [
        {"tool": "define_word", "about": "x"}]}))  # fmt: skip


# --- features


def retries() -> Recorded:
    task = Hand("Pays").say().fail("charge", BUSY).give("mail", "sent").ring("charge")
    task.fail("charge", {**BUSY, "retry_after": 20}).ring("charge").fail("charge", BUSY).ring("charge")
    task.fail("charge", {**BUSY, "retry_after": 5000}).ring("charge").give("charge", 1)
    yield "blocked-probed", task.fail("judge", BUSY).ring("judge").fail("judge", BUSY).tape()
    task = Hand("Pays").say().fail("charge", UNKNOWN).fail("mail", UNKNOWN)
    charge, mail = task.pending("charge").invocation_id, task.pending("mail").invocation_id
    task.feed({"kind": "dependency_resolved", "retry": True})
    task.resolve(invocation_id=mail, retry=True, by="ops", comment="never sent").give("mail", "sent")
    task.feed({"kind": "dependency_resolved", "invocation_id": mail}).fail("charge", UNKNOWN)
    task.resolve(invocation_id=charge, outcome=5, by="ops").fail("judge", UNKNOWN)
    task.resolve(outcome={"name": "x"}).resolve(outcome={"name": "x", "price": 3})
    yield "blocked-resolved", task.tape()
    task = Hand("Pays").say().fail("charge", UNKNOWN).cancel("enough", by="Olga")
    yield "blocked-canceled", task.tape()
    yield "blocked-canceled.recovered", task.recovered("blocked-canceled", by="Olga").give("charge", 1).tape()
    task = Hand("Gathers").say("tea").fail("stock", BUSY).fail("item", BUSY).ring("item").ring("stock")
    task.give("hello", "Hi").give("item", {"name": "tea", "price": 3}).give("stock", 3).ring("sleep")
    task.feed({"kind": "backoff_over", "invocation_id": "T/1.1", "retry": 2}).give("charge", {"paid": 3})
    yield "gather", task.tape()
    task = Hand("Gathers").say("tea").give("stock", 3).fail("item").give("hello", "Hi").ring("sleep")
    yield "gather-caught", task.tape()


def gates() -> Recorded:
    two = Hand("BooksGated", owner="Olga", started_by=("Eve",)).say().give("pay", {"id": "c1"})
    gate = {"gate": two.wait("sure").gate, "digest": two.wait("sure").ask.digest}
    two.decide("sure", by="Eve").decide("sure", digest="0" * 32).decide("sure", asserted_by=None).decide("sure")
    two.decide("sure").say("yes").decide("sure", by="Bob", comment="ok").give("mail", "sent")
    yield "gate-quorum", two.decide("sure", **gate).tape()
    denied = Hand("BooksGated").say().give("pay", {"id": "c1"}).decide("sure").decide("sure", "denied", by="Bob")
    denied.fail("undo pay", BUSY).ring("undo pay").give("undo pay")
    yield "gate-denied", denied.tape()
    again = denied.recovered("gate-denied").decide("sure", by="Bob", comment="after all")
    yield "gate-denied.recovered", again.give("pay", {"id": "c9"}).give("mail").tape()
    late = Hand("BooksGated").say().give("pay", {"id": "c1"}).ring("~remind")
    late.decide("sure").ring("~timeout").decide("sure", **gate, by="Ann", second=1900)
    late.decide("sure", **gate, by="Bob", second=1910).decide("sure", **gate, by="Bob", second=1920)
    late.give("undo pay")
    yield "gate-late", late.tape()
    yield "gate-late.recovered", late.recovered("gate-late").give("pay", {"id": "c9"}).give("mail").tape()
    out = Hand("BooksGated").say().give("pay", {"id": "c1"}).ring("~timeout").ring("~grace").fail("undo pay")
    yield "gate-timeout", out.tape()
    yield "gate-timeout.recovered", out.recovered("gate-timeout").ring("~remind").decide("sure").tape()
    edits = Hand("Edits", owner="Olga").say().decide("pay")
    edits.decide("pay", by="Bob", changes={"to": "B2"}).decide("pay", by="Bob", changes={"amount": 40, "note": "ä"})
    edits.decide("pay", "denied", changes={"amount": 1}).decide("pay", by="Olga")
    yield "gate-edited", edits.decide("pay", said_at="2025-12-31T23:00:00Z").tape()
    signs = Hand("SignsIn").say().say("token").decide("sign in", "denied", asserted_by=None, comment="no", by="x")
    yield "gate-sign-in", signs.tape()


def undoing() -> Recorded:
    books = Hand("Books").say().give("reserve").give("pay", {"id": "c1"}).fail("mail")
    books.fail("undo pay", NEVER).fail("undo reserve", BUSY).ring("undo reserve").give("undo reserve").cancel()
    yield "undo", books.tape()
    yield "undo.recovered", books.recovered("undo").give("reserve").give("mail", "m").tape()
    both = Hand("Books").say().give("reserve").give("pay", {"id": "c1"}).fail("mail").give("undo pay")
    yield "undo-both", both.give("undo reserve").tape()
    yield (
        "undo-both.recovered",
        both.recovered("undo-both").give("reserve").give("pay", {"id": "c2"}).give("mail").tape(),
    )
    hurries = Hand("Hurries").say().give("reserve").give("mail").ring("~timeout").give("pay", {"id": "c1"})
    hurries.ring("~grace").give("undo pay").give("undo reserve")
    yield "undo-late-effect", hurries.tape()
    yield (
        "undo-late-effect.recovered",
        hurries.recovered("undo-late-effect").decide("sure").give("pay", {"id": "c2"}).tape(),
    )
    doubt = Hand("Hurries").say().give("reserve").cancel("stop").fail("pay", UNKNOWN).give("undo reserve")
    yield "undo-doubt", doubt.tape()
    canceled = Hand("Books").say().give("reserve").cancel("stop").give("pay", {"id": "c1"}).give("undo pay")
    yield "undo-canceled", canceled.give("undo reserve").tape()
    yield (
        "undo-canceled.recovered",
        canceled.recovered("undo-canceled").give("reserve").give("pay", {"id": "c3"}).tape(),
    )


def lineage() -> Recorded:
    three = Hand("Three").say().give("a", 1).fail("b").fail("c")
    yield "failed-twice", three.tape()
    yield "failed-twice.recovered", three.recovered("failed-twice").give("c", 3).give("b", 2).tape()
    bug = Hand("Buggy").say().give("a", 1)
    yield "bug", bug.tape()
    fixed = bug.recovered("bug", skill="Fixed", by="ops").fail("b")
    yield "bug.recovered", fixed.tape()
    yield "bug.recovered.recovered", fixed.recovered("bug.recovered", "T3").give("b", 2).tape()
    buys = Hand("Buys", owner="Olga", context="C1").say().give("pay", {"id": "c1"}).give("a", "A").give("b", "B")
    yield "forked", buys.tape()
    dry = buys.forked("forked", 3)
    while dry.task.pending and not dry.task.ended:
        dry.ring("#1")
    yield "forked.dry", dry.tape()
    yield "forked.dry-at-question", buys.forked("forked", 4, by="Olga").say("large").ring("#1").tape()
    live = (
        buys.forked("forked", 1, "F2", live=True).give("pay", {"id": "c2"}).give("b", "B").give("a", "A").say("small")
    )
    yield "forked.live", live.give("parcel", "sent").tape()
    again = buys.forked("forked", 2, "F3", live=True).give("b", "B").fail("a")
    yield "forked.live-failed", again.tape()
    yield "forked.live-failed.recovered", again.recovered("forked.live-failed", "F4").give("a", "A").tape()
    old = Hand("VERSION_1").say()
    saved = {"how": "upgrade", "snapshot": old.task.model_dump(mode="json")}
    yield "versioned", old.tape()
    from tests.records.tapes import begun

    new = Hand("VERSION_3", planned_as=old.task, origin=saved)
    new.task, _ = begun(saved, new.tape())
    new.first = new.task.model_dump_json()
    yield "versioned.upgraded", new.give("a", "x").tape()


def parts() -> Recorded:
    interview = Hand("Interview", "T/1.1").say("Hi").give("think")
    signs = Hand("SignsIn", "T/1.2").say("Hi")
    whole = Hand("Whole", stream=True, context="C1").say("Ada")

    def asks(id: str, part: Hand) -> dict[str, Any]:
        return {"kind": "child_asked", "invocation_id": id,
                "waits": [wait.model_dump(mode="json") for wait in part.task.open_waits]}  # fmt: skip

    whole.feed(asks("T/1.2", signs)).feed(asks("T/1.1", interview)).give("product", 42)
    whole.say("Ada", slot="name", delivery_id="d1").feed(asks("T/1.1", interview.say("Ada")))
    whole.say("old", slot="age").say({"years": 36}).decide("sign in").feed(asks("T/1.9", signs))
    whole.feed({**asks("T/1.2", signs), "waits": []}).give("one", "Ada, 36").give("letter", "Dear Ada")
    yield "parts", whole.give("two", "approved").tape()
    yield "parts-part", interview.say({"years": 36}).tape()
    failed = Hand("Whole").say("Ada").give("product", 42).give("letter", "x").give("two", "a").fail("one", UNKNOWN)
    yield "parts-failed", failed.tape()
    yield "parts-failed.recovered", failed.recovered("parts-failed").give("one", "Ada").tape()
    side = Hand("SideBySide").say().ring("sleep").give("a", 1)
    steps = {"b": 2, "a-then": 3, "b-then": 4, "more": "m", "more.2": "n"}
    while not side.task.ended:
        ids = [one.command.id for one in side.task.pending.values()]
        if "d" in ids:
            side.fail("d", BUSY) if side.pending("d").retries == 0 else side.fail("d")
            if not side.task.ended and "d" in [one.command.id for one in side.task.pending.values()]:
                side.ring("d")
        elif ids:
            side.give(ids[-1], steps.get(ids[-1], "x"))
        else:
            side.decide("may c")
    yield "parallel", side.tape()
    denied = Hand("SideBySide").say().ring("sleep")
    while not denied.task.ended:
        ids = [one.command.id for one in denied.task.pending.values()]
        denied.give(ids[0], "x") if ids else denied.decide("may c", "denied")
    yield "parallel-denied", denied.tape()


def questions() -> Recorded:
    early = Hand("Interview").say("Hi", delivery_id="d0").say("Ada", early=True, delivery_id="d1", sender="Ada")
    early.say("Ada", early=True, delivery_id="d1").say("too soon").say("old", early=True, slot="age", message_id="m1")
    yield "early", early.give("think").say({"years": 36}, gate="T/1.9").say({"years": 36}).say("more").tape()
    whole = {"kind": "user_message", "delivery_id": "d9", "content": {"parts": [
        {"text": "Ä\n", "media_type": "text/plain"}, {"data": {"n": [1, 2.5, True]}}, {"raw": "AAEC", "filename": "f"},
        {"url": "https://example.org/x"}]}}  # fmt: skip
    asks = Hand("Asks").say("no order").feed({**whole, "content": {"parts": [{"data": {"items": [], "kind": "gift"}}]}})
    asks.say("red").say("red", slot="colour").say({"name": "x", "price": 5000}, slot="size")
    asks.say({"name": "x", "price": 5}, slot="size").feed({**whole, "slot": "colour"}).feed(whole)
    asks.say("blue").say("green").ring("sleep").say("grey").say("black").ring("sleep")
    yield "questions", asks.tape()
    weighs = Hand("WEIGHS").say({"n": 1}).give("weight", 3, second=1).give("item", {"name": "a", "price": 1}, second=1)
    weighs.say("on").feed({"kind": "user_message", "content": {"parts": [{"text": "x"}]}}, second=0)
    yield "table", weighs.give("item", {"name": "b", "price": 1}).give("weight", 4).tape()
    juggles = Hand("Juggles").say().give("a", {"x": [1, {"y": None}]}).ring("nap").give("b", "text").say("1", slot="x")
    juggles.fail("late").say("2", slot="y").ring("rest")
    yield "reducer", juggles.give("hello", "Hi").tape()
    patched = Hand("Patched", patched=("prompt", "late")).say().give("first", "one").ring("sleep")
    yield "patched", patched.tape()
    yield "patched-all", Hand("Patched").say().give("first", "one").give("second", "two").ring("sleep").tape()
    heap = Hand("CarelessSteps").say({"a": {}}).give("b", {"b": [1]}).give("a", {"a": {}}).give("c", [1]).say({"r": 1})
    yield "scribbled", heap.give("d", 1).tape()
    heap = Hand("Careless").say({"a": {}})
    while not heap.task.ended:
        heap.give("t", {"t": {"u": [1]}})
    yield "scribbled-reducer", heap.tape()
    for way in range(17):
        broken = Hand("Breaks").say({"a": 1}).give("way", way)
        yield f"broken-{way:02}", broken.tape()
    yield "not-fit", Hand("Breaks").say("no numbers").tape()


def chats() -> Recorded:
    wish = {"tool_calls": [{"id": "", "name": "weather", "args": {"city": "Oslo"}},
                           {"id": "x", "name": "weather", "args": {"city": "Rome"}}]}  # fmt: skip
    usage = {"input_tokens": 10, "output_tokens": 5}
    task = Hand("Talks", stream=True).say("How is it in Oslo?").fail("model", BUSY).ring("model")
    task.give("model", {**wish, "model": "m1", "usage": usage}).give("weather", "Rain.").give("weather", "Sun.")
    task.give("model", "Wet.").give("judge", {"text": "", "value": {"years": 3}})
    task.fail("again", BUSY).ring("again").give("again", "So.").say("And now?").give("model", "Dry.")
    task.give("judge", {"text": "", "value": {"years": 4}}).give("again", "So.")
    yield "chat", task.say("bye").tape()
    lost = Hand("Talks").say("How is it?").give("model", wish).fail("weather")
    yield "chat-failed", lost.tape()
    again = lost.recovered("chat-failed").give("weather", "Rain.").give("weather", "Sun.")
    yield "chat-failed.recovered", again.give("model", "Wet.").fail("judge", UNKNOWN).tape()
    yield "chat-failed.forked", lost.forked("chat-failed", 2, live=True).give("weather", "x").tape()
    reducer = Hand("TalksAsReducer").say("How is it?").give("model", {"tool_calls": wish["tool_calls"][:1]})
    yield "chat-reducer", reducer.give("weather", "Rain.").give("model", "Wet.").tape()


def contracts() -> Recorded:
    def writes(*said: str) -> Hand:
        return Hand("Writes").say("Tides").give("plan", "a poem").give("write", said[0])

    yield "contract", writes("again").give("plan", "prose").give("write", "Ebb.").tape()
    for name, said in (("overstep", "overstep"), ("peek", "peek"), ("bug", "bug"), ("invariant", "x")):
        broken = writes(said)
        yield f"contract-{name}", broken.tape()
    failed = Hand("Writes").say("Tides").give("plan", "a poem").fail("write", failure("permanent", "x", "no"))
    yield "contract-failed", failed.tape()
    yield "contract-failed.recovered", failed.recovered("contract-failed").give("write", "Ebb.").tape()
    yield "contract-no-plan", Hand("Writes").say("Tides").give("plan", "").tape()
    yield "contract-nonsense", Hand("Writes").say("nonsense").tape()


def every() -> Recorded:
    """All that is recorded, by name."""
    for scenarios in (shipped, retries, gates, undoing, lineage, parts, questions, chats, contracts):
        yield from scenarios()
