"""The step machine: steps, driven from one to the next, as a pure function of their arguments and receipts.

A step's body is a coroutine that never meets an event loop. Each `await` hands a command to the fold; its result is
sent in when it comes. What has to survive is in the *record*, which is the skill's state:

    {"step": name, "args": {…}, "at": time, "awaits": [{"asked": […], "ids": […], "at": time}, …]}   within a step
    {"step": name, "args": {…}, "enters": {parameter: id}}                     before a step that `.cmd()` feeds
    {"step": name, "resume": step, "slot": slot, "args": {…}}                  while the user is asked

A coroutine that is still alive is only a cache: where it is gone, the step is driven again from its record and the
receipts, and must ask for the same as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from refold.core.commands import AskUser, fingerprint
from refold.core.content import Content
from refold.core.context import Asked, Call, Ctx
from refold.core.errors import CommandError, DecodeError, ReplayMismatch, SkillError
from refold.core.events import CommandFailed, Event, UserMessage
from refold.core.params import MISSING, Json, Param, Source
from refold.core.refusal import reply_value
from refold.core.retry import Failure
from refold.core.skill import Live, Moment, Options
from refold.core.snapshot import Receipt, ReceiptStatus
from refold.core.transition import Transition

GOTO_LIMIT = 100
"""How many steps one event may go through; more is taken for a loop."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """One step, compiled.

    Attributes:
        name: Unique within the skill.
        run: The function, bound where it is a method.
        params: Its parameters by name, in order.
        start: The first message enters here.
        resume_from: The step whose question this one meets the answer of.
        seeds: What a start step's payload begins as, by parameter.
        goes_to: The steps that its code names in a literal `goto`.
    """

    name: str
    run: Callable[..., Any]
    params: Mapping[str, Param]
    start: bool
    resume_from: str | None
    seeds: Mapping[str, Any]
    goes_to: tuple[str, ...] = ()


class StepMachine:
    """A skill made of steps: what named steps and step tables compile to."""

    def __init__(self, options: Options, steps: Mapping[str, StepSpec]) -> None:
        self._options = options
        self.steps = steps
        self.start = next(step for step in steps.values() if step.start)
        self.resumes = {step.resume_from: step for step in steps.values() if step.resume_from is not None}

    @property
    def options(self) -> Options:
        """What the author said of the skill."""
        return self._options

    def where(self, state: JsonValue) -> str:
        """The step's name."""
        return str(state["step"]) if isinstance(state, dict) else self.start.name

    def edges(self) -> list[tuple[str, str]]:
        """Literal gotos and resumes."""
        gotos = [(step.name, target) for step in self.steps.values() for target in step.goes_to]
        return gotos + [(source, step.name) for source, step in self.resumes.items() if source is not None]

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """See `Skill.on`."""
        drive = _Drive(self, moment, live)
        if state is None:
            assert isinstance(event, UserMessage)
            return drive.enter(self.start, dict(self.start.seeds), event)
        assert isinstance(state, dict)
        if "resume" in state:
            if isinstance(event, UserMessage):
                return drive.resume(state, event)
        elif "enters" in state:
            if all(id in moment.receipts for id in state["enters"].values()):
                return drive.enter_fed(state)
        elif state["awaits"] and all(id in moment.receipts for id in state["awaits"][-1]["ids"]):
            return drive.go_on(state)
        # One of several results: its receipt is kept until the others are here. A failure that no step waits for
        # is nobody's to catch.
        awaited = state["awaits"][-1]["ids"] if state.get("awaits") else list(state.get("enters", {}).values())
        unmet = isinstance(event, CommandFailed) and event.invocation_id not in awaited
        return Transition.ignore() if unmet else Transition()


class _Drive:
    """One call of the machine: drives steps until one waits, or the task ends."""

    def __init__(self, machine: StepMachine, moment: Moment, live: Live | None) -> None:
        self.machine, self.moment, self.live = machine, moment, live
        self.said = Transition()
        self.left = False

    # --- entering a step

    def enter(self, step: StepSpec, payload: dict[str, Any], message: UserMessage | None = None) -> Transition:
        """Enter a step with values; follow its gotos."""
        transition = self._enter_once(step, payload, message)
        for _ in range(GOTO_LIMIT):
            if transition.enters is None or transition.commands:
                return self._done(transition)
            target = self._target(transition.enters.step, step.name)
            payload, step = transition.enters.payload, target
            self.said = _said_by(self.said, transition)
            transition = self._enter_once(step, payload, None)
        raise SkillError(f"{GOTO_LIMIT} gotos without an await, the last to {step.name!r}: this loop has no end")

    def resume(self, record: Record, message: UserMessage) -> Transition:
        """Enter the step that meets an answer."""
        step = self.machine.steps[record["resume"]]
        carried = {name: Json(data) for name, data in record["args"].items()}
        if record["slot"] in step.params and record["slot"] not in carried:
            carried[record["slot"]] = Json(reply_value(message.content))
        return self.enter(step, carried, message)

    def enter_fed(self, record: Record) -> Transition:
        """Enter a step that waited for the results of the goto's commands."""
        step = self.machine.steps[record["step"]]
        payload = {name: Json(data) for name, data in record["args"].items()}
        for name, id in record["enters"].items():
            payload[name] = Json(self._value(id, name, lambda value: value))
        return self.enter(step, payload)

    def _enter_once(self, step: StepSpec, payload: dict[str, Any], message: UserMessage | None) -> Transition:
        args, values = self._arguments(step, payload, message)
        self.left = True
        record = {"step": step.name, "args": args, "at": self.moment.at.isoformat(), "awaits": []}
        ctx = Ctx(self.moment)
        outcome = step.run(**_with_ctx(step, values, ctx))
        if not inspect.iscoroutine(outcome):
            return self._ended(step, ctx, outcome)
        return self._send(step, record, ctx, outcome, None)

    def _arguments(
        self, step: StepSpec, payload: dict[str, Any], message: UserMessage | None
    ) -> tuple[dict[str, JsonValue], dict[str, Any]]:
        unknown = payload.keys() - step.params.keys()
        if unknown:
            takes = ", ".join(name for name, param in step.params.items() if param.source is Source.PAYLOAD)
            raise SkillError(f"step {step.name!r} takes no {', '.join(sorted(unknown))}; it takes: {takes or 'nothing'}")
        args: dict[str, JsonValue] = {}
        values: dict[str, Any] = {}
        for name, param in step.params.items():
            if param.source is Source.CTX:
                continue
            given = payload[name] if name in payload else _from_message(param, message)
            if given is MISSING:
                raise SkillError(f"step {step.name!r} needs {name}: {param.type_name}, and nothing gave it")
            args[name], values[name] = param.encode(given, step.name)
        return args, values

    # --- driving a step

    def go_on(self, record: Record) -> Transition:
        """Go on in a step whose last await has all its results."""
        step = self.machine.steps[record["step"]]
        ids = tuple(record["awaits"][-1]["ids"])
        live = self.live
        if live is not None and live.awaiting == ids and live.run is not None:
            ctx, run, asked = live.run
            live.run = None
        else:
            ctx, run, asked = self._drive_again(step, record)
        ctx._at(self.moment)
        last = {**record["awaits"][-1], "at": self.moment.at.isoformat()}
        record = {**record, "awaits": [*record["awaits"][:-1], last]}
        return self._follow(step, self._send(step, record, ctx, run, self._results(asked, ids)))

    def _follow(self, step: StepSpec, transition: Transition) -> Transition:
        if transition.enters is None or transition.commands:
            return self._done(transition)
        self.said = _said_by(self.said, transition)
        return self.enter(self._target(transition.enters.step, step.name), transition.enters.payload)

    def _drive_again(self, step: StepSpec, record: Record) -> tuple[Ctx, Any, Asked]:
        """A coroutine as it was when it asked last: what it said and asked for before is dropped, but compared."""
        ctx = Ctx(self.moment)
        ctx._at(self.moment, datetime.fromisoformat(record["at"]))
        run = step.run(**_with_ctx(step, _decoded(step, record["args"]), ctx))
        results: Any = None
        for number, awaited in enumerate(record["awaits"]):
            asked = _next_ask(step, run, results)
            fingerprints = [fingerprint(call.command) for call in asked] if isinstance(asked, tuple) else ["the end"]
            if fingerprints != awaited["asked"]:
                run.close()
                raise ReplayMismatch(step.name, ", ".join(awaited["asked"]), ", ".join(fingerprints))
            if number < len(record["awaits"]) - 1:
                results = self._results(asked, awaited["ids"])
                ctx._at(self.moment, datetime.fromisoformat(awaited["at"]))
        assert isinstance(asked, tuple)
        return ctx, run, asked

    def _send(self, step: StepSpec, record: Record, ctx: Ctx, run: Any, results: Any) -> Transition:
        """Send results in; what comes out is the next thing asked for, or the step's end."""
        asked = _next_ask(step, run, results)
        if not isinstance(asked, tuple):
            return self._ended(step, ctx, asked)
        ids = [self.moment.invocation_id(position) for position in range(len(asked))]
        prints = [fingerprint(call.command) for call in asked]
        record = {**record, "awaits": [*record["awaits"], {"asked": prints, "ids": ids}]}
        if self.live is not None:
            self.live.awaiting, self.live.run = tuple(ids), (ctx, run, asked)
        commands = tuple(call.command for call in asked)
        return replace(_said_by(ctx._said, Transition()), state=record, commands=commands)

    def _results(self, asked: Asked, ids: Any) -> Any:
        """What the await gives: the values, in order, or the first failure, to be raised there."""
        values: list[Any] = []
        for call, id in zip(asked, ids, strict=True):
            try:
                values.append(self._value(id, call.command.id, call.decode, call.command))
            except CommandError as error:
                return error
        return tuple(values)

    def _value(self, id: str, name: str, decode: Callable[[Any], Any], command: Any = None) -> Any:
        receipt: Receipt = self.moment.receipts[id]
        if receipt.status is not ReceiptStatus.OK:
            raise CommandError(name, id, Failure.model_validate(receipt.outcome))
        value = receipt.outcome
        if isinstance(command, AskUser) and command.expect is not None:
            value = reply_value(Content.model_validate(value))
        try:
            return decode(value)
        except DecodeError as error:
            raise DecodeError(name, id, error.failure) from None

    # --- leaving a step

    def _ended(self, step: StepSpec, ctx: Ctx, outcome: Any) -> Transition:
        forgotten = [call.command.id for call in ctx._made if not call.awaited]
        if forgotten:
            raise SkillError(
                f"step {step.name!r} made the call {forgotten[0]!r} and never awaited it; "
                "write `await ctx...`, or `await ctx.gather(...)` for several"
            )
        if not isinstance(outcome, Transition):
            raise SkillError(
                f"step {step.name!r} returned {repr(outcome)[:200]}; a step returns a transition, for example "
                "`return ctx.goto(...)` or `return ctx.complete(...)`"
            )
        self.left = True
        said = _said_by(ctx._said, outcome)
        if outcome.waits:
            return self._asking(step, said)
        return said

    def _asking(self, step: StepSpec, transition: Transition) -> Transition:
        if len(transition.waits) > 1:
            raise SkillError(f"step {step.name!r} asks two questions as it ends; ask them with `ctx.gather(ctx.ask...)`")
        target = self.machine.resumes.get(step.name)
        if target is None:
            raise SkillError(f"step {step.name!r} awaits input, but no step says resume_from={step.name!r}")
        args = self._carried(target, transition.resume or {})
        slot = transition.waits[0].slot
        record = {"step": step.name, "resume": target.name, "slot": slot, "args": args}
        return replace(transition, state=record)

    def _carried(self, target: StepSpec, payload: dict[str, Any]) -> dict[str, JsonValue]:
        args: dict[str, JsonValue] = {}
        for name, value in payload.items():
            if name not in target.params:
                raise SkillError(f"step {target.name!r} takes no {name}")
            args[name], _ = target.params[name].encode(value, target.name)
        return args

    def _target(self, name: str, source: str) -> StepSpec:
        step = self.machine.steps.get(name)
        if step is None:
            known = ", ".join(self.machine.steps)
            raise SkillError(f"step {source!r} goes to {name!r}, which does not exist; the steps are: {known}")
        return step

    def _done(self, transition: Transition) -> Transition:
        """The whole call's transition: what was said on the way, and a record for a step that commands feed."""
        if transition.enters is not None:
            transition = self._fed(transition)
        whole = _said_by(self.said, transition)
        return replace(whole, forgets=self.left, enters=None, resume=None)

    def _fed(self, transition: Transition) -> Transition:
        assert transition.enters is not None
        step = self._target(transition.enters.step, "goto")
        enters: dict[str, str] = {}
        for position, command in enumerate(transition.commands):
            if command.id not in step.params:
                raise SkillError(
                    f"step {step.name!r} has no parameter {command.id!r} for the result of the command of that id"
                )
            enters[command.id] = self.moment.invocation_id(position)
        args = self._carried(step, transition.enters.payload)
        return replace(transition, state={"step": step.name, "args": args, "enters": enters})


def _next_ask(step: StepSpec, run: Any, results: Any) -> Asked | Any:
    """What the coroutine asks for next; or, if it ends, what it returns."""
    try:
        asked = run.throw(results) if isinstance(results, CommandError) else run.send(results)
    except StopIteration as stop:
        return stop.value
    if isinstance(asked, tuple) and all(isinstance(call, Call) for call in asked):
        return asked
    run.close()
    raise SkillError(f"step {step.name!r} awaited {repr(asked)[:100]}; a step awaits calls of ctx only")


def _said_by(first: Transition, then: Transition) -> Transition:
    """`then`, with what was said before it in front."""
    if not (first.messages or first.artifacts or first.progress is not None):
        return then
    return replace(
        then,
        messages=(*first.messages, *then.messages),
        artifacts=(*first.artifacts, *then.artifacts),
        progress=first.progress if then.progress is None else then.progress,
    )


def _from_message(param: Param, message: UserMessage | None) -> Any:
    if message is not None:
        match param.source:
            case Source.CONTENT:
                return message.content
            case Source.EVENT:
                return message
            case Source.INPUT:
                return Json(message.content.data)
            case _:
                pass
    return param.default


def _decoded(step: StepSpec, args: Mapping[str, JsonValue]) -> dict[str, Any]:
    return {name: step.params[name].adapter.validate_python(data) for name, data in args.items()}


def _with_ctx(step: StepSpec, values: dict[str, Any], ctx: Ctx) -> dict[str, Any]:
    return {name: ctx if param.source is Source.CTX else values[name] for name, param in step.params.items()}
