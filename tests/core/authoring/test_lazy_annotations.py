"""Annotations of Python 3.14: code that runs when it is asked for. So this module has no `from __future__`."""

import sys
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from refold import Ctx, DefinitionError, Transition, flow_skill, step, tool
from refold.core.authoring.define import skill_of

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14, Python itself refuses them")


def test_a_tool_and_a_step_may_name_what_is_defined_further_down() -> None:
    """
    As they may with quotation marks.
    """

    @tool(effect="read_only")
    async def weigh(parcel: Parcel) -> int:
        return parcel.grams

    @flow_skill(id="lazy")
    class Lazy:
        @step(start=True)
        async def begin(self, ctx: Ctx) -> Transition:
            return ctx.complete(str(await ctx.tool(weigh, parcel=Parcel(grams=3))))

    assert skill_of(Lazy).options.card.id == "lazy"


def test_a_name_that_only_type_checkers_know_is_told() -> None:
    """
    In a sentence, as for quoted ones.
    """
    with pytest.raises(DefinitionError, match="its annotations cannot be read: name 'Decimal' is not defined"):

        @flow_skill(id="unread")
        class Unread:
            @step(start=True)
            async def begin(self, ctx: Ctx, price: Decimal) -> Transition:
                return ctx.complete("")


class Parcel(BaseModel):
    """Defined after those that name it."""

    grams: int
