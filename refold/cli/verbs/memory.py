"""`refold memory`: what agents and sessions remember of an owner, for requests to read or to delete it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from refold.cli.errors import CallError
from refold.cli.text.views import moment
from refold.cli.verb import Call, Namespace, Profile, add
from refold.cli.verbs.ledger import readable_store
from refold.words.text import clean, counted, indented

Owner = Annotated[
    str | None,
    typer.Argument(metavar="OWNER", help="The owner, as the tasks were started with.", show_default=False),
]
NoOwner = Annotated[bool, typer.Option("--no-owner", help="What tasks without an owner share.")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs, as a group of their own."""
    group = typer.Typer(
        name="memory",
        no_args_is_help=True,
        help="List and delete what is remembered of an owner.",
        rich_markup_mode=None,
    )
    for run in (list_, forget):
        add(group, run, connects=False)
    app.add_typer(group)


def list_(
    call: Call, owner: Owner = None, no_owner: NoOwner = False, namespace: Namespace = None, profile: Profile = None
) -> None:
    """Print the facts and sessions that are remembered of an owner: facts newest first, then each session's turns.

    They are in the ledger's database (REFOLD_LEDGER), which has hashes in place of owners and of sessions' ids: it
    cannot tell whose memories there are. Encrypted texts are read by the codec that REFOLD_CODEC names.
    """
    from refold.effects.memory.held import held

    scope, whose = _whose(owner, no_owner, namespace, profile)
    store = readable_store()
    found = held(store, scope)
    for fact in found.facts:
        if call.out.json:
            call.out.value({"fact": fact.id, "at": fact.at, "said": fact.said})
            continue
        call.out.say(f"{moment(datetime.fromtimestamp(fact.at, UTC))}  fact {fact.id}", *indented(fact.said))
    for session, turns in found.sessions.items():
        if call.out.json:
            call.out.value({"session": session, "turns": [turn.model_dump() for turn in turns]})
            continue
        call.out.say(f"session {session}, {counted(len(turns), 'turn')}")
        for turn in turns:
            call.out.say(*indented(f"asked: {turn.asked}"), *indented(f"answered: {turn.answered or '-'}"))
    if not found.facts and not found.sessions:
        call.out.note(clean(f"nothing is remembered of {whose} in {store.place}"))


def forget(
    call: Call,
    owner: Owner = None,
    no_owner: NoOwner = False,
    fact: Annotated[
        str | None, typer.Option("--fact", metavar="ID", help="One fact, by its id in `refold memory list`.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="One session: its own id, or that of the list.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All facts and sessions of the owner.")] = False,
    namespace: Namespace = None,
    profile: Profile = None,
) -> None:
    """Delete what is remembered of an owner: one fact, one session, or all. It cannot be brought back.

    Running tasks do not find it any more. What tasks have recalled or been told before is in their journals, which the
    server keeps for its retention, and in the conversations that later tasks take over.
    """
    from refold.effects.memory import held

    if [fact is not None, session is not None, everything].count(True) != 1:
        raise CallError("say what to forget: --fact ID, --session ID, or --all; one of them")
    scope, whose = _whose(owner, no_owner, namespace, profile)
    store, facts, sessions = readable_store(), 0, 0
    try:
        if fact is not None:
            held.forget_fact(store, scope, fact)
            facts = 1
        elif session is not None:
            held.forget_session(store, scope, session)
            sessions = 1
        else:
            facts, sessions = held.forget_all(store, scope)
    except held.NotRemembered as error:
        way = "`refold memory list` shows what there is; owners are matched letter by letter"
        raise held.NotRemembered(clean(f"{error} of {whose} in {store.place}; {way}")) from None
    if call.out.json:
        call.out.value({"facts": facts, "sessions": sessions})
    else:
        call.out.say(clean(f"{counted(facts, 'fact')} and {counted(sessions, 'session')} of {whose} deleted"))


def _whose(owner: str | None, no_owner: bool, namespace: str | None, profile: str | None) -> tuple[str, str]:
    """The hash of an owner in a namespace, and words for it.

    Raises:
        CallError: It is not clear who is meant.
    """
    from refold.effects.memory.memory import scope_of
    from refold.temporal.client.connection import namespace_from

    if (not owner) is not no_owner:
        raise CallError("name the owner, or give --no-owner for tasks without one; not both")
    space = namespace or namespace_from(profile)
    words = "tasks without an owner" if no_owner else f"owner {owner!r}"
    return scope_of(space, owner or ""), f"{words} (namespace {space!r})"
