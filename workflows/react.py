"""ReAct: think, act, observe, until the question is answered. Each step reads and writes what its contract declares.

It teaches contracts: the steps share one frozen `AgentState`, and none can read or write an undeclared field.

Source: S1.
"""

from enum import StrEnum
from typing import Any, Literal, NewType

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from activities.dictionary import define_word
from activities.sessions import close_turn, open_turn
from activities.wikipedia import wikipedia_summary
from refold import (
    ALL,
    CommandError,
    Content,
    Contract,
    Ctx,
    ErrorRecord,
    FailureKind,
    Invariant,
    Move,
    StatePatch,
    Transition,
    flow_skill,
    step,
)
from refold.core.steps.calls import Call
from refold.effects.memory import Turn
from refold.temporal import workflow_for

THINK = (
    "You answer a question step by step. Say what is wanted (intent), and which tools to ask for it; none, if it can "
    "be answered from what is known. Tools: wikipedia_summary (an article's title), define_word (one English word)."
)
JUDGE = "You judge what tools have found. Sum it up, and say whether more must be looked up (need_loop)."
ANSWER = "You answer the user, from what was found and nothing else."

SessionId = NewType("SessionId", str)
Iteration = NewType("Iteration", int)
ToolName = Literal["wikipedia_summary", "define_word"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


# --- lifecycle


class LifecycleState(StrEnum):
    """Where the agent is in its loop."""

    INITIALIZED = "initialized"
    THINKING = "thinking"
    ACTING = "acting"
    OBSERVING = "observing"
    FINISHED = "finished"
    FAILED = "failed"


S = LifecycleState

# --- business


class ToolRequest(_Frozen):
    """A tool that the model asks for, and what about."""

    tool: ToolName
    about: str


class ToolOutput(_Frozen):
    """What came of it: a value, or why there is none."""

    tool: ToolName
    value: JsonValue = None
    error: str | None = None


class ThoughtState(_Frozen):
    """What is wanted, and what to do about it."""

    intent: str
    suggested_tools: tuple[ToolRequest, ...] = ()
    reasoning: str = ""


class ActionState(_Frozen):
    """The tools that were asked, and what they answered, in the same order."""

    requested_tools: tuple[ToolRequest, ...]
    tool_outputs: tuple[ToolOutput, ...]


class ObservationState(_Frozen):
    """What was learnt: the answer, or that another round is needed."""

    summary: str = ""
    final_answer: str = ""
    need_loop: bool = False


# --- metadata


class Settings(_Frozen):
    """How a task runs; it comes in with the task, and stays.

    Attributes:
        max_iterations: Rounds of thinking, at most.
        when_exhausted: After the last one, answer from what there is, or fail.
        window: How many earlier turns of the session the model is told.
    """

    model_config = ConfigDict(extra="forbid")

    max_iterations: int = Field(default=5, ge=1, le=50)
    when_exhausted: Literal["answer", "fail"] = "answer"
    window: int = Field(default=5, ge=0)


class AgentState(_Frozen):
    """All that the steps share. The orchestrator alone writes session_id, user_input, iteration and settings."""

    lifecycle: LifecycleState = S.INITIALIZED
    session_id: SessionId
    user_input: str
    iteration: Iteration = Field(default=Iteration(0), ge=0)
    thought: ThoughtState | None = None
    action: ActionState | None = None
    observation: ObservationState | None = None
    last_error: ErrorRecord | None = None
    settings: Settings = Settings()


class Question(BaseModel):
    """What a task starts from; a plain text is a question without a session.

    Attributes:
        text: What is asked.
        session_id: Earlier questions of this session are told to the model; see `activities/sessions.py`.
        settings: How the task runs.
    """

    model_config = ConfigDict(extra="forbid")

    text: str
    session_id: str | None = None
    settings: Settings = Settings()


# --- the contract


def first_state(content: Content, ctx: Ctx) -> AgentState:
    said = content.data if content.has_data else {}
    if isinstance(said, dict):
        said = {"text": content.text, **said}
    question = ctx.decode(Question, said)
    session = SessionId(question.session_id or ctx.task_id)
    return AgentState(session_id=session, user_input=question.text.strip(), settings=question.settings)


def next_round(state: AgentState) -> StatePatch:
    # The old thought and action are removed, so that no invariant holds only because of an earlier round.
    return StatePatch(iteration=state.iteration + 1, thought=None, action=None)


REACT = Contract(
    state=AgentState,
    begins=first_state,
    owned=("session_id", "user_input", "iteration", "settings"),
    moves=(
        Move(S.INITIALIZED, S.THINKING),
        Move(S.THINKING, S.ACTING),
        Move(S.THINKING, S.OBSERVING),
        Move(S.ACTING, S.OBSERVING),
        Move(S.OBSERVING, S.FINISHED),
        Move(S.OBSERVING, S.THINKING, then=next_round),
        Move(S.THINKING, S.FAILED),
        Move(S.ACTING, S.FAILED),
        Move(S.OBSERVING, S.FAILED),
    ),
    invariants=(
        Invariant("user_input", "a task begins with a question", lambda s: bool(s.user_input), at=S.INITIALIZED),
        Invariant(
            "thought",
            "a task begins with nothing thought, done or seen",
            lambda s: s.thought is None and s.action is None and s.observation is None,
            at=S.INITIALIZED,
        ),
        Invariant(
            "thought",
            "acting needs a thought with an intent",
            lambda s: s.thought is not None and bool(s.thought.intent),
            at=S.ACTING,
        ),
        Invariant(
            "action", "after acting there is an action", lambda s: s.action is not None, at=S.OBSERVING, after=S.ACTING
        ),
        Invariant(
            "observation",
            "who has finished has an answer",
            lambda s: s.observation is not None and bool(s.observation.final_answer),
            at=S.FINISHED,
        ),
        Invariant(
            "iteration",
            "each new round counts one more",
            keeps=lambda before, s: s.iteration == before.iteration + 1,
            at=S.THINKING,
            after=S.OBSERVING,
        ),
        Invariant(
            "iteration", "nothing else counts rounds", keeps=lambda before, s: s.iteration - before.iteration in (0, 1)
        ),
    ),
)

# --- the steps


def tools_or_answer(seen: AgentState) -> LifecycleState:
    return S.ACTING if seen.thought is not None and seen.thought.suggested_tools else S.OBSERVING


def again_or_done(seen: AgentState) -> LifecycleState:
    return S.THINKING if seen.observation is not None and seen.observation.need_loop else S.FINISHED


class Verdict(BaseModel):
    """What the model makes of what the tools found."""

    summary: str
    need_loop: bool = False


@flow_skill(id="react", contract=REACT, tags=["agent"], examples=["What is an ebb tide?"])
class React:
    """Answers a question, with the help of an encyclopedia and a dictionary."""

    @step(start=True, enters=S.INITIALIZED, reads=["user_input"], requires=["user_input"])
    def load(self) -> StatePatch:
        return StatePatch()

    @step(
        enters=S.THINKING,
        reads=["session_id", "user_input", "iteration", "observation", "settings"],
        writes=["thought", "lifecycle"],
        next=tools_or_answer,
    )
    async def think(self, ctx: Ctx, state: AgentState) -> StatePatch:
        earlier: list[Turn] = []
        if state.session_id != ctx.task_id:  # a session of its own has no earlier turns
            asked = {"session_id": state.session_id, "asked": state.user_input, "last": state.settings.window}
            earlier = await ctx.tool(open_turn, asked, key=f"turn:{ctx.task_id}")
        thought = await ctx.llm("think", THINK, briefing(state, earlier), expect=ThoughtState)
        return StatePatch(thought=thought)

    @step(
        enters=S.ACTING,
        reads=["session_id", "iteration", "thought"],
        writes=["action", "lifecycle"],
        requires=["thought"],
    )
    async def act(self, ctx: Ctx, state: AgentState) -> StatePatch:
        assert state.thought is not None
        requests = state.thought.suggested_tools
        outputs = await ctx.parallel(*(output_of(ctx, request) for request in requests), limit=3)
        return StatePatch(action=ActionState(requested_tools=requests, tool_outputs=tuple(outputs)))

    @step(
        enters=S.OBSERVING,
        reads=["session_id", "iteration", "thought", "action", "settings"],
        writes=["observation", "lifecycle"],
        requires=["thought"],
        next=again_or_done,
    )
    async def observe(self, ctx: Ctx, state: AgentState) -> StatePatch | Transition:
        last = state.iteration + 1 >= state.settings.max_iterations
        summary = ""
        # Without tools there is nothing new to judge; and after the last round the agent must answer, whatever is
        # missing.
        if state.action is not None and not (last and state.settings.when_exhausted == "answer"):
            verdict = await ctx.llm("observe", JUDGE, findings(state), expect=Verdict)
            if verdict.need_loop and last:
                return ctx.fail(f"no answer after {state.settings.max_iterations} rounds")
            if verdict.need_loop:
                return StatePatch(observation=ObservationState(summary=verdict.summary, need_loop=True))
            summary = verdict.summary
        answer = await ctx.llm("answer", ANSWER, findings(state))  # as text, so that watchers can read along
        if state.session_id != ctx.task_id:
            await ctx.tool(close_turn, session_id=state.session_id, answered=answer, key=f"answer:{ctx.task_id}")
        ctx.say(answer)
        return StatePatch(observation=ObservationState(summary=summary, final_answer=answer))

    @step(on_error=True, reads=ALL, writes=["last_error", "lifecycle"])
    def handle_error(self, error: ErrorRecord) -> StatePatch:
        return StatePatch(last_error=error)


def briefing(state: AgentState, earlier: list[Turn]) -> str:
    """The model's input before it thinks."""
    lines = [f"{turn.asked} - {turn.answered or 'not answered'}" for turn in earlier]
    lines.append(f"Question: {state.user_input}")
    if state.observation is not None:
        lines.append(f"Found so far: {state.observation.summary}")
    return "\n".join(lines)


def findings(state: AgentState) -> str:
    """The model's input before it judges or answers."""
    assert state.thought is not None
    lines = [state.thought.intent, *filter(None, [state.thought.reasoning])]
    if state.action is not None:
        lines.extend(f"{one.tool}: {one.error or one.value}" for one in state.action.tool_outputs)
    return "\n".join(lines)


async def output_of(ctx: Ctx, request: ToolRequest) -> ToolOutput:
    """A tool's result; or why the tool refused, which the model can read and continue from."""
    try:
        return ToolOutput(tool=request.tool, value=plain_value(await call_of(ctx, request)))
    except CommandError as error:
        if error.failure.kind is not FailureKind.PERMANENT:
            raise  # the service stays down: nothing to reason about
        return ToolOutput(tool=request.tool, error=error.failure.message)


def call_of(ctx: Ctx, request: ToolRequest) -> Call[Any]:
    match request.tool:
        case "wikipedia_summary":
            return ctx.tool(wikipedia_summary, title=request.about)
        case "define_word":
            return ctx.tool(define_word, word=request.about)


def plain_value(value: Any) -> JsonValue:
    return value.extract if hasattr(value, "extract") else str(value)


ReactWorkflow = workflow_for(React)
