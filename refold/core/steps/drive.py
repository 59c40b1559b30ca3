"""How steps are driven from one to the next, as a pure function of their arguments and receipts.

A step's body is a coroutine that never meets an event loop. Each `await` hands a command to the fold; its result is
sent in when it comes. A coroutine that is still alive is only a cache: where it is gone, the step is driven again from
its record and the receipts, and must ask for the same as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import JsonValue, ValidationError

from refold.core.authoring.context import Ctx
from refold.core.authoring.moment import Moment
from refold.core.authoring.skill import Live
from refold.core.authoring.transition import UNCHANGED, Transition
from refold.core.commands import AskUser, fingerprint
from refold.core.content import Content
from refold.core.errors import CommandError, ReplayMismatch, SkillError, first_of
from refold.core.events import UserMessage
from refold.core.fold.questions import reply_value
from refold.core.fold.snapshot import Receipt, ReceiptStatus
from refold.core.gates import DecisionMade
from refold.core.retry import Failure
from refold.core.schema import problems, reference_of
from refold.core.steps.calls import Asked, Call, FirstOf
from refold.core.steps.params import MISSING, Json, Param, Source
from refold.core.steps.spec import Awaited, Record, StepSpec

Answer = UserMessage | DecisionMade

GOTO_LIMIT = 100
"""How many gotos one event may cause; more are taken for a loop."""


class Drive:
    """One call of the machine: drives steps until one waits, or the task ends.

    Args:
        steps: By name.
        resumes: The step that meets the answer, by the step that asked.
        moment: When, and what may be looked back at.
        live: The cache of a running step, if there is one.
    """

    def __init__(
        self, steps: Mapping[str, StepSpec], resumes: Mapping[str, StepSpec], moment: Moment, live: Live | None
    ) -> None:
        self.steps, self.resumes, self.moment, self.live = steps, resumes, moment, live
        self.said = Transition()
        self.left = False

    # --- entering a step

    def enter(self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None = None) -> Transition:
        """Enter a step with values; follow its gotos."""
        return self._follow(step, self._enter_once(step, payload, message))

    def resume(self, record: Record, message: Answer) -> Transition:
        """Enter the step that meets an answer."""
        step = self._saved_step(record["resume"])
        carried = {name: Json(data) for name, data in record["args"].items()}
        if isinstance(message, UserMessage) and _takes_reply(step, record["slot"]) and record["slot"] not in carried:
            carried[record["slot"]] = Json(reply_value(message.content))
        return self.enter(step, carried, message)

    def enter_fed(self, record: Record) -> Transition:
        """Enter a step that waited for the results of the goto's commands."""
        step = self._saved_step(record["step"])
        payload = {name: Json(data) for name, data in record["args"].items()}
        failed = []
        for name, id in record["enters"].items():
            try:
                payload[name] = Json(self._outcome(id, name))
            except CommandError as error:
                failed.append(error)
        if failed:
            raise first_of(failed)
        return self.enter(step, payload)

    def _follow(self, step: StepSpec, transition: Transition) -> Transition:
        gotos = 0
        while transition.enters is not None and not transition.commands:
            gotos += 1
            target = self._target(transition.enters.step, step.name)
            if gotos > GOTO_LIMIT:
                raise SkillError(
                    f"{GOTO_LIMIT} gotos without an await, the last to {step.name!r}: this loop has no end"
                )
            self.said = transition.after(self.said)
            step, transition = target, self._enter_once(target, transition.enters.payload, None)
        if transition.enters is not None:
            transition = self._fed(transition, step.name)
        return replace(transition.after(self.said), forgets=self.left, enters=None, resume=None)

    def _enter_once(self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None) -> Transition:
        args, values = self._arguments(step, payload, message)
        self.left = True
        moment = self.moment
        record = Record(step=step.name, args=args, at=moment.at.isoformat(), heard=len(moment.messages), awaits=[])
        if moment.threads:
            record["threads"] = _lengths(moment)
        self._complete(record)
        ctx = Ctx(moment)
        try:
            outcome = step.run(**self._filled(step, values, ctx))
        except CommandError as error:
            return self._uncaught(error, ctx)
        if not inspect.iscoroutine(outcome):
            return self._ended(step, ctx, outcome)
        return self._send(step, record, Going(ctx, outcome), None)

    def _arguments(
        self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None
    ) -> tuple[dict[str, JsonValue], dict[str, Any]]:
        self._refuse_unknown(step, payload)
        args: dict[str, JsonValue] = {}
        values: dict[str, Any] = {}
        for name, param in step.params.items():
            if param.source.beside:
                continue
            given = payload[name] if name in payload else _from_message(param, message)
            if given is MISSING:
                raise SkillError(f"step {step.name!r} needs {name}: {param.type_name}, and nothing gave it")
            args[name], values[name] = param.encode(given, step.name)
        return args, values

    # --- driving a step

    def go_on(self, record: Record) -> Transition:
        """Go on in a step whose last await has all its results."""
        step = self._saved_step(record["step"])
        last = record["awaits"][-1]
        live = self.live
        if live is not None and live.run is not None and live.awaiting == last.get("open", last["ids"]):
            going = live.run
            live.run = None
        else:
            going = self._drive_again(step, record)
        going.ctx._at(self.moment)
        now = Awaited(**last)
        now["at"], now["heard"] = self.moment.at.isoformat(), len(self.moment.messages)
        if "open" in last:
            now["came"] = [id for id in last["open"] if id in self.moment.receipts]
        if self.moment.threads:
            now["threads"] = _lengths(self.moment)
        record = Record(**record)
        record["awaits"] = [*record["awaits"][:-1], now]
        return self._follow(step, self._send(step, record, going, self._results(going, now)))

    def _drive_again(self, step: StepSpec, record: Record) -> Going:
        """A coroutine as it was when it asked last: what it said and asked for before is dropped, but compared."""
        ctx = Ctx(self.moment)
        values = _saved_values(step, record["args"])
        going = Going(ctx)
        results: Any = None
        since: Record | Awaited = record
        for awaited in record["awaits"]:
            ctx._at(
                self.moment,
                now=datetime.fromisoformat(since["at"]),
                heard=since["heard"],
                turns=since.get("threads", {}),
            )
            if going.run is None:
                going.run = step.run(**self._filled(step, values, ctx))
            found = _next_ask(step, going.run, results) if inspect.iscoroutine(going.run) else _Returned(going.run)
            if isinstance(found, _Returned):
                raise ReplayMismatch(step.name, ", ".join(awaited["asked"]), "nothing more: it ends")
            calls, first = (found.calls, True) if isinstance(found, FirstOf) else (found, False)
            fingerprints = [fingerprint(call.command) for call in calls]
            if fingerprints != awaited["asked"] or first != ("open" in awaited):
                going.run.close()
                raise ReplayMismatch(step.name, ", ".join(awaited["asked"]), ", ".join(fingerprints))
            going.asks(calls, awaited["ids"], first=first)
            since = awaited
            if awaited is not record["awaits"][-1]:
                results = self._results(going, awaited)
        return going

    def _send(self, step: StepSpec, record: Record, going: Going, results: Any) -> Transition:
        """Send results in; what comes out is the next thing asked for, or the step's end."""
        ctx = going.ctx
        try:
            asked = _next_ask(step, going.run, results)
        except CommandError as error:
            return self._uncaught(error, ctx)
        if isinstance(asked, _Returned):
            return self._ended(step, ctx, asked.value)
        calls, first = (asked.calls, True) if isinstance(asked, FirstOf) else (asked, False)
        ids = [self.moment.invocation_id(position) for position in range(len(calls))]
        awaited = Awaited(asked=[fingerprint(call.command) for call in calls], ids=ids)
        going.asks(calls, ids, first=first)
        if isinstance(asked, FirstOf):
            awaited["open"] = list(going.open)
            if asked.failed:
                awaited["failed"] = list(asked.failed)
        record["awaits"].append(awaited)
        if self.live is not None:
            self.live.awaiting, self.live.run = awaited.get("open", ids), going
        commands = tuple(call.command for call in calls)
        return replace(Transition().after(ctx._said), state=record, commands=commands)

    def _results(self, going: Going, awaited: Awaited) -> Any:
        """What the await gives: the values, in order, or the first failure, to be raised there.

        Where the step goes on with the first that comes back: what came, each with its call.
        """
        if "came" in awaited:
            return [(call, self._result(call, id)) for id in awaited["came"] for call in [going.open.pop(id)]]
        results = tuple(self._result(call, id) for id, call in going.open.items())
        going.open = {}
        failed = [one for one in results if isinstance(one, CommandError)]
        return first_of(failed) if failed else results

    def _result(self, call: Call[Any], id: str) -> Any:
        try:
            value = self._outcome(id, call.command.id)
            if isinstance(call.command, AskUser) and call.command.expect is not None:
                value = reply_value(Content.model_validate(value))
            return call.decode(value, id)
        except CommandError as error:
            return error

    def _outcome(self, id: str, name: str) -> JsonValue:
        receipt: Receipt = self.moment.receipts[id]
        if receipt.status is not ReceiptStatus.OK:
            raise CommandError(name, id, Failure.model_validate(receipt.outcome))
        return receipt.outcome

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
        _check_way_out(step, outcome)
        self.left = True
        outcome = outcome.after(ctx._said)
        return self._asking(step, outcome) if outcome.waits else outcome

    def _asking(self, step: StepSpec, transition: Transition) -> Transition:
        target = self.resumes.get(step.name)
        if target is None:
            raise SkillError(f"step {step.name!r} awaits input, but no step says resume_from={step.name!r}")
        ask = transition.waits[0]
        position = transition.commands.index(ask)
        if isinstance(ask, AskUser) and ask.expect is None and _takes_reply(target, ask.slot):
            # Checked before it is taken: what does not fit must not end the task.
            ask = ask.model_copy(update={"expect": reference_of(target.params[ask.slot].annotation)})
        commands = (*transition.commands[:position], ask, *transition.commands[position + 1 :])
        args = self._carried(target, transition.resume or {}, {ask.slot}, heard=True)
        gate = self.moment.invocation_id(position)
        record = Record(step=step.name, resume=target.name, slot=ask.slot, gate=gate, args=args)
        return replace(transition, state=self._complete(record), commands=commands)

    def _fed(self, transition: Transition, source: str) -> Transition:
        """A transition to before a step: it is entered when the commands have come back."""
        assert transition.enters is not None
        step = self._target(transition.enters.step, source)
        enters: dict[str, str] = {}
        for position, command in enumerate(transition.commands):
            if command.id not in step.params:
                raise SkillError(
                    f"step {step.name!r} has no parameter {command.id!r} for the result of the command of that id; "
                    f"it takes: {step.takes}"
                )
            enters[command.id] = self.moment.invocation_id(position)
        args = self._carried(step, transition.enters.payload, enters.keys(), heard=False)
        return replace(transition, state=self._complete(Record(step=step.name, args=args, enters=enters)))

    def _carried(
        self, target: StepSpec, payload: Mapping[str, Any], later: Any, *, heard: bool
    ) -> dict[str, JsonValue]:
        """A payload as data, checked now: what does not fit, or is missing, would else be found after the answer."""
        self._refuse_unknown(target, payload)
        missing = [name for name in target.needs(heard=heard) if name not in payload and name not in later]
        if missing:
            needed = ", ".join(f"{name}: {target.params[name].type_name}" for name in missing)
            raise SkillError(f"step {target.name!r} needs {needed}, and nothing will give it: pass it on by keyword")
        return {name: target.params[name].encode(value, target.name)[0] for name, value in payload.items()}

    # --- what a contract adds

    def _filled(self, step: StepSpec, values: dict[str, Any], ctx: Ctx) -> dict[str, Any]:
        """All that the step's function is called with."""
        beside = {name: self._beside(param, ctx) for name, param in step.params.items() if param.source.beside}
        return {**values, **beside}

    def _beside(self, param: Param, ctx: Ctx) -> Any:
        """What a step is given beside its arguments."""
        return ctx

    def _complete(self, record: Record) -> Record:
        """A record with all that it keeps."""
        return record

    def _uncaught(self, error: CommandError, ctx: Ctx) -> Transition:
        return Transition(uncaught=error).after(ctx._said)

    # --- which step

    def _refuse_unknown(self, step: StepSpec, payload: Mapping[str, Any]) -> None:
        unknown = payload.keys() - step.params.keys()
        if unknown:
            raise SkillError(f"step {step.name!r} takes no {', '.join(sorted(unknown))}; it takes: {step.takes}")

    def _target(self, name: str, source: str) -> StepSpec:
        step = self.steps.get(name)
        if step is None:
            raise SkillError(
                f"step {source!r} goes to {name!r}, which does not exist; the steps are: {', '.join(self.steps)}"
            )
        return step

    def _saved_step(self, name: str) -> StepSpec:
        step = self.steps.get(name)
        if step is None:
            raise SkillError(
                f"the task is at step {name!r}, which its skill has no more; the steps are: {', '.join(self.steps)}; "
                "keep the step while tasks are in it, or let them finish on the old code"
            )
        return step


class Going:
    """A step's coroutine, its context, and the calls of it that are open, by their invocation ids.

    Attributes:
        opened: What a contract knows of the step, where there is one.
    """

    __slots__ = ("ctx", "open", "opened", "run")

    def __init__(self, ctx: Ctx, run: Any = None) -> None:
        self.ctx, self.run = ctx, run
        self.opened: Any = None
        self.open: dict[str, Call[Any]] = {}

    def asks(self, calls: Asked, ids: list[str], *, first: bool) -> None:
        """Note what it asks for; beside what is still open, where it goes on with the first that comes back."""
        asked = dict(zip(ids, calls, strict=True))
        self.open = {**self.open, **asked} if first else asked


@dataclass(frozen=True, slots=True)
class _Returned:
    value: Any


def _next_ask(step: StepSpec, run: Any, results: Any) -> Asked | FirstOf | _Returned:
    """What the coroutine asks for next; or, if it ends, what it returns."""
    try:
        asked = run.throw(results) if isinstance(results, CommandError) else run.send(results)
    except StopIteration as stop:
        return _Returned(stop.value)
    except RuntimeError as error:
        if "no running event loop" not in str(error):
            raise
        raise SkillError(f"step {step.name!r} awaited something of asyncio; a step awaits calls of ctx only") from error
    if isinstance(asked, FirstOf) or (
        isinstance(asked, tuple) and asked and all(isinstance(one, Call) for one in asked)
    ):
        return asked
    run.close()
    raise SkillError(f"step {step.name!r} awaited {repr(asked)[:100]}; a step awaits calls of ctx only")


def _lengths(moment: Moment) -> dict[str, int]:
    return {name: len(thread.said) for name, thread in moment.threads.items()}


def _check_way_out(step: StepSpec, outcome: Transition) -> None:
    if outcome.state is not UNCHANGED:
        raise SkillError(
            f"step {step.name!r} returned a transition with a state, {repr(outcome.state)[:100]}; a step has no "
            "states: hand what is needed to the next step, `return ctx.goto(..., name=value)`"
        )
    if outcome.enters is None and outcome.ending is None and not outcome.waits:
        raise SkillError(
            f"step {step.name!r} returned a transition that leads nowhere; go on with `ctx.goto(...)`, ask with "
            "`ctx.await_input(...)`, or end with `ctx.complete(...)`"
        )
    if len(outcome.waits) > 1:
        raise SkillError(f"step {step.name!r} asks two questions as it ends; ask them with `ctx.gather(ctx.ask...)`")
    if outcome.waits and outcome.enters is not None:
        raise SkillError(
            f"step {step.name!r} asks {outcome.waits[0].slot!r} and goes to {outcome.enters.step!r} at once; return "
            "`ctx.await_input(...)`, and meet the answer in a step with resume_from"
        )


def _takes_reply(step: StepSpec, slot: str) -> bool:
    """Whether the step has a parameter for the decoded reply: one that is named like the slot."""
    return slot in step.params and step.params[slot].source is Source.PAYLOAD


def _from_message(param: Param, message: Answer | None) -> Any:
    if isinstance(message, DecisionMade):
        return message if param.source is Source.DECISION else param.default
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


def _saved_values(step: StepSpec, args: Mapping[str, JsonValue]) -> dict[str, Any]:
    """The arguments that a step was entered with, read with today's code."""
    if args.keys() != {name for name, param in step.params.items() if not param.source.beside}:
        raise SkillError(
            f"step {step.name!r} was entered with {', '.join(args) or 'nothing'}, and takes {step.takes} now; keep its "
            "parameters while tasks are in it, or let them finish on the old code"
        )
    try:
        return {name: step.params[name].codec.fresh(data) for name, data in args.items()}
    except ValidationError as error:
        raise SkillError(f"step {step.name!r} cannot read what it was entered with: {problems(error)}") from None
