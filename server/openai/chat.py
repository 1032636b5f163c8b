"""POST /v1/chat/completions: body to job, and the job's samples to a reply or a stream."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.server.context import FrontContext
from ortloom.server.metrics import RequestType
from ortloom.server.openai.chat_chunks import ChatChunks
from ortloom.server.openai.chat_prompt import ChatPrompt, chat_prompt, template_variables
from ortloom.server.openai.detail import mask_member
from ortloom.server.openai.generation import GenerationJob, generate
from ortloom.server.openai.logprobs import ChatLogprobs, TokenNames, prompt_logprobs
from ortloom.server.openai.messages import text_of
from ortloom.server.openai.off_loop import built, entry_count
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.openai.output_plan import output_plan, planned_params
from ortloom.server.openai.reply import ReplyHead, json_response
from ortloom.server.openai.sample import Sample
from ortloom.server.openai.sampling import sampling_params
from ortloom.server.openai.shortcut import EventSink
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced
from ortloom.server.openai.thinking import ReasoningCounter, thinking_budget, thinking_of
from ortloom.server.openai.to_engine import (
    check_model,
    make_job,
    output_limit,
    prompt_job,
    response_id,
    sampling_context,
)
from ortloom.server.openai.tool_choice import ToolUse, tool_use
from ortloom.server.openai.usage import UsageCounter
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.sse import SseWriter


@dataclass(slots=True)
class Chat:
    """One chat request on its way.

    Attributes:
        role: of the reply.
        echo: text the reply begins with; empty unless echo was asked for.
        logprobs: builds logprobs, None = not asked for.
        output: how the samples' text is taken apart.
        reasoning: counts reasoning tokens, None = nothing is reasoning.
    """

    body: ChatCompletionRequest
    front: FrontContext
    job: GenerationJob
    prompt: ChatPrompt
    usage: UsageCounter
    role: str
    echo: str
    logprobs: ChatLogprobs | None
    output: OutputPlan
    reasoning: ReasoningCounter | None

    def head(self, kind: str) -> ReplyHead:
        """First members of a reply or chunk."""
        return ReplyHead(self.job.response_id, kind, self.front)

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """The prompt's ids if they were asked for."""
        return self.job.prompts[0].token_ids if self.body.return_token_ids else None

    @property
    def prompt_text(self) -> str | None:
        """The rendered prompt if it was asked for."""
        return self.prompt.text if self.body.return_prompt_text else None


async def prepare(
    body: ChatCompletionRequest,
    fields: TemplateFields,
    request: Request,
    front: FrontContext,
    request_type: RequestType = "chat_completions",
) -> Chat:
    """Check a body and make its job.

    Args:
        body: sampling and reply fields.
        fields: what the chat template sees, from the same body.
        request: for its headers.
        front: the front's objects.
        request_type: whose reply it is, for the metrics.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(body.model, front)
    if body.return_assistant_tokens_mask:
        raise UnsupportedParameter(
            "return_assistant_tokens_mask is not supported.", "return_assistant_tokens_mask"
        )
    use = _tool_use(body, fields, front)
    context = sampling_context(front)
    top = _top_logprobs(body)
    params = sampling_params(body, context, top, body.prompt_logprobs)
    requested = body.max_completion_tokens
    requested = body.max_tokens if requested is None else requested
    limit = output_limit(requested, None, front)
    whole = body.truncate_prompt_tokens is None
    prompt = await chat_prompt(fields, bool(body.add_special_tokens), front, limited=whole)
    output = output_plan(
        use,
        front,
        request_type,
        parallel=body.parallel_tool_calls is not False,
        include_reasoning=body.include_reasoning is not False,
        template_kwargs=template_variables(fields, front),
        prompt=prompt.text,
    )
    budget = thinking_budget(body, fields.reasoning_effort, front)
    params = planned_params(params, output, front, budget)
    only = prompt_job(prompt.token_ids, prompt.text, body, limit, params, context)
    response = response_id("chatcmpl", request, body.request_id)
    job = make_job(response, [only], params, body, request, front)
    role = _role(fields, front)
    reasoning = None
    if output.reasoning_parser is not None:
        thinking = params.thinking or thinking_of(front, output, None, constrained=False)
        reasoning = ReasoningCounter(output, thinking, front.tokenizer, job.n)
    return Chat(
        body=body,
        front=front,
        job=job,
        prompt=prompt,
        usage=UsageCounter(job, front.config.front.enable_prompt_tokens_details, reasoning),
        reasoning=reasoning,
        role=role,
        echo=_echo(body, fields, role),
        logprobs=None if top is None else _logprobs(body, top, front),
        output=output,
    )


def _tool_use(body: ChatCompletionRequest, fields: TemplateFields, front: FrontContext) -> ToolUse:
    """What the request wants of its tools; may take them out of the template's sight."""
    use = tool_use(body.tool_choice, fields.tools, front.parsers)
    if use.mode == "named" and body.structured_outputs is not None:
        raise InvalidRequest(
            "structured_outputs and a tool_choice that names a function cannot both constrain the "
            "output.",
            "structured_outputs",
        )
    if use.hidden and front.config.front.exclude_tools_when_tool_choice_none:
        fields.tools = None
    return use


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    """Logprobs to ask the engine for; None = off."""
    top = body.top_logprobs
    if top is not None and (top < -1 or (top != 0 and not body.logprobs)):
        rule = "needs logprobs=true" if top >= -1 else "must be -1 or at least 0"
        raise InvalidRequest(f"top_logprobs {rule}.", "top_logprobs")
    return (top or 0) if body.logprobs or body.logprobs_detail else None


def _logprobs(body: ChatCompletionRequest, top: int, front: FrontContext) -> ChatLogprobs:
    asked = body.return_tokens_as_token_ids
    as_ids = front.config.front.return_tokens_as_token_ids if asked is None else asked
    names = TokenNames(front.tokenizer, as_ids)
    return ChatLogprobs(names, top, keep_all=body.logprob_token_ids is not None)


def _role(fields: TemplateFields, front: FrontContext) -> str:
    """The responder's role, or that of the message that is continued."""
    if fields.add_generation_prompt is False and fields.messages:
        return fields.messages[-1].role
    return front.config.front.response_role


def _echo(body: ChatCompletionRequest, fields: TemplateFields, role: str) -> str:
    if not body.echo or not fields.messages or fields.messages[-1].role != role:
        return ""
    return text_of(fields.messages[-1])


async def answer(chat: Chat) -> HTTPResponse:
    """The whole reply."""
    samples = [Sample(i) for i in range(chat.job.n)]
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            samples[piece.index].add(piece)
            chat.usage.add(piece)  # piece by piece: where reasoning ends may be told by text alone
    head = chat.head("chat.completion")
    scored = samples[0].prompt_logprobs
    choices = [await built(entry_count(s.logprobs), _choice, chat, s) for s in samples]
    listed = None
    if scored is not None:
        listed = await built(entry_count(scored), prompt_logprobs, scored, front.tokenizer)
    body = {
        **head.members,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": head.fingerprint,
        "usage": chat.usage.whole(),
        "prompt_logprobs": listed,
        "prompt_token_ids": chat.prompt_token_ids,
        "prompt_text": chat.prompt_text,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": chat.job.metrics(),
    }
    return json_response(body)


def _choice(chat: Chat, sample: Sample) -> dict[str, Any]:
    whole = chat.output.whole("".join(sample.text))
    content = whole.content
    message: dict[str, Any] = {
        "role": chat.role,
        "content": chat.echo + (content or "") if chat.echo else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if whole.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in whole.calls
        ]
    message["reasoning"] = whole.reasoning
    hidden = 0  # leading tokens that are not shown
    if chat.reasoning is not None and not chat.output.include_reasoning:
        hidden = chat.reasoning.leading(sample.index)
    logprobs = chat.logprobs
    return {
        "index": sample.index,
        "message": message,
        "logprobs": None
        if logprobs is None
        else logprobs.build(sample.logprobs[hidden:], sample.details[hidden:]),
        "finish_reason": chat.output.finish_reason(sample.finish_reason, bool(whole.calls)),
        "stop_reason": sample.stop_reason,
        "token_ids": sample.token_ids[hidden:] if chat.body.return_token_ids else None,
        "routed_experts": None,
        **mask_member(chat.body, sample.masks[hidden:]),
    }


async def stream(chat: Chat, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    front = chat.front
    chunks = ChatChunks(chat)
    opening = chunks.opening()
    spacing = Spacing(interval_of(front, chat.body.stream_interval))
    sse = SseWriter(request)
    sink = EventSink(sse, spacing, chunks.of_piece)
    working = generate(chat.job, front.client, front.tokenizer, front.metrics, sink)
    pieces = spaced(working, spacing)
    async with sse, aclosing(pieces):
        async for piece in pieces:
            entries = entry_count(piece.logprobs)
            await sse.send(*opening, *await built(entries, chunks.of_piece, piece))
            opening = []
            sink.begin()
        if chunks.usage.last:
            await sse.send(chunks.last())
