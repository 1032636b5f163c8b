"""Bodies of POST /tokenize (prompt form; the chat form is `TemplateFields`) and /detokenize."""

from typing import Annotated, Any

import msgspec


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """What both forms share, and the text of the prompt form."""

    model: str | None = None
    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to decode."""

    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    model: str | None = None


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Token ids, and the tokens as the vocabulary writes them if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """The text."""

    prompt: str
