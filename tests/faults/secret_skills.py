"""A task that sends one word every way that a word can go, for the tests of encryption."""

from __future__ import annotations

from refold import CommandError, Content, Ctx, Transition, flow_skill, step, tool
from refold.effects import Never
from refold.temporal import workflow_for

MANY = 10_000


@tool(effect="at_most_once")
async def charge(word: str) -> str:
    """Leaves a receipt."""
    return f"charged for {word}"


@tool(effect="idempotent")
async def repeat(word: str) -> str:
    """Returns a large value."""
    return word * MANY


@tool(effect="idempotent")
async def refuse(word: str) -> None:
    """Quotes the word in a failure."""
    raise Never(f"cannot help with {word}")


@tool(effect="at_most_once")
async def lose(word: str) -> None:
    """Quotes the word on a receipt: nobody knows whether it took place."""
    raise RuntimeError(f"no answer about {word}")


@flow_skill(id="confidant")
class Confidant:
    """The part that is told."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        answer = await ctx.ask("part", f"What of {content.text}?")
        return ctx.complete(answer.text)


@flow_skill(id="discreet")
class Discreet:
    """Says the word to a model, to tools, to a part and to people, and ends with it."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        word = content.text
        await ctx.llm("say", prompt=word)
        await ctx.tool(charge, word=word, key=f"charge:{word}")
        await ctx.tool(repeat, word=word)
        try:
            await ctx.tool(refuse, word=word)
        except CommandError as error:
            ctx.say(str(error))
        await ctx.approve("gate", f"Go on with {word}?", show={"word": word})
        await ctx.skill("part", Confidant, word)
        answer = await ctx.ask("more", f"More of {word}?")
        return ctx.complete(f"{word} and {answer.text}")


@flow_skill(id="stuck")
class Stuck:
    """Blocks, since the outcome of an effect is not known."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(lose, word=content.text)
        return ctx.complete("never")


@flow_skill(id="gives_up")
class GivesUp:
    """Fails, with the word as the reason."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.fail(f"nothing to do about {content.text}")


ConfidantWorkflow = workflow_for(Confidant)
DiscreetWorkflow = workflow_for(Discreet)
GivesUpWorkflow = workflow_for(GivesUp)
StuckWorkflow = workflow_for(Stuck)
