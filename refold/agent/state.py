"""The state of one run of an agent: plain data, one value for each task, passed from step to step.

The state names what the agent depends on (a model, instructions, tools' names): a name can be saved, and changed while
the task runs; the worker looks the named thing up.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel

from refold.core.chat import Reply, Said, ToolCall, Usage
from refold.core.codec import copied
from refold.core.commands import EffectPolicy
from refold.core.content import Content
from refold.core.values import lean

SPANS_KEPT = 20
"""How many spans a task's state retains, the newest ones."""


class App(RootModel[dict[str, JsonValue]]):
    """Storage for data that plugins and middleware save with the task. Values are JSON, and copied in and out."""

    root: dict[str, JsonValue] = {}

    def get(self, key: str, default: JsonValue = None) -> JsonValue:
        """The value of this name, as a copy."""
        return copied(self.root[key]) if key in self.root else default

    def set(self, key: str, value: JsonValue) -> None:
        """Store a value under this name.

        Raises:
            ValidationError: It is not JSON.
        """
        self.root[key] = App.model_validate({key: copied(value)}).root[key]

    def drop(self, key: str) -> None:
        """Delete a value; it is no error if there is none."""
        self.root.pop(key, None)

    def __contains__(self, key: str) -> bool:
        return key in self.root


class Spent(BaseModel):
    """What the task has used so far.

    Attributes:
        model_calls: Steps that called a model.
        tool_calls: Tool calls that were made.
        input_tokens: As the providers count them.
        output_tokens: As the providers count them.
        usd: In US dollars, as far as the models' prices are known.
        files: Files that models made.
    """

    model_calls: int = lean(0)
    tool_calls: int = lean(0)
    input_tokens: int = lean(0)
    output_tokens: int = lean(0)
    usd: float = lean(0.0)
    files: int = lean(0)

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def count(self, usage: Usage) -> None:
        """Add what a model call cost."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.usd += usage.usd or 0.0


class Span(BaseModel):
    """One executed step.

    Attributes:
        step: Its kind; for a tool, `tool` and its name.
        cycle: In which cycle.
        took_s: From its beginning to its end, by the task's clock.
        error: What went wrong; empty if nothing did.
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
        effect: Its effect policy.
        pin: The hash of its definition: a call is refused if the server's definition has changed.
    """

    name: str
    description: str = ""
    parameters: dict[str, JsonValue]
    effect: EffectPolicy
    pin: str = ""


class StepStatus(StrEnum):
    """The status of a loop's step, which decides what comes next."""

    RUNNING = "running"
    DONE = "done"
    """The next step comes; after the last one, the first again."""
    AGAIN = "again"
    """The first step of its loop comes again."""
    ANSWERED = "answered"
    """Its loop is over, and `last_reply` is the loop's answer."""


class Aside(BaseModel):
    """A conversation of a step's own, beside the main one.

    Attributes:
        thread: The conversation's name.
        unsaid: As in `AgentState`.
        reply: The newest reply in it.
        unheard: The user has said something since.
    """

    thread: str
    unsaid: list[Said] = lean(factory=list)
    reply: Reply | None = lean()
    unheard: bool = lean(False)


class AgentState(BaseModel):
    """See the module's docstring.

    Attributes:
        model: `provider:name`; None is the agent's own.
        instructions: The system prompt; None is the agent's own.
        tools: The names of the tools that are offered; None is all of the agent's.
        found: Tools of servers, as they were defined when the task began.
        thread: The conversation's name.
        unsaid: Messages that belong to the conversation, but are not in its thread yet.
        told: How many turns the newest model call has added.
        turns: How many messages of the user were accepted.
        resumed: How often hooks have resumed the newest of them.
        cycle: How many model steps were made since the newest of them; 1 is the first.
        position: After which step the task is: `start`, or `after_` and the step's name.
        spent: What was used.
        under_way: The ids of tool calls that a budget has admitted, and that `spent` does not count yet.
        withheld: Which of the new messages are withheld from the model, by their places.
        trace: The newest steps, oldest first.
        app: For the user's own plugins and middleware.
        kept: Data of middleware between steps, by its name.
        last_reply: The reply of the newest model step; None before the first.
        asked: The user's newest message; for loops of the user's own, like what follows.
        steps: How the loop's steps stand, by name; those of an earlier pass until they come again.
        passes: How often inner loops have begun, by name.
        owed: The calls of `last_reply` that have no result yet.
        asides: Conversations beside the main one, by name.
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
    position: str = lean("start")
    spent: Spent = lean(factory=Spent)
    under_way: list[str] = lean(factory=list)
    withheld: list[int] = lean(factory=list)
    trace: list[Span] = lean(factory=list)
    app: App = lean(factory=App)
    kept: dict[str, JsonValue] = lean(factory=dict)
    last_reply: Reply | None = lean()
    asked: Content | None = lean()
    steps: dict[str, StepStatus] = lean(factory=dict)
    passes: dict[str, int] = lean(factory=dict)
    owed: list[ToolCall] = lean(factory=list)
    asides: dict[str, Aside] = lean(factory=dict)

    def note(self, span: Span) -> None:
        """Record an executed step."""
        self.trace.append(span)  # in place: branches of a loop share it
        del self.trace[:-SPANS_KEPT]

    def let_in(self, call: str) -> None:
        """A tool is about to be called, and counts as spent from here on."""
        if call not in self.under_way:
            self.under_way.append(call)

    def let_out(self, call: str) -> None:
        """The call is counted in `spent`, or was not made."""
        self.under_way[:] = [one for one in self.under_way if one != call]
