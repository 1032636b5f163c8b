"""The four forms of a completion prompt: text, texts, token ids, lists of token ids."""

from ortloom.errors import InvalidRequest, SchemaViolation

Prompt = str | list[int]


def parse_prompts(prompt: object, max_prompts: int) -> list[Prompt]:
    """The prompts of a completion request.

    A list of integers is one prompt; a list of strings or of integer lists is many.

    Raises:
        InvalidRequest: missing, empty, or more than `max_prompts`.
        SchemaViolation: neither form; `param` names the place.
    """
    if prompt is None:
        raise InvalidRequest("Either prompt or prompt_embeds must be given.", "prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _unfit("body.prompt", prompt)
    if not prompt:
        raise InvalidRequest("The prompt must not be empty: prompt is an empty list.")
    if isinstance(prompt[0], int) and not isinstance(prompt[0], bool):
        return [_token_ids(prompt, "body.prompt")]
    if len(prompt) > max_prompts:
        raise InvalidRequest(
            f"prompt has {len(prompt)} entries; at most {max_prompts} are allowed."
        )
    if isinstance(prompt[0], str):
        for i, text in enumerate(prompt):
            if not isinstance(text, str):
                raise _unfit(f"body.prompt.{i}", text)
        return list(prompt)
    parsed: list[Prompt] = []
    for i, ids in enumerate(prompt):
        if not isinstance(ids, list):
            raise _unfit(f"body.prompt.{i}", ids)
        if not ids:
            raise InvalidRequest(f"The prompt must not be empty: prompt[{i}] is an empty list.")
        parsed.append(_token_ids(ids, f"body.prompt.{i}"))
    return parsed


def _token_ids(ids: list[object], where: str) -> list[int]:
    checked: list[int] = []
    for i, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool):
            raise _unfit(f"{where}.{i}", token)
        if token < 0:
            raise SchemaViolation(f"{where}.{i}: a token id must be at least 0.", f"{where}.{i}")
        checked.append(token)
    return checked


def _unfit(where: str, value: object) -> SchemaViolation:
    forms = "a string, a list of strings, a list of token ids, or a list of such lists"
    return SchemaViolation(f"{where}: the prompt must be {forms}.", where)
