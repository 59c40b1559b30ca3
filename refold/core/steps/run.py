"""How steps run, from one to the next, as a pure function of their arguments and receipts.

A step's body is a coroutine, and there is no event loop. Each `await` hands commands to the fold, and the coroutine is
resumed with their results. A suspended coroutine is only a cache: if it is gone, the step is driven again from its
saved position and the receipts, and must ask for the same commands as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from refold.core.authoring.context import Ctx, Moment
from refold.core.authoring.skill import Live
from refold.core.authoring.transition import NOTHING, PATCH_REFUSED, UNCHANGED, Transition, altered
from refold.core.commands import AskApproval, AskUser, fingerprint
from refold.core.content import Content
from refold.core.contracts.contract import NO_CONTRACT
from refold.core.errors import AWAIT, CommandError, DecodeError, ReplayMismatch, SkillError, brief, first_of
from refold.core.events import UserMessage
from refold.core.fold.questions import reply_value
from refold.core.fold.snapshot import Receipt, ReceiptStatus
from refold.core.retry_policy import Failure
from refold.core.schema import reference_of
from refold.core.steps.arguments import (
    Answer,
    answered_by,
    arguments_of,
    carried,
    check_timeout,
    saved_values,
    takes_reply,
)
from refold.core.steps.calls import PARKED, Asked, Call, close, decode_as
from refold.core.steps.hooks import Hooks
from refold.core.steps.params import Json, Source
from refold.core.steps.position import Await, Position, known_then
from refold.core.steps.spec import StepSpec, target_of
from refold.core.steps.suspended import Going, Returned, next_ask

Steps = Mapping[str, StepSpec]

GOTO_LIMIT = 100
"""How many gotos one event may cause; more count as an endless loop."""


CARRIED = "refold.step.timeout_carried"
"""The patch with which a question may time out though its answer would fill a parameter that it carries."""


class Drive:
    """One call of the step machine: runs steps until a step awaits something or the task ends.

    `steps` are by name, `resumes` the steps that receive an answer by the name of the step that asked.

    Attributes:
        said: Messages, artifacts and progress of the steps that have ended in this call.
    """

    def __init__(self, steps: Steps, resumes: Steps, moment: Moment, live: Live | None, hooks: Hooks) -> None:
        self.steps, self.resumes, self.moment, self.live, self.hooks = steps, resumes, moment, live, hooks
        self.said = NOTHING
        self._left = False
        self._patched: Callable[[str], bool] = lambda patch: moment.patched(patch, False)

    # --- entering a step

    def enter(
        self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None = None, entered_by: Sequence[str] = ()
    ) -> Transition:
        """Enter a step, and follow its gotos."""
        return self._follow(step, self.enter_once(step, payload, message, entered_by))

    def resume(self, position: Position, message: Answer | None) -> Transition:
        """Enter the step that receives the answer to a question. `message` is None if the question timed out."""
        step = self._saved_step(str(position.resume))
        carried = {name: Json(data) for name, data in position.args.items()}
        slot = position.slot
        if message is None:
            carried |= {name: Json(None) for name in answered_by(step, slot) if name not in carried}
        if isinstance(message, UserMessage) and takes_reply(step, slot) and slot not in carried:
            carried[slot] = Json(reply_value(message.content))
        return self.enter(step, carried, message, [position.gate])

    def enter_fed(self, position: Position) -> Transition:
        """Enter a step whose parameters waited for the results of the goto's commands."""
        step = self._saved_step(position.step)
        fed: dict[str, Any] = {name: self._outcome(id, name) for name, id in position.fed_by.items()}
        if (failed := first_of(fed.values())) is not None:
            raise failed
        payload = {name: Json(data) for name, data in {**position.args, **fed}.items()}
        return self.enter(*self._met(step, payload), list(position.fed_by.values()))

    def interrupt(self, position: Position, message: UserMessage) -> Transition:
        """Leave a step in the middle, for the step that receives the message.

        That step takes arguments of the interrupted one, and results that the interrupted one has had, by their names.
        """
        step = self._saved_step(position.step)
        if self.live is not None:
            self.live.run = None
        done: dict[str, JsonValue] = {}
        for awaited in position.awaits:
            for asked, id in zip(awaited.asked, awaited.ids, strict=True):
                kind, _, rest = asked.partition(":")
                if kind in ("sleep", "approval"):
                    continue  # a sleep has no result, and a decision is for its gate alone
                if (one := self.moment.receipts.get(id)) and one.status is ReceiptStatus.OK:
                    value = reply_value(Content.model_validate(one.outcome)) if kind == "ask" else one.outcome
                    done[rest.rpartition(":")[0]] = value
        handler, payload = self._handler(step, {**done, **position.args})
        return self.enter(handler, payload, message)

    def _handler(self, step: StepSpec, known: Mapping[str, JsonValue]) -> tuple[StepSpec, dict[str, Any]]:
        """The `on_interrupt` step of `step`, with the known values that it takes as arguments."""
        handler = self._saved_step(str(step.on_interrupt))
        taken = {name for name, param in handler.params.items() if param.source is Source.PAYLOAD}
        return handler, {name: Json(value) for name, value in known.items() if name in taken}

    def _met(self, step: StepSpec, payload: Mapping[str, Any]) -> tuple[StepSpec, Mapping[str, Any], Answer | None]:
        """What to enter: the step, or its `on_interrupt` step if a message is waiting to interrupt it."""
        message = None if step.on_interrupt is None else self.moment.interruption()
        if message is None:
            return step, payload, None
        self.moment.enters(step.name)
        args, _ = arguments_of(step, payload, None, self._patched)
        return *self._handler(step, args), message

    def _follow(self, step: StepSpec, transition: Transition) -> Transition:
        gotos = 0
        while transition.enters is not None and not transition.commands:
            gotos += 1
            target = target_of(self.steps, transition.enters.step, step.name)
            if gotos > GOTO_LIMIT:
                raise SkillError(
                    f"{GOTO_LIMIT} gotos without an await, the last to {step.name!r}: this loop has no end"
                )
            self.said = transition.after(self.said)
            step, payload, message = self._met(target, transition.enters.payload)
            gotos = gotos if message is None else 0
            transition = self.enter_once(step, payload, message)
        if transition.enters is not None:
            transition = self._fed(transition, step.name)
        withdraws = tuple(self.moment.withdrawn)
        return altered(transition.after(self.said), forgets=self._left, withdraws=withdraws, enters=None, resume=None)

    def enter_once(
        self, step: StepSpec, payload: Mapping[str, Any], message: Answer | None = None, entered_by: Sequence[str] = ()
    ) -> Transition:
        """Enter a step, without following its gotos."""
        self.moment.enters(step.name)
        stored = self.hooks.before(step, entered_by)
        args, values = arguments_of(step, payload, message, self._patched)
        self._left = True
        position = Position.entered(step.name, args, self.moment, **self.hooks.keeps(entered_by))
        ctx = Ctx(self.moment)
        going = Going(ctx, stored=stored)
        try:
            outcome = going.run = step.run(**self._filled(step, values, ctx))
        except CommandError as error:
            return self.hooks.uncaught(error, ctx._said)
        if not inspect.iscoroutine(outcome):
            return self._ended(step, ctx, outcome)
        return self._send(step, position, going, None)

    def _filled(self, step: StepSpec, values: dict[str, Any], ctx: Ctx) -> dict[str, Any]:
        """All arguments for the step's function."""
        beside = {p.name: self.hooks.beside(p.source, ctx) for p in step.params.values() if p.source.beside}
        return {**values, **beside}

    # --- resuming a step

    def go_on(self, position: Position) -> Transition:
        """Resume a step whose last await has the outcomes it needs."""
        step = self._saved_step(position.step)
        going = self._alive(position) or Going(Ctx(self.moment))
        going.stored = self.hooks.again(step, position, going.stored)
        if going.run is None:
            self._drive_again(step, position, going)
        going.ctx._at(self.moment)
        position, over = position.resumed(self.moment)
        # So that none of these outcomes is delivered later, on its own.
        self.moment.withdrawn += over.completed if over.first else over.ids
        return self._follow(step, self._send(step, position, going, self._results(going, over)))

    def _alive(self, position: Position) -> Going | None:
        """The cached coroutine, if it is suspended in this position."""
        live = self.live
        if live is None or live.run is None or live.awaiting != position.outstanding:
            return None
        going: Going = live.run
        live.run = None
        return going

    def _drive_again(self, step: StepSpec, position: Position, going: Going) -> None:
        """Run a new coroutine up to its last await. Its commands are compared with the recorded ones, not sent."""
        values = saved_values(step, position.args)
        since: Position | Await = position
        for awaited in position.awaits:
            results = self._results(going, since) if isinstance(since, Await) else None
            going.ctx._at(self.moment, **known_then(since))
            if going.run is None:
                going.run = step.run(**self._filled(step, values, going.ctx))
            going.asks(self._same_ask(step, going.run, results, awaited), awaited.ids, first=awaited.first)
            since = awaited

    def _same_ask(self, step: StepSpec, run: Any, results: Any, awaited: Await) -> Asked:
        """The calls that a coroutine driven again awaits next, when it is resumed with these results.

        Raises:
            ReplayMismatch: They are not the recorded ones.
        """
        found = next_ask(step, run, results) if inspect.iscoroutine(run) else Returned(run)
        if isinstance(found, Returned):
            raise ReplayMismatch(step.name, ", ".join(awaited.asked), "nothing more: it ends")
        fingerprints = [fingerprint(call.command) for call in found.calls]
        if fingerprints != awaited.asked or found.first != awaited.first:
            close(run)
            raise ReplayMismatch(step.name, ", ".join(awaited.asked), ", ".join(fingerprints))
        return found.calls

    def _send(self, step: StepSpec, position: Position, going: Going, results: Any) -> Transition:
        """Resume the coroutine with results. Returns a transition to its next await, or of the step's end."""
        ctx = going.ctx
        try:
            found = next_ask(step, going.run, results)
        except CommandError as error:
            return self.hooks.uncaught(error, ctx._said)
        finally:
            self.moment.withdrawn += going.drop_withdrawn()
        if isinstance(found, Returned):
            return self._ended(step, ctx, found.value)
        try:
            self.hooks.asked()
        except BaseException:
            close(going.run)
            raise
        ids = [self.moment.invocation_id(number) for number in range(len(found.calls))]
        going.asks(found.calls, ids, first=found.first)
        fingerprints = [fingerprint(call.command) for call in found.calls]
        outstanding = list(going.open) if found.first else None
        position = position.awaiting(fingerprints, ids, outstanding, list(found.failed))
        if self.live is not None:
            self.live.awaiting, self.live.run = outstanding or ids, going
        commands = tuple(call.command for call in found.calls)
        return altered(ctx._said, state=position.data, commands=commands)

    def _results(self, going: Going, over: Await) -> Any:
        """What to resume an await with: its values in order, or the first failure, to be raised there.

        If one outcome was enough: a list of the completed calls, each with its value or failure.
        """
        if over.first:
            for id in over.parked:
                going.open[id].parked = True
            parked = [(going.open[id], PARKED) for id in over.parked]
            return [
                *parked,
                *((call, self._result(call, id)) for id in over.completed for call in [going.open.pop(id)]),
            ]
        results = tuple(self._result(call, id) for id, call in going.open.items())
        going.open = {}
        return first_of(results) or results

    def _result(self, call: Call[Any], id: str) -> Any:
        call.in_flight, value = False, self._value(call, id)
        if call.shared:
            call.outcome = (value,)
        return value

    def _value(self, call: Call[Any], id: str) -> Any:
        value: Any = self._outcome(id, call.command.id)
        if isinstance(value, CommandError):
            return value
        try:
            if isinstance(call.command, AskUser) and call.command.expect is not None:
                value = reply_value(Content.model_validate(value))
            return decode_as(call.kind, value, call.command.id, id)
        except DecodeError as error:
            return error

    def _outcome(self, id: str, name: str) -> JsonValue | CommandError:
        receipt: Receipt = self.moment.receipts[id]
        if receipt.status is not ReceiptStatus.OK:
            return CommandError(name, id, Failure.model_validate(receipt.outcome))
        return receipt.outcome

    # --- leaving a step

    def _ended(self, step: StepSpec, ctx: Ctx, outcome: Any) -> Transition:
        if forgotten := [one for one in ctx._made if not one.awaited]:
            for one in forgotten:
                one.close()
            raise SkillError(
                f"step {step.name!r} made {forgotten[0].named} and never awaited it; {AWAIT}, or "
                "`await ctx.gather(...)` for several"
            )
        if isinstance(outcome, Transition):
            _check_way_out(step, outcome)
            if outcome.writes is not None and step.contract is NO_CONTRACT and self._patched(PATCH_REFUSED):
                raise SkillError(
                    f"step {step.name!r} returned a transition with `.patch(...)`, and its skill has no contract, so "
                    "no state to change; hand what is needed to the next step, `return ctx.goto(..., name=value)`"
                )
        outcome = self.hooks.after(step, outcome, ctx._said)
        if not isinstance(outcome, Transition):
            raise SkillError(
                f"step {step.name!r} returned {brief(outcome)}; a step returns a transition, for example "
                "`return ctx.goto(...)` or `return ctx.complete(...)`"
            )
        self._left = True
        outcome = outcome.after(ctx._said)
        return self._asking(step, outcome) if outcome.waits and outcome.ending is None else outcome

    def _asking(self, step: StepSpec, transition: Transition) -> Transition:
        target = self.resumes.get(step.name)
        if target is None:
            raise SkillError(f"step {step.name!r} awaits input, but no step says resume_from={step.name!r}")
        ask = transition.waits[0]
        number = transition.commands.index(ask)
        if isinstance(ask, AskUser) and ask.expect is None and takes_reply(target, ask.slot):
            # A reply that does not fit the parameter is then refused, instead of failing the task.
            ask = ask.model_copy(update={"expect": reference_of(target.params[ask.slot].annotation)})
        self._check_timeout(target, ask, transition.resume or {})
        commands = (*transition.commands[:number], ask, *transition.commands[number + 1 :])
        args = carried(target, transition.resume or {}, {ask.slot}, self._patched, message=True)
        gate = self.moment.invocation_id(number)
        position = Position.asking(step.name, target.name, ask.slot, gate, args, **self.hooks.keeps())
        return altered(transition, state=position.data, commands=commands)

    def _check_timeout(self, target: StepSpec, ask: AskUser | AskApproval, carries: Mapping[str, Any]) -> None:
        try:
            check_timeout(target, ask)
        except SkillError as refused:
            try:
                check_timeout(target, ask, carries)
            except SkillError:
                raise refused from None
            if not self._patched(CARRIED):
                raise

    def _fed(self, transition: Transition, source: str) -> Transition:
        """A transition that waits for the goto's commands; then its step is entered."""
        assert transition.enters is not None
        step = target_of(self.steps, transition.enters.step, source)
        fed_by: dict[str, str] = {}
        for number, command in enumerate(transition.commands):
            if command.id not in step.params:
                raise SkillError(
                    f"step {step.name!r} has no parameter {command.id!r} for the result of the command of that id; "
                    f"it takes: {step.takes}"
                )
            fed_by[command.id] = self.moment.invocation_id(number)
        args = carried(step, transition.enters.payload, fed_by.keys(), self._patched, message=False)
        return altered(transition, state=Position.before(step.name, args, fed_by, **self.hooks.keeps()).data)

    def _saved_step(self, name: str) -> StepSpec:
        if name not in self.steps:
            raise SkillError(
                f"the task is at step {name!r}, which its skill has no more; the steps are: {', '.join(self.steps)}; "
                "keep the step while tasks are in it, or let them finish on the old code"
            )
        return self.steps[name]


def _check_way_out(step: StepSpec, outcome: Transition) -> None:
    if outcome.state is not UNCHANGED:
        raise SkillError(
            f"step {step.name!r} returned a transition with a state, {brief(outcome.state, 100)}; a step has no "
            "states: hand what is needed to the next step, `return ctx.goto(..., name=value)`"
        )
    if outcome.enters is None and outcome.ending is None and not outcome.waits:
        raise SkillError(
            f"step {step.name!r} returned a transition that leads nowhere; go on with `ctx.goto(...)`, ask with "
            "`ctx.await_input(...)`, or end with `ctx.complete(...)`"
        )
    if len(outcome.waits) > 1:
        raise SkillError(f"step {step.name!r} asks two questions as it ends; ask them with `ctx.gather(ctx.ask...)`")
    if outcome.waits and len(outcome.commands) > 1:
        other = next(one for one in outcome.commands if one is not outcome.waits[0])
        raise SkillError(
            f"step {step.name!r} asks {outcome.waits[0].slot!r} and for {other.id!r} at once, and no step gets the "
            f"result of {other.id!r}; await it first, or ask in the step: `await ctx.gather(ctx.ask(...), ...)`"
        )
    if outcome.waits and outcome.enters is not None:
        raise SkillError(
            f"step {step.name!r} asks {outcome.waits[0].slot!r} and goes to {outcome.enters.step!r} at once; return "
            "`ctx.await_input(...)`, and meet the answer in a step with resume_from"
        )
