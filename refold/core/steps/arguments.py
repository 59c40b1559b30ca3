"""The arguments of a step: from a message, saved, or carried along by a question; and what of them is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import JsonValue, ValidationError

from refold.core.commands import AskApproval, AskUser
from refold.core.content import Content
from refold.core.errors import SkillError, describe
from refold.core.events import UserMessage
from refold.core.fold.questions import reply_value
from refold.core.gates import DecisionMade
from refold.core.schema import problems
from refold.core.steps.params import MISSING, Json, Param, Source
from refold.core.steps.spec import StepSpec

Answer = UserMessage | DecisionMade


def arguments_of(
    step: StepSpec, payload: Mapping[str, Any], message: Answer | None, patched: Callable[[str], bool]
) -> tuple[dict[str, JsonValue], dict[str, Any]]:
    """What a step is entered with: as JSON data, and as values; `patched` as for `Codec.saved`."""
    _refuse_unknown(step, payload)
    args: dict[str, JsonValue] = {}
    values: dict[str, Any] = {}
    for name, param in step.params.items():
        if param.source.beside:
            continue
        given = payload[name] if name in payload else _from_message(param, message)
        if given is MISSING:
            raise SkillError(f"step {step.name!r} needs {name}: {param.type_name}, and nothing gave it")
        args[name], values[name] = param.encode(given, step.name, patched)
    return args, values


def takes_reply(step: StepSpec, slot: str) -> bool:
    """Whether the step has a parameter for the decoded reply, which is named like the slot."""
    return slot in step.params and step.params[slot].source is Source.PAYLOAD


def answered_by(step: StepSpec, slot: str) -> list[str]:
    """The parameters that only an answer to the question `slot` fills."""
    filled = [name for name, param in step.params.items() if param.needed and param.source.from_message]
    return [*filled, slot] if takes_reply(step, slot) else filled


def unfit_reply(step: StepSpec, slot: str, carried: Mapping[str, JsonValue], content: Content) -> str:
    """Why a parameter of the step cannot take what the reply to `slot` has for it; empty if all can."""
    for name, param in step.params.items():
        replied = name == slot and takes_reply(step, slot)
        if name in carried or not (replied or param.source is Source.INPUT):
            continue
        try:
            param.codec.fresh(reply_value(content) if replied else content.data)
        except ValidationError as error:
            return f"the reply to {slot!r} must fit {param.type_name}: {problems(error)}"
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the author's validators are called
            return f"the reply to {slot!r} must fit {param.type_name}: the check of it failed, {describe(error)}"
    return ""


def check_timeout(target: StepSpec, ask: AskUser | AskApproval, saved: Collection[str] = ()) -> None:
    """Check that the step which receives the answer can be entered without an answer, if the question may time out.

    `saved` are the parameters that the question carries, which need none.
    """
    if isinstance(ask, AskApproval):
        may_time_out = ask.policy.on_timeout == "continue" and ask.policy.timeout_s is not None
    else:
        may_time_out = ask.timeout_s is not None
    for name in answered_by(target, ask.slot) if may_time_out else ():
        if name in saved:
            continue
        try:
            target.params[name].codec.fresh(None)
        except ValidationError:
            kind = target.params[name].type_name
            raise SkillError(
                f"{ask.slot!r} may time out, and step {target.name!r}, which receives the answer, needs {name}: "
                f"{kind}; annotate it as `{kind} | None`, which is None then"
            ) from None


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


def saved_values(step: StepSpec, args: Mapping[str, JsonValue]) -> dict[str, Any]:
    """The saved arguments of a step, decoded with the current code."""
    if args.keys() != {name for name, param in step.params.items() if not param.source.beside}:
        raise SkillError(
            f"step {step.name!r} was entered with {', '.join(args) or 'nothing'}, and takes {step.takes} now; keep its "
            "parameters while tasks are in it, or let them finish on the old code"
        )
    try:
        return {name: step.params[name].codec.fresh(data) for name, data in args.items()}
    except ValidationError as error:
        raise SkillError(f"step {step.name!r} cannot read what it was entered with: {problems(error)}") from None


def _refuse_unknown(step: StepSpec, payload: Mapping[str, Any]) -> None:
    unknown = payload.keys() - step.params.keys()
    if unknown:
        raise SkillError(f"step {step.name!r} takes no {', '.join(sorted(unknown))}; it takes: {step.takes}")


def carried(
    target: StepSpec, payload: Mapping[str, Any], later: Any, patched: Callable[[str], bool], *, message: bool
) -> dict[str, JsonValue]:
    """A payload as JSON data, checked before the question is asked and not only when its answer enters `target`.

    `patched` as for `Codec.saved`.
    """
    _refuse_unknown(target, payload)
    missing = [name for name in target.needs(message=message) if name not in payload and name not in later]
    if missing:
        needed = ", ".join(f"{name}: {target.params[name].type_name}" for name in missing)
        raise SkillError(f"step {target.name!r} needs {needed}, and nothing will give it: pass it on by keyword")
    return {name: target.params[name].encode(value, target.name, patched)[0] for name, value in payload.items()}
