"""A skill that shops at an MCP server."""

from __future__ import annotations

from refold import CommandError, Content, Ctx, Transition, flow_skill, step
from refold.temporal import workflow_for


@flow_skill(id="shopper")
class Shopper:
    """Buys the first thing it finds."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        """Look for it, buy it as it was found, and try to sell it again."""
        tools = {tool["name"]: tool for tool in await ctx.tool("shop.tools/list")}
        found = await ctx.tool(_pinned(tools["shop.search"]), words=content.text, id="search")
        bought = await ctx.tool(_pinned(tools["shop.buy"]), sku=found[0]["sku"], id="buy")
        try:
            await ctx.tool("shop.sell")
        except CommandError as error:
            return ctx.complete(f"{bought}; {'no tool' if 'no tool' in str(error) else error} 'sell' there")
        return ctx.fail("sold what cannot be sold")


def _pinned(tool: dict[str, str]) -> str:
    return f"{tool['name']}@{tool['pin']}"


ShopperWorkflow = workflow_for(Shopper)
