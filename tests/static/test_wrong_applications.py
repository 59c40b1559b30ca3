"""Applications with one mistake each, as a new user makes it, and the sentence that `refold check` says of it.

Each is the application in `right_app`, which has no mistake, with one edit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refold.cli.app import app
from refold.static.check import RULES
from tests.static.conftest import Check, Checked, check

BUY, LETTER, SHOP, TOOLS = "workflows/buy.py", "workflows/letter.py", "activities/shop.py", "activities/__init__.py"


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """One mistake.

    Attributes:
        file: Where it is.
        old: What stands there in the right application; empty appends.
        new: What stands there instead.
        rule: The rule that finds it.
        at: A part of the line that the finding names; empty is the first line.
        says: What the finding says: the mistake, and the way out.
        also: A second edit of the same file: what stands there, and what stands there instead.
        found_in: The file that the finding names; empty is the same.
        more: Files beside it.
    """

    file: str = BUY
    old: str = ""
    new: str
    rule: str
    at: str = ""
    says: tuple[str, ...]
    also: tuple[str, str] = ("", "")
    found_in: str = ""
    more: dict[str, str] = field(default_factory=dict)


GOTO = 'return ctx.goto("judge", order=order, asked=0)'
FIND = "order = await ctx.tool(find_order, order_id=wish.order_id)"
CHARGE = "paid = await ctx.tool(charge, order_id=order.order_id, cents=order.cents)"
ADVICE = 'advice = await ctx.llm("advice", "Is it worth it?", expect=Advice)'
DOUBT = 'return ctx.await_input("doubt", "What do you think?", order=order, asked=asked)'
CHILD = 'await ctx.skill("letter", "letter", f"Paid: {paid}")'
POLICY = 'policy = GatePolicy(approvers=("Ann", "Bob"), needed=2)'
PAY = "async def pay(self, ctx: Ctx, order: Order) -> Transition:"
RESUMED = '@step(resume_from="gate")'
IMPORTED = "from refold import Content, Ctx, GatePolicy, Transition, flow_skill, step"
STUBBORN = '\n\nSTUBBORN = RetryPolicy(on_unknown="repeat")'
WORKFLOW = "BuyWorkflow = workflow_for(Buy)"

WRONG = {
    # What does not load.
    "a name that refold does not have": Wrong(
        old=IMPORTED,
        new=IMPORTED.replace("flow_skill", "flowskill"),
        rule="import",
        at="import Content",
        says=("cannot import name 'flowskill' from 'refold'", "did you mean 'flow_skill'?"),
    ),
    "a name that is not imported": Wrong(
        old=IMPORTED,
        new=IMPORTED.removesuffix(", step"),
        rule="import",
        at="@step(start=True)",
        says=("NameError: name 'step' is not defined", "write `from refold import step`"),
    ),
    "a decorator without parentheses": Wrong(
        file=LETTER,
        old='@flow_skill(id="letter")',
        new="@flow_skill",
        rule="import",
        at="@flow_skill",
        says=("flow_skill() takes 0 positional arguments", "write `@flow_skill()`, with parentheses"),
    ),
    "two steps of one name": Wrong(
        old=RESUMED,
        new=f"{RESUMED}\n    async def pay(self, ctx: Ctx) -> Transition:\n        return ctx.complete()\n\n"
        f"    {RESUMED}",
        rule="definition",
        at=PAY,
        says=("`Buy.pay` replaces the step of the same name above it", "give one of them another name"),
    ),
    "a misspelt argument of a decorator": Wrong(
        file=SHOP,
        old='(effect="read_only")',
        new='(efect="read_only")',
        rule="import",
        at='@tool(efect="read_only")',
        says=("tool() got an unexpected keyword argument 'efect'", "id you mean 'effect'?"),
    ),
    "a misspelt argument of an agent": Wrong(
        file=LETTER,
        new='\n\nfrom refold.agent import Agent\n\nCLERK = Agent("clerk", tool=[])\n',
        rule="import",
        at="CLERK",
        says=("unexpected keyword argument 'tool'", "id you mean 'tools'?"),
    ),
    "an argument of an agent that nobody knows": Wrong(
        file=LETTER,
        new='\n\nfrom refold.agent import Agent\n\nCLERK = Agent("clerk", prompt="Be kind.")\n',
        rule="import",
        at="CLERK",
        says=("unexpected keyword argument 'prompt'", "it takes: id, model, instructions, tools"),
    ),
    "a misspelt field of a policy at the top of a module": Wrong(
        new='\n\nPLIED = GatePolicy(aprovers=("Ann",))',
        rule="import",
        at="PLIED",
        says=("GatePolicy: it has no field 'aprovers'", "did you mean 'approvers'?"),
    ),
    "a field of a policy that nobody knows": Wrong(
        new="\n\nPLIED = GatePolicy(voters=2)",
        rule="import",
        at="PLIED",
        says=("GatePolicy: it has no field 'voters'", "its fields are: kind, approvers"),
    ),
    "a value of another type in a policy": Wrong(
        new='\n\nPLIED = GatePolicy(approvers="Ann")',
        rule="import",
        at="PLIED",
        says=("GatePolicy: approvers='Ann': Input should be a valid tuple",),
    ),
    "a module that is not there": Wrong(
        old="from activities.shop",
        new="from actvities.shop",
        rule="import",
        at="from actvities.shop",
        says=("No module named 'actvities'", "correct the name, or install it"),
    ),
    "a syntax error": Wrong(
        old="if advice.text:", new="if advice.text", rule="syntax", at="if advice.text", says=("expected ':'",)
    ),
    "a setting that is missing at import": Wrong(
        old="class Wish",
        new='import os\nKEY = os.environ["SHOP_KEY_THAT_NOBODY_SET"]\nclass Wish',
        rule="import",
        at="KEY =",
        says=("KeyError: 'SHOP_KEY_THAT_NOBODY_SET'",),
    ),
    "a script that runs at import": Wrong(
        new="import sys\nsys.exit(0)\n", rule="import", at="sys.exit(0)", says=("SystemExit", '__name__ == "__main__"')
    ),
    "an event loop at import": Wrong(
        new="import asyncio\nwaits = asyncio.sleep(0)\ntry:\n    asyncio.run(waits)\nfinally:\n    waits.close()\n",
        rule="worker",
        at="asyncio.run(waits)",
        says=("asyncio.run() cannot be called from a running event loop; what", '__name__ == "__main__"'),
    ),
    "a print at import": Wrong(
        new='print("buy loaded")\n', rule="io", at="print(", says=("prints when it is imported", "leave the print out")
    ),
    "a clock at import": Wrong(
        old="class Wish",
        new="import datetime\nSTARTED = datetime.datetime.now()\nclass Wish",
        rule="worker",
        at="STARTED =",
        says=("skill 'buy'", "sandbox", "`datetime.datetime.now`", "move it to a tool"),
    ),
    # Names that the worker needs.
    "no workflow": Wrong(
        old=WORKFLOW,
        new="",
        rule="worker",
        at="class Buy:",
        says=("skill 'buy'", "makes no workflow of it", "add `BuyWorkflow = workflow_for(Buy)`"),
    ),
    "a workflow of another name": Wrong(
        old=WORKFLOW,
        new=WORKFLOW.replace("BuyWorkflow", "Workflow"),
        rule="worker",
        at="Workflow = workflow_for(Buy)",
        says=("is not workflows.buy.BuyWorkflow", "assigned to Workflow", "workflow_for(..., name='Workflow')"),
    ),
    "two skills of one id": Wrong(
        old='id="buy"',
        new='id="letter"',
        rule="worker",
        at="LetterWorkflow =",
        found_in=LETTER,
        says=("workflows.buy.BuyWorkflow", "workflows.letter.LetterWorkflow", "give one of the skills another"),
    ),
    "two tools of one name": Wrong(
        file=SHOP,
        new='\n\n@tool(effect="idempotent", name="charge")\ndef charge_again(order_id: str) -> None:\n    ...\n',
        rule="worker",
        at='@tool(effect="idempotent", name="charge")',
        says=("two tools have this name", "activities.shop.charge and activities.shop.charge_again", "@tool(name=)"),
    ),
    # Tools.
    "a tool without a policy": Wrong(
        file=SHOP,
        old='@tool(effect="read_only")',
        new="@tool()",
        rule="definition",
        at="@tool()",
        says=("find_order: a tool declares its effect", "'read_only', 'idempotent'"),
    ),
    "a tool without a declaration": Wrong(
        file=SHOP,
        old='@tool(effect="read_only")\n',
        new="",
        rule="worker",
        at="def find_order",
        says=("tool 'find_order'", "write @tool(effect=...) above it", "'at_most_once'"),
    ),
    "a function among the tools": Wrong(
        file=TOOLS,
        old="TOOLS = [",
        new="def refund(order_id: str) -> None: ...\n\nTOOLS = [refund, ",
        rule="worker",
        at="def refund",
        says=("tool 'refund'", "write @tool(effect=...) above it"),
    ),
    "an undo that nobody registers": Wrong(
        file=SHOP,
        old='@tool(effect="compensate", undo=give_back)',
        new='import shop_undo\n\n@tool(effect="compensate", undo=shop_undo.void)',
        rule="worker",
        at="undo=shop_undo.void",
        says=("tool 'charge'", "its undo, the tool 'void', is not registered"),
        more={
            "shop_undo.py": 'from refold import tool\n@tool(effect="idempotent")\ndef void(result: str) -> None: ...\n'
        },
    ),
    "a misspelt tool": Wrong(
        old=FIND,
        new='order = await ctx.tool("find_ordr", order_id=wish.order_id)',
        rule="call",
        at="find_ordr",
        says=("look asks for the tool 'find_ordr'", "did you mean 'find_order'?"),
    ),
    "a misspelt argument of a tool": Wrong(
        old=FIND,
        new=FIND.replace("order_id=", "id="),
        rule="call",
        at="id=wish",
        says=("'find_order'", "it needs order_id", "it takes (order_id)"),
    ),
    "a tool's argument by its place": Wrong(
        old=FIND,
        new="order = await ctx.tool(find_order, 24)",
        rule="call",
        at="find_order, 24",
        says=("arguments of the tool 'find_order' are given by name, `name=value`, not 24 (int)",),
    ),
    "a text as a tool's argument by its place": Wrong(
        old=FIND,
        new="order = await ctx.tool(find_order, 'o-1')",
        rule="call",
        at="find_order, 'o-1'",
        says=("arguments of the tool 'find_order' are given by name, `name=value`, not 'o-1' (str)",),
    ),
    "a tool's argument named by a number": Wrong(
        old=FIND,
        new="order = await ctx.tool(find_order, {1: 'o-1'})",
        rule="call",
        at="{1:",
        says=("arguments of the tool 'find_order' are given by name, `name=value`, not {1: 'o-1'} (dict)",),
    ),
    "a compensated tool by its name": Wrong(
        old=CHARGE,
        new=CHARGE.replace("charge,", '"charge",'),
        rule="call",
        at='"charge"',
        says=("by a string", "give the function: `ctx.tool(charge, ...)`"),
    ),
    "a tool called directly": Wrong(
        old=FIND,
        new="order = await find_order(wish.order_id)",
        rule="tool",
        at="await find_order",
        says=("calls the tool 'find_order' itself", "await ctx.tool('find_order', ...)"),
    ),
    "an agent's tool that nobody registers": Wrong(
        new=(
            "\nfrom refold.agent import Agent\n\n"
            'Clerk = Agent("clerk", tools=["weather"], gates="none")\nClerkWorkflow = workflow_for(Clerk)\n'
        ),
        rule="worker",
        at="Clerk = Agent",
        says=("skill 'clerk'", "the tool 'weather', which is not registered"),
    ),
    "a prompt in place of a call's name": Wrong(
        old=ADVICE,
        new=ADVICE.replace('"advice", ', ""),
        rule="call",
        at='ctx.llm("Is it worth it?"',
        says=("asks a model nothing", "`ctx.llm(id, prompt, input)`"),
    ),
    # Steps.
    "a call that is not awaited": Wrong(
        old=ADVICE,
        new=ADVICE.replace("await ", ""),
        rule="not-awaited",
        at="advice = ctx.llm",
        says=("never awaits `ctx.llm('advice', ...)`", "write `await ctx.llm(...)`"),
    ),
    "a step that is not async": Wrong(
        old="async def look(self, ctx: Ctx, wish: Wish) -> Transition:\n        order = await ctx.tool(",
        new="def look(self, ctx: Ctx, wish: Wish) -> Transition:\n        order = ctx.tool(",
        also=("order=order, asked=0", "order=order.order_id, asked=0"),
        rule="not-awaited",
        at="order = ctx.tool",
        says=("write `await ctx.tool(...)`, and make it `async def look`",),
    ),
    "a text returned": Wrong(
        old="return ctx.complete(paid)",
        new='return f"paid {paid}"',
        rule="return",
        at='return f"paid',
        says=("Buy.pay returns", "return a transition"),
    ),
    "an ending that is not returned": Wrong(
        old="return ctx.complete(paid)",
        new="ctx.complete(paid)",
        rule="return",
        at=PAY,
        says=("Buy.pay returns nothing", "return a transition"),
    ),
    "a message taken for a text": Wrong(
        old='return ctx.goto("judge", order=order, asked=asked + 1)',
        new='return ctx.goto("judge", order=order, asked=0 if content == "again" else asked + 1)',
        rule="result",
        at='content == "again"',
        says=("tests a `Content`, which equals no text", "write `content.text`"),
    ),
    "a misspelt step": Wrong(
        old='ctx.goto("gate", order=order)',
        new='ctx.goto("gaet", order=order)',
        rule="definition",
        at='ctx.goto("gaet"',
        says=("step 'judge' goes to 'gaet', which does not exist", "look, judge, told, gate, pay"),
    ),
    "a misspelt step in a constant": Wrong(
        old='ctx.goto("gate", order=order)',
        new="ctx.goto(NEXT, order=order)",
        also=("class Wish", 'NEXT = "gaet"\n\n\nclass Wish'),
        rule="goto",
        at="ctx.goto(NEXT",
        says=("Buy.judge goes to 'gaet', which does not exist", "look, judge, told, gate, pay"),
    ),
    "a misspelt parameter": Wrong(
        old=GOTO,
        new=GOTO.replace("asked", "askd"),
        rule="definition",
        at="askd=0",
        says=("goes to 'judge' with askd, which step 'judge' does not take; it takes: order, asked",),
    ),
    "a misspelt parameter of a step in a constant": Wrong(
        old=GOTO,
        new=GOTO.replace("asked", "askd").replace('"judge"', "NEXT"),
        also=("class Wish", 'NEXT = "judge"\n\n\nclass Wish'),
        rule="goto",
        at="askd=0",
        says=("hands 'askd' on, and step 'judge' has no such parameter", "did you mean 'asked'?"),
    ),
    "a missing parameter": Wrong(
        old=GOTO,
        new=GOTO.replace(", asked=0", ""),
        rule="definition",
        at='ctx.goto("judge", order=order)',
        says=("goes to 'judge' without asked: int, which step 'judge' needs",),
    ),
    "a missing parameter of a step in a constant": Wrong(
        old=GOTO,
        new=GOTO.replace(", asked=0", "").replace('"judge"', "NEXT"),
        also=("class Wish", 'NEXT = "judge"\n\n\nclass Wish'),
        rule="goto",
        at="ctx.goto(NEXT, order=order)",
        says=("does not give step 'judge' its asked: int", "`ctx.goto(..., asked=...)`"),
    ),
    "a literal of another type": Wrong(
        old=GOTO,
        new=GOTO.replace("asked=0", 'asked="never"'),
        rule="goto",
        at='asked="never"',
        says=("step 'judge' takes asked: int, but got 'never'",),
    ),
    "an answer's step that misses what was carried": Wrong(
        old=DOUBT,
        new=DOUBT.replace(", asked=asked", ""),
        rule="definition",
        at="ctx.await_input(",
        says=("without asked: int, which step 'told' needs",),
    ),
    "an answer's step that misses what was carried, and a slot in a constant": Wrong(
        old=DOUBT,
        new=DOUBT.replace(", asked=asked", "").replace('"doubt"', "SLOT"),
        also=("class Wish", 'SLOT = "doubt"\n\n\nclass Wish'),
        rule="goto",
        at="ctx.await_input(",
        says=("does not give step 'told' its asked: int", "`ctx.await_input(..., asked=...)`"),
    ),
    "a decision's step that wants a message": Wrong(
        old=PAY,
        new=PAY.replace("order: Order", "content: Content, order: Order"),
        rule="definition",
        at="ctx.await_approval(",
        says=("which a decision answers, and step 'pay' needs content: Content", "take `decision: DecisionMade` there"),
    ),
    "a decision's step that wants a message, and a slot that is made": Wrong(
        old=PAY,
        new=PAY.replace("order: Order", "content: Content, order: Order"),
        also=('await_approval("buy"', 'await_approval("buy".strip()'),
        rule="goto",
        at="ctx.await_approval(",
        says=("step 'pay' gets a decision, `DecisionMade`", "nothing fills its parameter content: Content"),
    ),
    "a question that no step meets": Wrong(
        old='@step(resume_from="gate")',
        new="@step",
        rule="goto",
        at="ctx.await_approval(",
        says=("no step says resume_from='gate'",),
    ),
    # Types, skills and gates.
    "a parameter that is a set": Wrong(
        old=PAY,
        new=PAY.replace("order: Order", "order: Order, tags: set[str]"),
        rule="definition",
        at="tags: set[str]",
        says=("parameter 'tags' cannot be saved as data", "a set, which has no order: use a list"),
    ),
    "a state that holds a set": Wrong(
        file=LETTER,
        old="    about: str",
        new="    about: set[str]",
        rule="definition",
        at="class Letter:",
        says=("its state", "a set, which has no order: use a list"),
    ),
    "a parameter that cannot be saved": Wrong(
        old=PAY,
        new=PAY.replace("order: Order", "order: Order, cart: Cart"),
        also=("class Wish", "class Cart: ...\n\n\nclass Wish"),
        rule="definition",
        at="cart: Cart",
        says=("parameter 'cart' cannot be saved as data", "use a BaseModel"),
    ),
    "a type by a wrong name": Wrong(
        old="expect=Advice",
        new='expect="workflows.buy:Advise"',
        rule="expect",
        at="workflows.buy:Advise",
        says=("module 'workflows.buy' has no 'Advise'", "`expect=Advise`"),
    ),
    "a type by half a name": Wrong(
        old="expect=Advice",
        new='expect="Advice"',
        rule="expect",
        at='expect="Advice"',
        says=("expect='Advice' names no type", "`module:Name`"),
    ),
    "a reply that cannot be checked": Wrong(
        old=DOUBT,
        new=DOUBT.replace("order=order", "expect=list[int], order=order"),
        rule="expect",
        at="expect=list[int]",
        says=("expect=list[int] is not a class at module level", "name one"),
    ),
    "a dict that is no schema": Wrong(
        old="expect=Advice",
        new='expect={"text": "string"}',
        rule="expect",
        at='expect={"text"',
        says=("is no JSON schema", "'text'"),
    ),
    "a model without its provider": Wrong(
        old=ADVICE,
        new='advice = await ctx.llm("advice", "Is it worth it?", expect=Advice, model=["openai:gpt-5", "gpt-5"])',
        rule="call",
        at="ctx.llm",
        says=("names the model 'gpt-5', which has no provider", "write provider:model"),
    ),
    "a model of a conversation without its provider": Wrong(
        old=ADVICE,
        new='advice = await ctx.chat("advice", "Is it worth it?", model="gpt-5")',
        rule="call",
        at="ctx.chat",
        says=("names the model 'gpt-5', which has no provider", "write provider:model"),
    ),
    "a misspelt child skill": Wrong(
        old=CHILD,
        new=CHILD.replace('"letter", "letter"', '"letter", "leter"'),
        rule="call",
        at='"leter"',
        says=("asks for the skill 'leter'", "did you mean 'letter'?"),
    ),
    "more grants than approvers": Wrong(
        old=POLICY,
        new=POLICY.replace("needed=2", "needed=3"),
        rule="gate",
        at="needed=3",
        says=("needed=3 grants, but only 2 may decide",),
    ),
    "one approver in two spellings": Wrong(
        old=POLICY,
        new=POLICY.replace('"Bob"', '"Ann "'),
        rule="gate",
        at="GatePolicy",
        says=("nobody can pass", "needs 2 grants, but its approvers are 1 people"),
    ),
    "a gate without time": Wrong(
        old=POLICY,
        new=POLICY.replace("needed=2", "timeout_s=0"),
        rule="gate",
        at="timeout_s=0",
        says=("nobody can pass", "None to wait for ever"),
    ),
    "a misspelt field of a policy": Wrong(
        old=POLICY,
        new=POLICY.replace("needed=2", "timeout=60"),
        rule="gate",
        at="timeout=60",
        says=("timeout: Extra inputs are not permitted", "timeout_s"),
    ),
    "a retry policy that cannot be": Wrong(
        old=CHARGE,
        new=CHARGE.replace("cents=order.cents)", 'cents=order.cents, retry=RetryPolicy(on_unknown="give up"))'),
        also=(IMPORTED, IMPORTED.replace("GatePolicy", "GatePolicy, RetryPolicy")),
        rule="call",
        at="give up",
        says=("makes a policy that cannot be", "on_unknown", "'ask', 'fail' or 'repeat'"),
    ),
    "an effect without a probe that is to be repeated without end": Wrong(
        old=CHARGE,
        new=CHARGE.replace("cents=order.cents)", "cents=order.cents, retry=STUBBORN)"),
        also=(IMPORTED, IMPORTED.replace("GatePolicy", "GatePolicy, RetryPolicy") + STUBBORN),
        rule="call",
        at="retry=STUBBORN",
        says=("on_unknown='repeat' for the tool 'charge'", "give the tool a `probe=`, or say 'ask' or 'fail'"),
    ),
    "a profile that there is not": Wrong(
        old=WORKFLOW,
        new='BuyWorkflow = workflow_for(Buy, recovery="quick")',
        rule="definition",
        at="workflow_for(Buy",
        says=("recovery='quick' is no profile", "'default' or 'fast-recovery'"),
    ),
    "a reducer without a first state": Wrong(
        file=LETTER,
        old="    @staticmethod\n    def initial() -> Waiting:\n        return Waiting()\n",
        new="",
        rule="definition",
        at="class Letter:",
        says=("it needs `initial()`",),
    ),
    "a reducer that returns its state": Wrong(
        file=LETTER,
        old="return Transition.complete().message(str(text))",
        new="return Waiting()",
        rule="return",
        at="return Waiting()",
        says=("returns a `Waiting`", "Transition.to(...)"),
    ),
}


def write(folder: Path, wrong: Wrong) -> None:
    file = folder / wrong.file
    text = file.read_text()
    for old, new in ((wrong.old, wrong.new), wrong.also):
        assert old in text
        text = text.replace(old, new, 1) if old else text + new
    file.write_text(text)
    for name, content in wrong.more.items():
        (folder / name).write_text(content)


def test_the_right_application_has_no_finding(checked: Check) -> None:
    """
    What the edits start from is right, as a whole and file by file.
    """
    assert checked().found == []
    for file in (BUY, LETTER, SHOP, TOOLS):
        assert checked(f"./{file}") == checked()


def test_every_option_of_a_call_is_no_argument_of_its_tool(folder: Path, checked: Check) -> None:
    """
    Whatever `ctx.tool` takes beside the tool's own arguments is taken as an option here too.
    """
    options = 'id="paying", key=order.order_id, key_scope="all", retry=None, queue=None'
    file = folder / BUY
    file.write_text(file.read_text().replace(CHARGE, f"{CHARGE[:-1]}, {options})"))

    assert checked().found == []


def test_a_dict_that_cannot_be_made_is_not_made(folder: Path, checked: Check) -> None:
    """
    A key that cannot be hashed fails when the task runs; the check goes on.
    """
    file = folder / BUY
    file.write_text(file.read_text().replace(FIND, "order = await ctx.tool(find_order, {'order_id': {[1]: 2}})"))

    assert checked() == Checked(0, [])


ITEMS = """import os
from enum import Enum


class Kind(Enum):
    LETTER = "letter"


class Odd:
    def __getitem__(self, key: int) -> str:
        raise RuntimeError("only a task runs this code")

    __or__ = __getitem__


ODD, KINDS, TWO = Odd(), {"letter": Kind}, (Kind, Kind)
"""


@pytest.mark.parametrize(
    ("skill", "found"),
    [
        ('os.environ["SHOP_SKILL_THAT_NOBODY_SET"]', ["io"]),
        ('os.environ["HOME"]', ["io"]),
        ('KINDS["invoice"]', []),
        ('Kind["INVOICE"]', []),
        ("TWO[2]", []),
        ("ODD[0]", []),
        ("ODD | 0", []),
    ],
)
def test_an_item_that_only_a_task_knows_is_not_looked_up(
    skill: str, found: list[str], folder: Path, checked: Check
) -> None:
    """
    A key may be there only when the task runs, and an object's own code may look it up. A step that reads the
    environment is a finding, whether or not this machine sets the variable.
    """
    write(folder, Wrong(old=IMPORTED, new=f"{IMPORTED}\n{ITEMS}", rule="", says=()))
    write(folder, Wrong(old=CHILD, new=CHILD.replace('"letter", "letter"', f'"letter", {skill}'), rule="", says=()))

    done = checked()

    assert (done.exit, [one["rule"] for one in done.found]) == (len(found), found)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_each_mistake_is_found_alone_and_where_it_is(wrong: Wrong, folder: Path, checked: Check) -> None:
    """
    One finding, at the line of the mistake, that says what is wrong and what to write instead; exit code 1.
    """
    write(folder, wrong)

    done = checked()

    assert done.exit == 1
    (one,) = done.found
    file, line = folder / str(one["file"]), int(str(one["line"]))
    assert (one["rule"], str(one["file"])) == (wrong.rule, wrong.found_in or wrong.file)
    assert wrong.at in file.read_text().splitlines()[line - 1]
    assert [words for words in wrong.says if words not in str(one["message"])] == []
    assert "\n" not in str(one["message"])


def test_every_rule_of_how_things_fit_together_has_a_wrong_application() -> None:
    """
    The rules about single calls have tests of their own.
    """
    pure = {"clock", "random", "concurrency", "shared", "await"}

    assert {wrong.rule for wrong in WRONG.values()} == set(RULES) - pure


def test_a_server_named_badly_is_found_in_its_file(folder: Path, checked: Check) -> None:
    """
    What a worker refuses of a file of MCP servers is found at the server's line.
    """
    (folder / "mcp.json").write_text('{"mcpServers": {\n  "my shop": {"command": "shop-mcp"}\n}}')

    (found,) = checked("--mcp", "mcp.json").found

    assert (found["file"], found["line"], found["rule"]) == ("mcp.json", 2, "worker")
    assert "MCP server 'my shop': name: String should match pattern" in str(found["message"])


def test_a_tool_of_a_server_that_is_not_there_is_found(folder: Path, checked: Check) -> None:
    """
    Where the servers are named, a skill names one of them.
    """
    (folder / "mcp.json").write_text('{"mcpServers": {"shop": {"command": "shop-mcp"}}}')
    write(folder, Wrong(old=FIND, new='order = await ctx.tool("shp.find", id=1)', rule="call", says=()))

    (found,) = checked("--mcp", "mcp.json").found

    assert "there is no MCP server 'shp': did you mean 'shop'?" in str(found["message"])


def test_a_module_that_fails_is_a_finding_once(folder: Path, checked: Check) -> None:
    """
    Whoever imports a module that fails is right, where that module is looked at itself; else the import is the place.
    """
    (folder / "rates.py").write_text("RATE = 1 / 0\n")
    shop = Wrong(
        file=SHOP, old="from refold import tool", new="import rates\nfrom refold import tool", rule="", says=()
    )
    write(folder, shop)

    (found,) = checked().found

    assert (found["file"], found["rule"]) == (SHOP, "import")
    assert "it imports rates.py, which cannot be imported: ZeroDivisionError" in str(found["message"])


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        (SHOP, '(effect="read_only")', "()", (SHOP, 15, "definition")),
        (SHOP, '"read_only"', '"reads"', (SHOP, 15, "definition")),
        (SHOP, '@tool(effect="read_only")', "import activities.mail\n\n@tool()", (SHOP, 17, "import")),
        (SHOP, "import BaseModel", "import BaseModle", (SHOP, 3, "import")),
        (SHOP, "class Order(BaseModel):", "class Order(BaseModel)", (SHOP, 8, "syntax")),
        (TOOLS, "TOOLS = [", "TOOLS = [rfund, ", (TOOLS, 5, "import")),
        (TOOLS, "TOOLS = [", "TOOLS = [, ", (TOOLS, 5, "syntax")),
    ],
)
def test_a_module_that_its_package_imports_is_found_wrong_once(
    file: str, old: str, new: str, found: tuple[str, int, str], folder: Path, checked: Check
) -> None:
    """
    A mistake that stops the import of a package's `__init__.py`, in that file or in a module that it imports, is one
    finding at the mistake: the package's other modules, which Python then cannot import either, have none.
    """
    (folder / "activities" / "mail.py").write_text('"""Nothing is wrong here."""\n')
    write(folder, Wrong(file=file, old=old, new=new, rule="", says=()))

    all_files = checked()

    assert [(one["file"], one["line"], one["rule"]) for one in all_files.found] == [found]
    assert all_files.exit == 1


def test_a_file_checked_alone_needs_the_others_for_its_references(folder: Path, checked: Check) -> None:
    """
    A misspelt tool in a file that is checked alone is found by what the application's other files define. Where one of
    these cannot be imported, that is the finding, at its own line: exit code 0 would say that the tool is there.
    """
    write(folder, Wrong(old=FIND, new=FIND.replace("find_order", '"fnd_order"'), rule="", says=()))
    misspelt = checked(BUY)

    (folder / "activities" / "rates.py").write_text("RATE = 1\nimport a_module_that_is_not_there\n")
    unknown = checked(BUY)

    assert [(one["file"], one["rule"]) for one in misspelt.found] == [(BUY, "call")]
    assert [(one["file"], one["line"], one["rule"]) for one in unknown.found] == [("activities/rates.py", 2, "import")]
    assert unknown.exit == 1


@pytest.mark.parametrize("named", [(), ("workflows/one.py",)])
def test_modules_that_import_each_other_are_found(named: tuple[str, ...], folder: Path, checked: Check) -> None:
    """
    Python says of each that the other one cannot be imported; `refold check` says it of both.
    """
    for own, other in (("one", "two"), ("two", "one")):
        text = f"from workflows.{other} import {other.upper()}\n\n{own.upper()} = 1\n"
        (folder / "workflows" / f"{own}.py").write_text(text)

    done = checked(*named)

    assert done.exit == 1
    assert {(one["file"], one["line"], one["rule"]) for one in done.found} >= {("workflows/one.py", 1, "import")}
    assert "circular import" in str(done.found[0]["message"])


def test_a_wrong_call_is_neither_right_nor_wrong(folder: Path, checked: Check) -> None:
    """
    What is not there exits 2.
    """
    assert checked("nope").exit == 2
    assert checked("--mcp", "nope.json").exit == 2


@pytest.mark.parametrize("called", ["workflows", "rates"])
def test_a_package_that_comes_before_a_folder_is_named(
    empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    """
    Python takes any package before a folder without `__init__.py`, wherever they stand. `refold check` and the verbs
    that import the application say which file it took, and what to add.
    """
    monkeypatch.syspath_prepend(other := tmp_path / "other")
    (other / called).mkdir(parents=True)
    (other / called / "__init__.py").touch()
    for module, text in {"workflows/buy.py": "import rates.day\n", "rates/day.py": ""}.items():
        (empty / module).parent.mkdir(exist_ok=True)
        (empty / module).write_text(text)
        if not module.startswith(called):
            (empty / module).with_name("__init__.py").touch()
    says = f"; {other}/{called}/__init__.py comes before the folder {called}: add an empty {called}/__init__.py"

    found = check("workflows")
    stopped = CliRunner().invoke(app, ["graph", "buy"])
    (empty / called / "__init__.py").touch()
    for name in ("workflows", "rates"):
        sys.modules.pop(name, None)

    assert [str(one["message"]).endswith(says) for one in found.found] == [True]
    assert says in stopped.stderr
    assert check("workflows").found == []
