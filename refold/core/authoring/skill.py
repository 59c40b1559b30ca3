"""Where the three styles (reducer, steps, table) become one: the `Skill` protocol that the fold calls, and its options.

The fold calls a skill with the state as JSON data; the skill returns a `Transition` whose state is JSON data. A skill
has no other state: the same state, event and moment give the same transition.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, Unpack

from pydantic import JsonValue, PydanticUserError

from refold.core.authoring.context import Moment
from refold.core.authoring.tool import durability_problems
from refold.core.authoring.transition import Transition
from refold.core.codec import misfit
from refold.core.content import Content
from refold.core.contracts.contract import Contract
from refold.core.errors import shown
from refold.core.events import Event
from refold.core.retry_policy import RetryPolicy
from refold.core.schema import adapter, fields_of, first_line
from refold.core.values import Value

Upgrade = Callable[[int, Any], Any]


class Card(Value):
    """What clients see of a skill. Source: A2A specification 1.0, AgentSkill.

    Attributes:
        id: Unique among the skills that are served together; 1 to 100 letters, digits, `_`, `-` and `.`.
        name: The name, for people.
        description: What the skill does, for people and for models that choose a skill.
        tags: Keywords for search.
        examples: Messages that the skill understands.
        input_modes: Media types that the skill takes.
        output_modes: Media types that the skill answers with.
    """

    id: str
    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    input_modes: tuple[str, ...] = ("text/plain", "application/json")
    output_modes: tuple[str, ...] = ("text/plain", "application/json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a compiled skill.

    Attributes:
        card: What clients see of the skill.
        input, retry, version, upgrade, contract, seal_at_pause, durability: As in `SkillOptions`.
        middleware: Runs around the skill's model calls and tools, in the worker; see `refold.middleware`.
        is_agent: Whether its tasks take over the model conversations of the earlier task that they are started with,
            and keep the budget with which another task starts them.
        models: The models that the skill is defined with; a worker says when it starts which of them it cannot use.
        problems: Problems found in the options; the compiler of the skill reports them with its own.
    """

    card: Card
    input: Any = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    version: int = 1
    upgrade: Upgrade | None = None
    contract: Contract | None = None
    seal_at_pause: bool = False
    durability: Literal["history", "ledger"] = "history"
    middleware: tuple[Any, ...] = ()
    is_agent: bool = False
    models: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class SkillOptions(TypedDict, total=False):
    """The options of a skill in `flow_skill` and `table`.

    Attributes:
        name: The name, for people; left out, the class's name, or the id of a table.
        description: For people and models; left out, the first paragraph of the class's docstring.
        tags: Keywords for search.
        examples: Messages that the skill understands.
        input_modes: Media types that the skill takes, such as `image/png` or `image/*`; left out, text and JSON.
        output_modes: Media types that the skill answers with; left out, text and JSON.
        input: The type that the first message's data must fit; left out, any content.
        retry: When transient failures are retried, for commands without a policy of their own; left out, three retries
            after 1, 2 and 4 s.
        version: The version of the saved state's shape; raise it when the shape changes; left out, 1.
        upgrade: `upgrade(version, state)` turns a state saved by `version` into one of the next version.
        contract: The contract of the skill's steps, if they share a state.
        seal_at_pause: Once a task has asked a person, later code starts from its snapshot; costs a run per question.
        durability: Where an effect's outcome is kept first; `ledger` is faster, and needs a ledger that workers share.
    """

    name: str | None
    description: str | None
    tags: Sequence[str]
    examples: Sequence[str]
    input_modes: Sequence[str] | None
    output_modes: Sequence[str] | None
    input: Any
    retry: RetryPolicy | None
    version: int
    upgrade: Upgrade | None
    contract: Contract | None
    seal_at_pause: bool
    durability: Literal["history", "ledger"]


_LISTED = ("tags", "examples", "input_modes", "output_modes")

_KINDS: Mapping[str, tuple[Any, str]] = {
    "name": (str, "it is a text"),
    "description": (str, "it is a text"),
    "retry": (RetryPolicy, "it is a policy, for example retry=RetryPolicy(max_retries=5)"),
    "version": (int, "it is a whole number; raise it by one when the saved state's shape changes"),
    "upgrade": (Callable, "it is a function, upgrade(version, state)"),
    "contract": (Contract, "it is a contract, contract=Contract(state=...)"),
    "seal_at_pause": (bool, "it is True or False"),
}
"""What an option is, where it is not a list of texts; a wrong one would be found by the task that first needs it."""


@dataclass(slots=True, eq=False)
class Live:
    """A cache of one task: its step's suspended coroutine, or its reducer's decoded state. May be dropped at any time.

    Attributes:
        awaiting: The ids of the commands that the coroutine awaits.
        run: The coroutine, as `steps/run.py` stores it; None if there is none.
        decoded: A state as data, with a decoded copy that was not passed to the skill yet.
        bug: The file and line at which the author's code raised last, for the engine's log; empty if it has not.
    """

    awaiting: list[str] = field(default_factory=list)
    run: Any = None
    decoded: tuple[JsonValue, Any] | None = None
    bug: str = ""


class Skill(Protocol):
    """A compiled skill. Called by the fold.

    Attributes:
        options: The skill's options.
    """

    options: Options

    def on(self, state: JsonValue, event: Event, moment: Moment, live: Live | None = None) -> Transition:
        """Handle one event. `state` is JSON data; None before the first event.

        Returns:
            A transition whose state is JSON data, and whose gotos have been followed.

        Raises:
            CommandError: A command failed and the skill did not catch the failure.
            SkillError: The skill broke a rule of its style.
            Exception: Any exception that the author's code raised.
        """
        ...

    def where(self, state: JsonValue) -> str:
        """The name of the step or state that the task is in, for people."""
        ...

    def places(self) -> list[str]:
        """The steps or states that are declared, as `where` names them."""
        ...

    def awaiting(self, state: JsonValue) -> tuple[str, ...]:
        """The ids of the commands that the skill's current await waits for; empty for styles without awaits."""
        return ()

    def interruptible(self, state: JsonValue) -> bool:
        """Whether a message that the skill has not asked for may be delivered to it now; see `on_interrupt`."""
        return False

    def unfit_reply(self, state: JsonValue, gate: str, content: Content) -> str:
        """Why the code that is to receive the answer to an open question cannot take this one; empty if it can."""
        return ""

    def own_state(self, state: JsonValue) -> JsonValue:
        """The author's part of a saved state, as passed to `upgrade`; None before the first event."""
        return state

    def with_own_state(self, state: JsonValue, own: JsonValue) -> JsonValue:
        """A saved state with the author's part replaced by `own`.

        Raises:
            SkillError: `own` does not have the form that `own_state` returns.
        """
        return own

    def edges(self) -> list[tuple[str, str]]:
        """Pairs of steps, the second of which may follow the first, as far as the code names them literally."""
        return []


def skill_id(skill: Skill) -> str:
    """The skill's id."""
    return skill.options.card.id


def options_for(
    author: Any,
    id: str | None = None,
    *,
    middleware: tuple[Any, ...] = (),
    models: tuple[str, ...] = (),
    is_agent: bool = False,
    **said: Unpack[SkillOptions],
) -> Options:
    """The author's options, with defaults from the name and docstring of the class `author`; None for a table."""
    found: list[str] = [] if id is None or isinstance(id, str) else [f"id={id!r}: it is a text"]
    id = None if found else id
    default_name = id or "skill" if author is None else str(author.__name__)
    id = id or snake(default_name)
    if unknown := said.keys() - SkillOptions.__annotations__.keys():
        known = ", ".join(SkillOptions.__annotations__)
        found.append(f"it takes no option {', '.join(sorted(unknown))}; the options are: id, {known}")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", id):
        found.append(f"its id {id!r} may have letters, digits, `_`, `-` and `.` only, 1 to 100 of them")
    if said.get("input") is not None:
        try:
            adapter(said["input"])
        except PydanticUserError as error:
            found.append(f"input={said['input']!r} is not a type that pydantic knows: {first_line(error)}")
    found += durability_problems(said.get("durability", "history"))
    unfit = dict(_unfit(said))
    found += unfit.values()
    doc = inspect.getdoc(author) if author is not None and author.__doc__ else None
    first = " ".join((doc or "").partition("\n\n")[0].split())
    given: dict[str, Any] = {
        key: value for key, value in said.items() if value is not None and key not in unknown | unfit.keys()
    }
    on_card = {key: tuple(given.pop(key)) for key in _LISTED if key in given}
    card = Card(id=id, name=given.pop("name", default_name), description=given.pop("description", first), **on_card)
    return Options(card=card, middleware=middleware, models=models, is_agent=is_agent, problems=tuple(found), **given)


def _unfit(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Options whose value has a wrong type, each with what is wrong."""
    for name, value in said.items():
        kind, what = _KINDS.get(name, (object, ""))
        if name in _LISTED:
            fits = (
                isinstance(value, Collection)
                and not isinstance(value, str)
                and all(isinstance(one, str) for one in value)
            )
            what = f'it is a list of texts; write {name}=["..."]'
        else:
            fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        if value is not None and not fits:
            yield name, f"{name}={shown(value)}: {what}"


def snake(name: str) -> str:
    """`ResearchLoop` as `research_loop`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def unfit_start(skill: Skill, content: Content) -> str:
    """Why the skill cannot start from this content; empty if it can."""
    wanted = skill.options.input
    if wanted is None:
        return ""
    expected = getattr(wanted, "__name__", str(wanted))
    if not content.has_data:
        fields = ", ".join(fields_of(wanted))
        way_out = f"; send data with the fields {fields}" if fields else ""
        return f"skill {skill_id(skill)!r} starts from data that fits {expected}; got text only{way_out}"
    found = misfit(wanted, content.data)
    return f"skill {skill_id(skill)!r} starts from data that fits {expected}: {found}" if found else ""
