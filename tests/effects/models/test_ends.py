"""How an answer's end is read: what the provider broke off, cut or has not made yet is no answer."""

from __future__ import annotations

import json

import pytest
from temporalio.exceptions import ApplicationError

from refold.core.authoring.cmd import Cmd
from refold.core.retry_policy import FailureKind
from tests.effects.conftest import Bench, failure_in
from tests.services.openai_server import OpenAIServer, Trouble

MODEL = "openai:gpt-test"


def ending(reason: str, stream: bool, said: str = "The answer is pa") -> Trouble:
    """An answer that ends for this reason."""
    message = {"role": "assistant", "content": said}
    choice = {"index": 0, "delta" if stream else "message": message, "finish_reason": reason}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
    answer = json.dumps(
        {"id": "1", "object": kind, "created": 1, "model": "gpt-test", "choices": [choice], "usage": usage}
    )
    return Trouble(text=f"data: {answer}\n\ndata: [DONE]\n\n" if stream else answer)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "kind", "type"),
    [
        pytest.param("insufficient_system_resource", FailureKind.TRANSIENT, "stream_broken", id="DeepSeek"),
        pytest.param("abort", FailureKind.TRANSIENT, "stream_broken", id="vLLM"),
        pytest.param("error", FailureKind.TRANSIENT, "stream_broken", id="gateways"),
        pytest.param("OTHER", FailureKind.TRANSIENT, "stream_broken", id="Google"),
        pytest.param("queued", FailureKind.TRANSIENT, "stream_broken", id="OpenAI, before it has begun"),
        pytest.param("network_error", FailureKind.TRANSIENT, "stream_broken", id="Zhipu"),
        pytest.param("MAX_TOKENS", FailureKind.PERMANENT, "length", id="a limit"),
        pytest.param("model_context_window_exceeded", FailureKind.PERMANENT, "context_window", id="Anthropic"),
        pytest.param("guardrail_intervened", FailureKind.PERMANENT, "content_filter", id="a filter"),
    ],
)
async def test_an_answer_that_the_provider_broke_off_is_no_answer(
    bench: Bench, openai: OpenAIServer, reason: str, kind: FailureKind, type: str, stream: bool
) -> None:
    """
    Also if its reason is one that OpenAI does not have; it was paid for.
    """
    openai.say(ending(reason, stream))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), stream)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (kind, type)
    assert isinstance(failure.details, dict)
    assert failure.details["usage"] == {"input_tokens": 5, "output_tokens": 9}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", ["eos", "end_turn", "stop_sequence", "COMPLETE", "unknown"])
async def test_other_words_for_a_whole_answer(bench: Bench, openai: OpenAIServer, reason: str, stream: bool) -> None:
    """
    Servers have many of them.
    """
    openai.say(ending(reason, stream, "Paid."))

    assert (await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), stream)).value == "Paid."
