"""The body of POST /v1/completions."""

from typing import Any

from ortloom.server.openai.wire_common import GenerationRequest


class CompletionRequest(GenerationRequest, kw_only=True):
    """Fields on top of the shared ones. `prompt` has four forms, told apart in `prompts`."""

    prompt: Any = None
    prompt_embeds: Any = None
    suffix: str | None = None
    logprobs: int | None = None
