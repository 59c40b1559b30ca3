"""What agents do behind a patch: tasks that were recorded before it replay as they were recorded."""

from typing import Any

import pytest
from pydantic import JsonValue

from refold import Artifact, Part, Status
from refold.agent import Agent, Budget, Sequential, Think, skill_tool
from refold.agent.clients import WHOLE_ARTIFACTS
from refold.agent.loop import EVERY_FILE
from refold.agent.ready.budget import TELLS_TOOL_CALLS
from refold.core.chat import Reply, ToolCall, ToolReturn
from refold.core.commands import CallChat
from refold.core.events import SkillOutcome, SkillResult
from refold.core.fold.snapshot import OWN_PATCHES, STEP_PATCHES
from tests.agent.shop import shop
from tests.core.byhand import ByHand, busy

CUT = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


def asks(name: str, *files: Part, **args: Any) -> Reply:
    """A reply that calls one tool, with files beside the call."""
    return Reply(tool_calls=(ToolCall(id="1", name=name, args=args),), files=files, stop="tools")


def told(task: ByHand) -> list[Any]:
    """What the open model call says."""
    chat = task.pending("model").command
    assert isinstance(chat, CallChat)
    return [one.value if isinstance(one, ToolReturn) else one.content.text for one in chat.say]  # type: ignore[union-attr]


# --- what a part hands over

REPORT = SkillOutcome(
    task_id="part",
    text="Two pictures.",
    artifacts=(
        Artifact.from_text("text", "A note."),
        Artifact(name="file-1.png", parts=(Part(raw=b"x", filename="file-1.png", media_type="image/png"),)),
        Artifact(
            name="rows", parts=(Part(data=[1]), Part(data=[2]), Part(text="three"), Part(url="https://a.example"))
        ),
        Artifact.from_data("answer", {"n": 2}),
        Artifact(name="raw", parts=(Part(raw=b"x"),)),
    ),
)
WHOLE = {
    "text": "Two pictures.",
    "artifact text": "A note.",
    "file-1.png": {"file": "file-1.png", "media_type": "image/png"},
    "rows": [[1], [2], "three", {"file": "https://a.example"}],
    "answer": {"n": 2},
    "raw": {"file": "raw"},
}
BEFORE = {"text": "A note.", "file-1.png": None, "rows": "three", "answer": {"n": 2}, "raw": None}


@CUT
@pytest.mark.parametrize(("patched", "read"), [(True, WHOLE), (False, BEFORE)], ids=["now", "recorded-before"])
def test_the_model_reads_all_of_a_parts_artifacts(cut: bool, patched: bool, read: JsonValue) -> None:
    """
    Of a file its name; and the part's message, also beside an artifact that is named `text`.
    """
    helper = Agent("helper", instructions="Help.")
    task = ByHand(Agent("host", tools=[skill_tool(helper)], gates="none"), cut=cut, patched=lambda _: patched)
    task.say("go")
    task.give("model", asks("helper", message="Draw."))
    id = task.pending("helper").invocation_id
    task.feed(SkillResult(id="helper", invocation_id=id, outcome=REPORT))

    assert told(task) == [read]
    assert task.folded() == task.task


# --- files that the model makes


def picture(drawn: str) -> Part:
    """A picture as a worker names the first one of each reply."""
    return Part(raw=drawn.encode(), filename="file-1.png", media_type="image/png")


@CUT
@pytest.mark.parametrize("loop", [None, [Think(), Sequential()]], ids=["loop", "own-loop"])
@pytest.mark.parametrize("patched", [True, False], ids=["now", "recorded-before"])
def test_every_file_of_the_model_is_handed_over(cut: bool, loop: Any, patched: bool) -> None:
    """
    Those beside tool calls too, and none in place of another one.
    """
    options = {"turns": 2} if loop is None else {"turns": 2, "loop": loop}
    task = ByHand(shop(**options), cut=cut, patched=lambda _: patched)
    task.say("Draw.")
    task.give("model", asks("price", picture("draft"), Part(raw=b"note", filename="note.txt"), item="tea"))
    task.give("price", 3)
    task.give("model", Reply(files=(picture("tea"),)))
    first = task.said[-1]
    task.say("Once more.")
    task.give("model", Reply(text="There.", files=(picture("cake"), Part(raw=b"raw"))))

    drawn = {one.name: one.parts[0].raw for one in task.task.artifacts}
    if patched:
        assert drawn == {
            "file-1.png": b"draft",
            "note.txt": b"note",
            "file-3.png": b"tea",
            "file-4.png": b"cake",
            "file-5": b"raw",
        }
        assert first == "file-3.png"
    else:
        assert drawn == {"file-1.png": b"cake", "file-2": b"raw"}
        assert first == "file-1.png"
    assert task.folded() == task.task


# --- what is left of a budget


@CUT
@pytest.mark.parametrize(
    ("patched", "first", "second"),
    [
        (True, "Budget left: 5 of 5 tool_calls.", "Budget left: 4 of 5 tool_calls."),
        (False, "Budget left: .", "Budget left: ."),
    ],
    ids=["now", "recorded-before"],
)
def test_the_model_reads_how_many_tool_calls_are_left(cut: bool, patched: bool, first: str, second: str) -> None:
    """
    Also if nothing else is bounded.
    """
    agent = shop(middleware=[Budget(tool_calls=5, tell=True)])
    task = ByHand(agent, cut=cut, patched=lambda _: patched)
    task.say("tea?")
    assert told(task) == ["tea?", first]

    task.give("model", asks("price", item="tea"))
    task.give("price", 3)
    assert told(task) == [3, second]
    assert task.folded() == task.task


@pytest.mark.parametrize("patched", [True, False], ids=["now", "recorded-before"])
def test_a_new_run_goes_on_as_the_run_before(patched: bool) -> None:
    """
    It drives the open step again, which must ask the model the same, whatever newer code would ask.
    """
    task = ByHand(shop(middleware=[Budget(tool_calls=5, tell=True)]), cut=True, patched=lambda _: patched)
    task.say("tea?")
    task.fail("model", busy())
    task.patched = lambda _: True
    task.ring("model")
    task.give("model", Reply(text="Tea."))

    assert (task.said, task.status) == (["Tea."], Status.COMPLETED)


def test_the_patches_are_no_changes_of_the_authors() -> None:
    """
    Where authors' changes are listed, these are left out.
    """
    task = ByHand(shop(middleware=[Budget(tool_calls=5, tell=True)]))
    task.say("tea?")

    assert all(id.startswith(OWN_PATCHES) for id in task.task.patches)
    assert {EVERY_FILE, TELLS_TOOL_CALLS, WHOLE_ARTIFACTS} >= task.task.patches.keys() > set()
    assert all(id.startswith(STEP_PATCHES) for id in (EVERY_FILE, TELLS_TOOL_CALLS, WHOLE_ARTIFACTS))


def test_the_model_reads_all_that_is_left() -> None:
    """
    Of each limit of the task.
    """
    task = ByHand(shop(middleware=[Budget(model_calls=3, tool_calls=5, tell=True)]))
    task.say("tea?")

    assert told(task) == ["tea?", "Budget left: 3 of 3 model_calls, 5 of 5 tool_calls."]
