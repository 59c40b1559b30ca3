"""What `refold check` finds in a module's source, and what it leaves alone."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent

import pytest

from refold import Ctx, Transition
from refold.core.authoring import context
from refold.static import check, check_source, find_sources
from refold.static.check import RULES

HEAD = """
import arrow, asyncio, httpx, logging, os, pendulum, random, secrets, sys, threading, time, uuid
from datetime import date, datetime as dt
from pathlib import Path, PurePosixPath
from random import choice
from pydantic import BaseModel, Field
from refold import Cmd, Content, Ctx, Step, Transition, flow_skill, step, table, tool

log = logging.getLogger(__name__)
client = httpx.Client()
prices: dict[str, list[int]] = {"tea": [3]}
dice = random.Random(7)

class Box: ...

@tool(effect="idempotent")
def charge(amount: int) -> str:
    return httpx.post("https://pay.example").text
"""


def rules(source: str) -> list[str]:
    return [one.rule for one in check_source(HEAD + dedent(source))]


def in_reducer(body: str) -> list[str]:
    """The rules broken by a reducer with this body."""
    head, end = "def on_event(self, state, event, ctx):", "    return Transition.ignore(state)"
    method = f"{head}\n{indent(dedent(body), '    ')}\n{end}\n"
    return rules(f"class Skill:\n{indent(method, '    ')}")


def in_step(body: str, end: str = "return ctx.complete()") -> list[str]:
    """The rules broken by a step with this body."""
    method = f"@step(start=True)\nasync def begin(self, ctx: Ctx):\n{indent(dedent(body), '    ')}\n    {end}\n"
    return rules(f"class Skill:\n{indent(method, '    ')}")


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("now = dt.now()", "clock"),
        ("now = dt.utcnow()", "clock"),
        ("day = date.today()", "clock"),
        ("now = time.time()", "clock"),
        ("time.sleep(1)", "clock"),
        ("from time import monotonic as m; m()", "clock"),
        ("later = dt.now; later()", "clock"),
        ("x = random.random()", "random"),
        ("x = choice([1, 2])", "random"),
        ("x = uuid.uuid4().hex", "random"),
        ("x = secrets.token_hex()", "random"),
        ("x = os.urandom(4)", "random"),
        ("x = hash('a')", "random"),
        ("x = random.Random()", "random"),
        ("x = dice.choice([1, 2])", "random"),
        ("d = dice; x = d.random()", "random"),
        ("now = pendulum.now().add(days=2)", "clock"),
        ("now = arrow.utcnow()", "clock"),
        ("now = arrow.get()", "clock"),
        ("x = sorted([2, 1], key=lambda _: random.random())", "random"),
        ("x = open('f')", "io"),
        ("x = input()", "io"),
        ("print('here')", "io"),
        ("log.info('here')", "io"),
        ("x = os.environ['HOME']", "io"),
        ("x = os.environ.get('HOME')", "io"),
        ("x = os.getenv('HOME')", "io"),
        ("x = os.listdir('.')", "io"),
        ("x = Path('f').read_text()", "io"),
        ("p = Path('f'); p.exists()", "io"),
        ("x = Path('f').parent.replace('g')", "io"),
        ("x = state.path.read_bytes()", "io"),
        ("x = httpx.get('https://a.example')", "io"),
        ("x = client.get('https://a.example')", "io"),
        ("import subprocess; subprocess.run(['ls'])", "io"),
        ("from urllib.request import urlopen; urlopen('x')", "io"),
        ("asyncio.create_task(x())", "concurrency"),
        ("threading.Thread(target=print).start()", "concurrency"),
        ("x = charge(1)", "tool"),
        ("global log; log = None", "shared"),
        ("self.cache = 1", "shared"),
        ("Box.cache = 1", "shared"),
        ("Box.cache += 1", "shared"),
        ("Box.items['a'] = 1", "shared"),
        ("Box.items.append(1)", "shared"),
        ("prices['tea'].append(1); f = lambda x: 1", "shared"),
        ("prices['tea'] = []", "shared"),
        ("prices['tea'] += [1]", "shared"),
        ("del prices['tea']", "shared"),
        ("prices.clear()", "shared"),
        ("prices['tea'].append(1)", "shared"),
        ("[prices.pop(x) for x in 'ab']", "shared"),
    ],
)
def test_impure_code_is_found_in_reducers_and_steps(code: str, rule: str) -> None:
    """
    Whatever differs from one fold to the next, or reaches outside, is a finding.
    """
    assert rule in in_reducer(code)
    assert rule in in_step(code)


@pytest.mark.parametrize(
    "code",
    [
        "now = ctx.now",
        "x = uuid.uuid5(uuid.NAMESPACE_URL, ctx.task_id)",
        "x = random.Random(ctx.task_id).random()",
        "x = os.path.join('a', 'b')",
        "x = Path('a') / 'b'",
        "x = PurePosixPath('a').stem.replace('-', ' ')",
        "x = Path('a').name.replace('-', ' ')",
        "name = Path('a').stem; name.replace('-', ' ')",
        "x = Path('a').as_posix().replace('/', '.')",
        "x = os.sep.join(['a', 'b'])",
        "x = httpx.URL('https://a.example').join('/a')",
        "x = httpx.codes.is_error(500)",
        "x = pendulum.instance(ctx.now).add(days=2)",
        "x = arrow.get(ctx.now).shift(days=2)",
        "dice = random.Random(ctx.task_id); x = dice.choice([1, 2])",
        "x = dt.fromisoformat('2026-01-01')",
        "x = dt(2026, 1, 1)",
        "x = httpx.URL('https://a.example')",
        "def now(): return 1\nx = now()",
        "time = event.at; time.time()",
        "x = [id for id in state.ids]",
        "x = prices['tea'][0] + prices.get('tea')[0]",
        "x = [*prices, *prices['tea']]; x.append('coffee'); x[0] = 'milk'",
        "prices = {}; prices['tea'] = 3; prices.clear()",
        "def add(prices): prices['tea'] = 3",
        "box = Box(); box.cache = 1",
        "Box.add(1)",
        "x = prices; x = dict(x); x['tea'] = []",
        "try: pass\nexcept ValueError as prices: prices.add(1)",
        "match state:\n    case {'prices': prices}: prices.append(1)",
        "from other import prices; prices.append(1)",
        "def prices(): ...\nprices.add(1)",
        "open = state.open; open()",
        "x = isinstance(event, httpx.HTTPError)",
        "x = Cmd.tool('charge', charge, amount=1)",
        "time.sleep(1)  # refold: ignore[clock]",
        "time.sleep(1)  # refold: ignore",
    ],
)
def test_pure_code_is_left_alone(code: str) -> None:
    """
    What gives the same each time is no finding, whatever it is called.
    """
    assert in_reducer(code) == []


def test_a_mark_for_another_rule_ignores_nothing() -> None:
    """
    `# refold: ignore[io]` is about io alone.
    """
    assert in_reducer("time.sleep(1)  # refold: ignore[io]") == ["clock"]


@pytest.mark.parametrize("inside", ["\f", "x = '\x1c'\n", "x = '\u2028'\n"], ids=["form feed", "separator", "U+2028"])
def test_a_mark_is_at_its_line_as_python_counts_them(inside: str) -> None:
    """
    A form feed or a separator ends no line, in a text or outside of one.
    """
    reducer = "def on_event(self, state, event, ctx):\n        time.sleep(1){}\n        return state\n"
    marked, unmarked = (
        f"{inside}class Skill:\n    {reducer.format(mark)}" for mark in ("  # refold: ignore[clock]", "")
    )

    assert (rules(marked), rules(unmarked)) == ([], ["clock"])


def test_code_outside_skills_is_nobodys_business() -> None:
    """
    The top level, tools and functions that no skill uses may do what they like.
    """
    assert rules("started = time.time()\ndef unused():\n    print(time.time())\n") == []


@pytest.mark.parametrize(
    "helper",
    [
        "def helper():\n    return deeper()\ndef deeper():\n    return time.time()\n",
        "helper = lambda: 0\nclass Base:\n    def on(self): return time.time()\n    def me(self): return self.on()\n",
        "class Value(BaseModel):\n    at: int = Field(default_factory=time.time)\ndef helper():\n    return Value()\n",
        "class Value(BaseModel):\n    def age(self): return time.time()\ndef helper():\n    return Value().age()\n",
    ],
    ids=["a function's function", "a base class", "a default", "a method of a value"],
)
def test_helpers_are_followed(helper: str) -> None:
    """
    The clock is found wherever the skill reaches it in its module.
    """
    base = "(Base)" if "class Base:" in helper else ""
    call = "self.me()" if base else "helper()"
    body = f"        {call}\n        return Transition.to(1)\n"
    skill = f"class Skill{base}:\n    def on_event(self, state, event, ctx):\n{body}"

    assert rules(helper + skill) == ["clock"]


@pytest.mark.parametrize(
    ("attribute", "found"),
    [
        ("LIMIT = int(os.getenv('LIMIT', '5'))", []),
        ("HOME: str = os.environ['HOME']", []),
        ("text: str = Path('f').read_text()", []),
        ("log = logging.getLogger('value')", []),
        ("lock = threading.Lock()", []),
        ("at: float = time.time()", ["clock"]),
        ("key: str = uuid.uuid4().hex", ["random"]),
        ("home: str = Field(default_factory=os.getcwd)", ["io"]),
        ("home: str = Field(default_factory=lambda: os.environ['HOME'])", ["io"]),
    ],
)
def test_a_class_may_be_made_from_settings(attribute: str, found: list[str]) -> None:
    """
    What its attributes reach outside for is read once, as what a module's constants are; a factory reads at each use.
    """
    value = f"class Value(BaseModel):\n    {attribute}\n"
    skill = "class Skill:\n    def on_event(self, state, event, ctx):\n        return Transition.to(Value().key)\n"

    assert rules(value + skill) == found


@pytest.mark.parametrize("parameters", ["self, event", "self, name, event", "self, *events"])
def test_not_every_class_with_on_event_is_a_skill(parameters: str) -> None:
    """
    A reducer takes a state, an event and ctx; a listener of some stream is none, and may do what it likes.
    """
    body = "        self.last = time.time()\n        open('log')\n"

    assert rules(f"class Listener:\n    def on_event({parameters}):\n{body}") == []


def test_table_functions_are_steps() -> None:
    """
    A function named in a `Step(...)` is held to what steps are held to.
    """
    assert rules(
        "def begin(ctx):\n    time.time()\n    return 'x'\nT = table('t', Step('begin', begin).start())\n"
    ) == [
        "clock",
        "return",
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("ctx.llm('a')", ["not-awaited"]),
        ("answer = ctx.llm('a')", ["not-awaited"]),
        ("reply = ctx.chat('a', 'Hello.')", ["not-awaited"]),
        ("ctx.gather(ctx.llm('a'))", ["not-awaited"]),
        ("ctx.say(ctx.llm('a'))", ["not-awaited"]),
        ("ctx.say(f'It is {ctx.llm(1)}.')", ["not-awaited"]),
        ("text = await ctx.llm('a', 'Sum it up.', ctx.llm('b'))", ["not-awaited"]),
        ("ctx.first(ctx.approve('pay', 'Pay?'), ctx.sleep(9))", ["not-awaited"]),
        ("ctx.approve('pay', 'Pay?')", ["not-awaited"]),
        ("decision = ctx.approve('pay', 'Pay?')\nif not decision:\n    raise ValueError", ["not-awaited"]),
        ("decision: object = ctx.approve('pay', 'Pay?')\nif decision:\n    pass", ["not-awaited"]),
        ("if not ctx.approve('pay', 'Pay?'):\n    raise ValueError", ["not-awaited"]),
        ("if not (await ctx.approve('pay', 'Pay?')).approved:\n    raise ValueError", []),
        ("gate = ctx.approve('pay', 'Pay?'); which, _ = await ctx.first(gate, ctx.sleep(9))", []),
        ("answer = await ctx.llm('a')", []),
        ("one = ctx.llm('a'); both = await ctx.gather(one, ctx.llm('b'))", []),
        ("calls = [ctx.llm(str(n)) for n in range(3)]; await ctx.gather(*calls)", []),
        ("calls = {n: ctx.llm(n) for n in 'ab'}; await ctx.gather(*calls.values())", []),
        ("calls = [ctx.llm('a')]\nfor one in calls:\n    await one", []),
        ("calls = [ctx.llm('a')]", ["not-awaited"]),
        ("answer = await self.more(ctx)", []),
        ("await httpx.AsyncClient().get('x')", ["io"]),
        ("await asyncio.sleep(1)", ["clock"]),
        ("await charge(1)", ["tool"]),
        ("from other import fetch\nawait fetch()", ["await"]),
        ("await ctx.goto('x')", ["await"]),
        ("async with state.lock: pass", ["await"]),
    ],
)
def test_calls_of_ctx_are_awaited_and_nothing_else_is(code: str, found: list[str]) -> None:
    """
    A step awaits what it asks for, and asks for all that it awaits.
    """
    assert in_step(code) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("if await ctx.approve('pay', 'Pay?'): pass", True),
        ("granted = await ctx.approve('pay', 'Pay?')\nif not granted: pass", True),
        ("granted = await ctx.approve('pay', 'Pay?')\nif granted.approved: pass", False),
        ("granted = await ctx.approve('pay', 'Pay?')\nif ctx.now and granted: pass", True),
        ("said = await ctx.ask('more', 'More?')\nassert said", True),
        ("said = await ctx.ask('more', 'More?')\nx = 1 if said == 'yes' else 2", True),
        ("said = await ctx.ask('more', 'More?')\nx = 'yes' in said", True),
        ("said = await ctx.ask('more', 'More?')\nx = said in ('yes', 'y')", True),
        ("x = await ctx.ask('more', 'More?') != 'no'", True),
        ("said = await ctx.ask('more', 'More?')\nx = said.text == 'yes' or said == other", False),
        ("said = await ctx.ask('more', 'More?', expect=bool)\nif said: pass", False),
        ("said = None\nif ctx.now: said = await ctx.ask('more', 'More?')\nif said: pass", False),
        ("said = (await ctx.ask('more', 'More?')).text\nif said == 'yes': pass", False),
        ("said = await ctx.llm('a')\nif said == 'yes': pass", False),
    ],
)
def test_what_a_person_said_is_no_text_and_no_truth(code: str, found: bool) -> None:
    """
    A denial is as true as a grant, and no message equals a text: the other way would never be taken.
    """
    assert in_step(code) == ["result"] * found


@pytest.mark.parametrize(
    ("parameter", "code", "found"),
    [
        ("content: Content", "if content == 'stop': pass", True),
        ("content: 'refold.Content'", "if not content: pass", True),
        ("granted: DecisionMade", "if granted: pass", True),
        ("content: Content", "if content.text == 'stop' and content.has_data: pass", False),
        ("content: Content | None", "if content: pass", False),
        ("content: Content = None", "if content: pass", False),
        ("content: Content", "content = content.text\nif content == 'stop': pass", False),
    ],
)
def test_so_is_what_a_step_is_given(parameter: str, code: str, found: bool) -> None:
    """
    By the parameter's type, where nothing else may stand for it.
    """
    method = f"async def begin(self, ctx: Ctx, {parameter}):\n{indent(code, '    ')}\n    return ctx.complete()\n"

    assert rules(f"class Skill:\n    @step(start=True)\n{indent(method, '    ')}") == ["result"] * found


def test_a_class_of_the_same_name_is_tested_as_its_author_likes() -> None:
    """
    Only refold's own messages are always true.
    """
    other = "from decimal import Decimal as Content\n"
    method = "@step(start=True)\nasync def begin(self, ctx: Ctx):\n    return ctx.complete(said(Content()))"
    said = "def said(one: Content): return 'yes' if one else 'no'\n"

    assert rules(f"{other}{said}class Skill:\n{indent(method, '    ')}") == []
    assert rules(f"{said}class Skill:\n{indent(method, '    ')}") == ["result"]


@pytest.mark.parametrize("name", [name for name in vars(Ctx) if not name.startswith("_")])
def test_each_method_of_ctx_that_can_be_awaited_is_known(name: str) -> None:
    """
    By the type that it returns; so a new method cannot be forgotten.
    """
    kind = str(getattr(vars(Ctx)[name], "__annotations__", {}).get("return")).partition("[")[0]
    returned = vars(context).get(kind)
    awaited = hasattr(returned, "__await__") and returned is not Transition  # whose `await` says what to write

    assert in_step(f"ctx.{name}('a')") == (["not-awaited"] if awaited else [])


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("ctx.complet('x')", "did you mean `ctx.complete`?"),
        ("a = await ctx.tool_('x')", "did you mean `ctx.tool`?"),
        ("a = ctx.quux", "it has: activity, approve, "),
    ],
)
@pytest.mark.parametrize("annotation", ["", ": Ctx", ": 'Ctx'"])
def test_a_name_that_ctx_does_not_have_is_found(code: str, says: str, annotation: str) -> None:
    """
    It would fail the task, perhaps on a path that no test takes.
    """
    method = f"@step(start=True)\nasync def begin(self, ctx{annotation}):\n    {code}\n    return ctx.complete()\n"
    [found] = check_source(f"{HEAD}class Skill:\n{indent(method, '    ')}")

    assert found.rule == "call"
    assert says in found.message


@pytest.mark.parametrize(
    "code",
    [
        "ctx = Box()\nctx.anything()",
        "with Box() as ctx:\n    ctx.anything()",
        "for ctx in state:\n    ctx.anything()",
        "match content:\n    case Box() as ctx:\n        ctx.anything()",
        "x = [ctx.anything for ctx in []]",
        "x = (lambda ctx: ctx.anything)(1)",
        "def inner(ctx):\n    return ctx.anything\ninner(1)",
        "x = ctx.__class__",
    ],
)
def test_what_may_be_no_ctx_may_have_any_name(code: str) -> None:
    """
    A name that is bound again in the step is not looked into.
    """
    assert in_step(code) == []


def test_a_parameter_of_another_class_is_no_ctx() -> None:
    """
    Neither an input that is called so, nor what a helper is given without an annotation.
    """
    step = "    @step(start=True)\n    async def begin(self, ctx: Box, c: Ctx):\n"
    body = "        ctx.anything()\n        helper(ctx)\n        return c.complete()\n"

    assert rules(f"class Skill:\n{step}{body}\n\ndef helper(ctx):\n    return ctx.anything\n") == []


@pytest.mark.parametrize(
    ("star", "body", "found"),
    [
        ("refold", "ctx.approve('pay', 'Pay?')", ["not-awaited"]),
        ("refold", "await charge(1)", ["tool"]),
        ("time", "now = time()", ["clock"]),
        ("no_such_module", "now = clock()", []),
    ],
)
def test_names_of_a_star_import_are_known(star: str, body: str, found: list[str]) -> None:
    """
    Those of refold above all, since without them nothing would be a step.
    """
    step = f"class Skill:\n    @step(start=True)\n    async def begin(self, ctx: Ctx):\n        {body}\n"
    tool = "@tool(effect='idempotent')\ndef charge(amount: int) -> str:\n    return ''\n"
    source = f"from refold import *\nfrom {star} import *\n{tool}{step}        return ctx.complete()\n"

    assert [one.rule for one in check_source(source)] == found


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ("return ctx.complete()", []),
        ("return Transition.goto('x')", []),
        ("return self.helper(ctx)", []),
        ("raise ValueError", []),
        ("return", ["return"]),
        ("return None", ["return"]),
        ("return 'done'", ["return"]),
        ("return f'{ctx.now}'", ["return"]),
        ("return await ctx.llm('a')", ["return"]),
        ("return ctx.llm('a')", ["return"]),
        ("return ctx.goto('x') if ctx.now else 'done'", ["return"]),
        ("pass", ["return"]),
    ],
)
def test_a_step_returns_a_transition(end: str, found: list[str]) -> None:
    """
    What is certainly no transition is a finding; what cannot be told is not.
    """
    assert in_step("pass", end) == found


def test_a_reducer_that_returns_a_state_is_told_so() -> None:
    """
    The likeliest slip of a reducer is to return the state instead of a transition to it.
    """
    source = (
        "class Done(BaseModel): pass\nclass Skill:\n    def on_event(self, state, event, ctx):\n        return Done()\n"
    )
    (found,) = check_source(HEAD + source)

    assert found.rule == "return"
    assert "returns a `Done`" in found.message


def test_a_reducer_cannot_use_calls_of_ctx() -> None:
    """
    `ctx.llm` in a reducer leads nowhere; the finding says what to write.
    """
    assert in_reducer("ctx.llm('a')") == ["not-awaited"]
    (found,) = check_source(
        f"{HEAD}class Skill:\n    def on_event(self, state, event, ctx):\n        ctx.ask('a', 'b')\n"
        "        return Transition.ignore(state)\n"
    )
    assert "Cmd.ask_user(...)" in found.message


def test_a_finding_says_where_what_and_what_instead() -> None:
    """
    File, line and column lead to the call; the message names the function and the remedy.
    """
    source = "from time import time\nclass Skill:\n    def on_event(self, state, event, ctx):\n        return time()\n"
    (found,) = check_source(source, "skills.py")

    assert (found.file, found.line, found.column, found.rule) == ("skills.py", 4, 16, "clock")
    assert found.message.startswith("Skill.on_event calls `time`, which reads the clock: use `ctx.now`")


def test_no_python_is_one_finding() -> None:
    """
    A file that does not parse is said to, at its line.
    """
    (found,) = check_source("x = 1\ndef (:\n")

    assert (found.line, found.rule) == (2, "syntax")


MODULE = """
from pydantic import BaseModel
from refold import Content, Ctx, Transition, flow_skill, step
import {name}_tools as tools

@flow_skill()
class Twice:
    @step(start=True)
    async def one(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("nowhere")
    @step(start=True)
    async def two(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete()

@flow_skill()
class Nothing:
    pass

@flow_skill()
class Fine:
    @step(start=True)
    async def one(self, ctx: Ctx, content: Content) -> Transition:
        tools.charge(1)
        tools.stamp()
        return ctx.complete()

USES = Twice, Nothing
"""
TOOLS = """
import time
from refold import tool

@tool(effect="idempotent")
def charge(amount: int) -> int:
    return amount

def stamp():
    return time.time()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "unchecked_skills.py").write_text(MODULE.format(name="unchecked"))
    (tmp_path / "unchecked_tools.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("unchecked_skills", "unchecked_tools"):
        sys.modules.pop(name, None)


def test_all_definition_errors_of_a_module_are_found(folder: Path) -> None:
    """
    The first bad skill stops the import, and hides none of the others. What is wrong with a goto has its line.
    """
    found = check(find_sources("unchecked_skills", [folder]))

    assert [(one.line, one.rule) for one in found if one.rule == "definition"] == [
        (7, "definition"),
        (10, "definition"),
        (16, "definition"),
    ]


def test_tools_and_helpers_of_other_modules_are_known(folder: Path) -> None:
    """
    A tool called through its module is found, and so is the clock in a helper of another module, in its own file.
    """
    found = check(find_sources("unchecked_skills", [folder]))

    assert [(Path(one.file).name, one.line, one.rule) for one in found if one.rule != "definition"] == [
        ("unchecked_skills.py", 23, "tool"),
        ("unchecked_tools.py", 10, "clock"),
    ]


@pytest.mark.parametrize("installed", ["site-packages", "dist-packages"])
def test_what_is_installed_is_not_checked(folder: Path, installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Wherever a person or Debian installs packages for Python: their code is not the application's to mend.
    """
    (folder / installed).mkdir()
    (folder / "unchecked_tools.py").rename(folder / installed / "unchecked_tools.py")
    monkeypatch.syspath_prepend(folder / installed)
    found = check(find_sources("unchecked_skills", [folder]))

    assert {(Path(one.file).name, one.rule) for one in found} == {
        ("unchecked_skills.py", "definition"),
        ("unchecked_skills.py", "tool"),
    }


def test_a_byte_order_mark_changes_nothing(folder: Path) -> None:
    """
    Some editors begin a file with one; Python imports the file all the same.
    """
    for file in folder.glob("*.py"):
        file.write_text(file.read_text(), encoding="utf-8-sig")
    found = check(find_sources("unchecked_skills", [folder]))

    assert [(Path(one.file).name, one.line, one.rule) for one in found if one.rule != "definition"] == [
        ("unchecked_skills.py", 23, "tool"),
        ("unchecked_tools.py", 10, "clock"),
    ]


LATIN = """{head}from __future__ import annotations
import time
from refold import Ctx, Transition, flow_skill, step

@flow_skill(id="{id}")
class Größe:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        größe = time.time()
        return ctx.complete(str(größe))
"""


def test_a_file_is_decoded_as_python_decodes_it(tmp_path: Path) -> None:
    """
    A file that names its encoding is checked like any other.
    """
    file = tmp_path / "latin_skill.py"
    file.write_text(LATIN.format(head="# -*- coding: latin-1 -*-\n", id="latin"), encoding="latin-1")

    assert [(one.rule, one.line) for one in check(find_sources(str(file), [tmp_path]))] == [("clock", 10)]


@pytest.mark.parametrize("head", ["", "# -*- coding: nonsense -*-\n"], ids=["not-utf-8", "unknown"])
def test_a_file_that_python_cannot_decode_is_one_finding(tmp_path: Path, head: str) -> None:
    """
    It says what to do.
    """
    file = tmp_path / f"undecoded_skill_{len(head)}.py"
    file.write_text(LATIN.format(head=head, id="undecoded"), encoding="latin-1")

    (found,) = check(find_sources(str(file), [tmp_path]))
    assert (found.rule, found.line) == ("syntax", 1)
    assert "save it as UTF-8, or name its encoding in the first line" in found.message


def test_a_module_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    """
    Its error is said with file and line; nothing is raised.
    """
    file = tmp_path / "unimportable.py"
    file.write_text("x = 1\nimport a_module_that_is_not_there\n")
    (found,) = check(find_sources(str(file), [tmp_path]))

    assert (found.line, found.rule) == (2, "import")
    assert "a_module_that_is_not_there" in found.message


@pytest.mark.parametrize("wrong", ["__init__.py", "books.py"])
def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, wrong: str) -> None:
    """
    A file whose package fails is checked alone: the finding names the file that is wrong, and says why it matters.
    """
    lib = tmp_path / "failing_lib"
    lib.mkdir()
    (lib / "mail.py").touch()
    (lib / "__init__.py").write_text("from failing_lib import books\n")
    (lib / wrong).write_text("RATE = 1 / 0\n")
    (found,) = check(find_sources(str(lib / "mail.py"), [tmp_path]))

    assert (found.line, found.rule) == (1, "import")
    says = f"Python imports its package first, and with it {lib / wrong}, which cannot be imported: ZeroDivisionError"
    assert says in found.message


def test_rules_are_listed() -> None:
    """
    The list of rules is complete.
    """
    seen = {*in_reducer("time.time(); random.random(); open('x'); asyncio.run(1)\ncharge(1)\nself.x = 1\nctx.llm('a')")}
    seen |= {*in_step("await ctx.goto('x')", "return 1")}

    assert seen <= set(RULES)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("paid = await ctx.tool(charge, amount=1)\nreturn ctx.reject('no')", ["return"]),
        ("paid = await ctx.tool(charge, amount=1)\nif not paid:\n    return ctx.reject('no')", ["return"]),
        ("if await ctx.tool(charge, amount=1):\n    return ctx.reject('no')", ["return"]),
        ("match await ctx.tool(charge, amount=1):\n    case _:\n        return ctx.reject('no')", ["return"]),
        ("if ctx.messages:\n    return ctx.reject('no')\npaid = await ctx.tool(charge, amount=1)", []),
        ("if ctx.messages:\n    paid = await ctx.tool(charge, amount=1)\nelse:\n    return ctx.reject('no')", []),
        ("paid = await ctx.tool(charge, amount=1)\nreturn ctx.fail('no')", []),
    ],
)
def test_a_task_is_rejected_before_the_first_await(body: str, found: list[str]) -> None:
    """
    Only its first message can be; later on, the step would be a bug of the skill's.
    """
    assert in_step(body) == found
