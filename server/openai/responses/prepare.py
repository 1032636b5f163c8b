"""POST /v1/responses: a body to a `Call`, checked and ready to be generated."""

import time
import uuid
from dataclasses import dataclass

from sanic import Request

from ortloom.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ResponseRefused,
    SchemaViolation,
)
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.context import FrontContext
from ortloom.server.limits import convert_json
from ortloom.server.openai.chat_prompt import ChatPrompt, chat_prompt, template_variables
from ortloom.server.openai.generation import GenerationJob
from ortloom.server.openai.logprobs import ChatLogprobs, TokenNames
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.openai.output_plan import output_plan, planned_params
from ortloom.server.openai.responses.find import PREFIX, check_free, find_items, find_response
from ortloom.server.openai.responses.items import (
    MessageBuilder,
    continues_last,
    referred_items,
)
from ortloom.server.openai.responses.reply import ResponseObject
from ortloom.server.openai.responses.store import Conversation
from ortloom.server.openai.responses.tools import ToolSet, tool_set
from ortloom.server.openai.responses.wire import ResponsesRequest, generation_fields
from ortloom.server.openai.sampling import sampling_params
from ortloom.server.openai.structured import constraint_of
from ortloom.server.openai.thinking import ReasoningCounter, thinking_budget, thinking_of
from ortloom.server.openai.to_engine import (
    check_model,
    make_job,
    output_limit,
    prompt_job,
    sampling_context,
)
from ortloom.server.openai.tool_choice import ToolUse, tool_use
from ortloom.server.openai.wire_chat import ChatMessage, TemplateFields
from ortloom.server.openai.wire_common import JsonSchemaFormat, ResponseFormat
from ortloom.server.request_id import LONGEST_REQUEST_ID, given_request_id

_ITS_NAMES = {"max_tokens": "max_output_tokens", "messages": "input"}
"""Chat's fields by the names they have here."""


@dataclass(slots=True)
class Call:
    """One response on its way.

    Attributes:
        before: the conversation the request goes on with.
        messages: the same with the request's input, without instructions.
        continued: the output goes on with the last message.
        stored: it is kept in the store.
        logprobs: builds logprobs, None = not asked for.
        output: how the model's text is taken apart.
        reasoning: counts reasoning tokens, None = nothing is reasoning.
        response: makes the response object.
    """

    body: ResponsesRequest
    front: FrontContext
    job: GenerationJob
    prompt: ChatPrompt
    before: Conversation
    messages: list[ChatMessage]
    continued: bool
    stored: bool
    tools: ToolSet
    logprobs: ChatLogprobs | None
    output: OutputPlan
    reasoning: ReasoningCounter | None
    response: ResponseObject

    @property
    def id(self) -> str:
        """`resp_…`."""
        return self.job.response_id


async def prepare(body: ResponsesRequest, request: Request, front: FrontContext) -> Call:
    """Check a body and make its call.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(body.model, front)
    stored = _stored(body, front)
    if body.previous_input_messages and body.previous_response_id is not None:
        raise ResponseRefused(
            "previous_input_messages and previous_response_id cannot both be given.",
            "previous_response_id",
        )
    response_id = _response_id(request, body.request_id)
    if stored:
        await check_free(response_id, front)
    before = await _before(body, front)
    items = await find_items(referred_items(body.input), front)
    builder = MessageBuilder(before.messages, items.get)
    builder.add_input(body.input)
    continued = continues_last(body.input)
    tools = tool_set(body.tools, body.tool_choice)
    use = _tool_use(body, tools, front)
    fields = _template_fields(body, builder.messages, tools, continued)
    if use.hidden and front.config.front.exclude_tools_when_tool_choice_none:
        fields.tools = None
    generation = generation_fields(body)
    generation.response_format = _response_format(body)
    top = _top_logprobs(body, front)
    context = sampling_context(front)
    params = sampling_params(generation, context, top, None)
    limit = output_limit(body.max_output_tokens, None, front)
    try:
        prompt = await chat_prompt(fields, False, front, limited=body.truncation != "auto")
        output = output_plan(
            use,
            front,
            "responses",
            parallel=body.parallel_tool_calls is not False,
            include_reasoning=body.include_reasoning is not False,
            template_kwargs=template_variables(fields, front),
            prompt=prompt.text,
        )
        budget = thinking_budget(generation, fields.reasoning_effort, front)
        params = planned_params(params, output, front, budget)
        only = prompt_job(prompt.token_ids, prompt.text, generation, limit, params, context)
    except ContextLengthExceeded as error:
        raise ResponseRefused(str(error), "input") from None
    except InvalidRequest as error:
        if error.param in _ITS_NAMES:
            error.param = _ITS_NAMES[error.param]
        raise
    job = make_job(response_id, [only], params, generation, request, front)
    return Call(
        body=body,
        front=front,
        job=job,
        prompt=prompt,
        before=before,
        messages=builder.messages,
        continued=continued,
        stored=stored,
        tools=tools,
        logprobs=None if top is None else _logprobs(top, front),
        output=output,
        reasoning=_reasoning(output, params, front),
        response=ResponseObject(
            response_id,
            int(time.time()),
            front.served_names[0],
            body,
            params,
            only.max_tokens,
            tools,
        ),
    )


def _stored(body: ResponsesRequest, front: FrontContext) -> bool:
    """Whether the response is kept; rules between `store`, `background` and the server."""
    if body.prompt is not None:
        raise SchemaViolation("prompt templates are not supported.", "prompt")
    wanted = body.store is not False
    if body.background and not wanted:
        raise SchemaViolation("background needs store=true.", "background")
    kept = wanted and front.config.front.enable_responses_store
    if body.background and not kept:
        raise ResponseRefused(
            "background needs stored responses, which this server does not keep; start it with "
            "VLLM_ENABLE_RESPONSES_API_STORE=1.",
            "background",
        )
    return kept


def _response_id(request: Request, body_id: str | None) -> str:
    """The header's id, else the body's, else a random one; always after `resp_`."""
    if body_id is not None and len(body_id) > LONGEST_REQUEST_ID:
        raise InvalidRequest(
            f"request_id must have at most {LONGEST_REQUEST_ID} characters.", "request_id"
        )
    given = given_request_id(request) or body_id or uuid.uuid4().hex
    return given if given.startswith(PREFIX) else PREFIX + given


async def _before(body: ResponsesRequest, front: FrontContext) -> Conversation:
    """The conversation that the request goes on with."""
    if body.previous_response_id is not None:
        previous = await find_response(body.previous_response_id, front, conversation=True)
        if not previous.finished:
            raise ResponseRefused(
                f"Response '{previous.id[:80]}' is still being generated.", "previous_response_id"
            )
        return previous.conversation
    given = body.previous_input_messages or []
    messages = [
        convert_json(message, ChatMessage, f"body.previous_input_messages.{index}")
        for index, message in enumerate(given)
    ]
    return Conversation(tuple(messages), sum(len(str(message)) for message in given))


def _tool_use(body: ResponsesRequest, tools: ToolSet, front: FrontContext) -> ToolUse:
    """What the request wants of its tools."""
    use = tool_use(tools.choice, tools.offered or None, front.parsers)
    if use.mode == "named" and body.structured_outputs is not None:
        raise InvalidRequest(
            "structured_outputs and a tool_choice that names a function cannot both constrain the "
            "output.",
            "structured_outputs",
        )
    return use


def _template_fields(
    body: ResponsesRequest, messages: list[ChatMessage], tools: ToolSet, continued: bool
) -> TemplateFields:
    first = []
    if body.instructions:
        first.append(ChatMessage(role="system", content=body.instructions))
    return TemplateFields(
        messages=[*first, *messages],
        tools=tools.offered or None,
        add_generation_prompt=not continued,
        continue_final_message=continued,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        mm_processor_kwargs=body.mm_processor_kwargs,
        media_io_kwargs=body.media_io_kwargs,
    )


def _response_format(body: ResponsesRequest) -> ResponseFormat | None:
    """`text.format` in chat's form."""
    form = None if body.text is None else body.text.format
    if form is None:
        return None
    if body.structured_outputs is not None:
        raise InvalidRequest("text.format and structured_outputs cannot both be given.", "text")
    if form.type != "json_schema":
        return ResponseFormat(type=form.type)
    schema = JsonSchemaFormat(name=form.name, schema=form.schema, strict=form.strict)
    converted = ResponseFormat(type=form.type, json_schema=schema)
    try:
        constraint_of(converted, None)
    except InvalidRequest as error:
        text = str(error).replace("response_format.json_schema", "text.format.schema")
        raise InvalidRequest(text.replace("response_format", "text.format"), "text") from None
    return converted


def _top_logprobs(body: ResponsesRequest, front: FrontContext) -> int | None:
    """Logprobs to ask the engine for; None = off."""
    top = body.top_logprobs or 0
    most = front.config.model.max_logprobs
    if top < -1 or (most >= 0 and not 0 <= top <= most):
        raise InvalidRequest(f"top_logprobs must be from 0 to {most}, got {top}.", "top_logprobs")
    return top if body.wants_logprobs or body.logprobs_detail else None


def _reasoning(
    output: OutputPlan, params: SamplingParams, front: FrontContext
) -> ReasoningCounter | None:
    if output.reasoning_parser is None:
        return None
    thinking = params.thinking or thinking_of(front, output, None, constrained=False)
    return ReasoningCounter(output, thinking, front.tokenizer, 1)


def _logprobs(top: int, front: FrontContext) -> ChatLogprobs:
    as_ids = front.config.front.return_tokens_as_token_ids
    return ChatLogprobs(TokenNames(front.tokenizer, as_ids), top)
