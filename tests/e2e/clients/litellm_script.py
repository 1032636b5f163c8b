"""LiteLLM against a server: URL KEY MODEL -> one line of JSON."""

import json
import sys

import litellm

URL, KEY, MODEL = sys.argv[1:]

OPENAI = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY}
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


whole = litellm.completion(**OPENAI, messages=QUESTION, temperature=0, max_tokens=12)
chunks = litellm.completion(**OPENAI, messages=QUESTION, temperature=0, max_tokens=12, stream=True)
streamed = text_of(chunks)
forced = litellm.completion(
    **OPENAI,
    messages=[{"role": "user", "content": "How is Oslo today?"}],
    tools=[TOOL],
    tool_choice="required",
    temperature=0,
    max_tokens=48,
)
completion = litellm.text_completion(
    model=f"hosted_vllm/{MODEL}",
    api_base=f"{URL}/v1",
    api_key=KEY,
    prompt="The capital of France is",
    temperature=0,
    max_tokens=8,
)
try:
    litellm.completion(
        **{**OPENAI, "model": "hosted_vllm/nobody"}, messages=QUESTION, num_retries=0
    )
    refused = None
except litellm.NotFoundError as error:
    refused = error.status_code

# the Messages API; the key goes as a bearer token
MESSAGES = {
    "model": f"anthropic/{MODEL}",
    "api_base": URL,
    "api_key": KEY,
    "extra_headers": {"authorization": f"Bearer {KEY}"},
}
message = litellm.completion(**MESSAGES, messages=QUESTION, temperature=0, max_tokens=12)
message_chunks = litellm.completion(
    **MESSAGES, messages=QUESTION, temperature=0, max_tokens=12, stream=True
)

print(
    json.dumps(
        {
            "whole": whole.choices[0].message.content,
            "usage": [whole.usage.prompt_tokens, whole.usage.completion_tokens],
            "streamed": streamed,
            "call": forced.choices[0].message.tool_calls[0].function.model_dump(),
            "completion": completion.choices[0].text,
            "refused": refused,
            "message": message.choices[0].message.content,
            "message_finish": message.choices[0].finish_reason,
            "message_usage": [message.usage.prompt_tokens, message.usage.completion_tokens],
            "message_streamed": text_of(message_chunks),
        }
    )
)
