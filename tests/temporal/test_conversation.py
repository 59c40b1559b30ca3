"""Conversations on a real server: what history holds, and who has what was said before."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowHistory

from refold import ChatResult, Status
from refold.engine import TaskView, Tokens
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import chat_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled, text, without_ids

LONG = "Tell me of the sea. " * 60 + "\n-> It is deep."
SCRIPT = """How is it?
-> weather(city="Oslo", days=100)
-> weather(city="Rome"), weather(city="Bern")
-> So it rains.
"""
TURNS = [SCRIPT, "Thanks.", LONG, 'And the weather in "Kiel"?', "bye"]


def chatting(values: Folder) -> RefoldPlugin:
    """A worker's settings, with a memory of its own."""
    return RefoldPlugin([chat_skills], [chat_skills.weather], model="scripted:demo", storage=values)


async def talk(engine: TemporalEngine, said: Sequence[str]) -> TaskView:
    """A conversation from its first word to its last."""
    view = await engine.start("chats", text(said[0]))
    for one in said[1:]:
        view = await settled(engine, view.task_id)
        await engine.send(view.task_id, text(one))
    return await settled(engine, view.task_id)


async def history_of(engine: TemporalEngine, view: TaskView) -> WorkflowHistory:
    return await engine.client.get_workflow_handle(view.task_id).fetch_history()


async def replies(engine: TemporalEngine, view: TaskView) -> list[str]:
    """What the model replied, in order."""
    events = [entry.event for entry in await collected(engine.journal(view.task_id))]
    return [event.reply.text for event in events if isinstance(event, ChatResult)]


async def test_what_is_said_is_in_history_once(client: Client, values: Folder) -> None:
    """
    Instructions once; a long message and a tool's long result once; what the model said once.
    """
    engine = TemporalEngine(client, "chatting", patience=PATIENT)
    async with make_worker(client, chatting(values), task_queue="chatting"):
        view = await talk(engine, TURNS)
    *events, _ = (await history_of(engine, view)).events  # the last one shows the task as it ended, to people
    written = b"".join(event.SerializeToString() for event in events)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "15 turns")
    assert await replies(engine, view) == [
        "",
        "",
        "So it rains.",
        "You said: Thanks.",
        "It is deep.",
        "",
        "weather: rain in Kiel, ",
    ]
    assert written.count(chat_skills.INSTRUCTIONS.encode()) == 1
    assert written.count(b"rain in Oslo, " * 100) == 1
    assert written.count(b"Tell me of the sea. " * 60) == 1
    assert written.count(b"It is deep.") == 2, "what the model was told to say, and what it said"
    await replay_all(client, chatting(values), "chatting")


async def test_a_worker_that_was_not_there_asks_the_task(client: Client, values: Folder) -> None:
    """
    Each turn on a worker that was started for it, with nothing remembered and nothing cached: the same journal.
    """
    one, other = (TemporalEngine(client, queue, patience=PATIENT) for queue in ("remembers", "forgets"))
    async with make_worker(client, chatting(values), task_queue="remembers"):
        plain = await talk(one, TURNS)

    view = None
    for said in TURNS:
        async with make_worker(client, chatting(values), task_queue="forgets", max_cached_workflows=0):
            if view is None:
                view = await other.start("chats", text(said))
            else:
                await other.send(view.task_id, text(said))
            view = await settled(other, view.task_id)

    assert view is not None
    journals = [
        without_ids(await collected(engine.journal(task.task_id)), task.task_id)
        for engine, task in ((one, plain), (other, view))
    ]
    assert journals[0] == journals[1]


async def test_a_conversation_goes_on_in_a_new_run(client: Client, values: Folder) -> None:
    """
    A new run at every quiet point, on a worker without a workflow cache: the same conversation.
    """
    engine = TemporalEngine(client, "moving", events_per_run=1, patience=PATIENT)
    async with make_worker(client, chatting(values), task_queue="moving", max_cached_workflows=0):
        view = await talk(engine, TURNS)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "15 turns")
    assert (await replies(engine, view))[-1] == "weather: rain in Kiel, "


async def test_a_task_goes_on_with_one_that_was_terminated(client: Client, values: Folder) -> None:
    """
    It left no result; what was said in it, over several runs, is in its history all the same.
    """
    engine = TemporalEngine(client, "cut-off", events_per_run=1, patience=PATIENT)
    async with make_worker(client, chatting(values), task_queue="cut-off"):
        former = await talk(engine, ["How are you?", "Thanks."])
        said = (await engine.at(former.task_id, former.seq)).threads["main"].said
        await client.get_workflow_handle(former.task_id).terminate()

        view = await engine.start("chats", text("And now?"), previous=former.task_id)
        view = await settled(engine, view.task_id)
        now = (await engine.at(view.task_id, view.seq)).threads["main"].said

    assert now[: len(said)] == said
    assert len(now) == len(said) + 2


async def test_a_task_goes_on_with_one_that_was_terminated_before_a_worker_took_it(
    client: Client, values: Folder
) -> None:
    """
    Nobody can be asked about that one; what it was to go on with is known all the same.
    """
    engine = TemporalEngine(client, "cut-short", patience=timedelta(seconds=1))
    async with make_worker(client, chatting(values), task_queue="cut-short"):
        former = await talk(engine, ["How are you?"])
        said = (await engine.at(former.task_id, former.seq)).threads["main"].said
        delayed = await engine.start("chats", text("And now?"), previous=former.task_id, start_delay=timedelta(hours=1))
        await client.get_workflow_handle(delayed.task_id).terminate()

        view = await engine.start("chats", text("And now?"), previous=delayed.task_id)
        view = await settled(engine, view.task_id)
        now = (await engine.at(view.task_id, view.seq)).threads["main"].said

    assert now[: len(said)] == said
    assert len(now) == len(said) + 2


async def test_streamed_text_is_not_held_back(client: Client, values: Folder) -> None:
    """
    The SDK would send a heartbeat every eight seconds, which is none while a model speaks; a program's own throttle
    stays, where it is lower.
    """
    for given, used in [(60_000, 100), (20, 20)]:
        throttle = timedelta(milliseconds=given)
        queue = f"throttled-{given}"
        worker = make_worker(client, chatting(values), task_queue=queue, max_heartbeat_throttle_interval=throttle)
        config = worker.config(active_config=True)
        assert config["max_heartbeat_throttle_interval"] == timedelta(milliseconds=used)


async def test_tool_calls_can_be_watched_as_they_come(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The tool's name and arguments, then the text; not one history event more than without.
    """
    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "4")
    engine = TemporalEngine(client, "streaming", patience=PATIENT)
    async with make_worker(client, chatting(values), task_queue="streaming"):
        said = 'Hm?\n-> weather(city="Oslo and around")\n-> It rains and rains and rains.'
        view = await engine.start("chats", text(said), stream=True)
        tokens = []
        async for news in engine.watch(view.task_id):
            if isinstance(news, Tokens):
                tokens.append(news)
                if news.call is None and news.text:  # the text was read: the rest of it may come
                    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "0")
        monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "0")
        plain = await settled(engine, (await engine.start("chats", text(said))).task_id)

    calls = [one for one in tokens if one.call == 0]
    spoken = [one for one in tokens if one.call is None and one.text]
    assert {one.tool for one in calls} == {"weather"}
    assert '{"city": "Oslo and around"}'.startswith("".join(one.text for one in calls))
    assert "It rains and rains and rains.".startswith("".join(one.text for one in spoken))
    assert calls
    assert spoken
    kinds = [[event.event_type for event in (await history_of(engine, one)).events] for one in (view, plain)]
    assert kinds[0] == kinds[1]
