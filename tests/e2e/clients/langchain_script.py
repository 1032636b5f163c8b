"""LangChain's OpenAI classes against a server: URL KEY MODEL -> one line of JSON."""

import json
import sys

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

URL, KEY, MODEL = sys.argv[1:]


class Answer(BaseModel):
    """A city and its country."""

    city: str
    capital: bool


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"It is fine in {city}."


chat = ChatOpenAI(
    base_url=f"{URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=24, max_retries=0
)
question = [SystemMessage("Be brief."), HumanMessage("What is the capital of France?")]
whole = chat.invoke(question)
parts = list(chat.stream(question, stream_usage=True))
joined = parts[0]
for part in parts[1:]:
    joined += part
batch = chat.batch([question, [HumanMessage("Say hi.")]])
scored = chat.bind(logprobs=True, top_logprobs=2).invoke(question)
answer = chat.with_structured_output(Answer, method="json_schema").invoke(question)
forced = chat.bind_tools([get_weather], tool_choice="any").invoke("How is Oslo today?")
named = chat.bind_tools([get_weather], tool_choice="get_weather").invoke("How is Oslo today?")
history = [
    HumanMessage("How is Oslo today?"),
    AIMessage("", tool_calls=forced.tool_calls),
    ToolMessage("It is fine.", tool_call_id=forced.tool_calls[0]["id"]),
]
after = chat.invoke(history)
completion = OpenAI(
    base_url=f"{URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=8, max_retries=0
)
text = completion.invoke("The capital of France is")
streamed = "".join(completion.stream("The capital of France is"))

print(
    json.dumps(
        {
            "whole": whole.content,
            "usage": whole.usage_metadata,
            "finish": whole.response_metadata["finish_reason"],
            "streamed": joined.content,
            "streamed_usage": joined.usage_metadata,
            "batch": [message.content for message in batch],
            "scored": scored.response_metadata["logprobs"]["content"],
            "answer": answer.model_dump(),
            "forced": forced.tool_calls,
            "named": named.tool_calls,
            "after": after.content,
            "text": text,
            "text_streamed": streamed,
        }
    )
)
