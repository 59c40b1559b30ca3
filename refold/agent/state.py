"""What one run of an agent knows: plain data, one for each task, handed from step to step.

What an agent depends on is in it by name (a model, instructions, tools' names): a name can be saved, and changed while
the task runs; the thing itself is found in the worker.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel

from refold.core.chat import Reply, Said
from refold.core.codec import copied
from refold.core.commands import EffectPolicy
from refold.core.values import lean

SPANS_KEPT = 20
"""How many spans a task's state remembers, newest last."""


class App(RootModel[dict[str, JsonValue]]):
    """A place for what plugins and middleware want to keep with the task. Values are JSON, and copied in and out."""

    root: dict[str, JsonValue] = {}

    def get(self, key: str, default: JsonValue = None) -> JsonValue:
        """The value of this name, as a copy of its own."""
        return copied(self.root[key]) if key in self.root else default

    def set(self, key: str, value: JsonValue) -> None:
        """Keep a value under this name.

        Raises:
            ValidationError: It is not JSON.
        """
        self.root[key] = App.model_validate({key: copied(value)}).root[key]

    def drop(self, key: str) -> None:
        """Forget a value; nothing happens where there is none."""
        self.root.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self.root


class Spent(BaseModel):
    """What the task has used so far.

    Attributes:
        model_calls: Model steps that asked a model.
        tool_calls: Tool calls that were made.
        input_tokens: As the providers count them.
        output_tokens: As the providers count them.
        usd: In US dollars, as far as the models' prices are known.
    """

    model_calls: int = lean(0)
    tool_calls: int = lean(0)
    input_tokens: int = lean(0)
    output_tokens: int = lean(0)
    usd: float = lean(0.0)

    @property
    def tokens(self) -> int:
        """Both ways."""
        return self.input_tokens + self.output_tokens


class Span(BaseModel):
    """One step that was taken.

    Attributes:
        step: Its kind; for a tool, `tool` and its name.
        cycle: In which cycle.
        took_s: From its beginning to its end, by the task's clock.
        error: What went wrong; empty where nothing did.
    """

    step: str
    cycle: int
    took_s: float
    error: str = lean("")


class RemoteTool(BaseModel):
    """A tool of a server, as the server defines it.

    Attributes:
        name: `server.tool`.
        description: For the model.
        parameters: The JSON schema of its arguments.
        effect: What calling it may do.
        pin: The hash of its definition: a call is refused where the server defines it otherwise by then.
    """

    name: str
    description: str = ""
    parameters: dict[str, JsonValue]
    effect: EffectPolicy
    pin: str = ""


class AgentState(BaseModel):
    """See the module's docstring.

    Attributes:
        model: `provider:name`; None is the agent's own.
        instructions: What the model is told; None is the agent's own.
        tools: The names of the tools that are offered; None is all of the agent's.
        found: Tools of servers, as they were defined when the task began.
        thread: The conversation's name.
        unsaid: What belongs to the conversation, and that its thread has not been told yet.
        told: How many turns the newest model call has said.
        turns: How many messages of the user were taken.
        resumed: How often hooks have had the newest of them gone on with.
        cycle: How many model steps were taken since the newest of them; 1 is the first.
        position: Behind which step the task stands.
        spent: What was used.
        under_way: The ids of tool calls that a budget has let in, and that `spent` does not count yet.
        withheld: Which of the messages that are new the model is not to be told, by their places.
        trace: The newest steps, oldest first.
        app: For plugins and middleware of the user's own.
        kept: What middleware keeps between steps, by its name.
        last_reply: What the newest model step came to; None while it has not been asked.
    """

    model_config = ConfigDict(validate_assignment=True)

    model: str | None = lean()
    instructions: str | None = lean()
    tools: list[str] | None = lean()
    found: list[RemoteTool] = lean(factory=list)
    thread: str = lean("main")
    unsaid: list[Said] = lean(factory=list)
    told: int = lean(0)
    turns: int = lean(0)
    resumed: int = lean(0)
    cycle: int = lean(0)
    position: Literal["start", "after_model", "after_tools"] = lean("start")
    spent: Spent = lean(factory=Spent)
    under_way: list[str] = lean(factory=list)
    withheld: list[int] = lean(factory=list)
    trace: list[Span] = lean(factory=list)
    app: App = lean(factory=App)
    kept: dict[str, JsonValue] = lean(factory=dict)
    last_reply: Reply | None = lean()

    def note(self, span: Span) -> None:
        """Remember a step that was taken."""
        self.trace = [*self.trace, span][-SPANS_KEPT:]

    def let_in(self, call: str) -> None:
        """A tool is going to be called, and counts as spent from here on."""
        if call not in self.under_way:
            self.under_way = [*self.under_way, call]

    def let_out(self, call: str) -> None:
        """It is counted in `spent`, or was not called."""
        self.under_way = [one for one in self.under_way if one != call]
