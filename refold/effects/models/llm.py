"""One model call outside a conversation: `CallLlm` in, `LlmOutcome` out."""

from __future__ import annotations

from pydantic_ai.messages import ModelRequest, UserPromptPart

from refold.conversation import LlmOutcome
from refold.core.commands import CallLlm
from refold.core.content import Content
from refold.core.values import encodable
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict
from refold.effects.models.content.files import ATTACHMENT, files_in
from refold.effects.models.content.messages import complaint_of, user_content
from refold.effects.models.output import Misfit, expected
from refold.effects.models.request import ModelRequests, Show
from refold.effects.models.resolve import Models


async def ask(command: CallLlm, models: Models, *, key: str, show: Show | None = None) -> LlmOutcome:
    """Make the call.

    If the answer does not fit `expect`, the model is asked once more and told what was wrong; a second misfit is final.

    Args:
        command: The model call.
        models: The worker's models.
        key: See `ModelRequests`.
        show: See `ModelRequests`.

    Raises:
        Verdict: The model cannot be used, or its answer does not fit.
        Exception: Whatever the provider's client raises; `classify` knows it.
    """
    name, model = await models.get(command.model)
    asked = ModelRequests(name, model, command.settings, key=key, show=show)
    if command.expect is None:
        response = await asked.ask(_messages(command))
        if not response.text and files_in(response):
            said = f"model {name!r} answered with a file; call it by `ctx.chat`, whose reply has files"
            raise Verdict(permanent(ATTACHMENT, said))
        return LlmOutcome(value=encodable(response.text or ""), model=asked.called, usage=asked.usage)
    want = expected(command.expect, command.settings)
    try:
        answer = want.read(await asked.ask(_messages(command), want.parameters()))
    except Misfit as misfit:
        try:
            answer = want.read(await asked.ask(_messages(command, misfit), want.parameters()))
        except Misfit as again:
            raise asked.misfit(again) from None
    return LlmOutcome(value=answer, model=asked.called, usage=asked.usage)


def _messages(command: CallLlm, misfit: Misfit | None = None) -> list[ModelRequest]:
    """The prompt as instructions and the input as the user's message; without input, the prompt is that message."""
    said = user_content(Content.from_text(command.prompt) if command.input is None else command.input)
    parts = [UserPromptPart(said), *([complaint_of(misfit)] if misfit is not None else [])]
    instructions = command.prompt if command.input is not None and command.prompt else None
    return [ModelRequest(parts=parts, instructions=instructions)]
